"""What training did to a step's own tokens, up to the next checkpoint on disk.

Shapes: N tokens that count, J groups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gradscope.diagnostics.rank.tokens.weighed import WeighedTokens
from gradscope.errors import InputError
from gradscope.estimate import Estimate
from gradscope.gradients.engine_options import EngineOptions
from gradscope.metrics.gram.part_sums import ANY, jackknifed_on, left_out_sums, over_steps
from gradscope.metrics.gram.spectrum import Array
from gradscope.results.tokens import LogprobChange
from gradscope.rollouts.run import Run, WeightsRef

if TYPE_CHECKING:
    from gradscope.gradients.tokens.sums import CountedTokens


NO_LATER = "no weights after its update are on disk"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenChange:
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
    found, missing = {}, {}
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
        found[step] = TokenChange(
            first=first.num_updates, last=last.num_updates, logprobs=logprobs, entropies=entropies
        )
    return found, missing


def _outputs(run: Run, step: int, weights: WeightsRef, options: EngineOptions, tokens: CountedTokens) -> Array:
    """Log pi of the tokens and the entropies there, under some weights at the trainer's temperature, [2, N]."""
    from gradscope.diagnostics.inputs.recomputed import policy_of
    from gradscope.diagnostics.inputs.step_loss import loss_at
    from gradscope.gradients.model.budget import TokenBudget, first_batch_tokens, names_out_of_memory
    from gradscope.gradients.plan.prepared_step import step_logprobs
    from gradscope.gradients.plan.trainers import objective_of

    with names_out_of_memory(f"step {step}"):
        policy = policy_of(run, weights, options)
        asked, fixed = options.batch_tokens or first_batch_tokens(policy), options.batch_tokens is not None
        budget = TokenBudget(asked, fixed=fixed, notice=options.notice)
        objective = loss_at(run, objective_of(run.settings), step).objective
        rows = step_logprobs(policy, run.groups_at(step), objective, budget, entropies=True)
    both = [row.double().cpu().numpy().reshape(2, -1) for row in rows]
    starts = np.cumsum([0, *(row.shape[1] for row in both)])
    places = starts[tokens.rollouts] + tokens.positions
    return np.asarray(np.concatenate(both, axis=1)[:, places], dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedTokens:
    """What is known of the tokens of some steps."""

    weighed: Mapping[int, WeighedTokens]  # step -> its tokens
    changes: Mapping[int, TokenChange]  # step -> what became of them by the next checkpoint on disk
    missing: Mapping[int, str]  # of the other steps why there is no change


def follow(run: Run, weighed: Mapping[int, WeighedTokens], options: EngineOptions) -> FollowedTokens:
    """Look at the tokens once more, under later weights."""
    changes, missing = token_changes(run, {step: one.tokens for step, one in weighed.items()}, options)
    return FollowedTokens(weighed=weighed, changes=changes, missing=missing)


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
    added, total = (over_steps([part[place] for part in parts]) for place in range(2))
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
