"""How far the trainer's policy is from the one that sampled, estimated from the tokens of a log.

Legend: N tokens, S sequences, R rollouts. A token's ratio is w = p_trainer / p_sampler, its log-ratio d = log w; a
sequence's are the product and the sum of its tokens'. A log of many tokens is summed a step at a time, and the sums are
joined. Tokens and sequences are draws of the sampler, so all divergences are means over it. Intervals resample prompts,
for tokens of one completion are far from independent. Where a few ratios hold most of a sum, as those of long sequences
do, an interval knows no larger ratio than the log has, and is too narrow.

A rollout of update N whose first token was sampled by weights after v updates has lag N - 1 - v.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Literal

import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike, NDArray

from gradscope.estimate import Estimate
from gradscope.metrics.uncertainty.bootstrap import bootstrap_mean, bootstrap_statistics, cluster_sums, ratios
from gradscope.metrics.uncertainty.intervals import RESAMPLING, Resampling

Array = NDArray[np.float64]

WIDE = 2.0  # a ratio of more than this, or of less than one over it, is far beyond what kernels and precisions make
CLIP = 0.2  # the usual bounds of PPO's clip, 1 - 0.2 and 1 + 0.2


class SequenceSums(Struct, frozen=True, kw_only=True):
    """Sums over the tokens of each sequence."""

    num_tokens: Array  # tokens, at least one, [S]
    log_weight: Array  # log of the sum of w, [S]
    log_square: Array  # log of the sum of w^2, [S]
    log_ratio: Array  # sum of d, the log-ratio of the sequence, [S]
    distance: Array  # sum of |d|, [S]
    k3: Array  # sum of w - 1 - d, infinite beyond floating point, [S]
    excess: Array  # sum of w^2 - 1, infinite beyond floating point, [S]
    num_wide: Array  # tokens with a ratio outside [1/2, 2], [S]
    num_beyond: Array  # tokens with a ratio outside [0.8, 1.2], [S]
    num_clipped: Array  # tokens that PPO's clip takes the gradient of, [S]; NaN where the advantage of one is not known


def sequence_sums(log_ratios: ArrayLike, lengths: ArrayLike, advantages: ArrayLike | None = None) -> SequenceSums:
    """Sums over the tokens of each sequence, S of them one after the other.

    Every token has log p_trainer - log p_sampler, finite, and an advantage, NaN where it is not known, [N] each.

    Raises:
        ValueError: The lengths do not add up to N, one is 0, or a log-ratio is not finite.

    >>> sums = sequence_sums([0.0, 1.0, -1.0], [2, 1], [1.0, 1.0, 1.0])
    >>> sums.log_ratio.tolist(), sums.num_wide.tolist(), sums.num_clipped.tolist()
    ([1.0, -1.0], [1.0, 1.0], [1.0, 0.0])
    """
    ratios, sizes = np.asarray(log_ratios, dtype=np.float64), np.asarray(lengths, dtype=np.int64)
    if ratios.shape != (sizes.sum(),) or np.any(sizes < 1) or not np.all(np.isfinite(ratios)):
        raise ValueError(f"{sizes.sum()} tokens of non-empty sequences need as many finite log-ratios")
    signs = np.full(len(ratios), np.nan) if advantages is None else np.sign(np.asarray(advantages, dtype=np.float64))
    starts = np.cumsum(sizes) - sizes

    def total(values: NDArray[np.generic]) -> Array:
        return np.add.reduceat(values.astype(np.float64), starts) if len(sizes) else np.zeros(0)

    largest = np.maximum.reduceat(ratios, starts) if len(sizes) else np.zeros(0)
    below = np.exp(ratios - np.repeat(largest, sizes))
    with np.errstate(over="ignore"):
        changes = np.expm1(ratios)
        k3, excess = total(changes - ratios), total(np.expm1(2 * ratios))
    high, low = changes > CLIP, changes < -CLIP
    clipped = np.where(np.isnan(signs), np.nan, (high & (signs > 0)) | (low & (signs < 0)))
    return SequenceSums(
        num_tokens=sizes.astype(np.float64),
        log_weight=largest + np.log(total(below)),
        log_square=2 * largest + np.log(total(below**2)),
        log_ratio=total(ratios),
        distance=total(np.abs(ratios)),
        k3=k3,
        excess=excess,
        num_wide=total(np.abs(ratios) > np.log(WIDE)),
        num_beyond=total(high | low),
        num_clipped=total(clipped),
    )


def joined_sums(parts: Sequence[SequenceSums]) -> SequenceSums:
    """The sums of several steps as those of one log, in order.

    >>> joined_sums([sequence_sums([0.5], [1]), sequence_sums([0.25], [1])]).log_ratio.tolist()
    [0.5, 0.25]
    """
    empty = sequence_sums([], [])
    return SequenceSums(
        **{
            name: np.concatenate([getattr(part, name) for part in (empty, *parts)])
            for name in SequenceSums.__struct_fields__
        }
    )


NAMES = (
    *("token_ess", "sequence_ess", "logprob_gap", "kl_k1", "kl_k3", "chi2_token", "chi2_sequence"),
    *("frac_beyond_2", "frac_beyond_clip", "frac_clipped"),
)
"""The estimates, in the order of the statistic."""
_LOWER_BOUNDS = np.array([0.0, 0.0, 0.0, -np.inf, 0.0, -1.0, -1.0, 0.0, 0.0, 0.0])
_UPPER_BOUNDS = np.array([1.0, 1.0, np.inf, np.inf, np.inf, np.inf, np.inf, 1.0, 1.0, 1.0])
_LARGEST = 1e200
_TOO_LARGE = "a ratio in the log is beyond floating-point numbers"
_NO_ADVANTAGE = "the log does not have the advantage of every token"


def mismatch_estimates(
    sums: SequenceSums, prompts: ArrayLike, *, resampling: Resampling = RESAMPLING
) -> dict[str, Estimate]:
    """All estimates from the ratios of a log, with one set of resamples of the prompt of each sequence, [S].

    ``token_ess`` is (sum of w)^2 / (N sum of w^2), ``sequence_ess`` the same of sequences; ``logprob_gap`` mean |d|;
    ``kl_k1`` mean of -d and ``kl_k3`` mean of w - 1 - d, both KL(sampler, trainer) a token; ``chi2_token`` mean of w^2
    - 1, ``chi2_sequence`` the same of sequences; ``frac_beyond_2`` and ``frac_beyond_clip`` the shares of tokens
    outside [1/2, 2] and [0.8, 1.2]; ``frac_clipped`` of those that PPO's clip at 0.2 takes the gradient of. An estimate
    that floating point or the log does not have is undefined, with the reason.

    >>> from gradscope.metrics.sampler import sequence_sums
    >>> estimates = mismatch_estimates(sequence_sums([0.0, np.log(3.0)], [1, 1]), ["a", "b"])
    >>> [round(estimates[name].value, 3) for name in ("token_ess", "chi2_token", "kl_k3")]
    [0.8, 4.0, 0.451]
    """
    # what is summed over sequences, [S] each; the weights relative to the largest, on which shares do not depend
    token_scale, sequence_scale = float(sums.log_square.max()) / 2, float(sums.log_ratio.max())
    with np.errstate(over="ignore"):
        excess_of_sequences = np.expm1(2 * sums.log_ratio)
    columns = {
        "tokens": sums.num_tokens,
        "sequences": np.ones(len(sums.num_tokens)),
        "weight": np.exp(sums.log_weight - token_scale),
        "square": np.exp(sums.log_square - 2 * token_scale),
        "sequence_weight": np.exp(sums.log_ratio - sequence_scale),
        "sequence_square": np.exp(2 * (sums.log_ratio - sequence_scale)),
        "logprob_gap": sums.distance,
        "kl_k1": 0.0 - sums.log_ratio,
        "kl_k3": sums.k3,
        "chi2_token": sums.excess,
        "frac_beyond_2": sums.num_wide,
        "frac_beyond_clip": sums.num_beyond,
        "frac_clipped": sums.num_clipped,
        "chi2_sequence": excess_of_sequences,
    }
    is_finite = {name: bool(np.all(np.abs(values) < _LARGEST)) for name, values in columns.items()}
    table = np.column_stack([values if is_finite[name] else np.zeros_like(values) for name, values in columns.items()])
    estimates = bootstrap_statistics(
        _statistics, cluster_sums(table, prompts), bounds=(_LOWER_BOUNDS, _UPPER_BOUNDS), resampling=resampling
    )
    by_name = dict(zip(NAMES, estimates, strict=True))
    for name in ("kl_k3", "chi2_token", "chi2_sequence"):
        if not is_finite[name]:
            by_name[name] = Estimate.undefined_because(_TOO_LARGE, num_units=by_name[name].num_units)
    if not is_finite["frac_clipped"]:
        by_name["frac_clipped"] = Estimate.undefined_because(_NO_ADVANTAGE, num_units=by_name["frac_clipped"].num_units)
    return by_name


def _statistics(totals: Array) -> Array:
    """From sums of the columns, [..., 14], to the estimates, [..., 10]."""
    tokens, sequences, weight, square, sequence_weight, sequence_square = np.moveaxis(totals[..., :6], -1, 0)
    token_means, sequence_means = totals[..., 6:13] / tokens[..., None], totals[..., 13] / sequences
    shares = _effective_share(weight, square, tokens), _effective_share(sequence_weight, sequence_square, sequences)
    return np.concatenate(
        [np.stack(shares, axis=-1), token_means[..., :4], sequence_means[..., None], token_means[..., 4:]], axis=-1
    )


def _effective_share(weight: Array, square: Array, number: Array) -> Array:
    """Kish's share; where the jackknife takes the largest weight out, rounding may leave less than nothing."""
    smallest = np.finfo(np.float64).tiny
    return np.asarray(np.clip(weight**2 / (number * np.maximum(square, smallest)), 0.0, 1.0))


def first_step(steps: Sequence[int], last_versions: Sequence[int]) -> int | None:
    """The number of a log's first step, inferred from the versions of its weights: none come from the future.

    0 where a step 0 occurs or step N was sampled after N updates, else 1; None where neither explains the versions, the
    updates of the weights that sampled each rollout's last token.

    >>> first_step([1, 2], [0, 1]), first_step([4, 5], [4, 3]), first_step([1], [7])
    (1, 0, None)
    """
    lead = max((version - step for step, version in zip(steps, last_versions, strict=True)), default=-1)
    if lead > 0:
        return None
    return 0 if lead == 0 or 0 in steps else 1


def lag_estimates(lags: ArrayLike, prompts: ArrayLike, *, resampling: Resampling = RESAMPLING) -> dict[str, Estimate]:
    """``mean_lag``, ``max_lag`` (without an interval) and ``frac_above_1`` of the lags of rollouts, in updates, [R].

    >>> {name: estimate.value for name, estimate in lag_estimates([0, 2, 1], ["a", "b", "c"]).items()}
    {'mean_lag': 1.0, 'max_lag': 2.0, 'frac_above_1': 0.3333333333333333}
    """
    values = np.asarray(lags, dtype=np.float64)
    largest = Estimate.undefined_because("there is nothing to compare")
    if len(values):
        largest = Estimate.exact(values.max(), num_units=len(values))
    mean = bootstrap_mean(values, prompts, share=False, resampling=resampling)
    return {
        "mean_lag": mean.within(0.0, math.inf),
        "max_lag": largest,
        "frac_above_1": bootstrap_mean(values > 1, prompts, resampling=resampling),
    }


def token_mean(
    sums: ArrayLike, num_tokens: ArrayLike, prompts: ArrayLike, *, resampling: Resampling = RESAMPLING
) -> Estimate:
    """(sum of sums) / (sum of tokens) over sequences, [S], of numbers that are not negative: a mean over all tokens.

    >>> token_mean([1.0, 5.0], [1, 2], ["a", "b"]).value
    2.0
    """
    table = np.column_stack([np.asarray(sums, dtype=np.float64), np.asarray(num_tokens, dtype=np.float64)])
    if not len(table):
        return Estimate.undefined_because("there is nothing to average")
    units = cluster_sums(table, prompts)
    return bootstrap_statistics(ratios, units, bounds=(0.0, np.inf), resampling=resampling)[0]


Sign = Literal["positive", "negative"]
Entropy = Literal["top_fifth", "rest"]
SIGNS: tuple[Sign, ...] = ("positive", "negative")
ENTROPIES: tuple[Entropy, ...] = ("top_fifth", "rest")
PROBABILITIES = (0.0, 0.25, 0.75, 1.0)
"""Bounds of the three buckets of probability: unlikely, in between and likely tokens. They are the same at every step,
which quantiles would not be: late in training most tokens have probability near 1."""
TOP = 0.2  # share of the tokens that count as of high entropy, as in arXiv 2506.01939


class TokenCell(Struct, frozen=True, kw_only=True):
    """One kind of token; None means all of that kind."""

    sign: Sign | None = None  # of the advantage
    probability: int | None = None  # which bucket of :data:`PROBABILITIES`, from 0
    entropy: Entropy | None = None  # whether among the top fifth of the step's tokens

    def holds(self, cell: TokenCell) -> bool:
        """Whether all tokens of another cell are of this kind: the two agree in everything that this one names.

        >>> TokenCell(sign="positive").holds(TokenCell(sign="positive", probability=0, entropy="rest"))
        True
        """
        pairs = ((self.sign, cell.sign), (self.probability, cell.probability), (self.entropy, cell.entropy))
        return all(value is None or value == other for value, other in pairs)


UNDECIDED = TokenCell(entropy="top_fifth")
"""Tokens at which the policy's entropy is among the highest fifth of the step's."""
UNLIKELY = TokenCell(probability=0)  # tokens of low probability


def token_cells(advantages: ArrayLike, logprobs: ArrayLike, entropies: ArrayLike) -> dict[TokenCell, NDArray[np.bool_]]:
    """The mask [N] of each of the twelve cells that has a token; tokens of advantage zero are in none.

    From advantages, log pi and entropies in nats, [N] each; the top fifth is from their quantile up, so that equal ones
    stay together.

    >>> cells = token_cells([1.0, -1.0], [0.0, -3.0], [0.0, 1.0])
    >>> [(cell.sign, cell.probability, cell.entropy) for cell in cells]
    [('positive', 2, 'rest'), ('negative', 0, 'top_fifth')]
    """
    values, probabilities = np.asarray(advantages, dtype=np.float64), np.exp(np.asarray(logprobs, dtype=np.float64))
    undecided = np.asarray(entropies, dtype=np.float64)
    bucket = np.clip(np.searchsorted(PROBABILITIES[1:-1], probabilities, side="right"), 0, len(PROBABILITIES) - 2)
    is_top = undecided >= np.quantile(undecided, 1.0 - TOP)
    masks = {}
    for sign, probability, entropy in product(SIGNS, range(len(PROBABILITIES) - 1), ENTROPIES):
        has_sign = values > 0 if sign == "positive" else values < 0
        mask = has_sign & (bucket == probability) & (is_top if entropy == "top_fifth" else ~is_top)
        if mask.any():
            masks[TokenCell(sign=sign, probability=probability, entropy=entropy)] = mask
    return masks
