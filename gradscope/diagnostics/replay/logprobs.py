"""Whether these weights made these rollouts: logged log-probabilities of the sampler beside the recomputed ones.

Shapes: R rollouts, T tokens of a completion.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradscope.findings.logprobs import LOGPROB_BOUND
from gradscope.results.replay import LogprobDifference
from gradscope.rollouts.types import RolloutGroup


def logprob_difference(groups: Sequence[RolloutGroup], recomputed: Sequence[np.ndarray]) -> LogprobDifference | None:
    """|logged - recomputed| over a step's sampled tokens; None where no log-probabilities of exact ids were logged."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    differences = [
        np.abs(np.asarray(rollout.logprobs, dtype=np.float64) - own)[_sampled(rollout.mask, len(own))]
        for rollout, own in zip(rollouts, recomputed, strict=True)
        if rollout.logprobs is not None and len(rollout.logprobs) == len(own)
    ]
    every = np.concatenate([np.zeros(0), *differences])
    if not every.size or not np.all(np.isfinite(every)):
        return None
    return LogprobDifference(
        num_tokens=int(every.size),
        mean=float(every.mean()),
        max=float(every.max()),
        frac_beyond=float(np.mean(every > LOGPROB_BOUND)),
        bound=LOGPROB_BOUND,
    )


def _sampled(mask: Sequence[bool] | None, length: int) -> np.ndarray:
    """Tokens that the policy sampled: a mask leaves out what a tool or an environment wrote."""
    return np.ones(length, dtype=bool) if mask is None else np.asarray(mask, dtype=bool)
