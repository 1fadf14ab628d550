"""Steps that can be recomputed: their rollouts, the weights before their update, and the Gram matrix of both.

`rank` and `replay` walk over the same steps in the same way; a step that cannot be computed comes back with its reason
instead of a number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gradscope.errors import InputError
from gradscope.progress import ProgressCallback
from gradscope.rollouts.run import Run, WeightsRef
from gradscope.rollouts.types import RolloutGroup

if TYPE_CHECKING:
    from gradscope.gradients.step import StepGram


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """How the gradients are computed."""

    engine: str = "auto"
    """``auto``, ``loop`` or ``stream``."""
    verify: str = "first"
    """On which batches the engine checks itself: ``first`` or ``all``."""
    device: str = "auto"
    """``auto``, ``cpu`` or ``cuda``."""
    dtype: str = "auto"
    """``auto`` (as the run trained), ``float32`` or ``bfloat16``."""
    batch_tokens: int | None = None
    """Tokens of one batch, padding included; None: the engine's own budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """One step and its Gram matrix, or the reason why there is none."""

    step: int
    """The trainer's step."""
    groups: tuple[RolloutGroup, ...]
    """The rollouts of the step."""
    weights: WeightsRef | None
    """The weights before the update, where they are on disk."""
    gram: StepGram | None
    """Gram matrix of the step's score vectors."""
    reason: str | None
    """Why there is no Gram matrix."""


def select_steps(run: Run, steps: Sequence[int] | None) -> tuple[int, ...]:
    """The steps to look at.

    Args:
        run: The run.
        steps: The steps that were asked for; None: every step of the log.

    Returns:
        Steps in ascending order, without repetition.

    Raises:
        InputError: A step was asked for that the log does not hold.
    """
    if steps is None:
        return run.steps
    absent = sorted(set(steps) - set(run.steps))
    if absent:
        raise InputError(
            f"{run.path} has no rollouts of step {', '.join(map(str, absent))}.",
            hint=f"It has steps {run.steps[0]} to {run.steps[-1]}." if run.steps else None,
        )
    return tuple(sorted(set(steps)))


def missing_weights(run: Run, step: int) -> str:
    """Why the weights of a step cannot be used, and what would help.

    Args:
        run: The run.
        step: The trainer's step.

    Returns:
        A sentence without a final period.
    """
    saved = ", ".join(str(weights.num_updates) for weights in run.weights)
    have = f"on disk are the weights after {saved} updates" if saved else "no weights are on disk"
    advice = "; pass the weights before the first update with --initial" if step == 1 else ""
    return f"the weights after {step - 1} updates, which made step {step}, are not on disk ({have}){advice}"


def measure_steps(
    run: Run, steps: Sequence[int], options: EngineOptions, progress: ProgressCallback
) -> Iterator[MeasuredStep]:
    """The Gram matrix of each step, as soon as it is there.

    Args:
        run: The run.
        steps: Steps of the log.
        options: How the gradients are computed.
        progress: Told after each step.

    Yields:
        One result per step, in the order given.
    """
    for done, step in enumerate(steps):
        progress(done, len(steps), f"step {step}")
        yield _measure(run, step, options)
    progress(len(steps), len(steps), "steps")


def _measure(run: Run, step: int, options: EngineOptions) -> MeasuredStep:
    """One step: refuse with a reason, or load the weights and compute."""
    from gradscope.gradients.objective import Objective
    from gradscope.gradients.policy import load_policy
    from gradscope.gradients.step import measure_step

    groups = run.groups_at(step)
    weights = run.weights_before(step)
    objective = Objective.from_settings(run.settings)
    reason = run.notes.get(step)
    if reason is None and weights is None:
        reason = missing_weights(run, step)
    if reason is None and isinstance(objective, str):
        reason = objective
    if reason is not None or weights is None or isinstance(objective, str):
        return MeasuredStep(step=step, groups=groups, weights=weights, gram=None, reason=reason)
    policy = load_policy(
        weights,
        device=options.device,
        dtype=options.dtype,
        tokenizer=run.tokenizer,
        initial=run.weights_before(1),
    )
    gram = measure_step(
        policy, groups, objective, engine=options.engine, verify=options.verify, batch_tokens=options.batch_tokens
    )
    return MeasuredStep(step=step, groups=groups, weights=weights, gram=gram, reason=None)


def describe_weights(weights: WeightsRef) -> str:
    """The weights' folder as people know it.

    Args:
        weights: A set of weights.

    Returns:
        The folder's name.
    """
    return Path(weights.path).name
