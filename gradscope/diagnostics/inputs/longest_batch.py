"""The longest batch that a model with dynamic NTK scaling had seen before a step: it keeps the frequencies of that one.

Beyond the positions that a model was pretrained on, ``rope_type="dynamic"`` changes its rotary frequencies with the
length of a batch, and goes back only for a batch that is short enough to need no scaling. Generation runs the same
model over the prompts first, and then token by token to the end.

Shapes: none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gradscope.gradients.model.policy import MeasuredPolicy
from gradscope.gradients.plan.objective import Objective
from gradscope.gradients.plan.prepared_step import pretrained_length, see_batch, sequences_of
from gradscope.rollouts.run import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Longest:
    """What a model kept of the batches before a step."""

    length: int = 0
    """Of the longest batch since frequencies went back; 0 where they are those of the step's own."""
    unlogged: int = 0
    """An earlier step whose length is not known; 0: all are."""


def remember_longest(run: Run, step: int, policy: MeasuredPolicy, objective: Objective) -> None:
    """Give a policy and its reference the frequencies that they had when they came to a step."""
    if pretrained_length(policy.model) is None or not run.trained_by_trl:
        return
    for model, generates in ((policy.model, True), (policy.reference, False)):
        seen = longest_before(run, step, policy, objective, generates=generates) if model is not None else Longest()
        if seen.length:
            see_batch(model, seen.length)


def longest_before(
    run: Run, step: int, policy: MeasuredPolicy, objective: Objective, *, generates: bool = True
) -> Longest:
    """The longest batch before a step.

    Args:
        policy: A model, and what reads prompts that were logged as text.
        generates: Whether the model generated the rollouts too, and so began each step with the prompts alone.

    Returns:
        Its length; 0 where the model does not scale dynamically.
    """
    start, longest = pretrained_length(policy.model), 0
    for number in range(step, 0, -1) if start is not None else ():
        if not run.groups_at(number):
            return Longest(length=longest, unlogged=number)
        prompts, completions = _widths(run, number, policy, objective)
        if number < step:
            longest = max(longest, prompts + completions)
        if (prompts if generates else prompts + completions) < (start or 0):
            break  # frequencies went back
    return Longest(length=longest)


def _widths(run: Run, step: int, policy: MeasuredPolicy, objective: Objective) -> tuple[int, int]:
    """The padded lengths of a step's prompts and completions, in its first process."""
    sequences = sequences_of(policy, run.groups_at(step), objective)
    frames: Sequence[Any] = [sequence.frame for sequence in sequences if sequence.frame is not None]
    return (frames[0].prompt_width, frames[0].completion_width) if frames else (0, 0)
