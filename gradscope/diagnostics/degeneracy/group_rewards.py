"""Which groups a command judges, by which reward, and their degeneracy over time, in the rollouts and as logged.

A log may hold the share without rollouts, and dead groups may be dropped before logging. What each counter of a
trainer's filter counts, and when it is written, is as in its trainer's source (August 2026). A step at which other
groups were dropped too, dead or not, is left out.
"""

from __future__ import annotations

import difflib
import hashlib
import math
import shlex
from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property, partial
from itertools import accumulate, pairwise
from typing import Any, Literal, get_args

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from gradscope.diagnostics.logged.metrics import (
    NO_ROLLOUTS,
    logged_estimate,
    logged_value,
    metric_series,
    verdict_series,
)
from gradscope.errors import InputError, UsageError
from gradscope.estimate import Estimate, undefined_record
from gradscope.findings.logged import metric_findings, metric_named
from gradscope.metrics.outcomes.degeneracy import DegeneracyEstimates, GroupTable, estimate_degeneracies, share_columns
from gradscope.metrics.outcomes.groups import EQUAL_REWARDS, level_counts, passes
from gradscope.metrics.outcomes.jensen_gap import BasePassRate
from gradscope.metrics.uncertainty.bootstrap import bootstrap_statistics, ratios
from gradscope.metrics.uncertainty.intervals import RESAMPLING, Resampling
from gradscope.results import degeneracy
from gradscope.results import degeneracy as results
from gradscope.results.envelope import LazyRows, deferred
from gradscope.results.logged import MetricCourse
from gradscope.rollouts.groups import RewardTable, reward_table
from gradscope.rollouts.run import Run


def estimates_of(record: Struct, kind: type[Struct]) -> dict[str, Any]:
    """The estimates of a record that another kind of record has by the same names."""
    return {name: getattr(record, name) for name in kind.__struct_fields__ if hasattr(record, name)}


TRAINER_REWARD = "reward"  # how reports call the trainer's own scalar


_CHUNK = 1 << 20  # rewards whose levels are looked for at once: NumPy copies them for it


class NoGroupError(InputError):
    """No prompt has two rollouts with their rewards, as in an evaluation with one sample a prompt."""


class GroupRewards(Struct, frozen=True, kw_only=True, dict=True):
    """The groups that can be judged, and how many were left out."""

    table: RewardTable  # groups of at least two rollouts whose rewards are all known
    values: NDArray[np.float64]  # the reward that is looked at, of each rollout of ``table``, [N]
    num_singletons: int  # groups of one rollout: nothing to be compared with
    num_incomplete: int  # groups with a missing reward: they could be of either kind

    @cached_property
    def levels(self) -> NDArray[np.float64]:
        """The different rewards, ascending."""
        starts = range(0, len(self.values), _CHUNK)
        return np.unique(np.concatenate([np.unique(self.values[start : start + _CHUNK]) for start in starts]))


def group_rewards(run: Run, reward: str | None = None) -> GroupRewards:
    """The groups of two or more rollouts whose rewards, or those of one function, are all known."""
    table = run.judged_rewards if reward is None else reward_table(run.groups)
    if reward is not None and reward not in table.rewards:
        names = sorted(table.rewards)
        near = difflib.get_close_matches(reward, names, n=1, cutoff=0.5)
        available = f"It has: {', '.join(names)}." if names else "It logs no reward per function."
        raise UsageError(
            f"{run.source.path} has no reward function {reward!r}.",
            hint=f"Did you mean {near[0]!r}?" if near else available,
        )
    values = table.reward if reward is None else table.rewards[reward]
    complete = table.sums(np.isnan(values)) == 0
    usable = complete & (table.size >= 2)
    num_incomplete = int(np.sum(~complete))
    num_singletons = len(table) - num_incomplete - int(usable.sum())
    if not usable.any():
        is_evaluation = num_singletons and len(run.steps) == 1
        aside = "".join(f" {entry.counted} set aside: {entry.reason}." for entry in run.source.quarantined.reasons[:1])
        as_samples = f" Of one sample each: gradscope passk {shlex.quote(run.source.path)}" if is_evaluation else ""
        raise NoGroupError(
            f"{run.source.path} has no group to judge: of {len(table)} groups, {num_singletons} have one rollout and "
            f"{num_incomplete} lack a reward.{aside}",
            hint="Degenerate groups need two or more rollouts a prompt, each with its reward; name the columns of a "
            f"generic file with --prompt-column, --group-column and --reward-column.{as_samples}",
        )
    return GroupRewards(
        table=table.select(usable),
        values=values if usable.all() else values[np.repeat(usable, table.size)],
        num_singletons=num_singletons,
        num_incomplete=num_incomplete,
    )


By = Literal["step", "window"]
EstimateCache = dict[bytes, DegeneracyEstimates]  # a digest of some groups -> their estimates
_STEP_CHUNK = 1 << 13  # steps whose groups are tables of their own at once
NUM_WINDOWS = 10
"""Windows that a series of steps is cut into: few enough to read, and with more groups each than a step has."""


class DegeneracyOptions(Struct, frozen=True, kw_only=True):
    """What the shares of a log are compared with, and how they are estimated."""

    base_pass_rate: BasePassRate = None
    """The p of the i.i.d. prediction: a number, "step" for each step's own; None: the mean of the log."""
    target_degeneracy: float | None = None
    """A share of degenerate groups; the report says what it takes to get there."""
    by: By = "step"  # rows of the series over steps: each step, or at most ten windows of neighboring steps
    resampling: Resampling = RESAMPLING  # how often, and from which seed

    def __post_init__(self) -> None:
        base, target = self.base_pass_rate, self.target_degeneracy
        for name, value, choices in (("by", self.by, get_args(By)), ("base_pass_rate", base, ("step",))):
            if isinstance(value, str) and value not in choices:
                raise UsageError(f"There is no {name}={value!r}.", hint=f"Write {' or '.join(map(repr, choices))}.")
        if isinstance(base, float | int) and not 0 <= base <= 1:
            raise UsageError(f"A pass rate lies between 0 and 1, got {base:g}.", hint="Give a share, not a percentage.")
        if target is not None and not 0 < target < 1:
            raise UsageError(
                f"A target share lies between 0 and 1, got {target:g}.", hint="Write --target-degeneracy 0.2"
            )

    def estimates(self, tables: Sequence[GroupTable]) -> list[DegeneracyEstimates]:
        """The estimates of tables under these options."""
        return estimate_degeneracies(tables, base_pass_rate=self.base_pass_rate, resampling=self.resampling)


def group_table(chosen: GroupRewards, threshold: float | None, main: str | None) -> GroupTable:
    """The groups as the estimates take them, a row each; the threshold is None where passing is not known.

    A rollout passes that reaches the threshold, and 1 by the main function where that is only a part of the reward.
    """
    groups = chosen.table
    passing = None if threshold is None else passes(chosen.values, threshold)
    if passing is not None and main is not None:
        passing &= passes(groups.rewards[main], 1.0)
    return GroupTable(
        step=groups.step,
        prompt=groups.prompt,
        size=groups.size,
        dead=groups.spread(chosen.values) <= EQUAL_REWARDS,
        num_passing=None if passing is None else groups.sums(passing),
        level_counts=_level_counts(chosen),
    )


def _level_counts(chosen: GroupRewards) -> NDArray[np.int64]:
    levels = chosen.levels
    if len(levels) == 2 and np.ptp(levels) > EQUAL_REWARDS:
        high = chosen.table.sums(chosen.values == levels[1])
        return np.column_stack([chosen.table.size - high, high])
    counted = [(indices, level_counts(rewards)) for indices, rewards in chosen.table.by_size(chosen.values)]
    counts = np.zeros((len(chosen.table), max(size_counts.shape[1] for _, size_counts in counted)), dtype=np.int64)
    for indices, size_counts in counted:
        counts[indices, : size_counts.shape[1]] = size_counts
    return counts


def measure_series(run: Run, table: GroupTable, by: By, reward: str | None) -> degeneracy.DegeneracyCourse:
    """The shares of :func:`degeneracy_by_step`, without intervals."""
    ordered, bounds = _in_steps(table, by)
    starts, size = bounds[:-1], np.diff(bounds)
    first, last = ordered.step[starts], ordered.step[bounds[1:] - 1]
    means = (np.add.reduceat(column, starts, dtype=np.float64) / size for column in share_columns(ordered))
    unknown = (None,) * len(size)
    # of millions of steps objects would take a gigabyte
    dead, *kinds = (array("d", column.tobytes()) for column in means)
    passed, failed, rate = kinds or (unknown,) * 3
    return degeneracy.DegeneracyCourse(
        step=array("q", first.tobytes()),
        last_step=array("q", last.tobytes()),
        frac_reward_zero_std=dead,
        frac_all_pass=passed,
        frac_all_fail=failed,
        frac_tied=(0.0,) * len(size) if kinds else dead,
        pass_rate=rate,
        logged=tuple(_logged(run, *ends, reward) for ends in zip(first.tolist(), last.tolist(), strict=True))
        if run.metrics
        else unknown,
    )


def degeneracy_by_step(
    run: Run, table: GroupTable, reward: str | None, options: DegeneracyOptions, cache: EstimateCache | None = None
) -> tuple[degeneracy.StepDegeneracy, ...]:
    """A row for each step, or for each of at most ``NUM_WINDOWS`` windows; ``reward`` names the table's reward.

    ``cache`` has the estimates of earlier calls with the same options, and takes in those of this one.
    """
    ordered, ends = _in_steps(table, options.by)
    bounds, rows = ends.tolist(), list[degeneracy.StepDegeneracy]()
    for start in range(0, len(bounds) - 1, _STEP_CHUNK):
        spans = [ordered.take(slice(*ends)) for ends in pairwise(bounds[start : start + _STEP_CHUNK + 1])]
        estimates = options.estimates(spans) if cache is None else _estimates(spans, options, cache)
        for groups, estimate in zip(spans, estimates, strict=True):
            step, last = int(groups.step[0]), int(groups.step[-1])
            rows.append(
                degeneracy.StepDegeneracy(
                    step=step,
                    last_step=last,
                    num_groups=len(groups.size),
                    **estimates_of(estimate, degeneracy.StepDegeneracy),
                    logged=_logged(run, step, last, reward),
                )
            )
    return tuple(rows)


def _in_steps(table: GroupTable, by: By) -> tuple[GroupTable, NDArray[np.int64]]:
    """The groups by step, and where each row's groups begin and end, [rows + 1]."""
    is_ordered = bool(np.all(np.diff(table.step) >= 0))
    ordered = table if is_ordered else table.take(np.argsort(table.step, kind="stable"))
    ends = np.flatnonzero(np.diff(ordered.step, append=ordered.step[-1] + 1)) + 1
    if by == "window":
        ends = np.array([part[-1] for part in np.array_split(ends, min(NUM_WINDOWS, len(ends)))])
    return ordered, np.concatenate([[0], ends])


def _estimates(
    spans: Sequence[GroupTable], options: DegeneracyOptions, cache: EstimateCache
) -> list[DegeneracyEstimates]:
    keys = []
    for groups in spans:
        digest = hashlib.sha256()
        for column in (groups.step, groups.prompt, groups.size, groups.dead, groups.num_passing):
            digest.update(b"" if column is None else np.ascontiguousarray(column).tobytes())
        keys.append(digest.digest())
    new = {key: groups for key, groups in zip(keys, spans, strict=True) if key not in cache}
    cache.update(zip(new, options.estimates(list(new.values())), strict=True))
    return [cache[key] for key in keys]


def _logged(run: Run, step: int, last: int, reward: str | None) -> float | None:
    """The trainer's own share; one reward function's is another number, and so is a share of other rollouts."""
    comparable = reward is None and step == last and not run.is_means(step) and not run.settings.count_dead_batches
    return run.metrics.get(step, {}).get("frac_reward_zero_std") if comparable else None


def shares_without_rollouts(run: Run, reward: str | None) -> list[float]:
    """The trainer's own shares at the steps of which there are no rollouts."""
    steps, shares = run.step_metrics.series("frac_reward_zero_std")
    return [] if reward else shares[~np.isin(steps, run.steps) & (shares >= 0.0) & (shares <= 1.0)].tolist()


_SHARES = ("frac_reward_zero_std", "frac_all_pass", "frac_all_fail")
_NO_ESTIMATE = Estimate.undefined_because(NO_ROLLOUTS)
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
    metrics = metric_series(run)
    dead, passed, failed = (metric_named(metrics, name) for name in _SHARES)
    from gradscope.diagnostics.spike.measure import spike_sentences  # not loaded with every log

    findings = metric_findings(metrics, spike_sentences(run), verdict_series(run))
    steps = () if dead is None else dead.steps
    shares = [_aligned(series, steps) for series in (dead, passed, failed)]
    target, is_by_window = options.target_degeneracy, options.by == "window"
    rows = partial(_rows, steps, shares, run.step_metrics.not_shares)
    windows = rows(NUM_WINDOWS) if is_by_window else ()
    return undefined_record(
        results.DegeneracyReport,
        _NO_ESTIMATE,
        source=run.source,
        reward=TRAINER_REWARD,
        num_groups=0,
        num_rollouts=0,
        pass_rate_origin=NO_ROLLOUTS,
        course_pass_rate_origin=NO_ROLLOUTS,
        frac_reward_zero_std=_NOT_LOGGED if dead is None else dead.mean,
        behind_filter=_undefined(NO_ROLLOUTS),
        frac_all_pass=_NO_ESTIMATE if passed is None else passed.mean,
        frac_all_fail=_NO_ESTIMATE if failed is None else failed.mean,
        overdispersion=undefined_record(results.Overdispersion, _NO_ESTIMATE, test="none"),
        by_group_size=tuple(
            undefined_record(results.GroupSizeDegeneracy, _NO_ESTIMATE, group_size=size, method="forecast")
            for size in group_sizes
        ),
        gap_decomposition=undefined_record(results.GapDecomposition, _NO_ESTIMATE),
        by_step=windows if is_by_window else deferred(lambda: rows(len(steps))),
        course=results.DegeneracyCourse.of(windows) if is_by_window else _series(steps, shares),
        pass_rates=undefined_record(degeneracy.PassRateDistribution, _NO_ESTIMATE, histogram=()),
        starvation=undefined_record(degeneracy.SignalCost, _NO_ESTIMATE),
        prompts=results.PromptCounts(live=0, frac_rollouts=0.0, reward=TRAINER_REWARD),
        by_prompt=LazyRows({}),
        target=None if target is None else degeneracy.TargetDegeneracy(target=target, plans=()),
        frac_set_aside=run.source.frac_set_aside,
        quarantined=run.source.quarantined,
        summary=findings,
        findings=findings,
        metrics=metrics,
    )


_Values = Sequence[float | None]  # at each step, None where it was not logged


def _aligned(series: MetricCourse | None, steps: Sequence[int]) -> _Values:
    if series is None or series.steps == steps:
        return [None] * len(steps) if series is None else series.values
    value_at = dict(zip(series.steps, series.values, strict=True))
    return [value_at.get(step) for step in steps]


def _series(steps: Sequence[int], shares: Sequence[_Values]) -> results.DegeneracyCourse:
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
    blank = undefined_record(results.StepDegeneracy, _NO_ESTIMATE, step=0, last_step=0, num_groups=0, logged=None)

    def mean_of(share: int, start: int, stop: int) -> Estimate:
        logged = [value for value in shares[share][start:stop] if value is not None]
        is_share = _SHARES[share] not in not_shares
        return logged_estimate(math.fsum(logged) / len(logged), is_share=is_share) if logged else _NO_ESTIMATE

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
    num_dead, sampled = (_count(values, f"num_sampled_{kind}groups") for kind in ("degenerate_", ""))
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
    prefix, rule = _RULES.get(run.source.format, ("", None))
    if rule is None or not any(name.startswith(prefix) for name in run.step_metrics.columns):
        return _undefined(NO_COUNTER)
    if reward is not None:
        return _undefined(NOT_THE_REWARD)
    steps, step_index = np.unique(table.step, return_inverse=True)
    first_unlogged = min({*steps.tolist()} - run.metrics.keys(), default=math.inf)
    if run.source.format == "slime" and first_unlogged < max(run.metrics):
        return _undefined(OTHER_STEPS)  # with --wandb-always-use-train-step a step is another number
    counts = (steps, np.bincount(step_index), np.bincount(step_index, weights=table.dead).astype(np.int64))
    rows = [
        _step_behind_filter(step, num, dead, run.metrics.get(step), rule)
        for step, num, dead in zip(*(column.tolist() for column in counts), strict=True)
    ]
    behind = results.BehindFilter(frac_zero_std_sampled=rows[0].frac_zero_std_sampled, by_step=tuple(rows))
    units = np.array([(row.num_dead, row.num_sampled) for row in rows if row.num_dead is not None], dtype=np.float64)
    if not len(units):
        return behind
    (share,) = bootstrap_statistics(ratios, units, bounds=(0.0, 1.0), resampling=resampling)
    num_dead, sampled = (int(total) for total in units.sum(axis=0))
    return replace(behind, frac_zero_std_sampled=share, num_sampled=sampled, num_dead=num_dead)


def _step_behind_filter(step: int, num: int, dead: int, values: Values | None, rule: _Rule) -> results.StepBehindFilter:
    try:
        if values is None:
            raise _Unusable(NO_LINE)
        dead, sampled = rule(values, num, dead)
    except _Unusable as error:
        return results.StepBehindFilter(step=step, frac_zero_std_sampled=Estimate.undefined_because(str(error)))
    share = Estimate.exact(dead / sampled, num_units=sampled)
    return results.StepBehindFilter(step=step, num_sampled=sampled, num_dead=dead, frac_zero_std_sampled=share)


def _undefined(reason: str) -> results.BehindFilter:
    return results.BehindFilter(frac_zero_std_sampled=Estimate.undefined_because(reason))


def _count(values: Values, name: str) -> int:
    value = values.get(name, 0.0)
    if not (np.isfinite(value) and value >= 0 and value == int(value)):
        raise _Unusable(NOT_AN_INTEGER)
    return int(value)
