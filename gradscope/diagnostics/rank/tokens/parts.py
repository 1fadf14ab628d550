"""A step's gradient by kinds of tokens, by turns and under corrections for the engine that sampled.

Which way it moves the entropy and its distance to the reference are read off the same sums.

Shapes: N tokens that count, J groups, V sums of token gradients, M units that a correction multiplies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from gradscope.diagnostics.inputs.steps import MeasuredStep
from gradscope.diagnostics.logged.tokens import METRICS, first_logged
from gradscope.diagnostics.rank.tokens.weighed import (
    ENTROPY,
    MOST_KL_TOKENS,
    MOST_TURNS,
    NO_LATER,
    TokenChange,
    WeighedTokens,
    by_group,
    k3_of,
    logprob_change,
    token_changes,
    token_energy,
    turn_masks,
)
from gradscope.estimate import Estimate
from gradscope.gradients.engine_options import EngineOptions
from gradscope.metrics.gram.geometry import share_of_largest
from gradscope.metrics.gram.part_sums import (
    ANY,
    POSITIVE,
    norm_ratio,
    over_steps,
    products_without,
    ratio_over_groups,
    sum_cosine,
    sum_share,
    usable,
    weight_estimates,
)
from gradscope.metrics.gram.spectrum import Array
from gradscope.metrics.sampler import ENTROPIES, PROBABILITIES, SIGNS, TokenCell
from gradscope.results.tokens import (
    CorrectionEffect,
    EntropyChange,
    KlToken,
    LogprobChange,
    TokenKind,
    TokenKl,
    TurnShare,
)
from gradscope.rollouts.groups import Rollout, RolloutGroup
from gradscope.rollouts.run import Run

if TYPE_CHECKING:
    from gradscope.gradients.step.step_gram import StepGram
    from gradscope.gradients.tokens.measure import TokenGram
    from gradscope.gradients.tokens.sums import CountedTokens

_ROUNDING = 1e-5  # log-probabilities in float32 that differ by less are one number
_NO_DISTANCE = "the policy is the reference but for rounding"


def token_kinds(step: int, found: WeighedTokens, grams: Sequence[TokenGram]) -> list[TokenKind]:
    """The parts of each sign, each bucket of probability and of entropy, then of every cell of all three."""
    # The diagonal of the Gram matrices has the energy; where tokens were drawn, each stands for some that were left
    # out.
    energy, whole = token_energy(found.tokens, grams), found.chosen("cell")
    return [_kind(step, found, kind, energy, whole) for kind in _kinds(found)]


def _kinds(found: WeighedTokens) -> Iterator[TokenCell]:
    buckets = range(len(PROBABILITIES) - 1)
    alone = (
        *(TokenCell(sign=sign) for sign in SIGNS),
        *(TokenCell(probability=place) for place in buckets),
        *(TokenCell(entropy=entropy) for entropy in ENTROPIES),
    )
    yield from (kind for kind in alone if any(kind.holds(cell) for cell in found.cells))
    for sign, place, entropy in product(SIGNS, buckets, ENTROPIES):
        if (cell := TokenCell(sign=sign, probability=place, entropy=entropy)) in found.cells:
            yield cell


def _kind(step: int, found: WeighedTokens, kind: TokenCell, energy: Array, whole: Array) -> TokenKind:
    cells = [cell for cell in found.cells if kind.holds(cell)]
    part, mask = found.chosen("cell", *cells), np.any([found.cells[cell] for cell in cells], axis=0)
    place = kind.probability
    return TokenKind(
        step=step,
        sign=kind.sign,
        probability=None if place is None else (PROBABILITIES[place], PROBABILITIES[place + 1]),
        entropy=kind.entropy,
        num_tokens=int(mask.sum()),
        frac_tokens=_share_of_tokens(found, mask),
        energy_share=ratio_over_groups(by_group(found.tokens, energy * mask), by_group(found.tokens, energy)),
        gradient_share=sum_share(found.products, part, whole),
        cosine=sum_cosine(found.products, part, whole),
    )


def _share_of_tokens(found: WeighedTokens, mask: NDArray[np.bool_]) -> Estimate:
    ones = np.ones(len(mask))
    return ratio_over_groups(by_group(found.tokens, ones * mask), by_group(found.tokens, ones))


def turn_shares(step: int, found: WeighedTokens) -> list[TurnShare]:
    """The part of each turn; none where no completion has two."""
    masks, whole = turn_masks(found.tokens), found.chosen("turn")
    return [
        TurnShare(
            step=step,
            turn=turn,
            and_later=turn == MOST_TURNS and int(found.tokens.turns.max()) >= MOST_TURNS,
            num_rollouts=len(np.unique(found.tokens.rollouts[mask])),
            frac_tokens=_share_of_tokens(found, mask),
            gradient_share=sum_share(found.products, found.chosen("turn", turn), whole),
            cosine=sum_cosine(found.products, found.chosen("turn", turn), whole),
        )
        for turn, mask in masks.items()
    ]


def entropy_change(step: int, found: WeighedTokens, logged: Mapping[int, float]) -> EntropyChange:
    """Which way the step moves the entropy, to first order, beside what was logged."""
    tokens, update, climb = found.tokens, -found.chosen("cell"), found.chosen(ENTROPY)
    ones = np.ones(len(tokens.groups))
    return EntropyChange(
        step=step,
        entropy=ratio_over_groups(by_group(found.tokens, tokens.entropies), by_group(found.tokens, ones), POSITIVE),
        rate=Estimate.exact(float(climb @ found.products[0] @ update), num_units=tokens.num_groups),
        cosine=_entropy_cosine([found]),
        covariance=advantage_covariance([tokens]),
        logged=logged.get(step),
        logged_next=logged.get(step + 1),
        last=None,
        measured=Estimate.undefined_because(NO_LATER, num_units=tokens.num_groups),
    )


def _entropy_cosine(found: Sequence[WeighedTokens]) -> Estimate:
    """Cosine of the gradients of the entropy at several steps' tokens with the steps' updates, laid end to end."""
    pairs = [np.stack([one.chosen(ENTROPY), -one.chosen("cell")]) for one in found]
    products = [np.einsum("av,jvw,bw->jab", pair, one.products, pair) for pair, one in zip(pairs, found, strict=True)]
    return sum_cosine(over_steps(products), [1.0, 0.0], [0.0, 1.0])


def with_later(change: EntropyChange, tokens: CountedTokens, later: TokenChange) -> EntropyChange:
    """The same with what became of the entropy at the step's own tokens."""
    return replace(change, last=later.last, measured=mean_over_tokens([tokens], [later.entropies]))


def mean_over_tokens(tokens: Sequence[CountedTokens], values: Sequence[Array]) -> Estimate:
    """The mean of a number [N] over the tokens of several steps, with an interval over their groups."""
    sums, numbers = (
        np.concatenate([by_group(own, each) for own, each in zip(tokens, of_steps, strict=True)])
        for of_steps in (values, [np.ones(len(each)) for each in values])
    )
    return ratio_over_groups(sums, numbers, ANY)


def advantage_covariance(tokens: Sequence[CountedTokens]) -> Estimate:
    """Covariance of log pi and advantage over the tokens of several steps, each about the means of its own step."""
    parts = [(own.logprobs - own.logprobs.mean()) * (own.advantages - own.advantages.mean()) for own in tokens]
    return mean_over_tokens(tokens, parts)


def token_kl(step: int, found: WeighedTokens, groups: Sequence[RolloutGroup]) -> TokenKl | None:
    """The tokens beside the reference; None without one."""
    tokens = found.tokens
    if tokens.reference is None:
        return None
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    k1, k3, ones = tokens.logprobs - tokens.reference, k3_of(tokens), np.ones(len(tokens.groups))
    order = np.argsort(-k3, kind="stable")[:MOST_KL_TOKENS].tolist()
    return TokenKl(
        step=step,
        k1=ratio_over_groups(by_group(found.tokens, k1), by_group(found.tokens, ones), ANY),
        k3=ratio_over_groups(by_group(found.tokens, k3), by_group(found.tokens, ones), POSITIVE),
        top_share=share_of_largest(k3, fraction=0.01)
        if np.abs(k1).max() > _ROUNDING
        else Estimate.undefined_because(_NO_DISTANCE, num_units=len(k1)),
        top=tuple(
            KlToken(
                group_id=rollouts[int(tokens.rollouts[at])].group_id,
                sample=rollouts[int(tokens.rollouts[at])].sample,
                position=int(tokens.positions[at]),
                text=found.texts[at],
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
NO_GRADIENT = "the step has no gradient, or not every token has a logged advantage"


@dataclass(slots=True)
class TokenTables:
    """The tables of a :class:`RankReport` that are about tokens, by their names there, over the steps so far."""

    corrections: list[CorrectionEffect] = field(default_factory=list)
    token_kinds: list[TokenKind] = field(default_factory=list)
    entropy_changes: list[EntropyChange] = field(default_factory=list)
    token_kl: list[TokenKl] = field(default_factory=list)
    turns: list[TurnShare] = field(default_factory=list)
    logprob_changes: list[LogprobChange] = field(default_factory=list)
    missing_parts: dict[str, str] = field(default_factory=dict)
    tokens: dict[int, CountedTokens] = field(default_factory=dict)
    """Step -> its tokens, until they are looked at under later weights."""

    def take_tokens(self, run: Run, measured: MeasuredStep) -> MeasuredStep:
        """Take in one step's answer to a ``PartsQuestion``; the step with the answer about its rows alone."""
        if not measured.answer:
            return measured
        rows, found = measured.answer
        step = measured.step
        if found is None:
            self.missing_parts |= dict.fromkeys(
                (*_MISSING, "energy", "entropy", "logprobs"), f"step {step}: {NO_GRADIENT}"
            )
            return replace(measured, answer=rows)
        self.tokens[step] = found.tokens
        logged = first_logged(run, METRICS)
        self.token_kinds.extend(token_kinds(step, found, rows))
        self.entropy_changes.append(entropy_change(step, found, logged[1] if logged else {}))
        self.corrections.extend(corrections := correction_effects(step, found))
        self.turns.extend(turns := turn_shares(step, found))
        if (kl := token_kl(step, found, measured.groups)) is not None:
            self.token_kl.append(kl)
        for name, part in (("corrections", corrections), ("kl", kl), ("turns", turns)):
            if not part:
                self.missing_parts[name] = f"step {step}: {_MISSING[name]}"
        return replace(measured, answer=rows)

    def look_later(self, run: Run, options: EngineOptions) -> None:
        """What became of the tokens of all steps, when no other weights are in memory."""
        changes, missing = token_changes(run, self.tokens, options)
        self.logprob_changes += [logprob_change(step, self.tokens[step], change) for step, change in changes.items()]
        self.entropy_changes = [
            with_later(one, self.tokens[one.step], changes[one.step]) if one.step in changes else one
            for one in self.entropy_changes
        ]
        for step, reason in missing.items():
            self.missing_parts["logprobs"] = f"step {step}: {reason}"
        self.tokens.clear()


_TOO_LARGE = "a ratio of this step is beyond 1e30"


def correction_effects(step: int, found: WeighedTokens) -> list[CorrectionEffect]:
    """Every correction beside none at all; empty where the sampler's log-probabilities are not known."""
    return [_effect(step, found, name, factors) for name, factors in found.factors.items()]


def _effect(step: int, found: WeighedTokens, name: str, factors: Array) -> CorrectionEffect:
    tokens = found.tokens
    by_sequence = name in found.by_sequence
    first = np.unique(tokens.rollouts, return_index=True)[1] if by_sequence else np.arange(len(factors))
    sums = {label: found.chosen("correction", label) for kind, label in found.labels if kind == "correction"}
    return _correction_effect(
        step,
        str(name),
        _WeighedUnits(factors=factors[first], groups=tokens.groups[first], are_sequences=by_sequence),
        found.products,
        {str(label): one for label, one in sums.items()},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _WeighedUnits:
    """What a correction multiplies each unit by."""

    factors: Array  # f, [M]
    groups: NDArray[np.int64]  # the group of each, from 0 to J - 1, [M]
    are_sequences: bool  # whether units are sequences; else tokens


def _correction_effect(
    step: int, name: str, units: _WeighedUnits, products: Array, sums: Mapping[str, Array]
) -> CorrectionEffect:
    """One correction beside none at all."""
    from gradscope.gradients.tokens.sums import UNBIASED, UNCORRECTED

    named: Literal["tokens", "sequences"] = "sequences" if units.are_sequences else "tokens"
    too_large = Estimate.undefined_because(_TOO_LARGE)
    if name not in sums:
        return CorrectionEffect(
            step=step,
            correction=name,
            units=named,
            **dict.fromkeys(("kept", "ess", "chi2", "norm_ratio", "cosine", "unbiased_cosine"), too_large),
        )
    weights, own, none = weight_estimates(units.factors, units.groups), sums[name], sums[UNCORRECTED]
    return CorrectionEffect(
        step=step,
        correction=name,
        units=named,
        kept=weights.frac_positive,
        ess=weights.ess,
        chi2=weights.chi2,
        norm_ratio=norm_ratio(products, own, none),
        cosine=sum_cosine(products, own, none),
        unbiased_cosine=sum_cosine(products, own, sums[UNBIASED]) if UNBIASED in sums else too_large,
    )


def sequence_corrections(run: Run, gram: StepGram) -> tuple[CorrectionEffect, ...]:
    """Every correction by sequence beside none at all."""
    # None where the step has no gradient, a rollout has no log-probabilities of its own ids, or the trainer's loss
    # looked at those of the sampler: its rows are then weighed already.
    from gradscope.gradients.plan.trainers import objective_of
    from gradscope.gradients.tokens.sums import sequence_factors

    objective, matrix = objective_of(run.settings), gram.policy_gram
    if objective.looks_at_logged or objective.ratio_to_logged or matrix is None or not matrix.sum() > 0:
        return ()
    rollouts = {(one.group_id, one.sample): one for group in run.groups_at(gram.step) for one in group.rollouts}
    gaps = [
        _gap(rollouts[name], own)
        for name, own in zip(zip(gram.group_ids, gram.samples, strict=True), gram.logprobs, strict=True)
    ]
    known = [gap for gap in gaps if gap is not None]
    if len(known) < len(gaps):
        return ()
    factors = sequence_factors(known)
    summed = usable(factors)
    groups = np.unique(gram.group_ids, return_inverse=True)[1]
    products = _products(matrix, groups == np.arange(groups.max() + 1)[:, None], np.stack(list(summed.values())))
    sums = dict(zip(summed, np.eye(len(summed)), strict=True))
    return tuple(
        _correction_effect(
            gram.step, name, _WeighedUnits(factors=values, groups=groups, are_sequences=True), products, sums
        )
        for name, values in factors.items()
    )


def _gap(rollout: Rollout, own: Array) -> Array | None:
    """Log-probability by the weights minus that of the sampler, 0 where it is no number or does not count, [T]."""
    if rollout.logprobs is None or len(rollout.logprobs) != len(own):
        return None
    gap = np.asarray(own) - np.asarray(rollout.logprobs, dtype=np.float64)
    counted = np.ones(len(gap), dtype=bool) if rollout.mask is None else np.array(rollout.mask, dtype=bool)
    return np.where(counted & np.isfinite(gap), gap, 0.0)


def _products(matrix: Array, is_of_group: Array, factors: Array) -> Array:
    """Inner products of the corrected gradients, over all groups and without each, [1 + J, V, V]."""
    weights = factors[:, None, :] * is_of_group
    return products_without(np.einsum("vjr,rs,wks->vjwk", weights, matrix, weights, optimize=True))
