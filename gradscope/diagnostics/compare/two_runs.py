"""Two runs beside each other: which prompts are the same, and differences whose intervals resample them.

Shapes: J groups of a run, P prompts of both.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gradscope.diagnostics.compare.runs import ComparedRun
from gradscope.errors import GradscopeError
from gradscope.estimate import Estimate
from gradscope.metrics.outcomes.groups import EQUAL_REWARDS
from gradscope.metrics.uncertainty.bootstrap import bootstrap_mean, bootstrap_statistics
from gradscope.metrics.uncertainty.intervals import bonferroni, difference_of
from gradscope.metrics.uncertainty.steps import mean_of_steps
from gradscope.metrics.uncertainty.studentized import cluster_sums
from gradscope.results.compare import ComparedPair
from gradscope.rollouts.groups import RewardTable, reward_table
from gradscope.rollouts.readers.detect import read_run

_MARKS = re.compile(r"<\|[^|<>]*\|>")
_LAST_TURN = re.compile(r"(?:.*\n)?\s*user\n+(.+?)\n+assistant\s*", re.DOTALL)
_MOSTLY_SHARED = 0.8
"""Share of the prompts of both from which they are resampled together: with fewer a resample may leave a run none."""

_Array = NDArray[np.float64]


def prompt_names(tables: Sequence[RewardTable]) -> list[list[str]]:
    """A list a run of what its prompts are called, so that a prompt has one name whichever reader read it."""
    # The question in their texts, without a chat template's marks, where all runs have texts and any of these is in
    # all; else the ids.
    ids = [list(table.prompts) for table in tables]
    if any(table.prompt_texts is None for table in tables):
        return ids
    texts = [
        [_question(text) or name for name, text in zip(table.prompts, table.prompt_texts or (), strict=True)]
        for table in tables
    ]
    return texts if set.intersection(*map(set, texts)) else ids


def _question(text: str) -> str:
    plain = _MARKS.sub("\n", text)
    found = _LAST_TURN.fullmatch(plain)
    return (found[1] if found else plain).strip()


def with_differences(
    pairs: Sequence[ComparedPair], first: ComparedRun, second: ComparedRun
) -> tuple[ComparedPair, ...]:
    """Pairs of one run each, with the interval that their prompts give, or the steps of metrics alone."""
    # A metric that is not a mean over groups, such as the drawdown, has no such interval; nor has a run whose
    # rollouts cannot be read. Of those that have one the verdict is ``differ`` where zero is outside, for all of them
    # at once.
    before, after = _means(first), _means(second)
    found = {name: _difference(before[name], after[name]) for name in before.keys() & after.keys()}
    judged = []
    for pair in pairs:
        within = found.get(pair.metric)
        in_one_unit = pair.metric != "train_reward" or not unlike_rewards(first, second)
        differs = within is not None and in_one_unit and bonferroni(within, len(found)).side_of_zero != 0
        judged.append(replace(pair, within_runs=within, verdict="differ" if differs else pair.verdict))
    return tuple(judged)


def unlike_rewards(first: ComparedRun, second: ComparedRun) -> bool:
    """Whether two logs of one reader name other reward functions."""
    if first.log is None or second.log is None or first.log.format != second.log.format:
        return False
    return (
        first.rewards is not None
        and second.rewards is not None
        and set(first.rewards.rewards) != set(second.rewards.rewards)
    )


@dataclass(frozen=True, slots=True)
class _Mean:
    """A mean over steps of each step's mean over what is counted, all steps alike."""

    table: RewardTable  # the groups
    values: _Array  # of each group, [J]
    weights: _Array  # what each counts within its step, [J]; those of a step add up to one


def _means(run: ComparedRun) -> Mapping[str, _Mean | Estimate]:
    """What of a run is a mean, over its compared steps."""
    if run.log is not None and run.log.kind == "metrics":
        series = {"train_reward": run.reward, "mean_frac_reward_zero_std": run.degenerate}
        return {name: _mean_as_logged(values) for name, values in series.items() if len(values)}
    table = run.rewards
    if table is None:
        try:
            table = reward_table(read_run(run.path, rewards_only=True).groups)
        except GradscopeError:
            return {}
        table = table.select((table.sums(np.isnan(table.reward)) == 0) & np.isin(table.step, run.steps))
    if not len(table):
        return {}
    is_dead = (table.size > 1) & (table.spread(table.reward) <= EQUAL_REWARDS)
    return {
        "train_reward": _mean(table, table.sums(table.reward) / table.size, table.size.astype(np.float64)),
        "mean_frac_reward_zero_std": _mean(table, is_dead.astype(np.float64), np.ones(len(table))),
    }


def _mean_as_logged(values: _Array) -> Estimate:
    low, high = 0.0 if values.min() >= 0.0 else -math.inf, 1.0 if values.max() <= 1.0 else math.inf
    return mean_of_steps(values, values).within(low, high)


def _mean(table: RewardTable, values: _Array, counts: _Array) -> _Mean:
    of_group = np.unique(table.step, return_inverse=True)[1]
    return _Mean(table, values, counts / np.bincount(of_group, weights=counts)[of_group])


def _difference(first: _Mean | Estimate, second: _Mean | Estimate) -> Estimate:
    """Second minus first; prompts that nearly all are of both are resampled with their groups of both."""
    if isinstance(first, Estimate) or isinstance(second, Estimate):
        one, other = (mean if isinstance(mean, Estimate) else _alone(mean) for mean in (first, second))
        return difference_of(one, other)
    names = prompt_names([first.table, second.table])
    number = {name: n for n, name in enumerate(dict.fromkeys([*names[0], *names[1]]))}
    units = np.zeros((len(number), 4))  # [P, 4]: weighed values and weights of the first, and of the second
    for side, (mean, of_run) in enumerate(zip((first, second), names, strict=True)):
        place = np.array([number[name] for name in of_run])[mean.table.prompt]
        units[:, 2 * side] = np.bincount(place, weights=mean.weights * mean.values, minlength=len(number))
        units[:, 2 * side + 1] = np.bincount(place, weights=mean.weights, minlength=len(number))
    if np.mean((units[:, 1] > 0) & (units[:, 3] > 0)) < _MOSTLY_SHARED:
        return difference_of(_alone(first), _alone(second))
    low = min(first.values.min(), second.values.min())
    reach = float(max(first.values.max(), second.values.max()) - low)
    (difference,) = bootstrap_statistics(_difference_of_ratios, units, within=(-reach, reach))
    return difference


def _difference_of_ratios(sums: _Array) -> _Array:
    return sums[..., 2:3] / np.maximum(sums[..., 3:4], 1e-300) - sums[..., :1] / np.maximum(sums[..., 1:2], 1e-300)


def _alone(mean: _Mean) -> Estimate:
    """One run's own mean; its prompts are resampled."""
    low, high = float(mean.values.min()), float(mean.values.max())
    if np.ptp(mean.weights) <= 1e-12 * mean.weights[0]:
        return bootstrap_mean(mean.values, mean.table.prompt, share=low >= 0.0 and high <= 1.0)
    units = cluster_sums(np.column_stack([mean.weights * mean.values, mean.weights]), mean.table.prompt)
    (estimate,) = bootstrap_statistics(lambda sums: sums[..., :1] / sums[..., 1:], units, within=(low, high))
    return estimate
