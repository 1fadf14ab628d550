"""Where the reward goes: over fifths of the steps, on the prompts that return, of each environment, of the main one.

Shapes: R rollouts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations
from statistics import fmean
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from gradscope.diagnostics.compare.means import reward_change
from gradscope.diagnostics.degeneracy.breakdowns import environments_of
from gradscope.diagnostics.logged.metrics import verdict_series
from gradscope.diagnostics.report.sections.inputs import ReportInputs, Unavailable, missing_section
from gradscope.estimate import Estimate
from gradscope.findings.logged import (
    FALLEN_ADVICE,
    FLAT_ADVICE,
    GOOD,
    SMALL_CHANGE,
    drop_clause,
    gap_sentence,
    lost_sentence,
)
from gradscope.metrics.outcomes.groups import EQUAL_REWARDS
from gradscope.metrics.uncertainty.bootstrap import bootstrap_mean
from gradscope.metrics.uncertainty.intervals import bonferroni
from gradscope.metrics.uncertainty.levels import MIN_STEPS_OF_LEVELS
from gradscope.metrics.uncertainty.steps import changes_between, widened_by_steps
from gradscope.render.views.view import lines_over
from gradscope.results.report import SEVERITIES, ReportSection, Severity
from gradscope.rollouts.groups import RewardTable
from gradscope.say import counted, with_interval

_MIN_STEPS_FOR_FIFTHS = 10  # steps: fewer make fifths of a single one
_MEDIUM_CHANGE = 0.5  # standard deviations of the rewards (Cohen 1988)
_MIN_PROMPTS = 30  # of an environment in a fifth: of 16 each one of eight fell in 8 % of runs of a constant policy
_MIN_SHARED_PROMPTS = 10  # prompts that two fifths share, below which a fall may be that of other prompts


class _RewardTrend(Struct, frozen=True):
    """A reward over the first, the middle and the last fifth of the steps."""

    levels: list[str]  # its mean in each
    changes: list[tuple[Estimate, Estimate, int]]
    """From the others to the last: of the mean, of the prompts of both, and the number of these."""
    falls: list[int]  # these numbers of prompts, of falls alone; 0 where it is unknown whether these prompts fall
    is_far: bool  # whether it falls by half a standard deviation of the rewards
    hidden: str  # that prompts that return fall, though the mean does not; empty where they do not
    is_flat: bool  # whether any rise, also on prompts that return, is surely small, though there is room for one
    stalls: bool  # whether that is so of the last fifth against the middle one

    @property
    def surely_falls(self) -> bool:
        """Whether it falls on prompts enough that return."""
        return max(self.falls, default=0) >= _MIN_SHARED_PROMPTS

    @property
    def goes(self) -> str:
        """Where it goes from the first fifth to the last, in a word."""
        if self.falls:
            return "falls"
        if self.is_flat:
            return "hardly rises"
        return "stalls" if self.stalls else "rises" if self.changes[0][0].side_of_zero > 0 else "is"

    @property
    def of_other_prompts(self) -> str:
        """That a fall, rise or neither may be that of other prompts; empty where it is not."""
        shared = _MIN_SHARED_PROMPTS if self.goes == "is" else self.changes[0][2]
        return ", of other prompts" if max(self.falls, default=shared) < _MIN_SHARED_PROMPTS else ""


def _reward_trend(table: RewardTable, fifths: Sequence[NDArray[np.int64]], num_tests: int = 1) -> _RewardTrend | None:
    """Where a table's reward goes; None where a reward is missing or a fifth of the steps has none."""
    parts = [table.select(np.isin(table.step, steps)) for steps in fifths]
    if np.isnan(table.reward).any() or not all(map(len, parts)):
        return None
    spread, by_step = float(np.std(table.reward)), table.mean_reward_by_step()
    # of a few steps it is not known how far a policy wanders, and a run that collapses would be left open
    far = _MEDIUM_CHANGE * spread if len(by_step) < MIN_STEPS_OF_LEVELS else math.inf
    of_fifths = [slice(*np.searchsorted([*by_step], (steps[0], steps[-1] + 1)).tolist()) for steps in fifths]
    first, middle, last = of_fifths
    *by_steps, before = changes_between([*by_step.values()], [(first, last), (middle, last), (first, middle)])
    changes = [
        (bonferroni(_as_wide(reward_change(part, parts[-1]), wander, far), num_tests), *_on_shared(part, parts[-1]))
        for part, wander in zip(parts[:-1], by_steps, strict=True)
    ]
    levels = [fmean(part.mean_reward_by_step().values()) for part in parts]
    small = SMALL_CHANGE * spread
    top, bottom = table.reward.max(), np.quantile(table.reward, _BULK[0])
    drops = drop_clause([*by_step], [*by_step.values()])
    falls = [
        0 if same.is_defined and same.ends[1] >= 0 else shared
        for change, same, shared in changes
        if (bonferroni(change, 2).side_of_zero < 0 or drops)  # both fifths are looked at
        and (change.value or 0.0) <= -small
        # what returning prompts surely do not do is not the policy's, but that of others in their place
        and not (same.is_defined and same.ends[0] > -small)
    ]

    def hardly_rises(level: float, change: Estimate, same: Estimate) -> bool:
        rises = (change, *[same] * same.is_defined)
        is_small = all(rise.num_units >= _MIN_SHARED_PROMPTS and rise.ends[1] < small for rise in rises)
        return is_small and (rises[-1].value or 0.0) > -small and bool(top - level > GOOD * (top - bottom))

    are_small = [hardly_rises(level, change, same) for level, (change, same, _) in zip(levels, changes, strict=False)]
    hidden = [
        f"Easier prompts hide a fall: on {shared} that return the mean reward changes by {with_interval(same, '+.3g')}."
        for change, same, shared in changes
        if same.is_defined
        and bonferroni(same, 2 * num_tests).ends[1] < 0
        and (same.value or 0.0) <= -small
        and not falls
        and (change.value or 0.0) > (same.value or 0.0) + small
    ]
    has_risen = 1 in (changes[0][0].side_of_zero, before.side_of_zero)
    stalls = has_risen and are_small[1] and levels[2] - levels[1] < (levels[1] - levels[0]) / 3
    levels_of = [f"{level:.3g}" for level in levels]
    judged = [same if same.is_defined else change for change, same, _ in changes]
    is_far = any((change.value or 0.0) <= -_MEDIUM_CHANGE * spread for change in judged)
    return _RewardTrend(levels_of, changes, falls, is_far, "".join(hidden[:1]), all(are_small), stalls)


def _as_wide(change: Estimate, by_steps: Estimate, far: float) -> Estimate:
    """A change of so many prompts, also beyond what a policy that wanders does from step to step, unless it is far."""
    if abs(change.value or 0.0) >= far:
        return change
    return replace(widened_by_steps(change, by_steps), num_units=change.num_units)


def _on_shared(first: RewardTable, second: RewardTable) -> tuple[Estimate, int]:
    """How much higher the mean reward of the prompts of both is in the second, undefined of few; and their number."""
    shared = np.intersect1d(first.prompt, second.prompt)
    if len(shared) < _MIN_SHARED_PROMPTS:
        return Estimate.undefined_because(f"{len(shared)} prompts are in both"), len(shared)
    means = [
        np.bincount(table.prompt, table.sums(table.reward) / table.size, minlength=shared[-1] + 1)[shared]
        / np.bincount(table.prompt, minlength=shared[-1] + 1)[shared]
        for table in (first, second)
    ]
    return bootstrap_mean(means[1] - means[0], share=False), len(shared)


def _dip(table: RewardTable) -> str:
    """That the reward fell, from one tenth of the steps to a later one, and has come back; empty where it has not."""
    # By the largest such fall, as `reward_drawdown`; parts of fewer than ten steps would tell no fall from a wandering
    # policy. Of a fall that lasts the fifths tell.
    parts = np.array_split(np.unique(table.step), min(10, len(np.unique(table.step)) // _MIN_STEPS_FOR_FIFTHS) or 1)
    tables = [table.select(np.isin(table.step, steps)) for steps in parts]
    levels = [fmean(part.mean_reward_by_step().values()) for part in tables]
    pairs = list(combinations(range(len(parts)), 2))
    if not pairs:
        return ""
    high, low = max(pairs, key=lambda pair: levels[pair[0]] - levels[pair[1]])
    fall = levels[high] - levels[low]
    if fall < _MEDIUM_CHANGE * float(np.std(table.reward)) or levels[-1] - levels[low] < fall / 2:
        return ""
    same, _ = _on_shared(tables[high], tables[low])
    changes = (reward_change(tables[high], tables[low]), *[same] * same.is_defined)
    if any(bonferroni(change, len(pairs)).ends[1] >= 0 for change in changes):
        return ""
    ends = (f"{levels[part]:.3g} at steps {parts[part][0]} to {parts[part][-1]}" for part in (high, low, -1))
    other_prompts = "" if same.is_defined else ", of other prompts"
    return f"The mean reward fell and came back: {', '.join(ends)}{other_prompts}."


def _falling_prompts(table: RewardTable) -> str | None:
    """That some prompts fall from the first half of the steps to the second, judged by half of their visits."""
    # Every other visit chooses the prompts that fall, and the visits between say by how much: so what chance chose does
    # not fall. What all prompts do together, as a policy that wanders does, is no fall of some.
    steps, step = np.unique(table.step, return_inverse=True)
    visits, visit = np.unique(table.prompt * len(steps) + step, return_inverse=True)
    levels = np.bincount(visit, table.sums(table.reward) / table.size) / np.bincount(visit)
    prompt, step = np.divmod(visits, len(steps))
    half = 2 * prompt + (step >= len(steps) // 2)
    cell = 2 * half + (np.arange(len(half)) - np.searchsorted(half, half)) % 2
    counts = np.bincount(cell, minlength=4 * len(table.prompts))
    means = (np.bincount(cell, levels, minlength=len(counts)) / np.maximum(counts, 1)).reshape(-1, 2, 2)
    change = (means[:, 1] - means[:, 0])[np.all(counts.reshape(-1, 4), axis=1)]
    small = SMALL_CHANGE * float(np.std(table.reward))
    falls = change[:, 0] <= -small
    if min(falls.sum(), (~falls).sum()) < _MIN_SHARED_PROMPTS:
        return None
    fall, rest = (bootstrap_mean(change[chosen, 1], share=False) for chosen in (falls, ~falls))
    if fall.ends[1] >= min(0.0, rest.ends[0]) or (fall.value or 0.0) > -small:
        return None
    return (
        f"Some prompts get worse: of {len(change)}, {falls.sum()} fall from the first half of the steps to the second "
        f"by every other visit, and by the visits in between these change by {with_interval(fall, '+.3g')}."
    )


class _Verdict(NamedTuple):
    """What a reward's trend asks for."""

    sentence: str  # empty where the sentence on the trend says it
    advice: str
    severity: Severity = "look"


def reward_section(inputs: ReportInputs) -> ReportSection:
    """The mean reward of the first, the middle and the last fifth of the steps, and where it falls or stays."""
    table = inputs.run.judged_rewards
    table = table.select(table.is_complete)
    steps = np.unique(table.step)
    size = len(steps) // 5
    fifths = [steps[start : start + size] for start in (0, (len(steps) - size) // 2, len(steps) - size)]
    trend = _reward_trend(table, fifths) if len(steps) >= _MIN_STEPS_FOR_FIFTHS else None
    if trend is None:
        return missing_section("reward", f"A trend needs {_MIN_STEPS_FOR_FIFTHS} steps, there are {len(steps)}.")
    means = table.sums(table.reward) / table.size
    is_relative = bool(np.ptp(means) <= EQUAL_REWARDS < np.ptp(table.reward))
    if is_relative:  # none could rise
        trend = replace(trend, is_flat=False, stalls=False)
    by_step = table.mean_reward_by_step()
    drop = drop_clause([*by_step], [*by_step.values()]) if trend.falls else ""
    verdicts = list(_verdicts(inputs, table, fifths, trend, is_relative=is_relative, drops=bool(drop)))
    calm: Severity = "fine" if trend.goes == "rises" else "unknown"
    severity = min((verdict.severity for verdict in verdicts), key=SEVERITIES.index, default=calm)
    relative = f"The mean reward of every group is {means[0]:.3g}: it is no measure of progress."
    levels = [f"{level} at steps {part[0]} to {part[-1]}" for level, part in zip(trend.levels, fifths, strict=True)]
    return ReportSection(
        name="reward",
        findings=(
            *(verdict.sentence for verdict in verdicts if verdict.sentence),
            *([relative] if is_relative else []),
            f"The mean reward {trend.goes}{':' * (trend.goes != 'is')} {', '.join(levels)}{trend.of_other_prompts}"
            f"{drop}.",
            *map(_change, ("first", "middle one"), trend.changes),
        ),
        severity=severity,
        is_standing=trend.goes in ("hardly rises", "stalls") and not any(verdict.sentence for verdict in verdicts),
        meaning="A fall on the same prompts is the policy's; between other prompts it may be theirs.",
        next_step=verdicts[0].advice if verdicts else "Nothing to do." if severity == "fine" else _UNDECIDED,
        charts=lines_over(list(by_step), "Mean reward", {"reward": list(by_step.values())}, y_label="mean reward"),
    )


def _change(fifth: str, to_last: tuple[Estimate, Estimate, int]) -> str:
    change, same, shared = to_last
    text = f"The last fifth against the {fifth}: {with_interval(change, '+.3g')}; {counted(shared, 'prompt')} in both"
    is_of_others = same.is_defined and change.side_of_zero < 0 <= same.ends[1]
    return f"{text}, by {with_interval(same, '+.3g')}." if is_of_others else f"{text}."


def _verdicts(
    inputs: ReportInputs,
    table: RewardTable,
    fifths: Sequence[NDArray[np.int64]],
    trend: _RewardTrend,
    *,
    is_relative: bool,
    drops: bool,
) -> Iterator[_Verdict]:
    main = "" if isinstance(inputs.degeneracy, Unavailable) else inputs.degeneracy.prompts.reward
    has_others = main in table.rewards and not np.array_equal(table.rewards[main], table.reward)
    main_trend = _reward_trend(replace(table, reward=table.rewards[main]), fifths) if has_others else None
    is_lost = main_trend is not None and main_trend.surely_falls
    if main_trend is not None and is_lost:
        contrast = "" if trend.falls else f" while the mean reward {trend.goes}"
        text = f"'{main}' falls{contrast}: {' to '.join(main_trend.levels)}."
        yield _Verdict(text, _HACKED, "look" if trend.falls else "problem")
    elif not trend.falls and (lost := lost_sentence(verdict_series(inputs.run))):
        yield _Verdict(lost, _HACKED)
    if main_trend is not None and not is_lost and main_trend.is_flat and trend.goes in ("rises", "stalls"):
        text = f"'{main}' hardly rises while the mean reward {trend.goes}: {' to '.join(main_trend.levels)}."
        yield _Verdict(text, FLAT_ADVICE)
    named = np.array(environments_of(table.prompts))
    for name in np.unique(named).tolist():
        part = _reward_trend(table.select(named[table.prompt] == name), fifths, 2 * len(set(named)))
        if part is None:
            continue
        is_many = min(change.num_units for change, _, _ in part.changes) >= _MIN_PROMPTS
        if part.surely_falls or (part.falls and is_many and not trend.falls):
            advice = FALLEN_ADVICE if trend.falls else f"Look at the verifier and the prompts of '{name}' first."
            text = f"In '{name}' the mean reward falls: {' to '.join(part.levels)}{part.of_other_prompts}."
            yield _Verdict(text, advice)
    if trend.hidden:
        yield _Verdict(trend.hidden, FALLEN_ADVICE)
    if not (trend.falls or is_lost or is_relative) and (some_fall := _falling_prompts(table)):
        yield _Verdict(some_fall, _FORGOTTEN)
    if not trend.falls and not is_relative and (dip := _dip(table)):
        yield _Verdict(dip, _DIPPED)
    step = np.repeat(table.step, table.size)
    before, after = (np.unique(table.reward[np.isin(step, fifth)]) for fifth in (fifths[0], fifths[-1]))
    if len(before) == len(after) == 2 and any(before != after):
        first, last = (f"{low:g} and {high:g}" for low, high in (before, after))
        yield _Verdict(f"Rewards are {first} in the first fifth of the steps and {last} in the last.", _RESCALED)
    low, high = np.quantile(table.reward, _BULK)
    far = (table.reward < low - _FAR * (high - low)) | (table.reward > high + _FAR * (high - low))
    if low < high and far.any():
        furthest = table.reward[far][np.argmax(np.abs(table.reward[far] - low))]
        yield _Verdict(
            f"Far from all others are the rewards of {counted(int(far.sum()), 'rollout')} (as {furthest:.3g}), "
            f"where 98 % lie between {low:.3g} and {high:.3g}: next to one, the others of its group look equal.",
            "Look at what made it, and bound the reward.",
        )
    if not trend.falls and (gap := gap_sentence(np.unique(table.step).tolist())):
        yield _Verdict(gap, "Look for the rollouts of these steps before judging by the others.")
    if trend.falls or trend.is_flat or trend.stalls:
        advice = FALLEN_ADVICE if trend.falls else FLAT_ADVICE
        if trend.of_other_prompts:
            advice = _DROPPED if drops else _PERHAPS_HARDER
        yield _Verdict("", advice, "problem" if trend.is_far and (trend.surely_falls or drops) else "look")


_BULK, _FAR = (0.01, 0.99), 100.0  # shares of the rollouts, and ranges between: a rare success over a bonus is nearer
_RESCALED = "Look at what changed the reward between, and judge each part by itself."
_HACKED = "Read completions of late steps that score high: another reward pays for what loses this one."
_FORGOTTEN = "Sample the prompts that fall more often, or learn more slowly: what others gain seems to cost them."
_UNDECIDED = "Nothing to do yet: whether it rises or falls, these rollouts do not say."
_DIPPED = "Look at what changed before it fell (learning rate, KL, length, data), for it may fall again."
_DROPPED = "Look at what changed there (verifier, data, learning rate), and sample some of the first prompts again."
_PERHAPS_HARDER = (
    "Too few prompts return: sample some of the first ones again to tell what the policy does from harder prompts."
)
