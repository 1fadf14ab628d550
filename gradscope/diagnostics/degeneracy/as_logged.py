"""Degeneracy that the rollouts of a log do not show: a share logged alone, and dead groups dropped before logging.

Each counter of a trainer's filter was read in its trainer's source (August 2026): what it counts, and when it is
written. A step at which something else was dropped too, dead or not, is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise

import numpy as np
from msgspec.structs import replace

from gradscope.diagnostics.degeneracy.group_rewards import NUM_WINDOWS, TRAINER_REWARD, DegeneracyOptions
from gradscope.diagnostics.logged.tokens import (
    NO_ROLLOUTS,
    logged_estimate,
    logged_value,
    metric_courses,
    verdict_courses,
)
from gradscope.errors import InputError
from gradscope.estimate import Estimate, undefined_record
from gradscope.findings.logged import course_named, metric_findings
from gradscope.metrics.outcomes.degeneracy import GroupTable
from gradscope.metrics.uncertainty.bootstrap import bootstrap_statistics, ratios
from gradscope.metrics.uncertainty.intervals import Resampling
from gradscope.results import degeneracy as results
from gradscope.results.degeneracy import PassRateDistribution, SignalCost, TargetDegeneracy
from gradscope.results.envelope import LazyRows, deferred
from gradscope.results.logged import MetricCourse
from gradscope.rollouts.run import Run

_SHARES = ("frac_reward_zero_std", "frac_all_pass", "frac_all_fail")
_NONE = Estimate.undefined_because(NO_ROLLOUTS)
_NOT_LOGGED = Estimate.undefined_because(f"{NO_ROLLOUTS}, and none of these is that share")


def degeneracy_as_logged(
    run: Run, *, group_sizes: Sequence[int], reward: str | None, options: DegeneracyOptions
) -> results.DegeneracyReport:
    """The report of a run without rollouts: the shares as logged, all else undefined with that reason."""
    if reward is not None:
        raise InputError(
            f"{run.source.path} holds metrics and no rollouts, and no share of groups by reward function.",
            hint=next(iter(run.source.missing), None),
        )
    courses = metric_courses(run)
    dead, passed, failed = (course_named(courses, name) for name in _SHARES)
    from gradscope.diagnostics.spike.measure import spike_sentences  # not loaded with every log

    findings = metric_findings(courses, spike_sentences(run), verdict_courses(run))
    steps = () if dead is None else dead.steps
    shares = [_aligned(course, steps) for course in (dead, passed, failed)]
    target, is_by_window = options.target_degeneracy, options.by == "window"
    rows = partial(_rows, steps, shares, run.courses.not_shares)
    windows = rows(NUM_WINDOWS) if is_by_window else ()
    return undefined_record(
        results.DegeneracyReport,
        _NONE,
        source=run.source,
        reward=TRAINER_REWARD,
        num_groups=0,
        num_rollouts=0,
        pass_rate_origin=NO_ROLLOUTS,
        course_pass_rate_origin=NO_ROLLOUTS,
        frac_reward_zero_std=_NOT_LOGGED if dead is None else dead.mean,
        behind_filter=_nothing(NO_ROLLOUTS),
        frac_all_pass=_NONE if passed is None else passed.mean,
        frac_all_fail=_NONE if failed is None else failed.mean,
        overdispersion=undefined_record(results.Overdispersion, _NONE, test="none"),
        by_group_size=tuple(
            undefined_record(results.GroupSizeDegeneracy, _NONE, group_size=size, method="forecast")
            for size in group_sizes
        ),
        gap_decomposition=undefined_record(results.GapDecomposition, _NONE),
        by_step=windows if is_by_window else deferred(lambda: rows(len(steps))),
        course=results.DegeneracyCourse.of(windows) if is_by_window else _course(steps, shares),
        pass_rates=undefined_record(PassRateDistribution, _NONE, histogram=()),
        starvation=undefined_record(SignalCost, _NONE),
        prompts=results.PromptCounts(live=0, frac_rollouts=0.0, reward=TRAINER_REWARD),
        by_prompt=LazyRows({}),
        target=None if target is None else TargetDegeneracy(target=target, plans=()),
        frac_set_aside=run.source.frac_set_aside,
        quarantined=run.source.quarantined,
        summary=findings,
        findings=findings,
        metrics=courses,
    )


_Values = Sequence[float | None]  # at each step, None where it was not logged


def _aligned(course: MetricCourse | None, steps: Sequence[int]) -> _Values:
    if course is None or course.steps == steps:
        return [None] * len(steps) if course is None else course.values
    value_at = dict(zip(course.steps, course.values, strict=True))
    return [value_at.get(step) for step in steps]


def _course(steps: Sequence[int], shares: Sequence[_Values]) -> results.DegeneracyCourse:
    dead, passed, failed = ([None if value is None else logged_value(value) for value in values] for values in shares)
    nothing = (None,) * len(steps)
    return results.DegeneracyCourse(
        step=steps,
        last_step=steps,
        frac_reward_zero_std=dead,
        frac_all_pass=passed,
        frac_all_fail=failed,
        frac_tied=nothing,
        pass_rate=nothing,
        logged=nothing,
    )


def _rows(
    steps: Sequence[int], shares: Sequence[_Values], not_shares: Collection[str], number: int
) -> tuple[results.StepDegeneracy, ...]:
    number = min(number, len(steps))
    size, longer = divmod(len(steps), max(number, 1))
    edges = accumulate((size + (window < longer) for window in range(number)), initial=0)
    blank = undefined_record(results.StepDegeneracy, _NONE, step=0, last_step=0, num_groups=0, logged=None)

    def mean_of(share: int, start: int, stop: int) -> Estimate:
        logged = [value for value in shares[share][start:stop] if value is not None]
        is_share = _SHARES[share] not in not_shares
        return logged_estimate(math.fsum(logged) / len(logged), is_share=is_share) if logged else _NONE

    return tuple(
        replace(
            blank,
            step=steps[start],
            last_step=steps[stop - 1],
            frac_reward_zero_std=mean_of(0, start, stop),
            frac_all_pass=mean_of(1, start, stop),
            frac_all_fail=mean_of(2, start, stop),
        )
        for start, stop in pairwise(edges)
    )


NO_COUNTER = "the log has no counter of groups that a filter dropped"
NOT_THE_REWARD = "a filter looks at the trainer's reward, not at one reward function"
NOT_AN_INTEGER = "the counter of dropped groups is not a whole number"
NO_LINE = "nothing was logged at this step"
OTHER_STEPS = "the metrics are not of the steps of the rollouts"
STALE = "groups that had grown stale were dropped too, dead or not"
ANOTHER_FILTER = "groups were dropped for another reason too, dead or not"
LOG_INCOMPLETE = "the log does not hold all groups that were kept"


class _Unusable(Exception):
    """A step whose number of dropped groups is unknown; the message is the reason."""


Sampled = tuple[int, int]  # groups of a step that gave no gradient, and all that were sampled
Values = Mapping[str, float]
_Rule = Callable[[Values, int, int], Sampled]  # from the metrics, the logged groups and the dead among them

_VERL = "training/filter_groups/"
_SLIME = "rollout/dynamic_filter/drop_"
_OPEN_INSTRUCT = "batch/"


def _verl(values: Values, num: int, dead: int) -> Sampled:
    """Its counters count groups, whatever their names say, over a step; a counter of zero is not written."""
    if _count(values, "training/off_policy/evicted_samples"):
        raise _Unusable(STALE)
    dropped = _count(values, f"{_VERL}evicted_samples")
    live = _count(values, f"{_VERL}discarded_surplus_samples")
    return dead + dropped, num + dropped + live


def _slime(values: Values, num: int, dead: int) -> Sampled:
    """One counter of groups per reason; those of equal rewards are named after the reward, others after a filter."""
    names = [name for name in values if name.startswith(_SLIME)]
    if any(_count(values, name) for name in names if not name.startswith(f"{_SLIME}zero_std_")):
        raise _Unusable(ANOTHER_FILTER)
    dropped = sum(_count(values, name) for name in names)
    return dead + dropped, num + dropped


def _open_instruct(values: Values, num: int, dead: int) -> Sampled:
    """Prompts of one batch whose rewards were equal; truncated completions may have been taken out after counting."""
    if f"{_OPEN_INSTRUCT}filtered_prompts" not in values:
        raise _Unusable(NO_LINE)
    if _count(values, f"{_OPEN_INSTRUCT}total_prompts") != num:
        raise _Unusable(LOG_INCOMPLETE)
    dropped = _count(values, f"{_OPEN_INSTRUCT}filtered_prompts")
    return dead + dropped, num + dropped


def _gradscope(values: Values, num: int, dead: int) -> Sampled:
    """Our own dynamic sampling counts all groups that it sampled, and the dead among them."""
    num_dead, sampled = (_count(values, f"num_sampled_{of}groups") for of in ("degenerate_", ""))
    if not num <= sampled or not dead <= num_dead <= sampled:
        raise _Unusable(LOG_INCOMPLETE)
    return num_dead, sampled


_RULES: dict[str, tuple[str, _Rule]] = {
    "verl": (_VERL, _verl),
    "slime": (_SLIME, _slime),
    "open-instruct": (f"{_OPEN_INSTRUCT}filtered_prompts", _open_instruct),
    "gradscope": ("num_sampled_degenerate_groups", _gradscope),
}
"""Reader -> the prefix of its counters, and the rule that turns them into the groups that were sampled."""


def measure_behind_filter(
    run: Run, table: GroupTable, reward: str | None, resampling: Resampling
) -> results.BehindFilter:
    """The share of dead groups among all that were sampled, those included that never reached the log."""
    begins, rule = _RULES.get(run.source.format, ("", None))
    counted = rule is not None and any(name.startswith(begins) for name in run.courses.columns)
    if rule is None or not counted:
        return _nothing(NO_COUNTER)
    if reward is not None:
        return _nothing(NOT_THE_REWARD)
    steps, step_index = np.unique(table.step, return_inverse=True)
    first_unlogged = min({*steps.tolist()} - run.metrics.keys(), default=math.inf)
    if run.source.format == "slime" and first_unlogged < max(run.metrics):
        return _nothing(OTHER_STEPS)  # with --wandb-always-use-train-step a step is another number
    counts = (steps, np.bincount(step_index), np.bincount(step_index, weights=table.dead).astype(np.int64))
    rows = [
        _dropped_at(step, num, dead, run.metrics.get(step), rule)
        for step, num, dead in zip(*(column.tolist() for column in counts), strict=True)
    ]
    return _overall(rows, resampling)


def _dropped_at(step: int, num: int, dead: int, values: Values | None, rule: _Rule) -> results.StepBehindFilter:
    try:
        if values is None:
            raise _Unusable(NO_LINE)
        dead, sampled = rule(values, num, dead)
    except _Unusable as error:
        return results.StepBehindFilter(step=step, frac_zero_std_sampled=Estimate.undefined_because(str(error)))
    share = Estimate.exact(dead / sampled, num_units=sampled)
    return results.StepBehindFilter(step=step, num_sampled=sampled, num_dead=dead, frac_zero_std_sampled=share)


def _overall(rows: list[results.StepBehindFilter], resampling: Resampling) -> results.BehindFilter:
    counts = [(row.num_dead, row.num_sampled) for row in rows if row.num_dead is not None]
    if not counts:
        return results.BehindFilter(frac_zero_std_sampled=rows[0].frac_zero_std_sampled, by_step=tuple(rows))
    units = np.array(counts, dtype=np.float64)
    (share,) = bootstrap_statistics(ratios, units, within=(0.0, 1.0), resampling=resampling)
    dead, sampled = (int(total) for total in units.sum(axis=0))
    return results.BehindFilter(frac_zero_std_sampled=share, num_sampled=sampled, num_dead=dead, by_step=tuple(rows))


def _nothing(reason: str) -> results.BehindFilter:
    return results.BehindFilter(frac_zero_std_sampled=Estimate.undefined_because(reason))


def _count(values: Values, name: str) -> int:
    value = values.get(name, 0.0)
    if not (np.isfinite(value) and value >= 0 and value == int(value)):
        raise _Unusable(NOT_AN_INTEGER)
    return int(value)
