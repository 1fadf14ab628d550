"""Whether these weights made these rollouts: logged log-probabilities of the sampler beside the recomputed ones.

Shapes: R rollouts, T tokens of a completion.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gradscope.results.rank import StepGeometry
from gradscope.results.replay import LogprobDifference, StepReplay
from gradscope.rollouts.types import RolloutGroup

if TYPE_CHECKING:
    from gradscope.gradients.step.step_gram import StepGram

LOGPROB_BOUND = 0.1
"""Difference of a token's log-probability beyond which it is counted: its probability is off by 10 %. Samplers in
bfloat16 and kernels in another order stay below it for nearly all tokens; other weights do not."""


def logprob_difference(groups: Sequence[RolloutGroup], gram: StepGram) -> LogprobDifference | None:
    """|logged - recomputed| over all sampled tokens of a step.

    Args:
        groups: The step's rollouts.
        gram: Their Gram matrix, with the policy's log-probabilities, [R][T].

    Returns:
        Mean, largest, and the share beyond the bound; None where no log-probabilities of exact ids were logged.
    """
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    differences = [
        np.abs(np.asarray(rollout.logprobs, dtype=np.float64) - recomputed)[_sampled(rollout.mask, len(recomputed))]
        for rollout, recomputed in zip(rollouts, gram.logprobs, strict=True)
        if rollout.logprobs is not None and len(rollout.logprobs) == len(recomputed)
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


def logprob_findings(steps: Sequence[StepReplay] | Sequence[StepGeometry]) -> tuple[str, ...]:
    """What the differences say, in at most one sentence.

    Args:
        steps: The steps that were recomputed.

    Returns:
        The sentence; none where nothing was logged.
    """
    known = [(step.step, step.logprob_difference) for step in steps if step.logprob_difference is not None]
    if not known:
        return ()
    step, worst = max(known, key=lambda pair: pair[1].frac_beyond or pair[1].max)
    if worst.frac_beyond == 0:
        return (
            f"The sampler's logged log-probabilities are those of these weights: the largest difference of a token is "
            f"{max(difference.max for _, difference in known):.2g} at {len(known)} step{'s' * (len(known) != 1)}.",
        )
    return (
        f"At step {step} the sampler's logged log-probabilities differ from these weights' by more than "
        f"{worst.bound:g} at {worst.frac_beyond:.1%} of {worst.num_tokens:,} tokens (mean {worst.mean:.2g}, largest "
        f"{worst.max:.2g}): other weights, another temperature or other kernels sampled them.",
    )


def _sampled(mask: Sequence[bool] | None, length: int) -> np.ndarray:
    """Tokens that the policy sampled: a mask leaves out what a tool or an environment wrote."""
    return np.ones(length, dtype=bool) if mask is None else np.asarray(mask, dtype=bool)
