"""Measurements of a step's tokens other than ranks, read off sums of their gradients and, of energy, off their rows.

By kinds of tokens, by turns, under corrections for the engine that sampled, and against the reference policy; which way
the step moves the entropy; and changes that training made up to the next checkpoint on disk. Energy is the sum of
|v_t grad log pi|^2, v_t what the loss multiplies grad log pi of a token by.

Shapes: N tokens that count, J groups, V weightings, the sums of whose gradients are taken, M units that a correction
multiplies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from gradscope.diagnostics.logged.metrics import first_logged
from gradscope.diagnostics.logged.tokens import METRICS
from gradscope.errors import InputError
from gradscope.estimate import Estimate
from gradscope.gradients.engine_options import EngineOptions
from gradscope.metrics.gram import part_sums
from gradscope.metrics.gram.geometry import share_of_largest
from gradscope.metrics.gram.part_sums import ANY, jackknifed_on, left_out_sums, over_steps, products_without, usable
from gradscope.metrics.gram.spectrum import Array
from gradscope.metrics.sampler import ENTROPIES, PROBABILITIES, SIGNS, UNDECIDED, UNLIKELY, TokenCell, token_cells
from gradscope.progress import ProgressCallback, no_progress
from gradscope.results import rank as results
from gradscope.rollouts.groups import Rollout, RolloutGroup
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
    weightings |= {("correction", name): values * tokens.on_policy_weights for name, values in usable(factors).items()}
    weightings[ENTROPY, None] = np.full(len(tokens.groups), 1.0 / len(tokens.groups))
    labels = tuple(weightings)
    is_entropy = np.array([kind == ENTROPY for kind, _ in labels])
    sums = measure_token_sums(prepared, tokens, np.stack(list(weightings.values())), is_entropy, progress=progress)
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
    from gradscope.gradients.tokens.sums import CORRECTIONS, corrected

    if tokens.sampler is None:
        return {}, frozenset()
    corrections, trained = CORRECTIONS, prepared.plan.objective.correction
    if trained is not None and trained not in CORRECTIONS.values():
        corrections = {**CORRECTIONS, "trained": trained}
    factors = {name: corrected(tokens, tokens.sampler, correction) for name, correction in corrections.items()}
    return factors, frozenset(name for name, correction in corrections.items() if correction and correction.by_sequence)


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
    pairs = zip(tokens.rollouts.tolist(), tokens.positions.tolist(), strict=True)
    index_of = {pair: index for index, pair in enumerate(pairs)}
    energy = np.zeros(len(index_of))
    for gram in grams:
        stands_for = gram.table.num_tokens / len(gram.table.rows)
        for row, square in zip(gram.table.rows, np.clip(np.diag(gram.gram), 0.0, None).tolist(), strict=True):
            index = index_of[row.sequence, row.position]
            energy[index] = stands_for * square * tokens.weights[index] ** 2
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
        batch_tokens, fixed = options.batch_tokens or first_batch_tokens(policy), options.batch_tokens is not None
        budget = TokenBudget(batch_tokens, fixed=fixed, notice=options.notice)
        tensors = step_logprobs(policy, run.groups_at(step), objective_of(run.settings), budget, entropies=True)
    rows = [tensor.double().cpu().numpy().reshape(2, -1) for tensor in tensors]
    starts = np.cumsum([0, *(row.shape[1] for row in rows)])
    indices = starts[tokens.rollouts] + tokens.positions
    return np.asarray(np.concatenate(rows, axis=1)[:, indices], dtype=np.float64)


_NOT_SIMILAR = "no tokens of positive and of negative advantage are of like probability"
_BINS = 10  # bins of equal size by the policy's probability, within which tokens count as alike
_SIGNS = {"positive": 1.0, "negative": -1.0, "neither": 0.0}  # name -> sign of the advantage


def logprob_change(step: int, tokens: CountedTokens, change: TokenChange) -> results.LogprobChange:
    """Means over the tokens of each sign of the advantage, and the difference of the first two, raw and matched."""
    # Intervals leave out each group in turn; none where one group alone has such tokens.
    means = {name: _means(tokens, change.logprobs, sign) for name, sign in _SIGNS.items()}
    return results.LogprobChange(
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
    parts = [_matched(counted, change.logprobs) for counted, change in zip(tokens, changes, strict=True)]
    added, total = (over_steps([part[index] for part in parts]) for index in range(2))
    difference = np.divide(added, total, out=np.full(len(total), np.nan), where=total > 0)
    return _estimate(np.asarray(difference, dtype=np.float64), _NOT_SIMILAR)


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
    has_pair = np.all(counts > 0, axis=-1)
    means = np.divide(sums, counts, out=np.zeros(sums.shape), where=counts > 0)
    weights = np.divide(counts.prod(axis=-1), counts.sum(axis=-1), out=np.zeros(has_pair.shape), where=has_pair)
    total = weights.sum(axis=-1)
    added = (weights * (means[..., 1] - means[..., 0])).sum(axis=-1)
    return np.asarray(added, dtype=np.float64), np.asarray(total, dtype=np.float64)


def _estimate(values: Array, reason: str = "no token of the step has such an advantage") -> Estimate:
    if not np.isfinite(values[0]):
        return Estimate.undefined_because(reason, num_units=len(values) - 1)
    return jackknifed_on(values, ANY)


_ROUNDING = 1e-5  # log-probabilities in float32 that differ by less are one number
_NO_DISTANCE = "the policy is the reference but for rounding"


def token_kinds(step: int, weighed: WeighedTokens, grams: Sequence[TokenGram]) -> list[results.TokenKind]:
    """The parts of each sign, each bucket of probability and of entropy, then of every cell of all three."""
    # The diagonal of the Gram matrices has the energy; where tokens were drawn, each stands for some that were left
    # out.
    energy, total = token_energy(weighed.tokens, grams), weighed.chosen("cell")
    buckets = range(len(PROBABILITIES) - 1)
    kinds = (
        *(TokenCell(sign=sign) for sign in SIGNS),
        *(TokenCell(probability=bucket) for bucket in buckets),
        *(TokenCell(entropy=entropy) for entropy in ENTROPIES),
        *(TokenCell(sign=s, probability=p, entropy=e) for s, p, e in product(SIGNS, buckets, ENTROPIES)),
    )
    rows = []
    for kind in kinds:
        cells = [cell for cell in weighed.cells if kind.holds(cell)]
        if not cells:
            continue
        part, mask = weighed.chosen("cell", *cells), np.any([weighed.cells[cell] for cell in cells], axis=0)
        bucket = kind.probability
        rows.append(
            results.TokenKind(
                step=step,
                sign=kind.sign,
                probability=None if bucket is None else (PROBABILITIES[bucket], PROBABILITIES[bucket + 1]),
                entropy=kind.entropy,
                num_tokens=int(mask.sum()),
                frac_tokens=_share_of(weighed, mask, has_advantage(weighed.tokens)),
                energy_share=_share_of(weighed, mask, energy),
                gradient_share=part_sums.sum_share(weighed.products, part, total),
                cosine=part_sums.sum_cosine(weighed.products, part, total),
            )
        )
    return rows


def _share_of(weighed: WeighedTokens, mask: NDArray[np.bool_], amounts: Array) -> Estimate:
    """The share of an amount of each token that some tokens have."""
    return part_sums.ratio_over_groups(by_group(weighed.tokens, amounts * mask), by_group(weighed.tokens, amounts))


def turn_shares(step: int, weighed: WeighedTokens) -> list[results.TurnShare]:
    """The part of each turn; none where no completion has two."""
    masks, total = turn_masks(weighed.tokens), weighed.chosen("turn")
    return [
        results.TurnShare(
            step=step,
            turn=turn,
            and_later=turn == MAX_TURNS and int(weighed.tokens.turns.max()) >= MAX_TURNS,
            num_rollouts=len(np.unique(weighed.tokens.rollouts[mask])),
            frac_tokens=_share_of(weighed, mask, np.ones(len(mask))),
            gradient_share=part_sums.sum_share(weighed.products, weighed.chosen("turn", turn), total),
            cosine=part_sums.sum_cosine(weighed.products, weighed.chosen("turn", turn), total),
        )
        for turn, mask in masks.items()
    ]


def entropy_change(step: int, weighed: WeighedTokens, logged: Mapping[int, float]) -> results.EntropyChange:
    """Which way the step moves the entropy, to first order, along with the logged entropies."""
    tokens, update, climb = weighed.tokens, -weighed.chosen("cell"), weighed.chosen(ENTROPY)
    return results.EntropyChange(
        step=step,
        entropy=mean_over_tokens([tokens], [tokens.entropies], part_sums.POSITIVE),
        rate=Estimate.exact(float(climb @ weighed.products[0] @ update), num_units=tokens.num_groups),
        cosine=part_sums.sum_cosine(weighed.products, climb, update),
        covariance=advantage_covariance([tokens]),
        logged=logged.get(step),
        logged_next=logged.get(step + 1),
        last=None,
        measured=Estimate.undefined_because(NO_LATER, num_units=tokens.num_groups),
    )


def with_later(change: results.EntropyChange, tokens: CountedTokens, later: TokenChange) -> results.EntropyChange:
    """The same with what became of the entropy at the step's own tokens."""
    return replace(change, last=later.last, measured=mean_over_tokens([tokens], [later.entropies]))


def mean_over_tokens(
    tokens: Sequence[CountedTokens], values: Sequence[Array], scale: part_sums.OpenScale = part_sums.ANY
) -> Estimate:
    """The mean of a number [N] over the tokens of several steps, with an interval over their groups."""
    sums, numbers = (
        np.concatenate([by_group(counted, column) for counted, column in zip(tokens, columns, strict=True)])
        for columns in (values, [np.ones(len(column)) for column in values])
    )
    return part_sums.ratio_over_groups(sums, numbers, scale)


def advantage_covariance(tokens: Sequence[CountedTokens]) -> Estimate:
    """Covariance of log pi and advantage over the tokens of several steps, each about the means of its own step."""
    gaps = [(step.logprobs - step.logprobs.mean()) * (step.advantages - step.advantages.mean()) for step in tokens]
    return mean_over_tokens(tokens, gaps)


def token_kl(step: int, weighed: WeighedTokens, groups: Sequence[RolloutGroup]) -> results.TokenKl | None:
    """The distance of the tokens from the reference policy; None without one."""
    tokens = weighed.tokens
    if tokens.reference is None:
        return None
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    k1, k3 = tokens.logprobs - tokens.reference, k3_of(tokens)
    order = np.argsort(-k3, kind="stable")[:MAX_KL_TOKENS].tolist()
    return results.TokenKl(
        step=step,
        k1=mean_over_tokens([tokens], [k1]),
        k3=mean_over_tokens([tokens], [k3], part_sums.POSITIVE),
        top_share=share_of_largest(k3, fraction=0.01)
        if np.abs(k1).max() > _ROUNDING
        else Estimate.undefined_because(_NO_DISTANCE, num_units=len(k1)),
        top=tuple(
            results.KlToken(
                group_id=rollouts[int(tokens.rollouts[index])].group_id,
                sample=rollouts[int(tokens.rollouts[index])].sample,
                position=int(tokens.positions[index]),
                text=weighed.texts[index],
                logprob=float(tokens.logprobs[index]),
                reference=float(tokens.reference[index]),
                k1=float(k1[index]),
                k3=float(k3[index]),
            )
            for index in order
        ),
    )


_MISSING: Mapping[str, str] = {
    "corrections": "the log does not have the sampler's log-probability of every token",
    "turns": "no completion has a second turn: none has tokens that were not sampled between two that were",
    "kl": "the loss has no KL term to a reference policy",
}
"""Part -> why a step lacks it."""
NO_GRADIENT = "the step has no gradient, or not every token has a logged advantage"


def token_part_tables(
    run: Run, step: int, groups: Sequence[RolloutGroup], rows: Sequence[TokenGram], weighed: WeighedTokens | None
) -> tuple[dict[str, Sequence[object]], dict[str, str]]:
    """The tables of a :class:`RankReport` about the tokens of one step, by name; and why parts of them are missing."""
    if weighed is None:
        return {}, dict.fromkeys((*_MISSING, "energy", "entropy", "logprobs"), f"step {step}: {NO_GRADIENT}")
    logged, kl = first_logged(run, METRICS), token_kl(step, weighed, groups)
    tables: dict[str, Sequence[object]] = {
        "token_kinds": token_kinds(step, weighed, rows),
        "entropy_changes": [entropy_change(step, weighed, logged[1] if logged else {})],
        "corrections": correction_effects(step, weighed),
        "turns": turn_shares(step, weighed),
        "token_kl": () if kl is None else (kl,),
    }
    part_of = {"corrections": "corrections", "token_kl": "kl", "turns": "turns"}
    missing = {part: f"step {step}: {_MISSING[part]}" for table, part in part_of.items() if not tables[table]}
    return tables, missing


_TOO_LARGE = "a ratio of this step is beyond 1e30"


def correction_effects(step: int, weighed: WeighedTokens) -> list[results.CorrectionEffect]:
    """Every correction compared with none; empty where the sampler's log-probabilities are unknown."""
    tokens, products, effects = weighed.tokens, weighed.products, []
    sums = {str(label): weighed.chosen("correction", label) for kind, label in weighed.labels if kind == "correction"}
    first = np.unique(tokens.rollouts, return_index=True)[1]
    for name, factors in weighed.factors.items():
        groups, by_sequence = tokens.groups, name in weighed.by_sequence
        if by_sequence:
            factors, groups = factors[first], groups[first]
        units: Literal["tokens", "sequences"] = "sequences" if by_sequence else "tokens"
        effects.append(_correction_effect(step, name, factors, groups, units, products, sums))
    return effects


def _correction_effect(
    step: int,
    name: str,
    factors: Array,
    groups: NDArray[np.int64],
    units: Literal["tokens", "sequences"],
    products: Array,
    sums: Mapping[str, Array],
) -> results.CorrectionEffect:
    """One correction compared with none, from its factors and the group, from 0 to J - 1, of each unit, [M]."""
    from gradscope.gradients.tokens.sums import UNBIASED, UNCORRECTED

    too_large = Estimate.undefined_because(_TOO_LARGE)
    if name not in sums:
        unknown = dict.fromkeys(("kept", "ess", "chi2", "norm_ratio", "cosine", "unbiased_cosine"), too_large)
        return results.CorrectionEffect(step=step, correction=name, units=units, **unknown)
    corrected, uncorrected = sums[name], sums[UNCORRECTED]
    return results.CorrectionEffect(
        step=step,
        correction=name,
        units=units,
        **part_sums.weight_estimates(factors, groups),
        norm_ratio=part_sums.norm_ratio(products, corrected, uncorrected),
        cosine=part_sums.sum_cosine(products, corrected, uncorrected),
        unbiased_cosine=part_sums.sum_cosine(products, corrected, sums[UNBIASED]) if UNBIASED in sums else too_large,
    )


def sequence_corrections(run: Run, gram: StepGram) -> tuple[results.CorrectionEffect, ...]:
    """Every correction by sequence compared with none."""
    # None where the step has no gradient, a rollout has no log-probabilities of its own ids, or the trainer's loss
    # looked at those of the sampler: its rows are then weighed already, as a script's may be that no argument says.
    from gradscope.gradients.plan.trainers import objective_of
    from gradscope.gradients.tokens.sums import sequence_factors

    objective, matrix = objective_of(run.settings), gram.policy_gram
    is_weighed = objective.looks_at_logged or objective.ratio_to_logged
    is_weighed |= run.source.format == "generic" and any(row.channel == "logged" for row in gram.rows)
    if is_weighed or matrix is None or not matrix.sum() > 0:
        return ()
    gaps = sampler_gaps(run, gram)
    if gaps is None:
        return ()
    factors = sequence_factors(
        [np.where(rollout.counted(len(gap)) & np.isfinite(gap), gap, 0.0) for rollout, gap in gaps]
    )
    summed = part_sums.usable(factors)
    groups = np.unique(gram.group_ids, return_inverse=True)[1]
    # inner products of the corrected gradients, over all groups and without each, [1 + J, V, V]
    weights = np.stack(list(summed.values()))[:, None, :] * (groups == np.arange(groups.max() + 1)[:, None])
    products = part_sums.products_without(np.einsum("vjr,rs,wks->vjwk", weights, matrix, weights, optimize=True))
    sums = dict(zip(summed, np.eye(len(summed)), strict=True))
    return tuple(
        _correction_effect(gram.step, name, values, groups, "sequences", products, sums)
        for name, values in factors.items()
    )


def sampler_gaps(run: Run, gram: StepGram) -> list[tuple[Rollout, Array]] | None:
    """Each rollout with the log-probabilities by the weights minus those of its sampler, [T].

    None where a rollout has none of its own ids.
    """
    rollouts = {(r.group_id, r.sample): r for group in run.groups_at(gram.step) for r in group.rollouts}
    gaps = []
    for group_id, sample, recomputed in zip(gram.group_ids, gram.samples, gram.logprobs, strict=True):
        rollout = rollouts[group_id, sample]
        if rollout.logprobs is None or len(rollout.logprobs) != len(recomputed):
            return None
        gaps.append((rollout, np.asarray(recomputed) - np.asarray(rollout.logprobs, dtype=np.float64)))
    return gaps
