"""How far the trainer's policy is from the one that sampled: effective sample size, chi-square and KL.

Legend: N tokens, S sequences. A token's ratio is w = p_trainer / p_sampler, its log-ratio d = log w; a sequence's are
the product and the sum of its tokens'. Tokens and sequences are draws of the sampler, so all divergences are means over
it. Intervals resample prompts. Where a few ratios hold most of a sum, as those of long sequences do, an interval knows
no larger ratio than the log has, and is too narrow.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradscope.estimate import Estimate
from gradscope.metrics.sampler.sequence_sums import SequenceSums
from gradscope.metrics.uncertainty.bootstrap import bootstrap_statistics
from gradscope.metrics.uncertainty.clusters import cluster_sums
from gradscope.metrics.uncertainty.resampling import RESAMPLING, Resampling

Array = NDArray[np.float64]

NAMES = (
    *("token_ess", "sequence_ess", "logprob_gap", "kl_k1", "kl_k3", "chi2_token", "chi2_sequence"),
    *("frac_beyond_2", "frac_beyond_clip", "frac_clipped"),
)
"""The estimates, in the order of the statistic."""
_LEAST = np.array([0.0, 0.0, 0.0, -np.inf, 0.0, -1.0, -1.0, 0.0, 0.0, 0.0])
_GREATEST = np.array([1.0, 1.0, np.inf, np.inf, np.inf, np.inf, np.inf, 1.0, 1.0, 1.0])
_LARGEST = 1e200
_TOO_LARGE = "a ratio in the log is beyond floating-point numbers"
_NO_ADVANTAGE = "the log does not tell the advantage of every token"


def mismatch_estimates(
    sums: SequenceSums, prompts: ArrayLike, *, resampling: Resampling = RESAMPLING
) -> dict[str, Estimate]:
    """Everything that the ratios of a log say, from one set of resamples.

    ``token_ess`` is (sum of w)^2 / (N sum of w^2), ``sequence_ess`` the same of sequences; ``logprob_gap`` mean |d|;
    ``kl_k1`` mean of -d and ``kl_k3`` mean of w - 1 - d, both KL(sampler, trainer) a token; ``chi2_token`` mean of
    w^2 - 1, ``chi2_sequence`` the same of sequences; ``frac_beyond_2`` and ``frac_beyond_clip`` the shares of tokens
    outside [1/2, 2] and [0.8, 1.2]; ``frac_clipped`` of those that PPO's clip at 0.2 takes the gradient of.

    Args:
        sums: Of at least one sequence.
        prompts: The prompt of each sequence, numbers or strings, the unit of resampling, [S].
        resampling: How often, and from which seed.

    Returns:
        Name -> estimate; undefined with the reason where floating point or the log does not have it.

    Example:
        >>> from gradscope.metrics.sampler.sequence_sums import sequence_sums
        >>> found = mismatch_estimates(sequence_sums([0.0, np.log(3.0)], [1, 1]), ["a", "b"])
        >>> [round(found[name].value, 3) for name in ("token_ess", "chi2_token", "kl_k3")]
        [0.8, 4.0, 0.451]
    """
    columns = _columns(sums)
    known = {name: bool(np.all(np.abs(values) < _LARGEST)) for name, values in columns.items()}
    table = np.column_stack([values if known[name] else np.zeros_like(values) for name, values in columns.items()])
    estimates = bootstrap_statistics(
        _statistics, cluster_sums(table, prompts), within=(_LEAST, _GREATEST), resampling=resampling
    )
    found = dict(zip(NAMES, estimates, strict=True))
    for name in ("kl_k3", "chi2_token", "chi2_sequence"):
        if not known[name]:
            found[name] = Estimate.undefined_because(_TOO_LARGE, num_units=found[name].num_units)
    if not known["frac_clipped"]:
        found["frac_clipped"] = Estimate.undefined_because(_NO_ADVANTAGE, num_units=found["frac_clipped"].num_units)
    return found


def _columns(sums: SequenceSums) -> dict[str, Array]:
    """What is summed over sequences, [S] each; the weights relative to the largest, on which shares do not depend."""
    of_tokens, of_sequences = float(sums.log_square.max()) / 2, float(sums.log_ratio.max())
    with np.errstate(over="ignore"):
        excess_of_sequences = np.expm1(2 * sums.log_ratio)
    return {
        "tokens": sums.num_tokens,
        "sequences": np.ones(len(sums.num_tokens)),
        "weight": np.exp(sums.log_weight - of_tokens),
        "square": np.exp(sums.log_square - 2 * of_tokens),
        "sequence_weight": np.exp(sums.log_ratio - of_sequences),
        "sequence_square": np.exp(2 * (sums.log_ratio - of_sequences)),
        "logprob_gap": sums.distance,
        "kl_k1": 0.0 - sums.log_ratio,
        "kl_k3": sums.k3,
        "chi2_token": sums.excess,
        "frac_beyond_2": sums.num_wide,
        "frac_beyond_clip": sums.num_beyond,
        "frac_clipped": sums.num_clipped,
        "chi2_sequence": excess_of_sequences,
    }


def _statistics(totals: Array) -> Array:
    """From sums of the columns, [..., 14], to the estimates, [..., 10]."""
    tokens, sequences, weight, square, sequence_weight, sequence_square = np.moveaxis(totals[..., :6], -1, 0)
    of_tokens, of_sequences = totals[..., 6:13] / tokens[..., None], totals[..., 13] / sequences
    shares = _effective_share(weight, square, tokens), _effective_share(sequence_weight, sequence_square, sequences)
    return np.concatenate(
        [np.stack(shares, axis=-1), of_tokens[..., :4], of_sequences[..., None], of_tokens[..., 4:]], axis=-1
    )


def _effective_share(weight: Array, square: Array, number: Array) -> Array:
    """Kish's share; where the jackknife takes the largest weight out, rounding may leave less than nothing."""
    least = np.finfo(np.float64).tiny
    return np.asarray(np.clip(weight**2 / (number * np.maximum(square, least)), 0.0, 1.0))
