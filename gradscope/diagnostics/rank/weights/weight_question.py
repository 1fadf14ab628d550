"""What ``--rows weight`` asks of a step: the gradient of the whole step, and that of every group under every advantage.

Shapes: V combinations of the rollouts of a group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradscope.diagnostics.rank.request import RankRequest
from gradscope.diagnostics.rank.rollouts.step_rows import StepRows, step_rows
from gradscope.diagnostics.rank.rollouts.sub_groups import advantages_of, sub_groups
from gradscope.diagnostics.rank.weights.group_combinations import AdvantagedPart, CombinedGroup, combine_groups
from gradscope.errors import GradscopeError
from gradscope.progress import ProgressCallback, no_progress

if TYPE_CHECKING:
    from gradscope.gradients.plan.prepared_step import PreparedStep
    from gradscope.gradients.step.directions import WeightSpectrum
    from gradscope.gradients.step.group_weights import GroupWeightRanks
    from gradscope.gradients.step.step_gram import StepGram


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightAnswer:
    """Spectra and ranks of dL/dW at one step."""

    spectra: tuple[WeightSpectrum, ...]
    """Of the whole step as the optimizer saw it; none where no advantage was logged."""
    groups: tuple[CombinedGroup, ...]
    """What was asked of each group."""
    ranks: tuple[GroupWeightRanks, ...]
    """What was found, by group and weight."""
    refused: Mapping[str, str]
    """Formulations that these rollouts do not have, with the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightQuestion:
    """Rows are those of each weight's gradient."""

    request: RankRequest
    """The advantages and group sizes."""

    def measure(
        self, prepared: PreparedStep, gram: StepGram, progress: ProgressCallback = no_progress
    ) -> tuple[WeightAnswer]:
        """The spectra of the step and the ranks of its groups."""
        from gradscope.gradients.step.directions import measure_weight_spectra
        from gradscope.gradients.step.group_weights import measure_group_weights

        refused: dict[str, str] = {}
        asked = _asked(step_rows(gram), self.request, refused)
        groups = combine_groups(asked, by_token=any(row.channel == "logged" for row in gram.rows))
        live = [group.combinations for group in groups if len(group.combinations.factors)]
        ranks = measure_group_weights(prepared, gram, live, progress=progress)
        logged = all(advantages is not None for advantages in prepared.plan.advantages)
        spectra = measure_weight_spectra(prepared, progress) if logged else ()
        return (WeightAnswer(spectra=spectra, groups=groups, ranks=ranks, refused=refused),)


def _asked(rows: StepRows, request: RankRequest, refused: dict[str, str]) -> list[AdvantagedPart]:
    """Every part of every group under every advantage, but for what these rollouts do not have."""
    asked = []
    for advantage in request.advantages:
        try:
            chosen = request.groups(rows, advantage)
            for size in request.sizes(rows, advantage):
                parts = sub_groups(rows, size)
                for part, weights in zip(parts, advantages_of(rows, parts, advantage), strict=True):
                    if chosen is None or part.group_id in chosen:
                        asked.append(AdvantagedPart(advantage=advantage, part=part, weights=weights))
        except GradscopeError as error:
            refused[advantage] = error.message
    return asked
