"""How many groups give no gradient, of which kind, and how that compares with independent coin flips."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from gradscope.diagnostics.degeneracy_findings import degeneracy_findings
from gradscope.diagnostics.group_rewards import TRAINER_REWARD, GroupRewards, group_rewards
from gradscope.errors import UsageError
from gradscope.metrics.bootstrap import NUM_RESAMPLES
from gradscope.metrics.degeneracy import (
    DegeneracyEstimates,
    GroupTable,
    SizeEstimates,
    estimate_at_size,
    estimate_degeneracy,
)
from gradscope.metrics.groups import EQUAL_REWARDS, binary_threshold, level_counts, passes
from gradscope.results.degeneracy import DegeneracyReport, GapDecomposition, GroupSizeDegeneracy, StepDegeneracy
from gradscope.rollouts.detect import read_run
from gradscope.rollouts.readers.request import ColumnNames
from gradscope.rollouts.run import Run


def measure_degeneracy(
    path: str | Path,
    *,
    format: str | None = None,
    group_sizes: Sequence[int] = (),
    success_threshold: float | None = None,
    base_pass_rate: float | None = None,
    reward: str | None = None,
    columns: ColumnNames | None = None,
    run_config: str | Path | None = None,
    strict: bool = False,
    seed: int = 0,
    num_resamples: int = NUM_RESAMPLES,
) -> DegeneracyReport:
    """Degenerate groups of a run or a file of samples.

    Args:
        path: A run folder, a log, or a file with several samples a prompt.
        format: Name of the reader; None: recognized.
        group_sizes: Further group sizes to estimate, each at most the number of rollouts a group has.
        success_threshold: A rollout passes when its reward reaches this; None: 1 for rewards of 0/1 or -1/1.
        base_pass_rate: The p of the i.i.d. prediction; None: the mean of the log.
        reward: One reward function by name; None: the trainer's scalar.
        columns: Columns of a generic log, where their names are not usual.
        run_config: The trainer's arguments as JSON, where the folder does not tell them.
        strict: Whether a row that cannot be used is an error.
        seed: Seed of the resampling.
        num_resamples: Bootstrap resamples behind the intervals.

    Returns:
        The report.
    """
    run = read_run(path, format=format, columns=columns, run_config=run_config, strict=strict)
    return degeneracy_of_run(
        run,
        group_sizes=group_sizes,
        success_threshold=success_threshold,
        base_pass_rate=base_pass_rate,
        reward=reward,
        seed=seed,
        num_resamples=num_resamples,
    )


def degeneracy_of_run(
    run: Run,
    *,
    group_sizes: Sequence[int] = (),
    success_threshold: float | None = None,
    base_pass_rate: float | None = None,
    reward: str | None = None,
    seed: int = 0,
    num_resamples: int = NUM_RESAMPLES,
) -> DegeneracyReport:
    """Degenerate groups of a run that was already read.

    A group of one rollout has nothing to be compared with, and the verdict on a group with a missing reward is not
    known: both are left out, and the findings say how many.

    Args:
        run: The run.
        group_sizes: Further group sizes to estimate.
        success_threshold: A rollout passes when its reward reaches this; None: 1 for rewards of 0/1 or -1/1.
        base_pass_rate: The p of the i.i.d. prediction; None: the mean of the log.
        reward: One reward function by name; None: the trainer's scalar.
        seed: Seed of the resampling.
        num_resamples: Bootstrap resamples behind the intervals.

    Returns:
        The report.
    """
    _check_options(group_sizes, base_pass_rate)
    chosen = group_rewards(run, reward)
    threshold = success_threshold
    if threshold is None:
        threshold = binary_threshold([value for _, rewards in chosen.groups for value in rewards])
    table = _table(chosen, threshold)
    bootstrap = _Bootstrap(base_pass_rate, num_resamples, seed)
    overall = bootstrap.estimate(table)
    logged_size = int(table.size[0]) if np.ptp(table.size) == 0 else None
    report = DegeneracyReport(
        source=run.source,
        reward=reward or TRAINER_REWARD,
        success_threshold=threshold,
        num_groups=len(chosen.groups),
        num_rollouts=int(table.size.sum()),
        group_size=logged_size,
        pass_rate_origin=_pass_rate_origin(base_pass_rate, len(chosen.groups)),
        frac_reward_zero_std=overall.frac_reward_zero_std,
        frac_all_pass=overall.frac_all_pass,
        frac_all_fail=overall.frac_all_fail,
        frac_tied=overall.frac_tied,
        pass_rate=overall.pass_rate,
        iid_prediction=overall.iid_prediction,
        jensen_gap=overall.jensen_gap,
        by_group_size=_by_group_size(table, overall, logged_size, group_sizes, bootstrap),
        gap_decomposition=GapDecomposition(between_prompts=overall.between_prompts, over_time=overall.over_time),
        by_step=tuple(_at_step(run, table, step, reward, bootstrap) for step in np.unique(table.step).tolist()),
        quarantined=run.source.quarantined,
    )
    return replace(report, findings=degeneracy_findings(report, chosen))


@dataclass(frozen=True, slots=True)
class _Bootstrap:
    """The options that every estimate of a report shares."""

    base_pass_rate: float | None
    num_resamples: int
    seed: int

    def estimate(self, table: GroupTable) -> DegeneracyEstimates:
        return estimate_degeneracy(
            table, base_pass_rate=self.base_pass_rate, num_resamples=self.num_resamples, seed=self.seed
        )

    def at_size(self, table: GroupTable, group_size: int) -> SizeEstimates:
        return estimate_at_size(
            table, group_size, base_pass_rate=self.base_pass_rate, num_resamples=self.num_resamples, seed=self.seed
        )


def _check_options(group_sizes: Sequence[int], base_pass_rate: float | None) -> None:
    if base_pass_rate is not None and not 0 <= base_pass_rate <= 1:
        raise UsageError(
            f"A pass rate lies between 0 and 1, got {base_pass_rate:g}.", hint="Give a share, not a percentage."
        )
    if any(size < 2 for size in group_sizes):
        raise UsageError(
            f"A group has at least 2 rollouts, got a group size of {min(group_sizes)}.", hint="Use --group-size 2."
        )


def _table(chosen: GroupRewards, threshold: float | None) -> GroupTable:
    rewards = [values for _, values in chosen.groups]
    return GroupTable(
        step=np.array([group.step for group, _ in chosen.groups], dtype=np.int64),
        prompt=np.array([group.prompt_id for group, _ in chosen.groups], dtype=np.str_),
        size=np.array([len(values) for values in rewards], dtype=np.int64),
        dead=np.array([max(values) - min(values) <= EQUAL_REWARDS for values in rewards], dtype=np.bool_),
        num_passing=None
        if threshold is None
        else np.array([int(passes(values, threshold).sum()) for values in rewards], dtype=np.int64),
        level_counts=[level_counts(values) for values in rewards],
    )


def _by_group_size(
    table: GroupTable,
    overall: DegeneracyEstimates,
    logged_size: int | None,
    group_sizes: Sequence[int],
    bootstrap: _Bootstrap,
) -> tuple[GroupSizeDegeneracy, ...]:
    rows = []
    if logged_size is not None:
        rows.append(
            GroupSizeDegeneracy(
                group_size=logged_size,
                degeneracy=overall.frac_reward_zero_std,
                iid_prediction=overall.iid_prediction,
                jensen_gap=overall.jensen_gap,
                method="observed",
            )
        )
    for size in sorted(set(group_sizes) - {logged_size}):
        estimates = bootstrap.at_size(table, size)
        rows.append(
            GroupSizeDegeneracy(
                group_size=size,
                degeneracy=estimates.degeneracy,
                iid_prediction=estimates.iid_prediction,
                jensen_gap=estimates.jensen_gap,
                # What cannot be estimated from these groups could only be forecast, and carries its reason.
                method="unbiased" if estimates.degeneracy.is_defined else "forecast",
            )
        )
    return tuple(rows)


def _at_step(run: Run, table: GroupTable, step: int, reward: str | None, bootstrap: _Bootstrap) -> StepDegeneracy:
    groups = table.at_step(step)
    estimates = bootstrap.estimate(groups)
    # One reward function's share is another number than the trainer's; so is a share of other rollouts.
    comparable = reward is None and step not in run.notes
    return StepDegeneracy(
        step=step,
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


def _pass_rate_origin(base_pass_rate: float | None, num_groups: int) -> str:
    if base_pass_rate is not None:
        return f"the given base pass rate, {base_pass_rate:g}"
    return f"the mean of this log over {num_groups} groups"
