"""What is measured of a step's tokens beside their ranks: sums of their gradients, and the energy of each kind.

Energy is the sum of |v_t grad log pi|^2, v_t what the loss multiplies grad log pi of a token by. It takes the rows of
the tokens and a forward pass for their entropies, and no further gradient.

Shapes: N tokens that count, V weightings, J groups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gradscope.diagnostics.inputs.row_questions import RowQuestion
from gradscope.metrics.gram.part_sums import products_without, usable
from gradscope.metrics.gram.spectrum import Array
from gradscope.metrics.sampler import UNDECIDED, UNLIKELY, TokenCell, token_cells
from gradscope.progress import ProgressCallback, no_progress

if TYPE_CHECKING:
    from gradscope.gradients.plan.prepared_step import PreparedStep
    from gradscope.gradients.step.step_gram import StepGram
    from gradscope.gradients.tokens.measure import TokenGram
    from gradscope.gradients.tokens.sums import CountedTokens


MOST_TURNS = 8  # turns with a row of their own; later ones are in the last
MOST_KL_TOKENS = 10  # tokens far from the reference that are listed
ENTROPY = "entropy"  # the weighting whose sum is the gradient of the mean entropy

_Label = tuple[str, object]  # of which kind a weighting is, and which one of its kind


@dataclass(frozen=True, slots=True, kw_only=True)
class WeighedTokens:
    """The tokens of a step, and the sums of their gradients."""

    tokens: CountedTokens  # the tokens, [N]
    texts: Mapping[int, str]  # of the tokens with the largest k3: place among the tokens -> text
    labels: tuple[_Label, ...]  # what each sum is, [V]
    cells: Mapping[TokenCell, NDArray[np.bool_]]  # which tokens are in each cell
    factors: Mapping[str, Array]
    """What each correction multiplies the tokens by, [N]; empty where the sampler's log-probabilities are not known."""
    by_sequence: frozenset[str]  # the corrections that have one factor for all tokens of a rollout
    products: Array  # inner products of the sums, over all groups and without each, [1 + J, V, V]

    def chosen(self, kind: str, *names: object) -> Array:
        """Which sums are of a kind and, where names are given, one of them, as 0 and 1, [V]."""
        return np.array([label == kind and (not names or name in names) for label, name in self.labels], dtype=float)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartsQuestion:
    """Rows that are tokens, and the gradient by kinds of tokens, turns and corrections."""

    rows: RowQuestion  # what is asked of the rows

    def measure(
        self, prepared: PreparedStep, gram: StepGram, progress: ProgressCallback = no_progress
    ) -> tuple[tuple[Any, ...], WeighedTokens | None]:
        """Both; None for the sums where advantages were not logged or the gradient is zero."""
        from gradscope.gradients.tokens.sums import counted_tokens

        rows, tokens = self.rows.measure(prepared, gram, progress), counted_tokens(prepared, gram)
        if tokens is None:
            return rows, None
        cells = token_cells(tokens.advantages, tokens.logprobs, tokens.entropies)
        return rows, _weighed(prepared, gram, tokens, cells, _factors(prepared, tokens), progress)


def weigh_step(
    prepared: PreparedStep, gram: StepGram, progress: ProgressCallback = no_progress
) -> WeighedTokens | None:
    """The tokens of a step in one cell, its turns and its entropy; None without logged advantages or a gradient."""
    # Two backward passes a group where it has no turns.
    from gradscope.gradients.tokens.sums import counted_tokens

    tokens = counted_tokens(prepared, gram)
    if tokens is None:
        return None
    cells = {TokenCell(): np.ones(len(tokens.groups), dtype=bool)}
    return _weighed(prepared, gram, tokens, cells, ({}, frozenset()), progress)


def _weighed(
    prepared: PreparedStep,
    gram: StepGram,
    tokens: CountedTokens,
    cells: Mapping[TokenCell, NDArray[np.bool_]],
    corrections: tuple[Mapping[str, Array], frozenset[str]],
    progress: ProgressCallback,
) -> WeighedTokens:
    from gradscope.gradients.tokens.sums import measure_token_sums

    factors, by_sequence = corrections
    masks: dict[_Label, NDArray[np.bool_]] = {("cell", cell): mask for cell, mask in cells.items()}
    masks |= {("turn", turn): mask for turn, mask in turn_masks(tokens).items()}
    weightings = {label: np.where(mask, tokens.weights, 0.0) for label, mask in masks.items()}
    weightings |= {("correction", name): values * tokens.plain for name, values in usable(factors).items()}
    weightings[ENTROPY, None] = np.full(len(tokens.groups), 1.0 / len(tokens.groups))
    labels = tuple(weightings)
    of_entropy = np.array([kind == ENTROPY for kind, _ in labels])
    sums = measure_token_sums(prepared, tokens, np.stack(list(weightings.values())), of_entropy, progress=progress)
    found = WeighedTokens(
        tokens=tokens,
        texts=_texts(prepared, tokens),
        labels=labels,
        cells=cells,
        factors=factors,
        by_sequence=by_sequence,
        products=products_without(sums),
    )
    _verify(prepared, gram, found)
    return found


def turn_masks(tokens: CountedTokens) -> dict[int, NDArray[np.bool_]]:
    """Which tokens are of each turn, from 1; the last holds what is beyond it. Empty where no rollout has two."""
    last = int(tokens.turns.max())
    if last == 0:
        return {}
    turns = np.minimum(tokens.turns, MOST_TURNS - 1)
    return {int(turn) + 1: turns == turn for turn in np.unique(turns)}


def _factors(prepared: PreparedStep, tokens: CountedTokens) -> tuple[dict[str, Array], frozenset[str]]:
    """What each correction multiplies the tokens by, and which are of sequences."""
    from gradscope.gradients.tokens.sums import CORRECTIONS, corrected

    if tokens.sampler is None:
        return {}, frozenset()
    own = prepared.plan.objective.correction
    asked = CORRECTIONS if own is None or own in CORRECTIONS.values() else {**CORRECTIONS, "trained": own}
    factors = {name: corrected(tokens, tokens.sampler, correction) for name, correction in asked.items()}
    return factors, frozenset(name for name, one in asked.items() if one and one.by_sequence)


def k3_of(tokens: CountedTokens) -> Array:
    """k3 of each token, [N], of a step with a reference."""
    assert tokens.reference is not None, "the caller looks before"
    gap = tokens.reference - tokens.logprobs
    return np.asarray(np.expm1(gap) - gap)


def _texts(prepared: PreparedStep, tokens: CountedTokens) -> dict[int, str]:
    from gradscope.gradients.tokens.measure import token_text

    if tokens.reference is None:
        return {}
    sequences, texts = prepared.plan.sequences, {}
    for place in np.argsort(-k3_of(tokens), kind="stable")[:MOST_KL_TOKENS].tolist():
        token = sequences[int(tokens.rollouts[place])].completion_ids[int(tokens.positions[place])]
        texts[place] = token_text(prepared.policy.tokenizer, token)
    return texts


def _verify(prepared: PreparedStep, gram: StepGram, found: WeighedTokens) -> None:
    """The cells must add up to the step's gradient."""
    from gradscope.gradients.step.verify import require_agreement, tolerance

    assert gram.policy_gram is not None, "the caller looks before"
    cells = found.chosen("cell")
    added, expected = float(cells @ found.products[0] @ cells), float(gram.policy_gram.sum())
    scale = max(expected, float(np.trace(gram.policy_gram)) / len(gram.policy_gram))
    limit = tolerance(prepared.policy.dtype, tf32=gram.tf32)
    require_agreement("The sums of tokens disagree with the step's Gram matrix", abs(added - expected) / scale, limit)


KINDS = (UNDECIDED, UNLIKELY)  # the kinds that are followed


@dataclass(frozen=True, slots=True, kw_only=True)
class KindEnergy:
    """The tokens of one kind beside all that count."""

    step: int
    kind: TokenCell  # which tokens
    tokens: Array  # how many of the kind, [J]
    all_tokens: Array  # how many that count, [J]
    energy: Array  # of the kind, [J]
    all_energy: Array  # of all, [J]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyQuestion:
    """Rows that are tokens, what is known of every token that counts, and which way the step moves its entropy."""

    rows: RowQuestion  # what is asked of the rows

    def measure(
        self, prepared: PreparedStep, gram: StepGram, progress: ProgressCallback = no_progress
    ) -> tuple[tuple[Any, ...], WeighedTokens | None]:
        """Both; None for the tokens where advantages were not logged or the gradient is zero."""
        return self.rows.measure(prepared, gram, progress), weigh_step(prepared, gram, progress)


def kind_energies(step: int, tokens: CountedTokens, grams: Sequence[TokenGram]) -> tuple[KindEnergy, ...]:
    """The energy of each of the kinds that are followed, one that no token is of among them."""
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
    """|v_t grad log pi|^2 of each measured token, times how many it stands for, and 0 of the others, [N]."""
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
