"""The scalar reward of a TRL rollout, which the log does not hold: the weighted sum of its reward functions.

Shapes: N logged steps, K reward functions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gradscope.errors import InputError
from gradscope.rollouts.readers.parsing.scalars import finite_or_none
from gradscope.rollouts.readers.trl.files import StepFile
from gradscope.rollouts.readers.trl.state import TrlState
from gradscope.rollouts.run import TrainerSettings

Array = npt.NDArray[np.float64]

_TOLERANCE = 1e-5
"""Largest residual of fitted weights, relative to the largest logged reward: the log is float32."""
_MAX_CONDITION = 1e4
"""Beyond this the steps do not tell the reward functions apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardWeights:
    """Which columns are reward functions and how they add up."""

    weights: Mapping[str, float]
    """Reward function -> weight, in the order of the columns."""
    inferred: tuple[str, ...] = ()
    """What was worked out, for ``Source.inferred``."""
    missing: tuple[str, ...] = ()
    """What could not be, for ``Source.missing``."""


def reward_weights(files: Sequence[StepFile], state: TrlState, settings: TrainerSettings) -> RewardWeights:
    """The reward functions of a run and their weights.

    Args:
        files: The run's files; the columns are those of the first.
        state: The trainer's log.
        settings: The trainer's arguments.

    Returns:
        Names and weights, with how they were found.

    Raises:
        InputError: No column can be a reward function, or the given weights do not fit their number.
    """
    file = files[0]
    names = tuple(name for name in file.columns if name in state.reward_names)
    inferred: tuple[str, ...] = ()
    if not names:
        names = _leading_doubles(file)
        inferred = (
            f"The reward functions are {', '.join(names)}: the columns of type double after the completion "
            "(the trainer's log does not name them).",
        )
    if not names:
        raise InputError(f"{file.path} has no column of rewards.", hint="Use --reader generic --reward-column NAME.")
    named_weights = settings.get("reward_weights")
    if named_weights is not None:
        if (
            isinstance(named_weights, list)
            and len(named_weights) > len(names)
            and set(names) <= set(state.reward_names)
        ):
            return _shared(names, inferred, f"{len(named_weights)} reward functions have {len(names)}")
        if not isinstance(named_weights, list) or len(named_weights) != len(names):
            raise InputError(
                f"{settings.origin} gives reward_weights {named_weights}; the log has {len(names)} reward functions: "
                f"{', '.join(names)}.",
                hint="Give one weight a reward function, in the order of the columns.",
            )
        return RewardWeights(weights=dict(zip(names, map(float, named_weights), strict=True)), inferred=inferred)
    if "reward_weights" in settings.values:  # null: TRL's default
        if max(fitted := _fitted_to_means(names, state) or [1.0]) >= 2.0 and all(map(float.is_integer, fitted)):
            return _shared(names, inferred, f"{int(sum(fitted))} reward functions have {len(names)}")
        return RewardWeights(weights=dict.fromkeys(names, 1.0), inferred=inferred)
    if any(one.lacks(name) for one in files for name in names):
        reason = "Reward weights are not known, and means over other rollouts do not tell them; 1 each was used"
        return RewardWeights(
            weights=dict.fromkeys(names, 1.0), inferred=inferred, missing=(f"{reason} (--run-config gives them).",)
        )
    return _fit(names, state, inferred)


def scalar_reward(row: Mapping[str, Any], weights: Mapping[str, float]) -> tuple[dict[str, float | None], float | None]:
    """The rewards of one row.

    Args:
        row: A row of a file of completions.
        weights: Reward function -> weight.

    Returns:
        Reward per function, and their weighted sum. A function that does not apply to the row (None) is left out of
        the sum, as in TRL; None where none applies.
    """
    rewards = {name: finite_or_none(row.get(name)) for name in weights}
    terms = [weights[name] * reward for name, reward in rewards.items() if reward is not None]
    total = sum(terms) if terms else math.nan
    return rewards, None if math.isnan(total) else total


def scalar_rewards(numbers: Mapping[str, Array], weights: Mapping[str, float]) -> Array:
    """The weighted sums of the rows of a file, as :func:`scalar_reward` gives them one by one.

    Args:
        numbers: Reward function -> its rewards, NaN where it does not apply, [N].
        weights: Reward function -> weight.

    Returns:
        [N]; NaN where no function applies.
    """
    total, applies = np.zeros(()), np.zeros((), dtype=np.bool_)
    with np.errstate(over="ignore", invalid="ignore"):
        for name, values in numbers.items():
            total = total + np.where(np.isnan(values), 0.0, weights[name] * values)
            applies = applies | ~np.isnan(values)
    return np.where(applies, total, math.nan)


def _leading_doubles(file: StepFile) -> tuple[str, ...]:
    """The unbroken run of columns of type double after the completion: TRL writes those of ``log_extra`` after them."""
    names: list[str] = []
    for name in file.columns[file.columns.index("completion") + 1 :]:
        if name == "advantage" or name not in file.doubles:
            break
        names.append(name)
    return tuple(names)


def _fit(names: Sequence[str], state: TrlState, inferred: tuple[str, ...]) -> RewardWeights:
    weights = _fitted_to_means(names, state)
    num_entries = len(_entries(names, state))
    if weights is None:
        reason = f"Reward weights are not known, and {num_entries} logged steps do not determine them; 1 each was used"
        return RewardWeights(
            weights=dict.fromkeys(names, 1.0), inferred=inferred, missing=(f"{reason} (--run-config gives them).",)
        )
    if not (len(names) == 1 and weights[0] == 1.0):
        text = ", ".join(f"{name} {weight:g}" for name, weight in zip(names, weights, strict=True))
        inferred = (*inferred, f"Reward weights fitted to {num_entries} logged steps: {text}.")
    return RewardWeights(weights=dict(zip(names, weights, strict=True)), inferred=inferred)


def _entries(names: Sequence[str], state: TrlState) -> list[list[float]]:
    """Of each logged step that has them all the means of the functions, then the mean scalar reward, [N][K + 1]."""
    keys = [*(f"rewards/{name}/mean" for name in names), "reward"]
    every = [[metrics.get(key, math.nan) for key in keys] for metrics in state.metrics.values()]
    return [entry for entry in every if all(map(math.isfinite, entry))]


def _fitted_to_means(names: Sequence[str], state: TrlState) -> list[float] | None:
    """Weights with which the logged means add up to the logged rewards, if the steps determine them."""
    table = np.array(_entries(names, state)).reshape(-1, len(names) + 1)
    return _least_squares(table[:, :-1], table[:, -1])


def _shared(names: Sequence[str], inferred: tuple[str, ...], which: str) -> RewardWeights:
    """Where functions share a name TRL's table has one column for them, of the last: no sum is known."""
    missing = (
        f"{which} name{'' if len(names) == 1 else 's'} ({', '.join(names)}), and the table has one column a name: what "
        "the rewards add up to is not logged. Give each function a __name__ of its own in the next run."
    )
    return RewardWeights(weights=dict.fromkeys(names, math.nan), inferred=inferred, missing=(missing,))


def _least_squares(means: npt.NDArray[np.float64], totals: npt.NDArray[np.float64]) -> list[float] | None:
    """Weights with means @ weights = totals, if the steps determine them.

    Args:
        means: Mean reward per step and function, [N, K].
        totals: Mean scalar reward per step, [N].

    Returns:
        The weights, rounded to six digits after the point; None where they are not determined or do not fit.
    """
    if len(means) < means.shape[1] or not np.any(means):
        return None
    if np.linalg.cond(means) > _MAX_CONDITION:
        return None
    solution = np.linalg.lstsq(means, totals, rcond=None)[0]
    weights = np.asarray(solution, dtype=np.float64).round(6)
    residual = np.abs(means @ weights - totals).max()
    fits = bool(residual <= _TOLERANCE * max(1.0, np.abs(totals).max()))
    return [float(weight) for weight in weights] if fits else None
