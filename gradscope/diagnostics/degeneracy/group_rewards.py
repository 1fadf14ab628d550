"""Which groups a command judges, by which reward, and their degeneracy over time: a row a step or window of steps."""

from __future__ import annotations

import difflib
import hashlib
import shlex
from array import array
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from gradscope.errors import InputError, UsageError
from gradscope.metrics.outcomes.degeneracy import DegeneracyEstimates, GroupTable, estimate_degeneracies, share_columns
from gradscope.metrics.outcomes.groups import EQUAL_REWARDS, level_counts, passes
from gradscope.metrics.outcomes.jensen_gap import BasePassRate
from gradscope.metrics.uncertainty.intervals import RESAMPLING, Resampling
from gradscope.results.degeneracy import DegeneracyCourse, StepDegeneracy
from gradscope.rollouts.groups import RewardTable, reward_table
from gradscope.rollouts.run import Run


def estimates_of(record: Struct, kind: type[Struct]) -> dict[str, Any]:
    """Those of the estimates of some groups that a record of another kind has by the same names."""
    return {name: getattr(record, name) for name in kind.__struct_fields__ if hasattr(record, name)}


TRAINER_REWARD = "reward"  # how reports call the trainer's own scalar


_AT_ONCE = 1 << 20  # rewards whose levels are looked for at once: NumPy copies them for it


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
        parts = range(0, len(self.values), _AT_ONCE)
        return np.unique(np.concatenate([np.unique(self.values[at : at + _AT_ONCE]) for at in parts]))


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
        aside = "".join(f" {of.counted} set aside: {of.reason}." for of in run.source.quarantined.reasons[:1])
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
_STEPS_AT_ONCE = 1 << 13  # steps whose groups are tables of their own at once
NUM_WINDOWS = 10
"""Windows that a course over time is cut into: few enough to read, and with more groups each than a step has."""


class DegeneracyOptions(Struct, frozen=True, kw_only=True):
    """What the shares of a log are compared with, and how they are estimated."""

    base_pass_rate: BasePassRate = None
    """The p of the i.i.d. prediction: a number, "step" for each step's own; None: the mean of the log."""
    target_degeneracy: float | None = None
    """A share of degenerate groups; the report says what it takes to get there."""
    by: By = "step"  # rows of the course over time: each step, or at most ten windows of neighboring steps
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


def group_table(chosen: GroupRewards, threshold: float | None, main: str | None = None) -> GroupTable:
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


def measure_course(run: Run, table: GroupTable, by: By, reward: str | None) -> DegeneracyCourse:
    """The shares of :func:`degeneracy_by_step` alone."""
    ordered, bounds = _in_steps(table, by)
    starts, size = bounds[:-1], np.diff(bounds)
    first, last = ordered.step[starts], ordered.step[bounds[1:] - 1]

    means = (np.add.reduceat(column, starts, dtype=np.float64) / size for column in share_columns(ordered))
    unknown = (None,) * len(size)
    # of millions of steps objects would take a gigabyte
    dead, *kinds = (array("d", column.tobytes()) for column in means)
    passed, failed, rate = kinds or (unknown,) * 3
    return DegeneracyCourse(
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
) -> tuple[StepDegeneracy, ...]:
    """A row for each step, or for each of at most ``NUM_WINDOWS`` windows; ``reward`` names what the table is of.

    ``cache`` has the estimates of earlier calls with the same options, and takes in those of this one.
    """
    ordered, ends = _in_steps(table, options.by)
    bounds, rows = ends.tolist(), list[StepDegeneracy]()
    for start in range(0, len(bounds) - 1, _STEPS_AT_ONCE):
        spans = [ordered.take(slice(*ends)) for ends in pairwise(bounds[start : start + _STEPS_AT_ONCE + 1])]
        estimates = options.estimates(spans) if cache is None else _estimates(spans, options, cache)
        for groups, estimate in zip(spans, estimates, strict=True):
            step, last = int(groups.step[0]), int(groups.step[-1])
            rows.append(
                StepDegeneracy(
                    step=step,
                    last_step=last,
                    num_groups=len(groups.size),
                    **estimates_of(estimate, StepDegeneracy),
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
