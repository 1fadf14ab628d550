"""What training did to the log-probabilities of a step's own tokens, up to the next checkpoint on disk.

Shapes: N tokens that count, J groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gradscope.diagnostics.rank.tokens.token_changes import TokenChange
from gradscope.estimate import Estimate
from gradscope.metrics.gram.part_sums import ANY, jackknifed_on, left_out_sums, over_steps
from gradscope.metrics.gram.spectrum import Array
from gradscope.results.ranks.token_parts import LogprobChange

if TYPE_CHECKING:
    from gradscope.gradients.tokens.sums import CountedTokens

_NOT_ALIKE = "no tokens of positive and of negative advantage are of like probability"
_BINS = 10
"""Bins of equal size by the policy's probability, within which tokens count as alike."""
_SIGNS = {"positive": 1.0, "negative": -1.0, "neither": 0.0}
"""Name -> sign of the advantage."""


def logprob_change(step: int, tokens: CountedTokens, change: TokenChange) -> LogprobChange:
    """Means over the tokens of each sign of the advantage, and the difference of the first two, raw and matched.

    Args:
        change: Of the same tokens.

    Returns:
        Intervals leave out each group in turn; none where one group alone has such tokens.
    """
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
    """The difference of tokens of positive and of negative advantage among those of one step and like probability.

    Args:
        tokens: Of each step.
        changes: Of these tokens.

    Returns:
        The mean over bins of the steps, weighed as least squares with a constant a bin weighs them.
    """
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
