"""Measurements of a step's tokens other than ranks: energy by kind, sums of gradients, and changes by later weights.

Changes are those that training made up to the next checkpoint on disk.
Energy is the sum of |v_t grad log pi|^2, v_t what the loss multiplies grad log pi of a token by. It takes the rows of
the tokens and a forward pass for their entropies, and no further gradient.

Shapes: N tokens that count, V weightings, J groups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from gradscope.errors import InputError
from gradscope.estimate import Estimate
from gradscope.gradients.engine_options import EngineOptions
from gradscope.metrics.gram.part_sums import ANY, jackknifed_on, left_out_sums, over_steps, products_without, usable
from gradscope.metrics.gram.spectrum import Array
from gradscope.metrics.sampler import UNDECIDED, UNLIKELY, TokenCell, token_cells
from gradscope.progress import ProgressCallback, no_progress
from gradscope.results.tokens import LogprobChange
from gradscope.rollouts.run import Run, WeightsRef

if TYPE_CHECKING:
    from gradscope.gradients.plan.prepared_step import PreparedStep
    from gradscope.gradients.step.step_gram import StepGram
    from gradscope.gradients.tokens.measure import TokenGram
    from gradscope.gradients.tokens.sums import CountedTokens


MAX_TURNS = 8  # turns with a row of their own; later ones are in the last
MAX_KL_TOKENS = 10  # tokens far from the reference that are listed
ENTROPY = "entropy"  # the weighting whose sum is the gradient of the mean entropy

_Label = tuple[str, object]  # of which kind a weighting is, and which one of its kind


class WeighedTokens(Struct, frozen=True, kw_only=True):
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


def weigh_step(
    prepared: PreparedStep, gram: StepGram, progress: ProgressCallback = no_progress, *, in_parts: bool = False
) -> WeighedTokens | None:
    """The tokens of a step, its turns and its entropy; ``in_parts`` by kind of token and under corrections, too.

    None without logged advantages or a gradient.
    """
    # Two backward passes a group where it has no turns, and no parts are asked for.
    from gradscope.gradients.tokens.sums import counted_tokens, measure_token_sums

    tokens = counted_tokens(prepared, gram)
    if tokens is None:
        return None
    cells = {TokenCell(): np.ones(len(tokens.groups), dtype=bool)}
    factors, by_sequence = dict[str, Array](), frozenset[str]()
    if in_parts:
        cells = token_cells(tokens.advantages, tokens.logprobs, tokens.entropies)
        factors, by_sequence = _factors(prepared, tokens)
    masks: dict[_Label, NDArray[np.bool_]] = {("cell", cell): mask for cell, mask in cells.items()}
    masks |= {("turn", turn): mask for turn, mask in turn_masks(tokens).items()}
    weightings = {label: np.where(mask, tokens.weights, 0.0) for label, mask in masks.items()}
    weightings |= {("correction", name): values * tokens.plain for name, values in usable(factors).items()}
    weightings[ENTROPY, None] = np.full(len(tokens.groups), 1.0 / len(tokens.groups))
    labels = tuple(weightings)
    of_entropy = np.array([kind == ENTROPY for kind, _ in labels])
    sums = measure_token_sums(prepared, tokens, np.stack(list(weightings.values())), of_entropy, progress=progress)
    weighed = WeighedTokens(
        tokens=tokens,
        texts=_texts(prepared, tokens),
        labels=labels,
        cells=cells,
        factors=factors,
        by_sequence=by_sequence,
        products=products_without(sums),
    )
    _verify(prepared, gram, weighed)
    return weighed


def turn_masks(tokens: CountedTokens) -> dict[int, NDArray[np.bool_]]:
    """Which tokens are of each turn, from 1; the last holds what is beyond it. Empty where no rollout has two."""
    last = int(tokens.turns.max())
    if last == 0:
        return {}
    turns = np.minimum(tokens.turns, MAX_TURNS - 1)
    return {int(turn) + 1: turns == turn for turn in np.unique(turns)}


def _factors(prepared: PreparedStep, tokens: CountedTokens) -> tuple[dict[str, Array], frozenset[str]]:
    """What each correction multiplies the tokens by, and which are of sequences."""
    from gradscope.gradients.tokens.sums import CORRECTIONS, corrected

    if tokens.sampler is None:
        return {}, frozenset()
    own = prepared.plan.objective.correction
    asked = CORRECTIONS if own is None or own in CORRECTIONS.values() else {**CORRECTIONS, "trained": own}
    factors = {name: corrected(tokens, tokens.sampler, correction) for name, correction in asked.items()}
    return factors, frozenset(name for name, correction in asked.items() if correction and correction.by_sequence)


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
    for index in np.argsort(-k3_of(tokens), kind="stable")[:MAX_KL_TOKENS].tolist():
        token = sequences[int(tokens.rollouts[index])].completion_ids[int(tokens.positions[index])]
        texts[index] = token_text(prepared.policy.tokenizer, token)
    return texts


def _verify(prepared: PreparedStep, gram: StepGram, weighed: WeighedTokens) -> None:
    """The cells must add up to the step's gradient."""
    from gradscope.gradients.step.verify import require_agreement, tolerance

    assert gram.policy_gram is not None, "the caller looks before"
    cells = weighed.chosen("cell")
    added, expected = float(cells @ weighed.products[0] @ cells), float(gram.policy_gram.sum())
    scale = max(expected, float(np.trace(gram.policy_gram)) / len(gram.policy_gram))
    limit = tolerance(prepared.policy.dtype, tf32=gram.tf32)
    require_agreement("The sums of tokens disagree with the step's Gram matrix", abs(added - expected) / scale, limit)


KINDS = (UNDECIDED, UNLIKELY)  # the kinds that are followed


class KindEnergy(Struct, frozen=True, kw_only=True):
    """The tokens of one kind, and all that can have a gradient."""

    step: int
    kind: TokenCell  # which tokens
    tokens: Array  # how many of the kind, [J]
    all_tokens: Array  # how many have an advantage, [J]
    energy: Array  # of the kind, [J]
    all_energy: Array  # of all, [J]


def kind_energies(step: int, tokens: CountedTokens, grams: Sequence[TokenGram]) -> tuple[KindEnergy, ...]:
    """The energy of each of the kinds that are followed, one that no token is of among them."""
    cells, energy = token_cells(tokens.advantages, tokens.logprobs, tokens.entropies), token_energy(tokens, grams)
    live, energies = has_advantage(tokens), []
    for kind in KINDS:
        mask = np.zeros(len(energy), dtype=bool)
        for cell, inside in cells.items():
            mask |= inside & kind.holds(cell)
        energies.append(
            KindEnergy(
                step=step,
                kind=kind,
                tokens=by_group(tokens, live * mask),
                all_tokens=by_group(tokens, live),
                energy=by_group(tokens, energy * mask),
                all_energy=by_group(tokens, energy),
            )
        )
    return tuple(energies)


def has_advantage(tokens: CountedTokens) -> Array:
    """1 where a token can have a gradient, 0 at those of dead groups, [N]."""
    return (np.abs(tokens.advantages) > 0).astype(np.float64)


def token_energy(tokens: CountedTokens, grams: Sequence[TokenGram]) -> Array:
    """|v_t grad log pi|^2 of each measured token, times how many it stands for, and 0 of the others, [N]."""
    index_of = {
        pair: at for at, pair in enumerate(zip(tokens.rollouts.tolist(), tokens.positions.tolist(), strict=True))
    }
    energy = np.zeros(len(index_of))
    for gram in grams:
        stands_for = gram.table.num_tokens / len(gram.table.rows)
        for row, square in zip(gram.table.rows, np.clip(np.diag(gram.gram), 0.0, None).tolist(), strict=True):
            at = index_of[row.sequence, row.position]
            energy[at] = stands_for * square * tokens.weights[at] ** 2
    return energy


def by_group(tokens: CountedTokens, values: Array) -> Array:
    """What each group adds to a sum over tokens, [J]."""
    return np.asarray(np.bincount(tokens.groups, values, minlength=tokens.num_groups), dtype=np.float64)


NO_LATER = "no weights after its update are on disk"


class TokenChange(Struct, frozen=True, kw_only=True):
    """The same tokens under later weights, minus under those that the step started from."""

    first: int  # updates that the earlier weights have had
    last: int  # updates that the later ones have had
    logprobs: Array  # change of each log-probability, [N]
    entropies: Array  # change of the policy's entropy where each was sampled, [N]


def token_changes(
    run: Run, tokens: Mapping[int, CountedTokens], options: EngineOptions
) -> tuple[dict[int, TokenChange], dict[int, str]]:
    """Step -> the change from its weights to the next checkpoint, and of the other steps why there is none."""
    # Two forward passes a step, with one model in memory at a time.
    changes, missing = {}, {}
    for step, counted in tokens.items():
        first, last = run.weights_before(step), run.weights_after(step)
        if first is None or last is None:
            missing[step] = NO_LATER
            continue
        try:
            before, after = (_outputs(run, step, weights, options, counted) for weights in (first, last))
        except InputError as error:
            missing[step] = error.message.rstrip(".")
            continue
        logprobs, entropies = after - before
        changes[step] = TokenChange(
            first=first.num_updates, last=last.num_updates, logprobs=logprobs, entropies=entropies
        )
    return changes, missing


def _outputs(run: Run, step: int, weights: WeightsRef, options: EngineOptions, tokens: CountedTokens) -> Array:
    """Log pi of the tokens and the entropies there, under some weights at the trainer's temperature, [2, N]."""
    from gradscope.diagnostics.inputs.recomputed import policy_of
    from gradscope.gradients.model.budget import TokenBudget, first_batch_tokens, names_out_of_memory
    from gradscope.gradients.plan.prepared_step import step_logprobs
    from gradscope.gradients.plan.trainers import objective_of

    with names_out_of_memory(f"step {step}"):
        policy = policy_of(run, weights, options)
        asked, fixed = options.batch_tokens or first_batch_tokens(policy), options.batch_tokens is not None
        budget = TokenBudget(asked, fixed=fixed, notice=options.notice)
        rows = step_logprobs(policy, run.groups_at(step), objective_of(run.settings), budget, entropies=True)
    both = [row.double().cpu().numpy().reshape(2, -1) for row in rows]
    starts = np.cumsum([0, *(row.shape[1] for row in both)])
    indices = starts[tokens.rollouts] + tokens.positions
    return np.asarray(np.concatenate(both, axis=1)[:, indices], dtype=np.float64)


_NOT_ALIKE = "no tokens of positive and of negative advantage are of like probability"
_BINS = 10  # bins of equal size by the policy's probability, within which tokens count as alike
_SIGNS = {"positive": 1.0, "negative": -1.0, "neither": 0.0}  # name -> sign of the advantage


def logprob_change(step: int, tokens: CountedTokens, change: TokenChange) -> LogprobChange:
    """Means over the tokens of each sign of the advantage, and the difference of the first two, raw and matched."""
    # Intervals leave out each group in turn; none where one group alone has such tokens.
    means = {name: _means(tokens, change.logprobs, sign) for name, sign in _SIGNS.items()}
    return LogprobChange(
        step=step,
        first=change.first,
        last=change.last,
        num_tokens=len(change.logprobs),
        **{name: _estimate(values) for name, values in means.items()},
        difference=_estimate(means["positive"] - means["negative"]),
        matched=matched_change([tokens], [change]),
    )


def matched_change(tokens: Sequence[CountedTokens], changes: Sequence[TokenChange]) -> Estimate:
    """The difference of tokens of positive and of negative advantage among those of one step and like probability."""
    # The mean over bins of the steps, weighed as least squares with a constant a bin weighs them.
    parts = [_matched(own, change.logprobs) for own, change in zip(tokens, changes, strict=True)]
    added, total = (over_steps([part[index] for part in parts]) for index in range(2))
    difference = np.divide(added, total, out=np.full(len(total), np.nan), where=total > 0)
    return _estimate(np.asarray(difference, dtype=np.float64), _NOT_ALIKE)


def _means(tokens: CountedTokens, change: Array, sign: float) -> Array:
    """The mean over the tokens of a sign, and without each group, [1 + J]; NaN without such tokens."""
    chosen = np.sign(tokens.advantages) == sign
    sums, counts = (
        left_out_sums(np.bincount(tokens.groups[chosen], values[chosen], minlength=tokens.num_groups))
        for values in (change, np.ones(len(change)))
    )
    return np.asarray(np.divide(sums, counts, out=np.full(len(sums), np.nan), where=counts > 0), dtype=np.float64)


def _matched(tokens: CountedTokens, change: Array) -> tuple[Array, Array]:
    """Summed differences of positive and negative tokens of like probability, and their weights, [1 + J] each."""
    # bins of equal size by log p, their differences weighed as least squares with a constant a bin weighs them
    seen = tokens.advantages != 0
    edges = np.quantile(tokens.logprobs[seen], np.arange(1, _BINS) / _BINS) if seen.any() else np.zeros(0)
    bins = np.searchsorted(edges, tokens.logprobs[seen], side="right")
    cells = (tokens.groups[seen] * _BINS + bins) * 2 + (tokens.advantages[seen] > 0)
    # [J, bins, 2] each, then the sums over all groups and without each
    shape = (tokens.num_groups, _BINS, 2)
    by_group = [
        np.bincount(cells, values, minlength=int(np.prod(shape))).reshape(shape)
        for values in (np.ones(len(bins)), change[seen])
    ]
    counts, sums = map(left_out_sums, by_group)
    both = np.all(counts > 0, axis=-1)
    means = np.divide(sums, counts, out=np.zeros(sums.shape), where=counts > 0)
    weights = np.divide(counts.prod(axis=-1), counts.sum(axis=-1), out=np.zeros(both.shape), where=both)
    total = weights.sum(axis=-1)
    added = (weights * (means[..., 1] - means[..., 0])).sum(axis=-1)
    return np.asarray(added, dtype=np.float64), np.asarray(total, dtype=np.float64)


def _estimate(values: Array, none: str = "no token of the step has such an advantage") -> Estimate:
    if not np.isfinite(values[0]):
        return Estimate.undefined_because(none, num_units=len(values) - 1)
    return jackknifed_on(values, ANY)
