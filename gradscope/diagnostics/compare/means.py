"""Means of a run's rewards, dead groups and lengths, their trends, and how far they differ between two runs.

Shapes: J groups, S steps, P prompts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from gradscope.estimate import Estimate
from gradscope.metrics.uncertainty import bootstrap
from gradscope.metrics.uncertainty.intervals import difference_of
from gradscope.metrics.uncertainty.levels import Jump, drop
from gradscope.metrics.uncertainty.steps import mean_difference, mean_of_steps, trend, widened_by_steps
from gradscope.rollouts.groups import RewardTable

_MOSTLY_SHARED = 0.8
"""Share of the prompts of both from which they are resampled together: with fewer a resample may leave a run none."""

_Array = NDArray[np.float64]


class GroupMean(Struct, frozen=True):
    """A weighted mean over groups; those of one prompt are resampled together."""

    table: RewardTable  # the groups
    values: _Array  # of each group, [J]
    weights: _Array  # what each counts, [J]

    @property
    def mean(self) -> float:
        """Its value, without the resampling that its interval takes."""
        return float(np.average(self.values, weights=self.weights))

    @property
    def estimate(self) -> Estimate:
        """Within the range that the values suggest."""
        low, high = float(self.values.min()), float(self.values.max())
        low, high = (0.0, 1.0) if low >= 0.0 and high <= 1.0 else (low, high)
        return self.bounded_estimate(low, (high - low) or 1.0)

    def bounded_estimate(self, low: float, reach: float) -> Estimate:
        """The estimate where values lie between ``low`` and ``low + reach``."""
        shares = np.clip((self.values - low) / reach, 0.0, 1.0)
        units = bootstrap.cluster_sums(np.column_stack([self.weights * shares, self.weights]), self.table.prompt)
        ((share,),) = bootstrap.bootstrap_shares([units])
        return share.map(lambda part: low + reach * part)


class SeriesMean(Struct, frozen=True):
    """A mean over steps of what a trainer logged at each."""

    steps: tuple[int, ...]  # those that are compared, [S]
    values: _Array  # of each, [S]

    @property
    def estimate(self) -> Estimate:
        """Within the range that the values suggest."""
        return self.join(self.values).within(*self.ends)

    @property
    def ends(self) -> tuple[float, float]:
        """The bounds of the mean that the values suggest."""
        return 0.0 if self.values.min() >= 0.0 else -math.inf, 1.0 if self.values.max() <= 1.0 else math.inf

    def join(self, values: _Array) -> Estimate:
        """The mean of values at these steps, with an interval that allows for the correlation of steps."""
        return mean_of_steps(values)


class SeriesTrend(SeriesMean, frozen=True):
    """The rise of a series along its line, first step to last: two runs of one mean may go opposite ways."""

    @property
    def ends(self) -> tuple[float, float]:
        """The most that it may fall or rise: of shares 1."""
        reach = 1.0 if self.values.min() >= 0.0 and self.values.max() <= 1.0 else math.inf
        return -reach, reach

    def join(self, values: _Array) -> Estimate:
        """The trend of values at these steps, with an interval that allows for drifts; undefined below three."""
        return trend(self.steps, values)


Number = GroupMean | SeriesMean
Means = Mapping[str, Number]
"""Metric -> its mean, over groups or over logged steps, or its trend; of one run, with all prompts of its log."""


def trend_of(name: str, steps: Iterable[int], values: _Array) -> dict[str, SeriesTrend]:
    """By its metric; empty where there are too few steps for a line."""
    series = SeriesTrend(tuple(steps), values)
    return {f"{name}_trend": series} if len(values) and series.estimate.is_defined else {}


def completion_lengths(table: RewardTable) -> dict[str, Number]:
    """Means and trends of the lengths of completions, by the metric in each unit that all of them have."""
    numbers: dict[str, Number] = {}
    for unit, lengths in (("tokens", table.num_tokens), ("characters", table.num_characters)):
        if lengths is not None and lengths.min() >= 0 < lengths.max():
            name, sums = f"completion_{unit}", table.sums(lengths)
            by_step = table.mean_by_step(sums, table.size)
            numbers[name] = mean_over_steps(table, sums, table.size)
            numbers |= trend_of(name, by_step, np.array(list(by_step.values())))
    return numbers


def reward_change(first: RewardTable, second: RewardTable) -> Estimate:
    """How much higher the mean reward of some groups of a log is than that of others, over prompts."""
    tables = [replace(table, prompt_texts=None) for table in (first, second)]
    (change,) = changes(*({"": reward_over_steps(table)} for table in tables)).values()
    return change


def reward_over_steps(table: RewardTable) -> GroupMean:
    """The mean reward by :func:`mean_over_steps`."""
    return mean_over_steps(table, table.sums(table.reward), table.size)


def dead_over_steps(table: RewardTable) -> GroupMean:
    """The share of groups without a gradient by :func:`mean_over_steps`."""
    return mean_over_steps(table, table.is_dead, np.ones(len(table)))


def mean_over_steps(table: RewardTable, sums: NDArray[Any], counts: NDArray[Any]) -> GroupMean:
    """The mean over steps of each step's mean, from sums and counts of the groups, [J] each.

    Every step weighs the same, however many groups it has, as in metrics alone.
    """
    step = np.unique(table.step, return_inverse=True)[1]
    return GroupMean(table, sums / counts, counts / np.bincount(step, weights=counts)[step])


def changes(first: Means, second: Means) -> dict[str, Estimate]:
    """Second minus first of the metrics of both runs; prompts are resampled together if nearly all are shared."""
    tables = [[mean.table for mean in means.values() if isinstance(mean, GroupMean)] for means in (first, second)]
    names = prompt_names([table for table, *_ in tables]) if all(tables) else []
    number = {name: n for n, name in enumerate(dict.fromkeys(chain.from_iterable(names)))}
    prompts = [np.array([number[name] for name in run_names], dtype=np.int64) for run_names in names]
    return {name: _change(first[name], second[name], prompts) for name in first.keys() & second.keys()}


def _change(first: Number, second: Number, prompts: Sequence[NDArray[np.int64]]) -> Estimate:
    """The change of one metric; ``prompts`` number the prompts of each log, equal ones the same."""
    if isinstance(first, SeriesMean) and isinstance(second, SeriesMean) and first.steps == second.steps:
        differences = second.values - first.values  # a common trend is no noise
        (low, high), (other_low, other_high) = first.ends, second.ends
        return first.join(differences).within(other_low - high, other_high - low)
    if not isinstance(first, GroupMean) or not isinstance(second, GroupMean):
        return difference_of(first.estimate, second.estimate)
    indices = [numbers[mean.table.prompt] for mean, numbers in zip((first, second), prompts, strict=True)]
    num_prompts = 1 + max(int(numbers.max()) for numbers in prompts)
    units = np.zeros((num_prompts, 4))  # [P, 4]: weighed values and weights of the first, and of the second
    for side, (mean, index) in enumerate(zip((first, second), indices, strict=True)):
        units[:, 2 * side] = np.bincount(index, weights=mean.weights * mean.values, minlength=num_prompts)
        units[:, 2 * side + 1] = np.bincount(index, weights=mean.weights, minlength=num_prompts)
    low = float(min(first.values.min(), second.values.min()))
    reach = float(max(first.values.max(), second.values.max())) - low
    by_prompts = _by_prompts(first, second, units, low, reach)
    pooled = (units[:, 0] + units[:, 2]) / np.maximum(units[:, 1] + units[:, 3], 1e-300)
    deviations = [
        mean.table.mean_by_step(mean.weights * (mean.values - pooled[index]), mean.weights)
        for mean, index in zip((first, second), indices, strict=True)
    ]
    if deviations[0].keys() != deviations[1].keys():
        return by_prompts  # parts of one run: the policy's change between them is not chance
    return widened_by_steps(by_prompts, mean_difference(*deviations), reach=reach)


def _by_prompts(first: GroupMean, second: GroupMean, units: _Array, low: float, reach: float) -> Estimate:
    """The difference of two means of values from ``low`` to ``low + reach``, over resamples of ``units``, [P, 4]."""
    units = units[(units[:, 1] > 0) | (units[:, 3] > 0)]
    if np.mean((units[:, 1] > 0) & (units[:, 3] > 0)) >= _MOSTLY_SHARED:
        is_paired = len(units) == len(first.values) == len(second.values) and np.ptp(units[:, [1, 3]]) == 0
        if is_paired and 0 <= low <= low + reach <= 1:
            return bootstrap.bootstrap_difference(units[:, 0] / units[:, 1], units[:, 2] / units[:, 3])
        (difference,) = bootstrap.bootstrap_statistics(_difference_of_ratios, units, bounds=(-reach, reach))
        if difference.interval is not None or not difference.value:
            return difference  # else every prompt has changed by as much
    return difference_of(*(mean.bounded_estimate(low, reach or 1.0) for mean in (first, second)))


def _difference_of_ratios(sums: _Array) -> _Array:
    return sums[..., 2:3] / np.maximum(sums[..., 3:4], 1e-300) - sums[..., :1] / np.maximum(sums[..., 1:2], 1e-300)


_MIN_PARTING_STEPS = 40  # with fewer, policies that only wander part in up to a tenth of pairs
_HALF_OF_RANGE = 0.5


def parting(first: Mapping[int, float], second: Mapping[int, float]) -> Jump | None:
    """Where second minus first moves by half its range within a few steps, and stays.

    The interval of a mean over all steps allows for drifts as slow as the run, and what happens once looks like one.

    Returns:
        Differences before, after and at the end; None with fewer than forty common steps, or where nothing is beyond
        chance.
    """
    steps = sorted(first.keys() & second.keys())
    for side in (1.0, -1.0) if len(steps) >= _MIN_PARTING_STEPS else ():
        moved = drop({step: side * (second[step] - first[step]) for step in steps}, share=_HALF_OF_RANGE)
        if moved is not None:
            return replace(moved, before=side * moved.before, after=side * moved.after, end=side * moved.end)
    return None


_MARKS = re.compile(r"<\|[^|<>]*\|>")
_LAST_TURN = re.compile(r"(?:.*\n)?\s*user\n+(.+?)\n+assistant\s*", re.DOTALL)


def prompt_names(tables: Sequence[RewardTable]) -> list[list[str]]:
    """For each run the names of its prompts, so that a prompt has one name whichever reader read it."""
    # The question in the text, without a chat template's marks, if all runs have texts and share one; else the id.
    ids = [list(table.prompts) for table in tables]
    if any(table.prompt_texts is None for table in tables):
        return ids
    texts = [
        [_question(text) or name for name, text in zip(table.prompts, table.prompt_texts or (), strict=True)]
        for table in tables
    ]
    return texts if set.intersection(*map(set, texts)) else ids


def _question(text: str) -> str:
    text = _MARKS.sub("\n", text)
    match = _LAST_TURN.fullmatch(text)
    return (match[1] if match else text).strip()
