"""What the sampler's logged log-probabilities say about the weights, in a sentence for people."""

from __future__ import annotations

from collections.abc import Sequence

from gradscope.results.rank import StepGeometry
from gradscope.results.replay import StepReplay

LOGPROB_BOUND = 0.1
"""Difference of a token's log-probability beyond which it is counted: its probability is off by 10 %. Samplers in
bfloat16 and kernels in another order stay below it for nearly all tokens; other weights do not."""


def logprob_findings(steps: Sequence[StepReplay] | Sequence[StepGeometry]) -> tuple[str, ...]:
    """What the differences say, in at most one sentence; none where nothing was logged."""
    logged = [(step.step, step.logprob_difference) for step in steps if step.logprob_difference is not None]
    if not logged:
        return ()
    step, worst = max(logged, key=lambda pair: pair[1].frac_beyond or pair[1].max)
    if worst.frac_beyond == 0:
        return (
            f"The sampler's logged log-probabilities are those of these weights: the largest difference of a token is "
            f"{max(difference.max for _, difference in logged):.2g} at {len(logged)} step{'s' * (len(logged) != 1)}.",
        )
    return (
        f"At step {step} the sampler's logged log-probabilities differ from these weights' by more than "
        f"{worst.bound:g} at {worst.frac_beyond:.1%} of {worst.num_tokens:,} tokens (mean {worst.mean:.2g}, largest "
        f"{worst.max:.2g}): other weights, another temperature or other kernels sampled them.",
    )
