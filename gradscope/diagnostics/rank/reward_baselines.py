"""How noisy the gradient is under each baseline, over the groups of a run. Shapes: n groups of G rollouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gradscope.advantages.registry import compute_step_advantages
from gradscope.diagnostics.rank.rows import StepRows, by_size, sub_groups
from gradscope.estimate import Estimate
from gradscope.metrics.gram.reward_baselines import (
    REFERENCE,
    baselines,
    optimal_baseline_of_group,
    reward_norm_correlation,
    second_moment,
)
from gradscope.metrics.gram.spectrum import Array
from gradscope.metrics.uncertainty.bootstrap import bootstrap_statistics, bounded_means
from gradscope.results.rank import BaselineNoise

_SHRINKAGE = "shrinkage"
_NOTHING = 1e-9
"""A resample may hold no group with a gradient; its sum then counts as this share of the whole."""
_MIN_LIVE = 10
"""With fewer groups that have a gradient, resamples of the ratio's denominator say nothing."""
_NO_NOISE = "leave_one_out has no gradient here, so there is nothing to compare with"


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineGroup:
    """One group's rewards, squared norms, and second moment under each baseline."""

    step: int
    """The trainer's step."""
    group_id: str
    """The group."""
    rewards: Array
    """[G]."""
    squared_norms: Array
    """|s|^2, [G]."""
    moments: Mapping[str, float]
    """Baseline -> mean of |s|^2 (r - b)^2."""

    @property
    def is_mixed(self) -> bool:
        """Whether rewards differ."""
        return bool(np.ptp(self.rewards) > 0)


def baseline_groups(rows: StepRows) -> list[BaselineGroup]:
    """The groups of two or more rollouts of a step whose rewards are all known."""
    rewarded = [part for part in sub_groups(rows, None) if not np.isnan(rows.rewards[part.index]).any()]
    parts = [part for part in rewarded if len(part.index) > 1]
    norms, groups = np.clip(np.diag(rows.gram), 0.0, None), []
    shrunk = compute_step_advantages(_SHRINKAGE, [rows.rewards[part.index] for part in parts]) if parts else ()
    for positions in by_size(parts):
        index = np.stack([parts[position].index for position in positions])
        rewards = rows.rewards[index]
        tables = baselines(rewards, norms[index])
        tables[_SHRINKAGE] = rewards - np.stack([shrunk[position] for position in positions])
        moments = {name: second_moment(rewards, norms[index], table) for name, table in tables.items()}
        groups += [
            BaselineGroup(
                step=rows.step,
                group_id=parts[position].group_id,
                rewards=rewards[row],
                squared_norms=norms[index[row]],
                moments={name: float(values[row]) for name, values in moments.items()},
            )
            for row, position in enumerate(positions)
        ]
    return groups


def measure_baselines(groups: Sequence[BaselineGroup]) -> tuple[BaselineNoise, ...]:
    """The noise of all steps together, of each step, and of each group whose rewards differ."""
    if not groups:
        return ()
    steps = sorted({group.step for group in groups})
    return (
        _noise(groups, step=None),
        *(_noise([group for group in groups if group.step == step], step=step) for step in steps),
        *(_noise([group], step=group.step, group_id=group.group_id) for group in groups if group.is_mixed),
    )


def _noise(groups: Sequence[BaselineGroup], *, step: int | None, group_id: str | None = None) -> BaselineNoise:
    return BaselineNoise(
        step=step,
        group_id=group_id,
        num_groups=len(groups),
        pass_rate=float(np.mean([group.rewards.mean() for group in groups])),
        optimal_baseline=_optimal(groups),
        reward_norm_correlation=_correlation(groups),
        relative_noise={name: _relative(groups, name) for name in groups[0].moments if name != REFERENCE},
    )


def _optimal(groups: Sequence[BaselineGroup]) -> Estimate:
    mixed = [group for group in groups if group.is_mixed]
    best = [optimal_baseline_of_group(group.rewards, group.squared_norms) for group in mixed]
    values = [[estimate.value] for estimate in best if estimate.value is not None]
    if not values:
        return Estimate.undefined_because("no group has rewards that differ and a gradient", num_units=len(groups))
    rewards = np.concatenate([group.rewards for group in mixed])
    (mean,) = bounded_means(values, low=float(rewards.min()), high=float(rewards.max()))
    return mean


def _correlation(groups: Sequence[BaselineGroup]) -> Estimate:
    """Pooled over groups of one size; of several sizes, over the most frequent one."""
    sizes = [len(group.rewards) for group in groups]
    chosen = [group for group in groups if len(group.rewards) == max(set(sizes), key=sizes.count)]
    # norms differ by orders of magnitude between groups; each group's own scale makes them comparable
    norms = np.stack([group.squared_norms / max(group.squared_norms.mean(), 1e-300) for group in chosen])
    return reward_norm_correlation(np.stack([group.rewards for group in chosen]), norms)


def _relative(groups: Sequence[BaselineGroup], name: str) -> Estimate:
    """Sum of second moments over that of the reference; resampled by group, as a logarithm, because it is a ratio."""
    moments = np.array([[group.moments[name], group.moments[REFERENCE]] for group in groups])
    total = moments.sum(axis=0)
    if total[1] <= 0.0:
        return Estimate.undefined_because(_NO_NOISE, num_units=len(groups))
    if total[0] <= 0.0:
        return Estimate.exact(0.0, num_units=len(groups))
    floor = _NOTHING * total

    def log_ratio(sums: Array) -> Array:
        logs = np.log(np.maximum(sums, floor))
        return np.asarray(logs[..., :1] - logs[..., 1:], dtype=np.float64)

    (log,) = bootstrap_statistics(log_ratio, moments)
    value = float(total[0] / total[1])
    if log.low is None or log.high is None or np.sum(moments[:, 1] > 0) < _MIN_LIVE:
        return Estimate.exact(value, num_units=len(groups))
    low, high = float(np.exp(log.low)), float(np.exp(log.high))
    return Estimate(value=value, low=min(low, value), high=max(high, value), num_units=len(groups))
