"""The part of a replay that is arithmetic on the log: rewards, advantages, the share of degenerate groups."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gradscope.advantages.registry import compute_step_advantages, formulation
from gradscope.diagnostics.inputs.steps import MeasuredStep
from gradscope.metrics.outcomes.groups import all_equal
from gradscope.results.replay import Quantity, ReplayVerdict
from gradscope.rollouts.run import Run
from gradscope.rollouts.run_folder import CUSTOM_ADVANTAGE
from gradscope.rollouts.types import RolloutGroup
from gradscope.say import non_finite_word

LOG_TOLERANCE = 1e-5
"""Trainers compute rewards and advantages in float32: 1e-7 relative, a little more after a division by a small std."""

FORMULATION_OF_SCALE = {"group": "grpo", "True": "grpo", "none": "dr_grpo", "False": "dr_grpo"}
"""TRL's ``scale_rewards`` -> the formulation it makes; with ``batch`` the std is that of the whole batch."""

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


def _rewards(groups: Sequence[RolloutGroup]) -> NDArray[np.float64] | None:
    """Scalar rewards of a step; None where one is missing."""
    values = [reward for group in groups for reward in group.rewards]
    return None if None in values else np.array(values, dtype=np.float64)


def replay_rewards(run: Run, measured: MeasuredStep) -> Outcome:
    """The mean reward of the step: verdict, recomputed value, relative error."""
    logged = run.metrics.get(measured.step, {}).get("reward")
    rewards = _rewards(measured.groups)
    if rewards is None:
        return _outcome("reward", "a rollout has no reward")
    if measured.step in run.notes:
        return _outcome("reward", run.notes[measured.step])
    if logged is None:
        return _outcome("reward", "the trainer logged no mean reward at this step")
    return _compare("reward", float(rewards.mean()), logged)


def replay_zero_std(run: Run, measured: MeasuredStep) -> Outcome:
    """The share of rollouts in groups of equal reward, as TRL counts it; of groups, where our own log says so."""
    name = "frac_reward_zero_std"
    logged = run.metrics.get(measured.step, {}).get(name)
    rewards = _rewards(measured.groups)
    if rewards is None:
        return _outcome(name, "a rollout has no reward")
    if measured.step in run.notes:
        return _outcome(name, run.notes[measured.step])
    if logged is None:
        return _outcome(name, "the trainer logged no frac_reward_zero_std at this step")
    if run.settings.get("scale_rewards") == "batch":
        return _outcome(name, "with scale_rewards = batch the trainer logs the std of the whole batch, not of groups")
    by_group = run.settings.get("sampling") == "reallocated"
    sizes = np.array([1 if by_group else group.size for group in measured.groups])
    flat = np.array([all_equal(_known(group)) for group in measured.groups])
    return _compare(name, float(sizes[flat].sum() / sizes.sum()), logged)


def _known(group: RolloutGroup) -> list[float]:
    return [reward for reward in group.rewards if reward is not None]


def replay_advantages(run: Run, measured: MeasuredStep) -> Outcome:
    """The step's advantages: verdict, recomputed mean absolute advantage, largest absolute difference."""
    rollouts = [rollout for group in measured.groups for rollout in group.rollouts]
    logged = [rollout.advantage for rollout in rollouts]
    if any(value is None for value in logged):
        return _outcome("advantage", "the advantages were not logged, or are one per token")
    rewards = _rewards(measured.groups)
    if rewards is None:
        return _outcome("advantage", "a rollout has no reward")
    given = run.settings.get("advantage")
    scale = str(run.settings.get("scale_rewards", "group"))
    name = str(given) if given else FORMULATION_OF_SCALE.get(scale)
    if name is None and scale != "batch":
        return _outcome("advantage", f"scale_rewards = {scale} is not a formulation that gradscope knows")
    if name == CUSTOM_ADVANTAGE:
        return _outcome("advantage", "a subclass of the trainer made them, and how is not recorded")
    if name is not None and formulation(name).function is None:
        return _outcome("advantage", f"{name} needs more than the rewards of the step")
    value = _batch_scaled(measured.groups) if name is None else _formulated(name, measured.groups)
    largest = float(np.max(np.abs(value - np.array(logged, dtype=np.float64))))
    size = float(np.mean(np.abs(value)))
    if largest <= LOG_TOLERANCE:
        return Quantity(name="advantage", verdict="match", cause=None), size, largest
    if run.settings.origin is None:
        cause = f"the advantage formula is not in the folder, and the trainer's default is {largest:.2g} off"
        return Quantity(name="advantage", verdict="cannot", cause=f"{cause}: --run-config"), size, largest
    cause = f"an advantage differs from {name or 'the batch-scaled form'} of its group by {largest:.2g}"
    return Quantity(name="advantage", verdict="mismatch", cause=cause), size, largest


def _formulated(name: str, groups: Sequence[RolloutGroup]) -> NDArray[np.float64]:
    """Advantages of all rollouts of a step, in the order of its groups."""
    return np.concatenate(compute_step_advantages(name, [np.array(group.rewards, dtype=float) for group in groups]))


def _batch_scaled(groups: Sequence[RolloutGroup]) -> NDArray[np.float64]:
    """TRL's ``scale_rewards = batch``: minus the group's mean, over the std (ddof 1) of the batch plus 1e-4."""
    rewards = [np.array(group.rewards, dtype=float) for group in groups]
    scale = np.concatenate(rewards).std(ddof=1) + 1e-4
    return np.concatenate([(values - values.mean()) / scale for values in rewards])
