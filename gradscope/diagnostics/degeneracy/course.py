"""Degeneracy over time: the groups of a run as a table, and a row of it for each step or window of steps."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import Literal

import numpy as np

from gradscope.diagnostics.degeneracy.group_rewards import GroupRewards, group_rewards
from gradscope.metrics.outcomes.degeneracy import DegeneracyEstimates, GroupTable, estimate_degeneracy
from gradscope.metrics.outcomes.groups import all_equal, binary_threshold, level_counts, passes
from gradscope.metrics.outcomes.jensen_gap import BasePassRate
from gradscope.metrics.uncertainty.resampling import RESAMPLING, Resampling
from gradscope.results.degeneracy import StepDegeneracy
from gradscope.rollouts.run import Run

By = Literal["step", "window"]
NUM_WINDOWS = 10
"""Windows that a course over time is cut into: few enough to read, and with more groups each than a step has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateOptions:
    """The options that every estimate of a report shares."""

    base_pass_rate: BasePassRate = None
    """The p of the i.i.d. prediction."""
    resampling: Resampling = RESAMPLING
    """How often, and from which seed."""

    def estimate(self, table: GroupTable) -> DegeneracyEstimates:
        """The estimates of a table under these options."""
        return estimate_degeneracy(table, base_pass_rate=self.base_pass_rate, resampling=self.resampling)


def course_of_run(
    run: Run, *, success_threshold: float | None = None, reward: str | None = None
) -> tuple[StepDegeneracy, ...]:
    """One row for each step of a run that was already read, and nothing else of it."""
    chosen = group_rewards(run, reward)
    table = group_table(chosen, chosen_threshold(chosen, success_threshold))
    return course(run, table, "step", reward, EstimateOptions())


def chosen_threshold(chosen: GroupRewards, success_threshold: float | None) -> float | None:
    """The reward at which a rollout passes: as asked, else 1 for rewards of 0/1 or -1/1, else None: not known."""
    if success_threshold is not None:
        return success_threshold
    return binary_threshold([value for _, rewards in chosen.groups for value in rewards])


def group_table(chosen: GroupRewards, threshold: float | None) -> GroupTable:
    """The groups as the estimates take them, a row each; the threshold is None where passing is not known."""
    rewards = [values for _, values in chosen.groups]
    size = np.array([len(values) for values in rewards], dtype=np.int64)
    # A large log has few different groups of 0 and 1.
    levels = {values: level_counts(values) for values in set(rewards)}
    num_passing = None
    if threshold is not None:
        passed = passes(list(chain.from_iterable(rewards)), threshold).astype(np.int64)
        num_passing = np.add.reduceat(passed, np.cumsum(size) - size)
    return GroupTable(
        step=np.array([group.step for group, _ in chosen.groups], dtype=np.int64),
        prompt=np.array([group.prompt_id for group, _ in chosen.groups], dtype=np.str_),
        size=size,
        dead=np.array([all_equal(values) for values in rewards], dtype=np.bool_),
        num_passing=num_passing,
        level_counts=[levels[values] for values in rewards],
    )


def course(
    run: Run, table: GroupTable, by: By, reward: str | None, options: EstimateOptions
) -> tuple[StepDegeneracy, ...]:
    """A row for each step, or for each of at most ``NUM_WINDOWS`` windows; ``reward`` names what the table is of."""
    return tuple(_between(run, table, span, reward, options) for span in _spans(table, by))


def _spans(table: GroupTable, by: By) -> list[tuple[int, int]]:
    """First and last step of each row of the course: single steps, or windows of about equally many."""
    steps = np.unique(table.step)
    parts = len(steps) if by == "step" else min(NUM_WINDOWS, len(steps))
    return [(int(part[0]), int(part[-1])) for part in np.array_split(steps, parts)]


def _between(
    run: Run, table: GroupTable, span: tuple[int, int], reward: str | None, options: EstimateOptions
) -> StepDegeneracy:
    step, last = span
    groups = table.between(step, last)
    estimates = options.estimate(groups)
    # One reward function's share is another number than the trainer's; so is a share of other rollouts.
    comparable = reward is None and step == last and not run.is_means(step)
    return StepDegeneracy(
        step=step,
        last_step=last,
        num_groups=len(groups.size),
        frac_reward_zero_std=estimates.frac_reward_zero_std,
        frac_all_pass=estimates.frac_all_pass,
        frac_all_fail=estimates.frac_all_fail,
        frac_tied=estimates.frac_tied,
        pass_rate=estimates.pass_rate,
        iid_prediction=estimates.iid_prediction,
        jensen_gap=estimates.jensen_gap,
        logged=run.metrics.get(step, {}).get("frac_reward_zero_std") if comparable else None,
    )
