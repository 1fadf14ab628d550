"""A step's gradient by kinds of tokens, by turns and under corrections for the engine that sampled.

Which way it moves the entropy and its distance to the reference are read off the same sums.

Shapes: N tokens that count, J groups, V sums of token gradients, M units that a correction multiplies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Literal

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from gradscope.diagnostics.logged.tokens import METRICS, first_logged
from gradscope.diagnostics.rank.tokens.weighed import (
    ENTROPY,
    MAX_KL_TOKENS,
    MAX_TURNS,
    NO_LATER,
    TokenChange,
    WeighedTokens,
    by_group,
    has_advantage,
    k3_of,
    token_energy,
    turn_masks,
)
from gradscope.estimate import Estimate
from gradscope.metrics.gram import part_sums
from gradscope.metrics.gram.geometry import share_of_largest
from gradscope.metrics.gram.spectrum import Array
from gradscope.metrics.sampler import ENTROPIES, PROBABILITIES, SIGNS, TokenCell
from gradscope.results import tokens as results
from gradscope.rollouts.groups import Rollout, RolloutGroup
from gradscope.rollouts.run import Run

if TYPE_CHECKING:
    from gradscope.gradients.step.step_gram import StepGram
    from gradscope.gradients.tokens.measure import TokenGram
    from gradscope.gradients.tokens.sums import CountedTokens

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
        np.concatenate([by_group(own, each) for own, each in zip(tokens, of_steps, strict=True)])
        for of_steps in (values, [np.ones(len(each)) for each in values])
    )
    return part_sums.ratio_over_groups(sums, numbers, scale)


def advantage_covariance(tokens: Sequence[CountedTokens]) -> Estimate:
    """Covariance of log pi and advantage over the tokens of several steps, each about the means of its own step."""
    parts = [(own.logprobs - own.logprobs.mean()) * (own.advantages - own.advantages.mean()) for own in tokens]
    return mean_over_tokens(tokens, parts)


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
                group_id=rollouts[int(tokens.rollouts[at])].group_id,
                sample=rollouts[int(tokens.rollouts[at])].sample,
                position=int(tokens.positions[at]),
                text=weighed.texts[at],
                logprob=float(tokens.logprobs[at]),
                reference=float(tokens.reference[at]),
                k1=float(k1[at]),
                k3=float(k3[at]),
            )
            for at in order
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
    of_table = {"corrections": "corrections", "token_kl": "kl", "turns": "turns"}
    missing = {part: f"step {step}: {_MISSING[part]}" for table, part in of_table.items() if not tables[table]}
    return tables, missing


_TOO_LARGE = "a ratio of this step is beyond 1e30"


def correction_effects(step: int, weighed: WeighedTokens) -> list[results.CorrectionEffect]:
    """Every correction compared with none; empty where the sampler's log-probabilities are unknown."""
    tokens, products, effects = weighed.tokens, weighed.products, []
    sums = {str(label): weighed.chosen("correction", label) for kind, label in weighed.labels if kind == "correction"}
    first = np.unique(tokens.rollouts, return_index=True)[1]
    for name, of_tokens in weighed.factors.items():
        by_sequence = name in weighed.by_sequence
        factors, groups = (of_tokens[first], tokens.groups[first]) if by_sequence else (of_tokens, tokens.groups)
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
        none = dict.fromkeys(("kept", "ess", "chi2", "norm_ratio", "cosine", "unbiased_cosine"), too_large)
        return results.CorrectionEffect(step=step, correction=name, units=units, **none)
    own, uncorrected = sums[name], sums[UNCORRECTED]
    return results.CorrectionEffect(
        step=step,
        correction=name,
        units=units,
        **part_sums.weight_estimates(factors, groups),
        norm_ratio=part_sums.norm_ratio(products, own, uncorrected),
        cosine=part_sums.sum_cosine(products, own, uncorrected),
        unbiased_cosine=part_sums.sum_cosine(products, own, sums[UNBIASED]) if UNBIASED in sums else too_large,
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
