"""The part of a replay that is arithmetic on the log: rewards, advantages, the share of degenerate groups."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gradscope.advantages.registry import compute_step_advantages, formulation
from gradscope.diagnostics.inputs.steps import MeasuredStep
from gradscope.diagnostics.replay.trl_advantages import TrlBatch, trl_batch
from gradscope.metrics.outcomes.groups import all_equal
from gradscope.reason import Reason
from gradscope.results.replay import Quantity, ReplayVerdict
from gradscope.rollouts.run import Run
from gradscope.rollouts.run_folder import CUSTOM_ADVANTAGE
from gradscope.rollouts.types import RolloutGroup
from gradscope.say import non_finite_word

LOG_TOLERANCE = 1e-5
"""Trainers compute rewards and advantages in float32: 1e-7 relative, a little more after a division by a small std."""

_BY_TRL = ("trl", "gradscope")
"""Formats whose advantages TRL's trainer made."""

Outcome = tuple[Quantity, float | None, float | None]
"""The verdict, the recomputed value, the error; None where there is none."""


def _error(value: float, logged: float) -> float:
    """Relative where the logged value is not zero, absolute where it is."""
    return abs(value - logged) / abs(logged) if logged else abs(value)


def _outcome(name: str, cause: str, *, verdict: ReplayVerdict = "cannot") -> Outcome:
    """A quantity that has no number."""
    return Quantity(name=name, verdict=verdict, cause=cause), None, None


def _compare(name: str, value: float, logged: float) -> Outcome:
    """A recomputed number beside the logged one; beside NaN or infinity there is no error to measure."""
    if not math.isfinite(logged):
        cause = f"the log says {non_finite_word(logged)}, its rollouts say {value:.6g}"
        return Quantity(name=name, verdict="mismatch", cause=cause), value, None
    error = _error(value, logged)
    if error <= LOG_TOLERANCE:
        return Quantity(name=name, verdict="match", cause=None), value, error
    cause = f"the log says {logged:.6g}, its rollouts say {value:.6g}"
    return Quantity(name=name, verdict="mismatch", cause=cause), value, error


def _batch(run: Run, measured: MeasuredStep) -> TrlBatch | Reason:
    """What the trainer made of the step's rewards, or why that cannot be told."""
    unscored = any(reward is None for group in measured.groups for reward in group.rewards)
    if unscored and (run.source.format not in _BY_TRL or run.settings.get("advantage")):
        return Reason("rewards_missing", "a rollout has no reward")
    return trl_batch(measured.groups, run.settings)


def _not_of_this_step(run: Run, step: int) -> Reason | None:
    """Why what was logged is not of the step's rollouts alone."""
    if step in run.windows:
        return Reason("window", f"the trainer logged the mean of {run.windows[step]} steps")
    return run.notes.get(step)


def replay_rewards(run: Run, measured: MeasuredStep) -> Outcome:
    """The mean reward of the step: verdict, recomputed value, relative error."""
    logged = run.metrics.get(measured.step, {}).get("reward")
    batch = _batch(run, measured)
    reason = batch if isinstance(batch, Reason) else _not_of_this_step(run, measured.step)
    if reason is not None or isinstance(batch, Reason):
        return _outcome("reward", str(reason))
    if logged is None:
        return _outcome("reward", "the trainer logged no mean reward at this step")
    return _compare("reward", batch.reward, logged)


def replay_zero_std(run: Run, measured: MeasuredStep) -> Outcome:
    """The share of rollouts in groups of equal reward, as TRL counts it; of groups, where our own log says so."""
    name = "frac_reward_zero_std"
    logged = run.metrics.get(measured.step, {}).get(name)
    batch = _batch(run, measured)
    reason = batch if isinstance(batch, Reason) else _not_of_this_step(run, measured.step)
    if reason is not None or isinstance(batch, Reason):
        return _outcome(name, str(reason))
    if logged is None:
        return _outcome(name, "the trainer logged no frac_reward_zero_std at this step")
    if run.settings.get("sampling") == "reallocated":
        dead = [all_equal([reward for reward in group.rewards if reward is not None]) for group in measured.groups]
        return _compare(name, float(np.mean(dead)), logged)
    return _compare(name, batch.frac_zero_std, logged)


def replay_advantages(run: Run, measured: MeasuredStep) -> Outcome:
    """The step's advantages: verdict, recomputed mean absolute advantage, largest absolute difference."""
    rollouts = [rollout for group in measured.groups for rollout in group.rollouts]
    logged = [rollout.advantage for rollout in rollouts]
    if any(value is None for value in logged):
        return _outcome("advantage", "the advantages were not logged, or are one per token")
    given = run.settings.get("advantage")
    if given == CUSTOM_ADVANTAGE:
        return _outcome("advantage", "a subclass of the trainer made them, and how is not recorded")
    if given and formulation(str(given)).function is None:
        return _outcome("advantage", f"{given} needs more than the rewards of the step")
    batch = _batch(run, measured)
    if isinstance(batch, Reason):
        return _outcome("advantage", str(batch))
    value = _formulated(str(given), measured.groups) if given else batch.advantages
    largest = float(np.max(np.abs(value - np.array(logged, dtype=np.float64))))
    size = float(np.mean(np.abs(value)))
    if largest <= LOG_TOLERANCE:
        return Quantity(name="advantage", verdict="match", cause=None), size, largest
    if run.settings.origin is None:
        cause = f"the advantage formula is not in the folder, and the trainer's default is {largest:.2g} off"
        return Quantity(name="advantage", verdict="cannot", cause=f"{cause}: --run-config"), size, largest
    name = f"{given} of its group" if given else batch.name
    cause = f"an advantage differs from {name} by {largest:.2g}"
    return Quantity(name="advantage", verdict="mismatch", cause=cause), size, largest


def _formulated(name: str, groups: Sequence[RolloutGroup]) -> NDArray[np.float64]:
    """Advantages of all rollouts of a step, in the order of its groups."""
    return np.concatenate(compute_step_advantages(name, [np.array(group.rewards, dtype=float) for group in groups]))
