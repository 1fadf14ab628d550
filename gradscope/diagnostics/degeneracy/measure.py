"""How many groups give no gradient, of which kind, and how that compares with independent coin flips.

At other group sizes it is unbiased below the logged one and forecast above it; for a target share the report has what
it takes. A run that is still being written is followed: each look at a large log reads what was appended, and the whole
log where the writer did anything else, so that no row counts twice.

Legend: n rollouts of a group, c of them passing, G group size.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache, cached_property, partial
from operator import mul
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from gradscope.diagnostics.degeneracy import breakdowns, group_rewards
from gradscope.diagnostics.degeneracy.group_rewards import (
    DegeneracyOptions,
    degeneracy_as_logged,
    measure_behind_filter,
)
from gradscope.diagnostics.degeneracy.reward_functions import judged_groups, measure_reward_functions, silent_functions
from gradscope.diagnostics.logged.policy import shares_cut_off
from gradscope.errors import InputError, UsageError
from gradscope.estimate import Estimate, undefined_record
from gradscope.findings.degeneracy import LoggedGroups, degeneracy_findings, degeneracy_summary
from gradscope.metrics.outcomes import degeneracy as outcomes
from gradscope.metrics.outcomes.degeneracy import (
    NO_THRESHOLD,
    dispersion_test,
    estimate_rate_parts,
    estimate_rate_variance,
)
from gradscope.metrics.outcomes.forecast import MAX_EXTRAPOLATION, PassRates, binomial_chances, fit_pass_rates
from gradscope.metrics.outcomes.groups import (
    EQUAL_REWARDS,
    binary_threshold,
    faint_groups,
    min_dead_groups,
    multiples_of_usual,
    passes,
)
from gradscope.metrics.outcomes.jensen_gap import BasePassRate, estimate_gap_parts, estimate_prediction
from gradscope.progress import Progress, reporter
from gradscope.results import degeneracy as results
from gradscope.results.degeneracy import GroupSizeDegeneracy, PassRateDistribution, TargetPlan
from gradscope.results.envelope import deferred
from gradscope.rollouts.fetch import log_extent
from gradscope.rollouts.groups import GroupsOfTable, RewardTable, RolloutGroup, rollouts_by_step
from gradscope.rollouts.listing import shown
from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.readers.reduction.log import ReadSoFar
from gradscope.rollouts.run import Run

Array = NDArray[np.float64]

HOPELESS, SOLVED = 0.01, 0.99  # pass rates up to the one and from the other are the ends of the distribution
_MAX_INNER_BINS = 20


def describe_pass_rates(table: outcomes.GroupTable, rates: PassRates | str) -> PassRateDistribution:
    """Shapes, fit, end masses and histogram of a distribution; undefined where ``rates`` is a reason."""
    if isinstance(rates, str):
        unknown = Estimate.undefined_because(rates, num_units=len(table.size))
        return undefined_record(PassRateDistribution, unknown, histogram=())
    exact = partial(Estimate.exact, num_units=rates.num_prompts)

    def mass(inside: Callable[[Array], NDArray[np.bool_]], rates: PassRates = rates) -> Estimate:
        value = float(rates.free.weights[inside(rates.free.points)].sum())
        low, high = rates.bounds.interval(inside)
        return Estimate(value=value, low=min(low, value), high=max(high, value), num_units=rates.num_prompts)

    return PassRateDistribution(
        beta_a=exact(rates.shape.a),
        beta_b=exact(rates.shape.b),
        at_zero=exact(rates.shape.at_zero),
        at_one=exact(rates.shape.at_one),
        goodness_of_fit=rates.goodness_of_fit,
        frac_hopeless=mass(lambda p: p <= HOPELESS),
        frac_solved=mass(lambda p: p >= SOLVED),
        histogram=_histogram(table, rates),
    )


def _histogram(table: outcomes.GroupTable, rates: PassRates) -> tuple[results.RateBin, ...]:
    """Shares of groups by c/n: exactly 0, as many bins between as the smallest group has rates, exactly 1."""
    passing = np.zeros(len(table.size), dtype=np.int64) if table.num_passing is None else table.num_passing
    pooled = float(np.mean(passing / table.size))
    bins = min(max(int(table.size.min()) - 1, 1), _MAX_INNER_BINS)
    shares = np.zeros((bins + 2, 3))
    for size in np.unique(table.size).tolist():
        rows = table.size == size
        rate = np.arange(size + 1) / size
        inner = 1 + np.minimum((rate * bins).astype(np.int64), bins - 1)
        bin_index = np.where(rate == 0.0, 0, np.where(rate == 1.0, bins + 1, inner))
        seen = np.bincount(passing[rows], minlength=size + 1) / len(table.size)
        weight = float(rows.mean())
        expected = [weight * rates.shape.chances(size), weight * binomial_chances(size, pooled)]
        np.add.at(shares, bin_index, np.column_stack([seen, *expected]))
    edges = [(0.0, 0.0), *((k / bins, (k + 1) / bins) for k in range(bins)), (1.0, 1.0)]
    return tuple(
        results.RateBin(low=low, high=high, observed=float(row[0]), beta_binomial=float(row[1]), binomial=float(row[2]))
        for (low, high), row in zip(edges, shares, strict=True)
    )


class GroupSizes(Struct, frozen=True, kw_only=True, dict=True):
    """The groups of a log, asked about other sizes."""

    table: outcomes.GroupTable  # the groups
    overall: outcomes.DegeneracyEstimates  # their estimates at the logged size
    options: DegeneracyOptions  # how they were made

    @cached_property
    def rates(self) -> PassRates | str:
        """The distribution of their pass rates, or why there is none."""
        if self.table.num_passing is None:
            return NO_THRESHOLD
        full = (self.table.num_passing == 0) | (self.table.num_passing == self.table.size)
        if np.any(full != self.table.dead):
            return "rewards within pass or fail differ, so passes do not tell which groups have equal rewards"
        return fit_pass_rates(self.table.size, self.table.num_passing, self.table.prompt)

    @property
    def logged(self) -> int | None:
        """The logged group size; None where groups differ."""
        return int(self.table.size[0]) if np.ptp(self.table.size) == 0 else None

    def rows(self, group_sizes: Sequence[int]) -> tuple[GroupSizeDegeneracy, ...]:
        """One row a size, the logged one first."""
        observed = [self.row(self.logged)] if self.logged is not None else []
        return (*observed, *(self.row(size) for size in sorted(set(group_sizes) - {self.logged})))

    def row(self, group_size: int) -> GroupSizeDegeneracy:
        """One size: observed at the logged one, estimated from smaller draws, or forecast."""
        if group_size == self.logged:
            logged = group_rewards.estimates_of(self.overall, GroupSizeDegeneracy)
            share = self.overall.frac_reward_zero_std
            return GroupSizeDegeneracy(group_size=group_size, degeneracy=share, **logged, method="observed")
        if np.any(self.table.size < group_size):
            rates, prediction = self.rates, Estimate.undefined_because(NO_THRESHOLD, num_units=len(self.table.size))
            if self.table.num_passing is not None:
                drawn = replace(self.table.draws, size=np.full(len(self.table.size), group_size))
                prediction = estimate_prediction(drawn, self.overall.pass_rate, self.options.base_pass_rate)
            dead = Estimate.undefined_because(rates) if isinstance(rates, str) else rates.degeneracy(group_size)
            gap, predicted = dead if prediction.is_defined or not dead.is_defined else prediction, prediction.value
            return GroupSizeDegeneracy(
                group_size=group_size,
                degeneracy=dead,
                iid_prediction=prediction,
                # its interval is that of the forecast, by far the wider of the two
                jensen_gap=gap if predicted is None else gap.map(lambda share: share - predicted),
                method="forecast",
            )
        estimates = outcomes.estimate_at_size(
            self.table, group_size, base_pass_rate=self.options.base_pass_rate, resampling=self.options.resampling
        )
        return GroupSizeDegeneracy(
            group_size=group_size, **group_rewards.estimates_of(estimates, GroupSizeDegeneracy), method="unbiased"
        )

    def target(self, target: float, tokens_per_rollout: Estimate) -> results.TargetDegeneracy:
        """The plans that bring the share of degenerate groups to a target: none, larger groups, resampling."""
        # They start from the most frequent size where groups differ.
        sizes, counts = np.unique(self.table.size, return_counts=True)
        now = self.row(int(sizes[np.argmax(counts)]))
        larger = self._smallest(target, MAX_EXTRAPOLATION * now.group_size)
        share, num_units = now.degeneracy.value or 0.0, now.degeneracy.num_units

        def resampled(share: float) -> float:
            """Rollouts for each group of a batch that holds no more than the target of degenerate ones."""
            return now.group_size * max((1 - target) / (1 - share), 1.0)

        if share <= target:
            drawn = Estimate.exact(float(now.group_size), num_units=num_units)
        elif share >= 1.0:
            drawn = Estimate.undefined_because("no group is alive, so no number of groups would give one")
        elif now.degeneracy.ends[1] >= 1.0:
            drawn = Estimate.exact(resampled(share), num_units=num_units)
        else:
            drawn = now.degeneracy.map(resampled)
        reached = now.degeneracy if share <= target else Estimate.exact(target, num_units=num_units)

        def plan(
            name: Literal["now", "larger groups", "resampling"],
            row: GroupSizeDegeneracy,
            degeneracy: Estimate,
            drawn: Estimate,
        ) -> TargetPlan:
            times = tokens_per_rollout.value  # whose own error is negligible
            tokens = drawn if times is None else drawn.map(partial(mul, times))
            return TargetPlan(
                plan=name,
                group_size=row.group_size,
                degeneracy=degeneracy,
                rollouts_per_group=drawn,
                tokens_per_group=tokens_per_rollout if drawn.is_defined and times is None else tokens,
                method=row.method,
            )

        unknown = Estimate.undefined_because(
            f"no group size up to {MAX_EXTRAPOLATION} times {now.group_size} is known to bring the share to {target:g}",
            num_units=num_units,
        )
        plans = (
            plan("now", now, now.degeneracy, Estimate.exact(float(now.group_size))),
            undefined_record(TargetPlan, unknown, plan="larger groups", group_size=None, method="forecast")
            if larger is None
            else plan("larger groups", larger, larger.degeneracy, Estimate.exact(float(larger.group_size))),
            plan("resampling", now, reached if drawn.is_defined else drawn, drawn),
        )
        return results.TargetDegeneracy(target=target, plans=plans)

    def _smallest(self, target: float, largest: int) -> GroupSizeDegeneracy | None:
        """The smallest group size that meets the target, by bisection: the share falls with G."""
        low, high = 2, largest
        while low < high:
            middle = (low + high) // 2
            share = self.row(middle).degeneracy.value
            # forecasts of larger groups are refused before those of smaller ones
            low, high = (low, middle) if share is None or share <= target else (middle + 1, high)
        row = self.row(low)
        return row if row.degeneracy.value is not None and row.degeneracy.value <= target else None


def pass_rate_origin(base_pass_rate: BasePassRate | Literal["window"], num_groups: int) -> str:
    """Which p the i.i.d. prediction used, in words that fit into a sentence."""
    if base_pass_rate is None:
        return f"the mean of this log over {num_groups} groups"
    if isinstance(base_pass_rate, str):
        return f"the mean of each {base_pass_rate}"
    return f"the given base pass rate, {base_pass_rate:g}"


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
    threshold = binary_threshold(chosen.levels) if success_threshold is None else success_threshold
    rewards = measure_reward_functions(run, chosen, reward, resampling=resampling)
    name = reward or rewards.part or group_rewards.TRAINER_REWARD
    main = rewards.main if name == group_rewards.TRAINER_REWARD else None
    table = group_rewards.group_table(chosen, threshold, main if success_threshold is None else None)
    num_reaching = 0 if threshold is None else int(passes(chosen.values, threshold).sum())
    (overall,) = options.estimates([table])
    sizes = GroupSizes(table=table, overall=overall, options=options)
    starvation = breakdowns.measure_cost(chosen, table, overall.frac_reward_zero_std, resampling=resampling)
    policies, policy_gap = breakdowns.measure_policies(chosen, table, threshold, resampling=resampling)
    prompts, by_prompt = breakdowns.measure_prompts(chosen, threshold, main, name=name)
    logged = LoggedGroups(
        num_levels=1 + int(np.sum(np.diff(chosen.levels) > EQUAL_REWARDS)),
        num_singletons=chosen.num_singletons,
        num_incomplete=chosen.num_incomplete,
        resampled=run.settings.get("sampling") == "dynamic",
        num_without_main=num_reaching - (0 if table.num_passing is None else int(table.num_passing.sum())),
        num_steps=len(run.steps),
        other_shares=group_rewards.shares_without_rollouts(run, reward),
    )
    faint = faint_groups(spread := chosen.table.spread(chosen.values))
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
        overdispersion=_overdispersion(table, options),
        by_group_size=sizes.rows(group_sizes),
        gap_decomposition=deferred(lambda: _gap_decomposition(table, overall, options)),
        by_policy=policies,
        policy_gap=policy_gap,
        by_environment=breakdowns.measure_environments(chosen, table, resampling=resampling),
        by_step=deferred(lambda: group_rewards.degeneracy_by_step(run, table, reward, options)),
        course=group_rewards.measure_series(run, table, options.by, reward),
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
        findings=deferred(
            lambda: degeneracy_findings(report, logged, sizes.row(2 * sizes.logged) if sizes.logged else None)
        ),
        min_num_filtered=0.0 if table.num_passing is None else min_dead_groups(table.size, table.num_passing),
        silent_functions=silent_functions(chosen.table.rewards) if len(chosen.levels) > 1 else (),
        num_faint=int(faint.sum()),
        faint_spread=float(spread[faint].max(initial=0.0)),
        **_advantage_faults(chosen.table, run.groups),
        **_repeated_rows(run, chosen.table),
        frac_cut_off=fmean([share for share in shares_cut_off(run).values() if 0.0 <= share <= 1.0] or [0.0])
        if chosen.table.truncated is None
        else float(np.nanmean(chosen.table.truncated)),
    )
    return report


_NOT_ROUNDING = 0.05  # of the root mean square of all advantages: what rounding leaves of equal rewards is far below


def _advantage_faults(groups: RewardTable, logged: Sequence[RolloutGroup]) -> dict[str, Any]:
    """Groups whose logged advantages fall where the rewards rise, are all zero, or are not zero of equal rewards."""
    by_token = 0 if isinstance(logged, GroupsOfTable) else sum(map(_is_moved_by_token, logged))
    if groups.advantage is None:
        return {"num_moved": by_token}
    advantage = np.nan_to_num(groups.advantage)
    deviation = np.nan_to_num(groups.reward - np.repeat(groups.sums(groups.reward) / groups.size, groups.size))
    along, squares = groups.sums(advantage * deviation), groups.sums(advantage**2)
    are_zero = groups.sums(groups.advantage != 0) == 0
    is_bent = along**2 < _ON_A_LINE * squares * groups.sums(deviation**2)
    sizes = np.sqrt(squares / groups.size)
    are_off = np.abs(groups.sums(advantage)) / groups.size > _NOT_ROUNDING * sizes
    are_moved = sizes > _NOT_ROUNDING * np.sqrt(np.mean(sizes**2))  # as by another baseline than the group's mean
    return {
        "num_contradicting": int(np.sum(along < -EQUAL_REWARDS)),
        "num_zeroed": int(np.sum(are_zero & ~groups.is_dead & (groups.size > 1))),
        "num_moved": int(np.sum(groups.is_dead & are_moved)) + by_token,
        "num_off_mean": int(np.sum(are_off & ~groups.is_dead)),
        "num_merged": _num_merged(groups, groups.reward - groups.advantage, is_bent),
    }


def _is_moved_by_token(group: RolloutGroup) -> bool:
    """Whether the rewards are equal and the advantages differ from token to token, as those of a critic do."""
    advantages = (rollout.token_advantages for rollout in group.rollouts if rollout.advantage is None)
    return group.size > 1 and len(set(group.rewards)) == 1 and any(any(values or ()) for values in advantages)


def _num_merged(groups: RewardTable, baseline: NDArray[np.float64], is_bent: NDArray[np.bool_]) -> int:
    """Groups made of parts of one size with a baseline each, the mean of their rewards, among those that may be."""
    chosen = np.repeat(is_bent, groups.size)
    group, rewards = np.repeat(np.arange(len(groups)), groups.size)[chosen], groups.reward[chosen]
    levels = group + 1j * np.round(baseline[chosen] / _SAME_BASELINE)  # pairs
    _, first, part, sizes = np.unique(levels, return_index=True, return_inverse=True, return_counts=True)
    means = np.bincount(part, weights=rewards) / sizes
    part_group = group[first]
    are_equal = sizes * np.bincount(part_group)[part_group] == groups.size[part_group]
    are_means = are_equal & (np.abs(means - baseline[chosen][first]) < _SAME_BASELINE)
    return len({*part_group.tolist()} - {*part_group[~are_means].tolist()})


_ON_A_LINE = 1 - 1e-6  # squared correlation of advantages with rewards, which one baseline makes 1, but for rounding
_SAME_BASELINE = 1e-4  # largest distance between equal baselines of a group: far above what rounding leaves


def _repeated_rows(run: Run, groups: RewardTable) -> dict[str, Any]:
    """Steps with twice the usual rollouts and groups with a multiple of theirs, and a prompt that has most of them."""
    steps, sizes = rollouts_by_step(run.groups)  # those without a reward, too
    doubled, usual = multiples_of_usual(sizes)
    pooled, usual_size = multiples_of_usual(groups.size)
    num_texts = groups.size - (num_repeats := groups.sums(groups.repeats[0]))
    texts = int(np.bincount(num_texts).argmax())
    is_even = np.mean(groups.size == usual_size) >= _NEARLY_ALL
    repeats_rows = not is_even and texts > 1 and np.mean(num_texts == texts) >= _NEARLY_ALL
    by_prompt = np.bincount(groups.prompt, weights=groups.size)
    largest = by_prompt.max(initial=0.0) / max(groups.size.sum(), 1)
    return {
        "doubled_steps": steps[doubled & (sizes == 2 * usual)].tolist(),
        "num_pooled": 0 if is_even else int(pooled.sum()),
        "usual_size": int(usual_size) if is_even or pooled.any() else 0,
        "frac_copied": float(num_repeats[groups.is_dead].sum() / max(groups.size[groups.is_dead].sum(), 1)),
        "num_once": texts if repeats_rows else 0,
        "frac_of_one_prompt": largest * (largest > max(_MUCH, _FAR_BEYOND / np.count_nonzero(by_prompt))),
    }


_NEARLY_ALL = 0.95  # of the groups: where an epoch ends within a step, a prompt or two may return in it
_MUCH, _FAR_BEYOND = 0.2, 2.5  # share of the rollouts, and times the share of one of equally many, that is much of one


def _predictions(
    table: outcomes.GroupTable, overall: outcomes.DegeneracyEstimates, options: group_rewards.DegeneracyOptions
) -> tuple[results.IidPrediction, ...]:
    bases: list[BasePassRate] = [options.base_pass_rate, None]
    if np.ptp(table.step) > 0:
        bases.append("step")
    return tuple(
        results.IidPrediction(
            pass_rate_origin=pass_rate_origin(base, len(table.size)),
            **group_rewards.estimates_of(estimates, results.IidPrediction),
        )
        for base in dict.fromkeys(bases)
        for estimates in (
            [overall] if base == options.base_pass_rate else replace(options, base_pass_rate=base).estimates([table])
        )
    )


def _gap_decomposition(
    table: outcomes.GroupTable, overall: outcomes.DegeneracyEstimates, options: group_rewards.DegeneracyOptions
) -> results.GapDecomposition:
    between, over_time = estimate_gap_parts(table.draws, overall.jensen_gap, options.base_pass_rate)
    return results.GapDecomposition(between_prompts=between, over_time=over_time)


def _overdispersion(table: outcomes.GroupTable, options: group_rewards.DegeneracyOptions) -> results.Overdispersion:
    if table.num_passing is None:
        unknown = Estimate.undefined_because(NO_THRESHOLD, num_units=len(table.size))
        return undefined_record(results.Overdispersion, unknown, test="none")
    size, passing, resampling = table.size, table.num_passing, options.resampling
    parts = cache(lambda: estimate_rate_parts(table.step, table.prompt, size, passing, resampling=resampling))
    test = cache(lambda: dispersion_test(size, passing, table.step, seed=resampling.seed))
    return results.Overdispersion(
        rate_variance=deferred(lambda: estimate_rate_variance(size, passing, table.prompt, resampling=resampling)),
        between_prompts=deferred(lambda: parts()[0]),
        between_visits=deferred(lambda: parts()[1]),
        z=deferred(lambda: test().z),
        p_value=deferred(lambda: test().p_value),
        test=deferred(lambda: test().test),
    )


Notice = Callable[[str], None]  # called with a sentence on why the log could not be read


class Pace(Struct, frozen=True, kw_only=True):
    """How often to look, and when to stop."""

    interval: float = 2.0  # seconds between two looks at the log's size
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
    if pace.interval <= 0:
        raise UsageError(f"--every is a positive number of seconds, got {pace.interval:g}.", hint="Write --every 2")
    if pace.idle is not None and pace.idle < pace.interval:
        raise UsageError(
            f"It cannot end after {pace.idle:g} seconds without growth and look every {pace.interval:g} seconds.",
            hint="Give --idle more seconds than --every.",
        )
    so_far, cache = ReadSoFar(), group_rewards.EstimateCache()

    def look() -> tuple[results.StepDegeneracy, ...]:
        run = read_run(path, read, rewards_only=True, so_far=so_far)
        table = judged_groups(run, success_threshold, reward)[1]
        return group_rewards.degeneracy_by_step(run, table, reward, DegeneracyOptions(), cache)

    reported: dict[int, results.StepDegeneracy] = {}
    last = log_extent(path)
    grown = pace.clock()
    rows = look()
    started = ended = pace.clock()  # what follows a first look reads less
    yield from _changed_rows(rows[:-1], reported)
    while True:
        pace.sleep(pace.interval)
        now = pace.clock()
        if log_extent(path) == last:
            yield from _changed_rows(rows, reported)
            if pace.idle is not None and now - grown >= pace.idle:
                return
            continue
        if (rest := ended + (ended - started) - now) > 0:
            pace.sleep(rest)
        last = log_extent(path)
        started = grown = pace.clock()
        try:
            rows = look()
        except (InputError, OSError) as error:
            rows = ()
            notice(f"{shown(path)} could not be read ({error}); waiting for more.")
        ended = pace.clock()
        yield from _changed_rows(rows[:-1], reported)


def _changed_rows(
    rows: Sequence[results.StepDegeneracy], reported: dict[int, results.StepDegeneracy]
) -> Iterator[results.StepDegeneracy]:
    for row in rows:
        if reported.get(row.step) != row:
            reported[row.step] = row
            yield row
