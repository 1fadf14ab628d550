"""From one Gram matrix of score vectors to the spectra of every formulation and group size, without a backward pass.

The gradient row of rollout i is A_i s_i, so the Gram matrix of gradient rows is diag(A) K diag(A): exchanging the
advantage, or regrouping a group of 8 into four groups of 2, is arithmetic on K. The KL part of the trainer's objective
is left out here, because it does not scale with the advantage; `replay` counts it in.

Shapes: R rollouts of a step, G rollouts of a part, n parts of one size, N rows of a matrix, P parameters.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gradscope.advantages.registry import LOGGED
from gradscope.diagnostics.rank.null_values import mean_null_ranks, null_values
from gradscope.diagnostics.rank.rollouts.curve_point import curve_point
from gradscope.diagnostics.rank.rollouts.part_stack import PartStack
from gradscope.diagnostics.rank.rollouts.step_rows import StepRows
from gradscope.diagnostics.rank.rollouts.sub_groups import (
    SubGroup,
    advantages_of,
    baseline_weights_of,
    by_size,
    sub_groups,
)
from gradscope.diagnostics.rank.spectrum import spectrum_of
from gradscope.estimate import Estimate
from gradscope.metrics.gram.geometry import row_norms
from gradscope.metrics.gram.spectrum import Array
from gradscope.results.rank import GradientSpectrum, RowKind, SpectrumLabel
from gradscope.results.ranks.curves import RankCurvePoint


def step_spectra(
    rows: StepRows,
    advantage: str,
    group_size: int | None,
    *,
    by_group: bool,
    centered: bool = False,
    only: Collection[str] | None = None,
) -> tuple[list[GradientSpectrum], list[RankCurvePoint]]:
    """All spectra of one step for one advantage and one group size.

    Args:
        group_size: Regroup into groups of this size; None: as logged.
        by_group: Whether rows of the step's matrix are whole groups (sums over their rollouts) rather than rollouts.
        only: The groups whose ranks are averaged, each weighing the same; None: all, each part weighing the same.

    Returns:
        The step's spectrum followed by one per (sub-)group, and the averages over (sub-)groups, one per group size:
        ranks of matrices of different size are not averaged. Both empty where no group is large enough.
    """
    parts = sub_groups(rows, group_size)
    if not parts:
        return [], []
    weights = advantages_of(rows, parts, advantage)
    step = _AdvantagedStep(rows=rows, advantage=advantage, centered=centered, parts=parts, weights=weights)
    # at sub-sampled sizes the whole step's rows are nearly the same rows, so its nulls are given once
    whole = step.whole_step(by_group, with_nulls=group_size is None)
    if by_group:
        return [whole], []
    chosen = step if only is None else step.of_groups(only)
    stacks = chosen.stacks()
    spectra = {id(part): spectrum for stack in stacks for part, spectrum in chosen.spectra(stack)}
    curve = [curve_point(stack, step=rows.step, advantage=advantage, by_group=only is not None) for stack in stacks]
    return [whole, *(spectra[id(part)] for part in chosen.parts)], curve


@dataclass(frozen=True, slots=True, kw_only=True)
class _AdvantagedStep:
    """One step under one advantage, in parts."""

    rows: StepRows
    advantage: str
    centered: bool
    parts: list[SubGroup]
    weights: list[Array]

    def of_groups(self, group_ids: Collection[str]) -> _AdvantagedStep:
        """The parts of some groups alone, under the advantages that they have in the step."""
        kept = [place for place, part in enumerate(self.parts) if part.group_id in group_ids]
        return replace(
            self, parts=[self.parts[place] for place in kept], weights=[self.weights[place] for place in kept]
        )

    @property
    def is_scalar(self) -> bool:
        """Whether each rollout has one advantage."""
        return self.advantage != LOGGED or self.rows.advantages is not None

    def gradients(self, index: NDArray[np.intp], weights: Array) -> Array:
        """Gram matrices of gradient rows at [..., N] rows of the step, [..., N, N]."""
        square = (index[..., :, None], index[..., None, :])
        if self.advantage == LOGGED and self.rows.policy_gram is not None:
            return np.asarray(self.rows.policy_gram[square], dtype=np.float64)
        return np.asarray(weights[..., :, None] * self.rows.gram[square] * weights[..., None, :], dtype=np.float64)

    def stacks(self) -> list[PartStack]:
        """The parts by size."""
        baseline_weights = baseline_weights_of(self.rows, self.advantage)
        stacks = []
        for chosen in by_size(self.parts):
            index = np.stack([self.parts[position].index for position in chosen])
            weights = np.stack([self.weights[position] for position in chosen])
            stacks.append(
                PartStack(
                    parts=tuple(self.parts[position] for position in chosen),
                    scores=self.rows.gram[index[:, :, None], index[:, None, :]],
                    baseline_weights=baseline_weights[index],
                    gradients=self.gradients(index, weights),
                    weights=weights,
                    rewards=self.rows.rewards[index],
                    is_scalar=self.is_scalar,
                    num_columns=self.rows.num_parameters,
                    centered=self.centered,
                )
            )
        return stacks

    def spectra(self, stack: PartStack) -> list[tuple[SubGroup, GradientSpectrum]]:
        """One spectrum a part."""
        return [
            (part, self._spectrum(gram, len(part.index), values=values, group_id=part.group_id, samples=part.samples))
            for part, gram, values in zip(stack.parts, stack.gradients, stack.values, strict=True)
        ]

    def whole_step(self, by_group: bool, *, with_nulls: bool) -> GradientSpectrum:
        """The spectrum of all rows of the step, or of the sums over its groups."""
        index, weights = np.concatenate([part.index for part in self.parts]), np.concatenate(self.weights)
        gram = self.gradients(index, weights)
        if by_group:
            sums = _group_sums(self.parts)
            gram = sums @ gram @ sums.T
        return self._spectrum(
            gram,
            max(len(part.index) for part in self.parts),
            rows="group" if by_group else "rollout",
            nulls=self._whole_nulls(by_group) if with_nulls else None,
        )

    def _spectrum(
        self,
        gram: Array,
        group_size: int,
        *,
        rows: RowKind = "rollout",
        group_id: str | None = None,
        samples: tuple[int, ...] = (),
        values: Array | None = None,
        nulls: Mapping[str, Estimate] | None = None,
    ) -> GradientSpectrum:
        label = SpectrumLabel(
            step=self.rows.step,
            group_id=group_id,
            rows=rows,
            advantage=self.advantage,
            group_size=group_size,
            samples=samples,
            shape=(len(gram), self.rows.num_parameters),
            centered=self.centered,
        )
        return spectrum_of(gram, label, relative_row_error=self.rows.relative_row_error, values=values, nulls=nulls)

    def _whole_nulls(self, by_group: bool) -> Mapping[str, Estimate]:
        """Effective rank under each null, on the live groups: a dead group's score vectors are no gradient."""
        live = [position for position, weights in enumerate(self.weights) if np.any(weights != 0)]
        if not live:
            return mean_null_ranks({})
        parts = [self.parts[position] for position in live]
        index, weights = np.concatenate([p.index for p in parts]), np.concatenate([self.weights[p] for p in live])
        gram, sums = self.gradients(index, weights), _group_sums(parts) if by_group else None
        values = null_values(
            self.rows.gram[np.ix_(index, index)][None],
            row_norms(gram if sums is None else sums @ gram @ sums.T)[None],
            weights[None] if self.is_scalar else None,
            np.repeat(np.arange(len(parts)), [len(part.index) for part in parts])[None],
            num_columns=self.rows.num_parameters,
            centered=self.centered,
            sums=sums,
        )
        return mean_null_ranks(values, num_units=len(parts))


def _group_sums(parts: list[SubGroup]) -> Array:
    """Adds the rollouts of each part up, [J, R]."""
    return np.asarray(np.repeat(np.eye(len(parts)), [len(part.index) for part in parts], axis=1), dtype=np.float64)
