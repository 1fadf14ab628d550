"""TRL's advantages as its trainer makes them of the logged rewards, for all its settings.

A rollout that no reward function scored has no reward: since TRL 1.6 it leaves every mean and gets advantage 0; before,
it counted as 0.

Shapes: N rollouts of a step, G rollouts of a group, F reward functions.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradscope.advantages.group import TRL_EPSILON
from gradscope.metrics.outcomes.groups import EQUAL_REWARDS
from gradscope.reason import Reason
from gradscope.rollouts.function_rewards import function_rewards
from gradscope.rollouts.run import TrainerSettings
from gradscope.rollouts.trl_version import VERSION_HINT, TrlVersion
from gradscope.rollouts.types import RolloutGroup

Array = NDArray[np.float64]

_SCALES = {"group": "group", "True": "group", "none": "none", "False": "none", "batch": "batch"}
"""Spellings of ``scale_rewards``."""


@dataclass(frozen=True, slots=True)
class TrlBatch:
    """What TRL makes of the rewards of a generation batch.

    Args:
        reward: The mean reward that it logs.
        advantages: In the order of the groups, [N].
        frac_zero_std: The share of rollouts without a spread that it logs.
        name: How the advantages are called, for a sentence.
        unknown: Why the advantages cannot be told, where they cannot.
    """

    reward: float
    advantages: Array
    frac_zero_std: float
    name: str
    unknown: Reason | None = None


def trl_batch(groups: Sequence[RolloutGroup], settings: TrainerSettings) -> TrlBatch | Reason:
    """The numbers of a step's groups, or why they cannot be told."""
    scale = _SCALES.get(str(settings.get("scale_rewards", "group")))
    aggregation = str(settings.get("multi_objective_aggregation", "sum_then_normalize"))
    if scale is None:
        return Reason(
            "loss_unknown", f"scale_rewards = {settings.get('scale_rewards')} is not a formulation that gradscope knows"
        )
    if aggregation not in ("sum_then_normalize", "normalize_then_sum"):
        return Reason("loss_unknown", f"multi_objective_aggregation = {aggregation} is not known here")
    rewards = np.array([np.nan if r is None else r for group in groups for r in group.rewards], dtype=np.float64)
    unscored = np.isnan(rewards)
    version = TrlVersion.parse(settings.get("trl_version"))
    if unscored.any() and not version.known:
        return Reason(
            "settings_unknown",
            "a rollout has no reward, and what that does depends on TRL's version, which is not known",
            hint=VERSION_HINT,
        )
    if version.is_before(1, 6):
        rewards = np.nan_to_num(rewards, nan=0.0)
    sizes = [group.size for group in groups]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # groups of which nothing is known
        if aggregation == "normalize_then_sum":
            return _normalized_first(groups, rewards, settings)
        return _summed_first(rewards, sizes, scale)


def _summed_first(rewards: Array, sizes: Sequence[int], scale: str) -> TrlBatch:
    parts = np.split(rewards, np.cumsum(sizes)[:-1])
    means = np.concatenate([np.full(len(part), np.nanmean(part)) for part in parts])
    spreads = np.concatenate([np.full(len(part), _spread(part)) for part in parts])
    if scale == "batch":
        spreads = np.full(len(rewards), _spread(rewards))
    advantages = rewards - means
    if scale != "none":
        advantages = advantages / (spreads + TRL_EPSILON)
    name = {"group": "grpo of its group", "none": "dr_grpo of its group", "batch": "the batch-scaled form of its group"}
    return TrlBatch(_mean(rewards), np.nan_to_num(advantages), float(np.mean(_is_zero(spreads))), name[scale])


def _normalized_first(groups: Sequence[RolloutGroup], rewards: Array, settings: TrainerSettings) -> TrlBatch | Reason:
    """Each function's rewards are scaled within the group, then weighed and added, then scaled over the batch."""
    functions = function_rewards(groups, settings)
    if functions is None:
        return Reason("rewards_missing", "normalize_then_sum needs the rewards of each function, which were not logged")
    scaled = []
    for table in np.split(functions.table, np.cumsum([group.size for group in groups])[:-1]):
        spread = np.array([_spread(column) for column in table.T])
        scaled.append((table - np.nanmean(table, axis=0)) / (spread + TRL_EPSILON))
    total = np.nansum(np.concatenate(scaled) * functions.weights, axis=1)
    total[np.isnan(rewards)] = np.nan
    spread_of_all = _spread(total)
    advantages = (total - np.nanmean(total)) / (spread_of_all + TRL_EPSILON)
    name = "the functions scaled one by one and summed"
    return TrlBatch(_mean(rewards), np.nan_to_num(advantages), float(_is_zero(np.array(spread_of_all))), name)


def _mean(rewards: Array) -> float:
    return float(np.nanmean(rewards))


def _spread(values: Array) -> float:
    """The standard deviation as TRL computes it: over G - 1 known values, zero for a group of one, NaN without two."""
    if len(values) == 1:
        return 0.0
    known = values[~np.isnan(values)]
    if len(known) < 2:
        return float("nan")
    return float(known.std(ddof=1)) if np.ptp(known) > EQUAL_REWARDS else 0.0


def _is_zero(spreads: Array) -> NDArray[np.bool_]:
    return np.isclose(spreads, 0.0)
