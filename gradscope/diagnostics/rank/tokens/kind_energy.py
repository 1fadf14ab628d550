"""How the energy of a step's token gradients is spread over kinds of tokens, group by group.

Energy is the sum of |v_t grad log pi|^2, v_t what the loss multiplies grad log pi of a token by. It takes the rows of
the tokens and a forward pass for their entropies, and no further gradient; the step's own and that of its entropy are
measured beside it.

Shapes: N tokens that count, J groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gradscope.diagnostics.inputs.row_questions import RowQuestion
from gradscope.diagnostics.rank.tokens.parts_question import WeighedTokens, weigh_step
from gradscope.metrics.gram.spectrum import Array
from gradscope.metrics.sampler.token_cells import TokenCell, token_cells
from gradscope.progress import ProgressCallback, no_progress

if TYPE_CHECKING:
    from gradscope.gradients.plan.prepared_step import PreparedStep
    from gradscope.gradients.step.step_gram import StepGram
    from gradscope.gradients.tokens.measure import TokenGram
    from gradscope.gradients.tokens.sums import CountedTokens

UNDECIDED = TokenCell(entropy="top_fifth")
"""Tokens at which the policy's entropy is among the highest fifth of the step's."""
UNLIKELY = TokenCell(probability=0)
"""Tokens of low probability."""
KINDS = (UNDECIDED, UNLIKELY)
"""The kinds that are followed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KindEnergy:
    """The tokens of one kind beside all that count."""

    step: int
    """The trainer's step."""
    kind: TokenCell
    """Which tokens."""
    tokens: Array
    """How many of the kind, [J]."""
    all_tokens: Array
    """How many that count, [J]."""
    energy: Array
    """Of the kind, [J]."""
    all_energy: Array
    """Of all, [J]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyQuestion:
    """Rows that are tokens, what is known of every token that counts, and which way the step moves its entropy."""

    rows: RowQuestion
    """What is asked of the rows."""

    def measure(
        self, prepared: PreparedStep, gram: StepGram, progress: ProgressCallback = no_progress
    ) -> tuple[tuple[Any, ...], WeighedTokens | None]:
        """Both; None for the tokens where advantages were not logged or the gradient is zero."""
        return self.rows.measure(prepared, gram, progress), weigh_step(prepared, gram, progress)


def kind_energies(step: int, tokens: CountedTokens, grams: Sequence[TokenGram]) -> tuple[KindEnergy, ...]:
    """The energy of each kind, one that no token is of among them.

    Args:
        grams: The Gram matrices of token rows; where tokens were drawn, each stands for as many as were left out.

    Returns:
        One for each of :data:`KINDS`.
    """
    cells, energy = token_cells(tokens.advantages, tokens.logprobs, tokens.entropies), token_energy(tokens, grams)
    ones, found = np.ones(len(energy)), []
    for kind in KINDS:
        mask = np.zeros(len(energy), dtype=bool)
        for cell, inside in cells.items():
            mask |= inside & kind.holds(cell)
        found.append(
            KindEnergy(
                step=step,
                kind=kind,
                tokens=by_group(tokens, ones * mask),
                all_tokens=by_group(tokens, ones),
                energy=by_group(tokens, energy * mask),
                all_energy=by_group(tokens, energy),
            )
        )
    return tuple(found)


def token_energy(tokens: CountedTokens, grams: Sequence[TokenGram]) -> Array:
    """|v_t grad log pi|^2 of each token that was measured, times how many it stands for, and 0 of the others.

    Returns:
        One a token, [N].
    """
    places = {pair: at for at, pair in enumerate(zip(tokens.rollouts.tolist(), tokens.positions.tolist(), strict=True))}
    energy = np.zeros(len(places))
    for gram in grams:
        stands_for = gram.table.num_tokens / len(gram.table.rows)
        for row, square in zip(gram.table.rows, np.clip(np.diag(gram.gram), 0.0, None).tolist(), strict=True):
            at = places[row.sequence, row.position]
            energy[at] = stands_for * square * tokens.weights[at] ** 2
    return energy


def by_group(tokens: CountedTokens, values: Array) -> Array:
    """What each group adds to a sum over tokens, [J]."""
    return np.asarray(np.bincount(tokens.groups, values, minlength=tokens.num_groups), dtype=np.float64)
