"""How many groups give no gradient, of which kind, and how that compares with independent coin flips.

While a run is still being written its course is followed: of a large log each look reads what was appended, and the
whole from its start where the writer did anything else, so that no row counts twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from gradscope.diagnostics.degeneracy import breakdowns, group_rewards
from gradscope.diagnostics.degeneracy.as_logged import degeneracy_as_logged, measure_behind_filter
from gradscope.diagnostics.degeneracy.forecast import GroupSizes, describe_pass_rates, pass_rate_origin
from gradscope.diagnostics.degeneracy.reward_functions import measure_reward_functions
from gradscope.errors import InputError, UsageError
from gradscope.estimate import Estimate, undefined_record
from gradscope.findings.degeneracy import LoggedGroups, degeneracy_findings, degeneracy_summary
from gradscope.metrics.outcomes.degeneracy import NO_THRESHOLD, DegeneracyEstimates, GroupTable, split_gap
from gradscope.metrics.outcomes.dispersion import dispersion_test, estimate_rate_parts, estimate_rate_variance
from gradscope.metrics.outcomes.jensen_gap import BasePassRate
from gradscope.progress import Progress, reporter
from gradscope.results import degeneracy as results
from gradscope.results.envelope import deferred
from gradscope.rollouts.fetch import log_extent
from gradscope.rollouts.listing import shown
from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.readers.reduction.log import ReadSoFar
from gradscope.rollouts.run import Run


def measure_degeneracy(
    path: str | Path,
    *,
    group_sizes: Sequence[int] = (),
    success_threshold: float | None = None,
    reward: str | None = None,
    options: group_rewards.DegeneracyOptions | None = None,
    read: ReadOptions | None = None,
    progress: Progress = False,
) -> results.DegeneracyReport:
    """Degenerate groups of a run or a file of samples.

    Args:
        path: A run folder, a log, or a file with several samples a prompt.
        group_sizes: Further group sizes: estimated up to the number of rollouts of a group, forecast beyond it.
        success_threshold: A rollout passes when its reward reaches this; None: 1 for rewards of 0/1 or -1/1.
        reward: One reward function by name; None: the trainer's scalar.
        options: What the shares are compared with, a target for them, and how they are estimated; None: the defaults.
        progress: True for a line on stderr, or a callback, called while a large log is read.
    """
    progress = reporter(progress)
    run = read_run(path, read, rewards_only=True, progress=progress, metrics_alone=True)
    return degeneracy_of_run(
        run, group_sizes=group_sizes, success_threshold=success_threshold, reward=reward, options=options
    )


def degeneracy_of_run(
    run: Run,
    *,
    group_sizes: Sequence[int] = (),
    success_threshold: float | None = None,
    reward: str | None = None,
    options: group_rewards.DegeneracyOptions | None = None,
) -> results.DegeneracyReport:
    """The same of a run that was already read."""
    # A group of one rollout has nothing to be compared with, and the verdict on a group with a missing reward is not
    # known: both are left out, and the findings say how many.
    options = options or group_rewards.DegeneracyOptions()
    if any(size < 2 for size in group_sizes):
        raise UsageError(
            f"A group has at least 2 rollouts, got a group size of {min(group_sizes)}.", hint="Write --group-size 2"
        )
    if run.source.kind == "metrics":
        return degeneracy_as_logged(run, group_sizes=group_sizes, reward=reward, options=options)
    base_pass_rate, target, resampling = options.base_pass_rate, options.target_degeneracy, options.resampling
    chosen = group_rewards.group_rewards(run, reward)
    threshold = group_rewards.chosen_threshold(chosen, success_threshold)
    table = group_rewards.group_table(chosen, threshold)
    (overall,) = options.estimates([table])
    sizes = GroupSizes(table=table, overall=overall, options=options)
    starvation = breakdowns.measure_cost(chosen, table, overall.frac_reward_zero_std, resampling=resampling)
    policies, policy_gap = breakdowns.measure_policies(chosen, table, threshold, resampling=resampling)
    rewards = measure_reward_functions(run, chosen, reward, resampling=resampling)
    name = reward or rewards.part or group_rewards.TRAINER_REWARD
    main = rewards.main if name == group_rewards.TRAINER_REWARD else None
    prompts, by_prompt = breakdowns.measure_prompts(chosen, threshold, main, name=name)
    logged = LoggedGroups(
        num_levels=len(chosen.levels),
        reward_functions=tuple(sorted(chosen.table.rewards)),
        num_singletons=chosen.num_singletons,
        num_incomplete=chosen.num_incomplete,
        resampled=run.settings.get("sampling") == "dynamic",
    )
    report = results.DegeneracyReport(
        source=run.source,
        reward=name,
        success_threshold=threshold,
        num_groups=len(chosen.table),
        num_rollouts=int(table.size.sum()),
        group_size=sizes.logged,
        pass_rate_origin=pass_rate_origin(base_pass_rate, len(chosen.table)),
        course_pass_rate_origin=pass_rate_origin(base_pass_rate or options.by, len(chosen.table)),
        **group_rewards.estimates_of(overall, results.DegeneracyReport),
        behind_filter=measure_behind_filter(run, table, reward, resampling),
        predictions=deferred(lambda: _predictions(table, overall, options)),
        overdispersion=deferred(lambda: _overdispersion(table, options)),
        by_group_size=sizes.rows(group_sizes),
        gap_decomposition=deferred(lambda: _gap_decomposition(table, overall, options)),
        by_policy=policies,
        policy_gap=policy_gap,
        by_environment=breakdowns.measure_environments(chosen, table, resampling=resampling),
        by_step=deferred(lambda: group_rewards.degeneracy_by_step(run, table, reward, options)),
        course=group_rewards.measure_course(run, table, options.by, reward),
        pass_rates=deferred(lambda: describe_pass_rates(table, sizes.rates)),
        starvation=starvation,
        advantages=deferred(
            lambda: breakdowns.measure_advantage_mass(chosen, run.settings.get("advantage"), resampling=resampling)
        ),
        advantages_of=rewards.advantages_of,
        by_reward=rewards.functions,
        frac_reward_conflict=rewards.frac_conflict,
        reward_conflict=rewards.conflict,
        prompts=prompts,
        by_prompt=by_prompt,
        target=None if target is None else sizes.target(target, starvation.tokens_per_rollout),
        frac_set_aside=run.source.frac_set_aside,
        quarantined=run.source.quarantined,
        summary=deferred(lambda: degeneracy_summary(report, logged)),
        findings=deferred(lambda: degeneracy_findings(report, logged, sizes.doubled())),
    )
    return report


def _predictions(
    table: GroupTable, overall: DegeneracyEstimates, options: group_rewards.DegeneracyOptions
) -> tuple[results.IidPrediction, ...]:
    """The prediction from every available p, the chosen one first."""
    bases: list[BasePassRate] = [options.base_pass_rate, None]
    if np.ptp(table.step) > 0:
        bases.append("step")
    rows = []
    for base in dict.fromkeys(bases):
        estimates = (
            overall if base == options.base_pass_rate else replace(options, base_pass_rate=base).estimates([table])[0]
        )
        rows.append(
            results.IidPrediction(
                pass_rate_origin=pass_rate_origin(base, len(table.size)),
                iid_prediction=estimates.iid_prediction,
                jensen_gap=estimates.jensen_gap,
            )
        )
    return tuple(rows)


def _gap_decomposition(
    table: GroupTable, overall: DegeneracyEstimates, options: group_rewards.DegeneracyOptions
) -> results.GapDecomposition:
    between, over_time = split_gap(table, overall.jensen_gap, base_pass_rate=options.base_pass_rate)
    return results.GapDecomposition(between_prompts=between, over_time=over_time)


def _overdispersion(table: GroupTable, options: group_rewards.DegeneracyOptions) -> results.Overdispersion:
    if table.num_passing is None:
        unknown = Estimate.undefined_because(NO_THRESHOLD, num_units=len(table.size))
        return undefined_record(results.Overdispersion, unknown, test="none")
    tested = dispersion_test(table.size, table.num_passing, table.step, seed=options.resampling.seed)
    variance = estimate_rate_variance(table.size, table.num_passing, table.prompt, resampling=options.resampling)
    stays, of_visit = estimate_rate_parts(
        table.step, table.prompt, table.size, table.num_passing, resampling=options.resampling
    )
    return results.Overdispersion(
        rate_variance=variance,
        between_prompts=stays,
        between_visits=of_visit,
        z=tested.z,
        p_value=tested.p_value,
        test=tested.test,
    )


Notice = Callable[[str], None]  # called with a sentence on why the log could not be read


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How often to look, and when to stop."""

    every: float = 2.0  # seconds between two looks at the log's size
    idle: float | None = None  # seconds without growth after which it ends; None: never
    sleep: Callable[[float], None] = time.sleep  # waits; a test writes to the log instead
    clock: Callable[[], float] = time.monotonic  # seconds since any time


def follow_degeneracy(
    path: str | Path,
    *,
    success_threshold: float | None = None,
    reward: str | None = None,
    pace: Pace | None = None,
    notice: Notice = lambda _: None,
    read: ReadOptions | None = None,
) -> Iterator[results.StepDegeneracy]:
    """Steps as they are written, one row per step, in order of step within each read of the log."""
    # A step is reported once a later one has begun, or nothing was written between two reads: a group that is only half
    # on disk has no verdict yet. A step that changes afterwards is reported again. ``notice`` is called when a later
    # read fails, as on a half-written file; it is retried when the log grows.
    pace = pace or Pace()
    _check_pace(pace)

    so_far, cache = ReadSoFar(), group_rewards.EstimateCache()

    def look() -> tuple[results.StepDegeneracy, ...]:
        run = read_run(path, read, rewards_only=True, so_far=so_far)
        return group_rewards.course_of_run(run, success_threshold=success_threshold, reward=reward, cache=cache)

    reported: dict[int, results.StepDegeneracy] = {}
    last = log_extent(path)
    grown = pace.clock()
    course = look()
    started = ended = pace.clock()  # what follows a first look reads less
    yield from _news(course[:-1], reported)
    while True:
        pace.sleep(pace.every)
        now = pace.clock()
        if log_extent(path) == last:
            yield from _news(course, reported)
            if pace.idle is not None and now - grown >= pace.idle:
                return
            continue
        if (rest := ended + (ended - started) - now) > 0:
            pace.sleep(rest)
        last = log_extent(path)
        started = grown = pace.clock()
        try:
            course = look()
        except (InputError, OSError) as error:
            course = ()
            notice(f"{shown(path)} could not be read ({error}); waiting for more.")
        ended = pace.clock()
        yield from _news(course[:-1], reported)


def _news(
    course: Sequence[results.StepDegeneracy], reported: dict[int, results.StepDegeneracy]
) -> Iterator[results.StepDegeneracy]:
    for row in course:
        if reported.get(row.step) != row:
            reported[row.step] = row
            yield row


def _check_pace(pace: Pace) -> None:
    if pace.every <= 0:
        raise UsageError(f"--every is a positive number of seconds, got {pace.every:g}.", hint="Write --every 2")
    if pace.idle is not None and pace.idle < pace.every:
        raise UsageError(
            f"It cannot end after {pace.idle:g} seconds without growth and look every {pace.every:g} seconds.",
            hint="Give --idle more seconds than --every.",
        )
