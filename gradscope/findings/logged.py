"""Sentences about the log: series of metrics, and logged against recomputed log-probabilities."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from statistics import fmean, median
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from gradscope.say import amount, counted, listed, non_finite_word, percent, with_interval

if TYPE_CHECKING:  # what only names a type is not loaded with every log
    from gradscope.estimate import Estimate
    from gradscope.metrics.uncertainty.levels import Jump, LateChange
    from gradscope.results.logged import MetricCourse
    from gradscope.results.norms import StepReplay
    from gradscope.results.rank import StepGeometry

LOGPROB_BOUND = 0.1
"""Difference of a token's log-probability beyond which it is counted: its probability is off by 10 %. Samplers in
bfloat16 and kernels in another order stay below it for nearly all tokens; other weights do not."""

_SAME_LOGPROB = 1e-3  # largest difference of rounding in float32, some 1e-6, with margin for other kernels


def logprob_findings(steps: Sequence[StepReplay] | Sequence[StepGeometry]) -> tuple[str, ...]:
    """At most one sentence on the differences; none where nothing was logged."""
    logged = [(step.step, step.logprob_difference) for step in steps if step.logprob_difference is not None]
    if not logged:
        return ()
    step, worst = max(logged, key=lambda pair: pair[1].frac_beyond or pair[1].max)
    if worst.frac_beyond == 0:
        largest = max(difference.max for _, difference in logged)
        text = f"the largest difference of a token is {largest:.2g} at {counted(len(logged), 'step')}"
        if largest > _SAME_LOGPROB:
            text = f"{text}, more than float32 rounds: bfloat16, another temperature or an update in between may be why"
        near = "near " * (largest > _SAME_LOGPROB)
        return (f"The sampler's logged log-probabilities are {near}those of these weights: {text}.",)
    return (
        f"At step {step} the sampler's logged log-probabilities differ from these weights' by more than "
        f"{worst.bound:g} at {percent(worst.frac_beyond)} of {worst.num_tokens:,} tokens (mean {worst.mean:.2g}, "
        f"largest {worst.max:.2g}): other weights, another temperature or other kernels sampled them.",
    )


_RISEN = 1.5  # times the mean of all steps that a share has at the end, where it rises: one that rises from 0, 1.8
_HIGH = 0.1  # share of completions cut off from which on the limit decides much of the reward


def metric_named(metrics: Sequence[MetricCourse], name: str) -> MetricCourse | None:
    """The metric with a common name; None where there is none."""
    return next((series for series in metrics if series.name == name), None)


def dead_sentence(metrics: Sequence[MetricCourse]) -> str:
    """The verdict: how many groups gave no gradient, as far as the metrics show."""
    series = metric_named(metrics, "frac_reward_zero_std")
    if series is None:
        unknown = "these metrics do not tell how many groups gave no gradient"
        share, at_least = dead_steps(metrics)
        if at_least:
            return at_least if share == 1.0 else f"{at_least} Of the others {unknown}."
        return f"{unknown.capitalize()}: none of them is known as that share."
    if series.mean.value is None:
        return f"How many groups gave no gradient is not known: {series.mean.undefined}."
    all_dead = sum(value >= 1.0 for value in series.values)
    steps = f"{len(series.steps):,} logged steps" if len(series.steps) > 1 else "the one logged step"
    details = f"; at {all_dead:,} of them every group" if all_dead and len(series.steps) > 1 else ""
    if (last := late_share(series)) is not None:
        details += f", from {percent(_fifths(series)[0][0])} in the first fifth of them to {percent(last)} in the last"
    mean = percent(series.mean.value)
    text = f"{mean} of a step's groups gave no gradient, by the trainer's log of {steps}{details}."
    if (kind := kind_of_dead(metrics)) is None:
        return text
    basis = "" if kind.is_logged else "If rewards are 0 and 1, "
    or_more = "" if kind.is_logged or kind.least_share >= series.mean.value - SAME_SHARE else " or more"
    return f"{text} {basis}{percent(kind.least_share)}{or_more} of groups all {kind.name}."


class DeadKind(Struct, frozen=True):
    """The kind of most groups without a gradient."""

    name: Literal["pass", "fail"]
    least_share: float  # of all groups
    is_logged: bool  # else from the mean reward, if rewards are 0 and 1


def kind_of_dead(metrics: Sequence[MetricCourse]) -> DeadKind | None:
    """The kind that more than half of the dead groups are of; None where there is none, or that is not known."""
    # Where kinds are not logged the mean reward bounds them: no more groups can all pass than rollouts pass.
    dead, reward, spread = (metric_named(metrics, name) for name in ("frac_reward_zero_std", "reward", "reward_std"))
    passing, failing = (metric_named(metrics, name) for name in ("frac_all_pass", "frac_all_fail"))
    if dead is None or dead.mean.value is None:
        return None
    if is_logged := passing is not None and failing is not None:
        shares = (passing.mean.value or 0.0, failing.mean.value or 0.0)
    elif reward is None or reward.steps != dead.steps or not _may_be_verdicts(reward, spread, dead):
        return None
    else:
        pairs = list(zip(dead.values, reward.values, strict=True))
        shares = (
            fmean(max(0.0, share - (1.0 - rate)) for share, rate in pairs),
            fmean(max(0.0, share - rate) for share, rate in pairs),
        )
    name: Literal["pass", "fail"] = "pass" if shares[0] > shares[1] else "fail"
    return DeadKind(name, max(shares), is_logged) if max(shares) > dead.mean.value / 2 else None


_LEAST_SPREAD = 0.06  # standard deviation of 256 rewards of 0 and 1 of which one is another


def _may_be_verdicts(reward: MetricCourse, spread: MetricCourse | None, dead: MetricCourse) -> bool:
    """Whether rewards may be 0 and 1, by their mean and by their spread, a mean over live and dead groups."""
    spreads = zip(spread.values, dead.values, strict=True) if spread and spread.steps == dead.steps else ()
    are_finer = any(0.0 < value < _LEAST_SPREAD * (1.0 - share) for value, share in spreads)
    return 0.0 <= min(reward.values) <= max(reward.values) <= 1.0 and not are_finer


TO_TRY = {
    "pass": "try harder prompts, or drop solved ones.",
    "fail": "try easier prompts, partial credit, or more rollouts a group.",
}
"""The kind of most groups without a gradient -> what to try."""


def dead_steps(metrics: Sequence[MetricCourse]) -> tuple[float, str]:
    """The share of steps at which the rewards do not vary, and a sentence on these; empty where there are none."""
    # Without a logged spread a mean of exactly 0 or 1 shows it of rewards of 0 and 1; not one that never moves though
    # gradients flow, as a number does that nobody filled in.
    spread, reward, norm = (metric_named(metrics, name) for name in ("reward_std", "reward", "grad_norm"))
    series, ends = (spread, (0.0,)) if spread is not None else (reward, (0.0, 1.0))
    if series is None:
        return 0.0, ""
    is_unfilled = series is reward and _is_flat(series) and norm is not None and max(norm.values) > 0.0
    num_dead = sum(value in ends for value in series.values)
    if not num_dead or is_unfilled or (series is reward and not 0.0 <= min(series.values) <= max(series.values) <= 1.0):
        return 0.0, ""
    num_steps = len(series.steps)
    steps = f"each of {num_steps:,}" if num_dead == num_steps else f"{num_dead:,} of {num_steps:,}"
    basis = "the mean reward is exactly 0 or 1: if rewards are," if series is reward else "the spread of rewards is 0:"
    return num_dead / num_steps, f"At {steps} logged steps {basis} no group gave a gradient."


def late_share(series: MetricCourse) -> float | None:
    """The mean share of the last fifth of steps, where it is far from that of the first; else None."""
    (first, _), *_, (last, _) = _fifths(series) or [(0.0, ""), (0.0, "")]
    return last if abs(last - first) >= 2 * _HIGH else None


def _is_flat(series: MetricCourse) -> bool:
    return bool(_fifths(series)) and min(series.values) == max(series.values)


def is_constant(metrics: Sequence[MetricCourse]) -> bool:
    """Whether the mean reward never moves, nor any group has unequal rewards."""
    reward, dead = metric_named(metrics, "reward"), metric_named(metrics, "frac_reward_zero_std")
    is_equal = dead_steps(metrics)[0] == 1.0 if dead is None else min(dead.values) >= 1.0
    return reward is not None and _is_flat(reward) and is_equal


def _fifths(series: MetricCourse) -> list[tuple[float, str]]:
    """Mean and steps of the first, the middle and the last fifth of its steps; none where a fifth is less than two."""
    steps, values, size = series.steps, series.values, len(series.steps) // 5
    starts = (0, (len(steps) - size) // 2, len(steps) - size) if size > 1 else ()
    return [
        (fmean(values[start : start + size]), f"at steps {steps[start]} to {steps[start + size - 1]}")
        for start in starts
    ]


def clipped_sentence(metrics: Sequence[MetricCourse]) -> str:
    """How many completions were cut off; empty where that was not logged, or is few, at the end as well."""
    series = metric_named(metrics, "completions/clipped_ratio")
    if series is None or (late := clipped_share(series)) <= _HIGH:
        return ""
    mean = series.mean.value or 0.0
    if min(series.values) >= 1.0:
        steps = f"each of {len(series.steps):,} logged steps" if len(series.steps) > 1 else "the one logged step"
        return f"Every completion was cut off at the length limit, at {steps}."
    ends = f", {percent(late)} in the last fifth of steps" if late > mean else ""
    return f"{percent(mean)} of completions were cut off at the length limit{ends}{at_most(series)}."


def clipped_share(series: MetricCourse) -> float:
    """Its mean, or that of the last fifth of steps where it rises; 0 where it is no share."""
    return 0.0 if series.mean.value is None else max(series.mean.value, risen_share(series.values))


def risen_share(shares: Sequence[float]) -> float:
    """The mean of the last fifth of steps, where that of all hides that it rises; 0 where it does not."""
    size = len(shares) // 5
    late = fmean(shares[-size:]) if size > 1 else 0.0
    return late if late >= _RISEN * fmean(shares or [0.0]) else 0.0


def at_most(series: MetricCourse) -> str:
    """The largest share and its step, in parentheses; empty where all are equal."""
    largest = series.at(series.largest_step)
    is_larger = largest > min(series.values)
    return f" (at most {percent(largest)}, at step {series.largest_step})" if is_larger else ""


_MAJORITY = 0.5  # of the tokens, or of the completions


def cut_off_advice(share: float | None) -> str:
    """What to try first where most completions were cut off; empty where fewer were."""
    if share is None or share <= _MAJORITY:
        return ""
    return (
        f"{percent(share)} of completions were cut off at the length limit: raise it, or mask them, before the prompts."
    )


def clip_sentence(metrics: Sequence[MetricCourse]) -> str:
    """That most tokens gave no gradient, as their ratio was beyond the clip, or did so late; empty where fewer were."""
    series = metric_named(metrics, "clip_ratio/region_mean")
    usable = [share for share in (series.values if series else ()) if 0.0 <= share <= 1.0] or [0.0]
    mean, late = fmean(usable), risen_share(usable)
    if max(mean, late) <= _MAJORITY:
        return ""
    ends = f", {percent(late)} in the last fifth of steps" if late else ""
    return f"The ratio of {percent(mean)} of tokens was beyond the clip{ends}: they gave no gradient."


CLIP_ADVICE = "Take fewer updates from a batch (num_iterations in TRL), or a smaller learning rate."
Direction = Literal["falls", "hardly rises", "stalls", "levels off", "rises", "is"]


def reward_level_sentences(metrics: Sequence[MetricCourse]) -> Iterator[str]:
    """That the mean reward never moves, or no more, or is at one step of another order."""
    reward = metric_named(metrics, "reward")
    if reward is None:
        return
    if _is_flat(reward):
        why = "" if is_constant(metrics) else "is rounded, relative to its group, or "
        logged = f"The mean reward is logged as {amount(reward.values[0])} at all {len(reward.steps):,} steps"
        yield f"{logged}: it {why}tells no answers apart."
    else:
        last, number = reward.values[-1], len(reward.values)
        size = next((index for index, value in enumerate(reversed(reward.values)) if value != last), number)
        if size >= max(_GAP, number // 5):
            stays = f"from step {reward.steps[-size]} to the last, {reward.steps[-1]}"
            yield f"The mean reward stays at {amount(last)} {stays}."
    yield from _outlier(reward)


_MEDIUM_CHANGE = 0.5  # of the logged spread of rewards (Cohen 1988)


def dip_sentence(metrics: Sequence[MetricCourse]) -> str:
    """That the mean reward fell, within a few steps or slowly, and came back; empty where it did not, or by little."""
    # By a third of the range within a few steps, else surely from one twentieth of the steps to a later one, by half of
    # the logged spread. Of series that wander (AR of .5 to .95) 0 to 5 % do.
    reward, spread = metric_named(metrics, "reward"), metric_named(metrics, "reward_std")
    if reward is None or reward.mean.value is None or len(reward.steps) < _MIN_STEPS:
        return ""
    from gradscope.metrics.uncertainty.levels import drop  # behind it lies scipy

    steps, values = reward.steps, reward.values
    fall = drop(dict(zip(steps, values, strict=True)), share=1 / 3, lasts=False)
    medium = _MEDIUM_CHANGE * ((spread and spread.mean.value) or 0.0)
    if fall is not None and fall.before - fall.after >= medium:
        ends = f"from {amount(fall.before)} to {amount(fall.after)} at step {fall.step}, {amount(fall.end)} in the end"
        return f"The mean reward fell and came back: {ends} (medians of {fall.num_median} steps)."
    from gradscope.metrics.uncertainty.steps import changes_between

    number = min(_TWENTIETHS, len(steps) // _MIN_OF_PART)
    ends_of = [len(steps) * part // number for part in range(number + 1)]
    parts = [slice(start, end) for start, end in pairwise(ends_of)]
    *levels, last = (fmean(values[part]) for part in parts)
    high, low = max(combinations(range(len(levels)), 2), key=lambda pair: min(levels[pair[0]], last) - levels[pair[1]])
    depth = levels[high] - levels[low]
    if depth < (medium or (max(values) - min(values)) / 3) or last - levels[low] < depth / 2:
        return ""
    falls, returns = changes_between(values, [(parts[high], parts[low]), (parts[low], parts[-1])])
    if falls.side_of_zero >= 0 or returns.side_of_zero <= 0:
        return ""
    named = zip((levels[high], levels[low], last), (parts[high], parts[low], parts[-1]), strict=True)
    levels_at = (f"{level:z.3g} at steps {steps[part.start]} to {steps[part.stop - 1]}" for level, part in named)
    return f"The mean reward fell and came back: {', '.join(levels_at)}."


_TWENTIETHS, _MIN_OF_PART = 20, 5  # parts in which a slow fall is looked for, and their fewest steps


def level_sentences(metrics: Sequence[MetricCourse]) -> Iterator[str]:
    """Other metrics that end on another level than they had, or are of another order at one step."""
    from gradscope.metrics.uncertainty.levels import collapse, level_change  # behind it lies scipy

    loss, dead = metric_named(metrics, "loss"), metric_named(metrics, "frac_reward_zero_std")
    if loss is not None:
        yield from _outlier(loss)
    for name in ("entropy", "completions/mean_length", *(() if dead else ("reward_std",))):
        series = metric_named(metrics, name)
        values = {} if series is None else dict(zip(series.steps, series.values, strict=True))
        change = collapse(values) if name == "reward_std" else level_change(values)
        if series is not None and change is not None and (change.side < 0 or name != "reward_std"):
            yield late_sentence(f"The {series.title.strip()}", change)


def reward_direction(metrics: Sequence[MetricCourse]) -> Direction:
    """The direction of the mean reward, by fifths of its steps; "is" where it is uncertain, or it falls by little.

    It hardly rises where any rise is surely small against the logged spread of rewards, though there is room. Where it
    rose and that is so from the middle fifth on it stalls; of rewards above 1, whose room is not known, it levels off.
    """
    series, spread = metric_named(metrics, "reward"), metric_named(metrics, "reward_std")
    if series is None or series.mean.value is None or not (fifths := _fifths(series)) or _is_flat(series):
        return "is"
    small = SMALL_CHANGE * ((spread and spread.mean.value) or 0.0)
    if _falls(series, small=small):
        return "falls"
    (first, _), (middle, _), (last, _) = fifths
    since_first, since_middle, before, _ = _changes(series)
    pace = middle - first
    is_small = all(change.ends[1] < small and (change.value or 0.0) > -small for change in (since_first, since_middle))
    if since_first.side_of_zero < 0:
        return "is"
    if is_small and _room(series, first):
        return "hardly rises"
    has_risen = 1 in (since_first.side_of_zero, before.side_of_zero)
    slows = since_middle.ends[1] < max(small, pace / 3) and -max(small, pace / 4) < last - middle < pace / 3
    if has_risen and slows and (room := _room(series, max(middle, last))):
        return "stalls" if room < math.inf else "levels off"
    return "rises" if since_first.side_of_zero > 0 else "is"


def falls_far(metrics: Sequence[MetricCourse]) -> bool:
    """Whether a mean reward that falls does so by half its logged spread, or without one at once for good."""
    series, spread = metric_named(metrics, "reward"), metric_named(metrics, "reward_std")
    if series is None or not (medium := _MEDIUM_CHANGE * ((spread and spread.mean.value) or 0.0)):
        return series is not None and bool(drop_clause(series.steps, series.values))
    (first, _), (middle, _), (last, _) = _fifths(series)
    return max(first, middle) - min(last, fmean(series.values[-_end_of(len(series.values)) :])) >= medium


def _changes(series: MetricCourse) -> list[Estimate]:
    """From the first and the middle fifth of its steps to the last, between them, and from the middle to the end."""
    from gradscope.metrics.uncertainty.steps import changes_between  # behind it lies scipy

    number, size = len(series.steps), len(series.steps) // 5
    first, middle, last = (slice(start, start + size) for start in (0, (number - size) // 2, number - size))
    end = slice(number - _end_of(number), number)
    return changes_between(series.values, [(first, last), (middle, last), (first, middle), (middle, end)])


def _end_of(number: int) -> int:
    """How many of so many steps are the end: a twentieth, and five at least, but no more than a fifth."""
    return min(max(number // _TWENTIETHS, _MIN_OF_PART), number // 5)


def _room(series: MetricCourse, level: float) -> float:
    """How far a reward of up to 1 can rise from a level, 0 of one that is good; that of others is not known."""
    low, high = min(series.values), max(series.values)
    if high > 1.0:
        return math.inf
    return 1.0 - level if 1.0 - level > GOOD * (1.0 if low >= 0.0 else 2.0) else 0.0


GOOD = 0.2
"""Share of the range of rewards, from the highest one down, within which a mean is good: a pass rate of 0.8."""
SMALL_CHANGE = 0.2
"""Standard deviations of the rewards below which a change of their mean is small (Cohen 1988)."""
FALLEN_ADVICE = (
    "Look at what changed before the fall (verifier, data, learning rate, KL), and go back to a checkpoint there."
)
SPIKE_ADVICE = "Look at what changed there (learning rate, data, lengths), and at the reward after it."

AFTER_CLIPPING, ALL_ZERO, NO_CHANGE = "as after clipping", "is logged as 0 at all", "they change nothing"
NEVER_LEARNS = "The learning rate is 0 at all"
"""How sentences on series name what belongs to no single step."""


def spike_advice(sentences: Sequence[str]) -> str:
    """What to do about the first sentence, which may belong to no single step."""
    if sentences[0].endswith(f"{AFTER_CLIPPING}."):
        return "Log the norm before it is clipped: afterwards no step stands out."
    if ALL_ZERO in sentences[0] or NO_CHANGE in sentences[0]:
        start = "Look" if NEVER_LEARNS in sentences[0] else "Log more digits, and look"
        return f"{start} at the learning rate and its schedule: an update of 0 changes nothing."
    return SPIKE_ADVICE


FLAT_ADVICE = (
    "Look at the learning rate, KL, dead groups, truncation, and whether the reward tells good completions from bad."
)
ADVICE_ON: dict[Direction, str] = {"falls": FALLEN_ADVICE, "hardly rises": FLAT_ADVICE, "stalls": FLAT_ADVICE}


_MIN_STEPS = 20  # with fewer a fifth is not even a handful
_TOO_SHORT = ": too few steps to tell where it goes"


def _falls(series: MetricCourse, *, small: float = 0.0) -> bool:
    """Whether an earlier fifth of steps surely has more than the last one, by no small change, or it drops for good."""
    small = small or (max(series.values) - min(series.values)) / 4
    from gradscope.metrics.uncertainty.intervals import bonferroni

    since_first, since_middle, _, at_end = _changes(series)
    changes = [bonferroni(change, 3) for change in (since_first, since_middle, at_end)]
    falls = any(change.side_of_zero < 0 and (change.value or 0.0) <= -small for change in changes)
    return falls or bool(drop_clause(series.steps, series.values))


def _in_parts(series: MetricCourse) -> str:
    """The means of its fifths, where it drops for good, and its end, if most of a fall is there; empty where short."""
    fifths, values, number = _fifths(series), series.values, len(series.steps)
    means = ", ".join(f"{mean:z.3g} {steps}" for mean, steps in fifths)
    drops = drop_clause(series.steps, values)
    if fifths and not drops:
        size, levels = _end_of(number), [mean for mean, _ in fifths]
        end = fmean(values[-size:])
        if levels[-1] - end > max(max(levels) - levels[-1], (max(values) - min(values)) / 10):
            means += f", {end:z.3g} at steps {series.steps[-size]} to {series.steps[-1]}"
    return f"{means}{drops}"


def drop_clause(steps: Sequence[int], values: Sequence[float]) -> str:
    """Where a number falls within a few steps, by a third of its range, and for good; empty where it does not."""
    from gradscope.metrics.uncertainty.levels import drop  # behind it lies scipy

    if len(values) < _MIN_STEPS:
        return ""
    fall = drop(dict(zip(steps, values, strict=True)), share=1 / 3)
    if fall is None:
        return _end_clause(steps, values)
    ends = f"from {amount(fall.before)} to {amount(fall.after)}"
    return f"; it drops at step {fall.step} {ends} (medians of {fall.num_median} steps)"


_LAST = 3  # steps at the end, too few for medians


def _end_clause(steps: Sequence[int], values: Sequence[float]) -> str:
    """Where the mean of the last steps is further below those before than chance, and each of them half as far."""
    # Of series of 20 to 400 steps that wander (AR of .8 to .95, random walks) or are skewed 0 to 1 % end so; of steady
    # ones whose last steps are eight deviations lower 91 to 97 %.
    from gradscope.metrics.uncertainty.steps import deviation_of  # behind it lies scipy

    center, number = median(values), len(values)
    fallen, last = [center - value for value in values], values[-_LAST:]
    before = dict(zip(steps, fallen[:-_LAST], strict=False))
    compared = (center - fmean(last), *fallen[-_LAST:])
    mean, *each = (deviation_of({**before, steps[-1]: fall}, steps[-1], num_chosen_from=number) for fall in compared)
    if isinstance(mean, str) or not mean.is_unusual:
        return ""
    if any(isinstance(end, str) or 2 * end.deviation < end.by_chance for end in each):
        return ""
    level = amount(center - mean.typical)
    return f"; it drops at step {steps[-_LAST]} from {level}, to {amount(last[-1])} at the last, {steps[-1]}"


def lost_sentence(verdicts: Sequence[MetricCourse], reward_direction: str = "is") -> str:
    """Held-out scores that fall; evaluations come every few steps, and ten of them suffice."""
    lost = [series for series in verdicts if series.mean.value is not None and _fifths(series) and _falls(series)]
    if not lost:
        return ""
    also = f"; likewise {', '.join(series.name for series in lost[1:3])}" if lost[1:] else ""
    also += f" and {len(lost) - 3} more" if lost[3:] else ""
    contrast = f" while the mean reward {reward_direction}" if reward_direction not in ("is", "falls") else ""
    return f"{lost[0].name} falls{contrast}: {_in_parts(lost[0])}{also}."


def reward_sentence(metrics: Sequence[MetricCourse], goes: Direction | None = None) -> str:
    """The mean reward of the first, middle and last fifth of steps, of few at both ends; empty without one.

    ``goes`` is :func:`reward_direction`, where it is known.
    """
    series = metric_named(metrics, "reward")
    if series is None or len(series.steps) < 2 or series.mean.value is None or _is_flat(series):
        return ""  # that it never moves is said with its level
    if not (parts := _in_parts(series)):
        first, last = series.values[0], series.values[-1]
        ends = f"{first:z.3g} at step {series.steps[0]} and {last:z.3g} at step {series.steps[-1]}"
        return f"The mean reward was {ends}{_TOO_SHORT}."
    goes = goes or reward_direction(metrics)
    if goes != "is":
        return f"The mean reward {goes}: {parts}."
    if len(series.steps) < _MIN_STEPS:
        return f"The mean reward was {parts}{_TOO_SHORT}."
    change, reach = _changes(series)[0], max(series.values) - min(series.values)
    if max(-change.ends[0], change.ends[1]) >= reach:  # as far as any two steps are apart
        return f"The mean reward was {parts}{_TOO_SHORT}."
    by = with_interval(change, "+.3g")
    return (
        f"The mean reward was {parts}: from the first to the last it changes by {by}, which leaves open where it goes."
    )


def gap_sentence(steps: Sequence[int]) -> str:
    """The gaps of a log whose steps are evenly spaced; empty where it is uneven throughout."""
    distances = [after - before for before, after in pairwise(steps)]
    usual = median(distances) if distances else 0
    gaps = [(step + 1, step + far - 1) for step, far in zip(steps, distances, strict=False) if far >= _GAP * usual]
    if len(steps) < 20 or not 0 < len(gaps) <= 3:
        return ""
    return f"Nothing was logged at {listed([f'steps {first} to {last}' for first, last in gaps])}."


SAME_SHARE = 1e-6  # shares closer than this are the same: trainers log float32
_GAP = 10  # times the usual distance of steps
_FAR = 3.0  # times the range of all other steps, what no heavy tail of a mean over a batch reaches


def _outlier(series: MetricCourse) -> Iterator[str]:
    """The step after the first whose number is of another order than those of all others."""
    if not series.mean.is_defined or len(series.values) <= _GAP:
        return
    lowest, *between, highest = sorted(series.values)
    below, above = between[0] - lowest, highest - between[-1]
    if not _FAR * (between[-1] - between[0]) < max(below, above) < math.inf or between[0] == between[-1]:
        return
    step = series.largest_step if above > below else series.smallest_step
    if step != series.steps[0]:  # learning begins there
        far = f"{series.at(step):.4g} at step {step}, far from its median of {median(between):.3g}"
        yield f"The {series.title.strip()} is {far}."


def broken_sentences(metrics: Sequence[MetricCourse]) -> Iterator[str]:
    """What was logged as no finite number, and where first."""
    for series in metrics:
        broken = [step for step, value in zip(series.steps, series.values, strict=True) if not math.isfinite(value)]
        if broken:
            rest = f", and at {counted(len(broken) - 1, 'step')} more" if len(broken) > 1 else ""
            is_no_share, word = "no share" in (series.mean.undefined or ""), non_finite_word(series.at(broken[0]))
            yield f"{series.name} is {'no share' if is_no_share else word} at step {broken[0]}{rest}."


def metric_findings(
    metrics: Sequence[MetricCourse], spikes: Sequence[str] = (), verdicts: Sequence[MetricCourse] = ()
) -> tuple[str, ...]:
    """All sentences, the verdict first, then what is wrong, with those on ``spikes`` and on what judges answers."""
    goes = reward_direction(metrics)
    reward = reward_sentence(metrics, goes)
    sentences = (
        dead_sentence(metrics),
        *broken_sentences(metrics),
        lost_sentence(verdicts, goes),
        gap_sentence(max((series.steps for series in metrics), key=len, default=())),
        clipped_sentence(metrics),
        clip_sentence(metrics),
        *spikes,
        *reward_level_sentences(metrics),
        dip_sentence(metrics),
        *([reward] if goes in ADVICE_ON else []),
        *level_sentences(metrics),
        reward,
    )
    return tuple(dict.fromkeys(filter(None, sentences)))


def late_sentence(name: str, change: LateChange) -> str:
    """That a number ends on another level than it had."""
    verb = "rises" if change.side > 0 else "falls"
    before = f"{amount(change.before)}, its median up to step {change.before_until},"
    return f"{name} {verb} from {before} to {amount(change.late)} at steps {change.since} to {change.until}."


def jump_sentence(name: str, jump: Jump) -> str:
    """That a number rises within one step, and where it ends."""
    rise = f"{name} jumps at step {jump.step} from {amount(jump.before)} to {amount(jump.after)}"
    return f"{rise} and ends at {amount(jump.end)} (medians of {jump.num_median} steps)."
