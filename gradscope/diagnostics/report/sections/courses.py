"""The policy by step, from the log alone: entropy, staleness, generation, and lengths against rewards.

Lengths are tokens where every rollout has its token ids, else characters of the text; the page says which.

Shapes: R rollouts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from gradscope.catalog.lookup import metric
from gradscope.diagnostics.compare.runs import reward_change
from gradscope.diagnostics.degeneracy.breakdowns import environments_of
from gradscope.diagnostics.logged.tokens import verdict_courses
from gradscope.diagnostics.report.lengths import Ends, RunLengths
from gradscope.diagnostics.report.sections.inputs import (
    ReportInputs,
    Unavailable,
    along_line,
    missing_part,
    missing_section,
)
from gradscope.estimate import Estimate
from gradscope.findings.logged import late_sentence, lost_sentence
from gradscope.findings.rank_parts import entropy_findings
from gradscope.metrics.gram.geometry import projection_shares
from gradscope.metrics.outcomes.groups import EQUAL_REWARDS
from gradscope.metrics.outcomes.reward_shares import correlation_within, within_groups
from gradscope.metrics.uncertainty.bootstrap import bootstrap_mean
from gradscope.metrics.uncertainty.intervals import bonferroni
from gradscope.metrics.uncertainty.steps import LateChange, late_change
from gradscope.render.views.view import Column, lines_over, table_of_cells, tabulate
from gradscope.results import logged as results
from gradscope.results.report import Cell, Chart, ReportSection, ReportTable, Severity
from gradscope.results.tokens import EntropyChange
from gradscope.rollouts.groups import RewardTable, holds_rewards_alone, reward_table
from gradscope.rollouts.run import Run
from gradscope.say import counted, interval, number, percent, with_interval

_SMALL = 0.1
"""Of a correlation, and of a change relative to its mean: what is nearer to zero does not matter, however certain it is
(Cohen 1988 calls a correlation of 0.1 small)."""
_NOTHING = "Nothing to do while it is this near to zero, or its direction uncertain."


def entropy_section(inputs: ReportInputs) -> ReportSection:
    """Mean entropy of a token and where it is going."""
    entropy = inputs.logged.entropy
    if entropy.overall is None:
        return missing_part("entropy", entropy)
    trend = entropy.trend or Estimate.undefined_because("it was not computed")
    change = _late([(row.step, row.mean.value) for row in entropy.by_step])
    is_small = abs(trend.value or 0.0) < _SMALL * abs(entropy.overall.mean.value or 0.0)
    moves = change.side if change else 0 if is_small else trend.side_of_zero
    severity, advice = _entropy_verdict(entropy.overall, moves)
    steps, means = [row.step or 0 for row in entropy.by_step], {"entropy": [row.mean.value for row in entropy.by_step]}
    return ReportSection(
        name="entropy",
        findings=(
            _level(entropy, entropy.overall),
            *(
                [late_sentence("It", change)]
                if change
                else along_line("it", trend, (entropy.by_step[0].step, entropy.by_step[-1].step), "+.3g")
            ),
            *entropy_findings(inputs.parts.entropy),
        ),
        severity=severity,
        meaning=metric("entropy.mean").meaning,
        next_step=advice,
        charts=lines_over(steps, "Entropy of the policy", means, y_label="nats a token"),
        tables=_predicted(inputs.parts.entropy),
    )


def _level(entropy: results.PolicyEntropy, overall: results.EntropyNumbers) -> str:
    if overall.mean.value is None:
        return f"The entropy of the log is not a number: {overall.mean.undefined}."
    first, last = entropy.by_step[0], entropy.by_step[-1]
    if entropy.origin == "tokens":
        text, where = with_interval(overall.mean, ".3g"), "each token has its own"
    else:  # the interval of a mean over steps says little where they go somewhere
        text, where = number(overall.mean.value, ".3g"), f"the trainer's own metric {entropy.origin}"
    ends = "" if first is last else f", {_at(first)} and {_at(last)}"
    return f"Entropy is {text} nats a token{ends} ({where})."


def _at(row: results.EntropyNumbers) -> str:
    return f"{with_interval(row.mean, '.3g')} at step {row.step}"


def _late(course: Iterable[tuple[int | None, float | None]]) -> LateChange | None:
    """How a course ends whose level has doubled or halved, which a line through it may miss."""
    return late_change({step or 0: value for step, value in course if value is not None}, factor=2.0)


_ENTROPY_ADVICE = {
    -1: "Watch pass@k beside pass@1: where it falls too, keep exploration up (a higher upper clip, temperature, an "
    "entropy bonus, harder prompts).",
    0: _NOTHING,
    1: "Read some completions: a policy that falls apart, a growing gap between sampler and trainer, and longer "
    "reasoning all raise it.",
}
"""The side to which the entropy surely moves by a tenth -> what to do."""


def _entropy_verdict(overall: results.EntropyNumbers, moves: int) -> tuple[Severity, str]:
    severity: Severity = "problem" if overall.mean.value is None else "look" if moves else "fine"
    return severity, _ENTROPY_ADVICE[moves]


def _predicted(changes: Sequence[EntropyChange]) -> tuple[ReportTable, ...]:
    """What each recomputed step does to the entropy of its own tokens, with the logged entropies."""
    caption = (
        "The entropy at the own tokens of each recomputed step. predicted = "
        f"{metric('entropy_change.cosine').formula}; measured = {metric('entropy_change.measured').formula}"
    )
    columns = (
        Column("step", "step", "count"),
        Column("predicted, cosine", "cosine", "gap"),
        Column("covariance of log p and advantage", "covariance", "gap"),
        Column("measured, nats", "measured", "gap"),
        Column("up to update", "last", "count"),
        Column("logged", "logged", "rank"),
        Column("logged at the next step", "logged_next", "rank"),
    )
    return tabulate(caption, columns, changes, folded_as="Predicted and measured changes as a table")


_FRESH = 1.0  # updates behind on average; one is what sampling ahead of training by a batch costs


def staleness_section(inputs: ReportInputs) -> ReportSection:
    """The lags of rollouts, and what sampler and trainer differ by at each."""
    staleness = inputs.logged.staleness
    if staleness.overall is None:
        return missing_part("staleness", staleness)
    overall, steps = staleness.overall, [row.step or 0 for row in staleness.by_step]
    lags = {
        "mean": [row.mean_lag.value for row in staleness.by_step],
        "largest": [row.max_lag.value for row in staleness.by_step],
    }
    with_gaps = any(row.logprob_gap.is_defined for row in staleness.by_lag)
    columns = [
        Column("updates behind", "lag", "count"),
        Column("rollouts", "num_rollouts", "count"),
        Column("share", "share", "share"),
    ]
    if with_gaps:
        columns.append(Column("mean gap", "logprob_gap", "norm"))
    caption = "Rollouts by lag" + f"; mean gap = {metric('logprob_gap').formula}" * with_gaps
    return ReportSection(
        name="staleness",
        findings=(
            f"The weights that sampled {overall.num_rollouts:,} rollouts were {with_interval(overall.mean_lag, '.2f')} "
            f"updates behind on average and {with_interval(overall.max_lag, '.0f')} at most; "
            f"{with_interval(overall.frac_above_1, percent)} lag by more than one, and during "
            f"{with_interval(overall.frac_mixed, percent)} of them the weights changed.",
        ),
        severity="look" if (overall.mean_lag.value or 0.0) > _FRESH else "fine",
        meaning=metric("staleness.mean_lag").meaning,
        next_step=_staleness_advice(staleness, overall),
        charts=lines_over(steps, "Updates behind", lags, y_label="updates behind"),
        tables=tabulate(caption, columns, staleness.by_lag),
    )


def _staleness_advice(staleness: results.Staleness, overall: results.StalenessNumbers) -> str:
    if overall.max_lag.value == 0:
        return "Nothing to do: rollouts were started with the weights that were updated."
    if sum(row.logprob_gap.is_defined for row in staleness.by_lag) > 1:
        return (
            "Where the gap grows with the lag, bound the staleness (max_off_policy_steps in prime-rl) or correct with "
            "importance sampling; where it does not, the lag is harmless."
        )
    return "Log the log-probabilities of sampler and trainer as well: they tell whether the lag does harm."


_MANY = 0.1  # truncated completions from which on the limit decides much of the reward
_SLOW = 3.0  # times the mean that the slowest rollout of a step takes before waiting for it is most of the step


def generation_section(inputs: ReportInputs) -> ReportSection:
    """Truncation and generation time by step."""
    generation = inputs.logged.generation
    if generation.overall is None:
        return missing_part("generation", generation)
    severity, advice = _generation_verdict(generation.overall)
    return ReportSection(
        name="generation",
        findings=tuple(_findings(generation.overall)),
        severity=severity,
        meaning=metric("generation.frac_truncated").meaning,
        next_step=advice,
        charts=tuple(_generation_charts(generation)),
    )


def _findings(overall: results.GenerationNumbers) -> Iterator[str]:
    if overall.frac_truncated.value == 0:
        yield "No completion was cut off at the length limit."
    elif overall.frac_truncated.is_defined:
        yield f"{with_interval(overall.frac_truncated, percent)} of completions were cut off at the length limit."
    else:
        yield f"Truncation is not known: {overall.frac_truncated.undefined}."
    if overall.seconds.is_defined:
        slowest, waits = overall.slowest_over_mean, ""
        if slowest.is_defined:
            waits = f"; the slowest of a step takes {with_interval(slowest, '.1f')} times its mean"
        yield f"A completion takes {with_interval(overall.seconds, '.3g')} seconds to generate{waits}."


def _generation_verdict(overall: results.GenerationNumbers) -> tuple[Severity, str]:
    if (overall.frac_truncated.value or 0.0) > _MANY:
        return "look", "Raise the length limit, or mask truncated completions, and see whether the reward follows."
    is_known = overall.frac_truncated.is_defined or overall.seconds.is_defined
    if (overall.slowest_over_mean.value or 0.0) > _SLOW:
        advice = "Let generation run ahead of training, or cut the longest completions: steps wait for a few of them."
        return ("look" if is_known else "unknown"), advice
    return ("fine" if is_known else "unknown"), "Nothing to do."


def _generation_charts(generation: results.Generation) -> Iterator[Chart]:
    for title, field, y_label, y_range in (
        ("Completions that were cut off", "frac_truncated", "share of completions", (0.0, 1.0)),
        ("Time to generate a completion", "seconds", "seconds", None),
    ):
        values = [getattr(row, field).value for row in generation.by_step]
        if any(value is not None for value in values):
            steps = [row.step or 0 for row in generation.by_step]
            yield from lines_over(steps, title, {y_label: values}, y_label=y_label, y_range=y_range)


Array = NDArray[np.float64]

_MIN_STEPS_FOR_FIFTHS = 10  # steps: fewer make fifths of a single one
_MIN_SHARED_PROMPTS = 10  # prompts that two fifths share, below which a fall may be that of other prompts
_A_FALL = 0.2  # standard deviations of the rewards below which a fall is small (Cohen 1988)


class _RewardCourse(Struct, frozen=True):
    """A reward over the first, the middle and the last fifth of the steps."""

    levels: list[str]  # its mean in each
    changes: list[tuple[Estimate, Estimate, int]]
    """From the others to the last: of the mean, of the prompts of both, and the number of these."""
    falls: list[int]  # these numbers of prompts, of falls alone; 0 where it is unknown whether these prompts fall
    hidden: str  # that prompts that return fall, though the mean does not; empty where they do not
    is_flat: bool  # whether any rise on prompts that return is surely small, though there is room for one


def _reward_course(table: RewardTable, fifths: Sequence[NDArray[np.int64]], num_tests: int = 1) -> _RewardCourse | None:
    """The course of a table's reward; None where a reward is missing or a fifth of the steps has none."""
    parts = [table.select(np.isin(table.step, steps)) for steps in fifths]
    if np.isnan(table.reward).any() or not all(map(len, parts)):
        return None
    changes = [
        (bonferroni(reward_change(part, parts[-1]), num_tests), *_on_shared(part, parts[-1])) for part in parts[:-1]
    ]
    levels = [np.mean(part.sums(part.reward) / part.size) for part in parts]
    small = _A_FALL * float(np.std(table.reward))
    falls = [
        0 if same.is_defined and same.ends[1] >= 0 else shared
        for change, same, shared in changes
        if change.side_of_zero < 0
        and (change.value or 0.0) <= -small
        # what returning prompts surely do not do is not the policy's, but that of others in their place
        and not (same.is_defined and same.ends[0] > -small)
    ]
    ends = [max(same.ends[1], change.ends[1]) if same.is_defined else np.inf for change, same, _ in changes]
    has_room = table.reward.max() - levels[0] > 2.5 * small  # half a deviation; of 0 and 1, a pass rate below 0.8
    hidden = [
        f"Easier prompts hide a fall: on {shared} that return the mean reward changes by {with_interval(same, '+.3g')}."
        for change, same, shared in changes
        if same.is_defined
        and bonferroni(same, 2 * num_tests).ends[1] < 0
        and (same.value or 0.0) <= -small
        and not falls
        and (change.value or 0.0) > (same.value or 0.0) + small
    ]
    is_flat = bool(max(ends) < small and has_room)
    return _RewardCourse([f"{level:.3g}" for level in levels], changes, falls, "".join(hidden[:1]), is_flat)


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


def _falling_prompts(table: RewardTable) -> str | None:
    """That some prompts fall from the first half of the steps to the second, told by half of their visits alone.

    Every other visit chooses the prompts that fall, and the visits between say by how much: so what chance chose does
    not fall. What all prompts do together, as a policy that wanders does, is no fall of some.
    """
    steps, step = np.unique(table.step, return_inverse=True)
    visits, visit = np.unique(table.prompt * len(steps) + step, return_inverse=True)
    levels = np.bincount(visit, table.sums(table.reward) / table.size) / np.bincount(visit)
    prompt, step = np.divmod(visits, len(steps))
    half = 2 * prompt + (step >= len(steps) // 2)
    cell = 2 * half + (np.arange(len(half)) - np.searchsorted(half, half)) % 2
    counts = np.bincount(cell, minlength=4 * len(table.prompts))
    means = (np.bincount(cell, levels, minlength=len(counts)) / np.maximum(counts, 1)).reshape(-1, 2, 2)
    change = (means[:, 1] - means[:, 0])[np.all(counts.reshape(-1, 4), axis=1)]
    small = _A_FALL * float(np.std(table.reward))
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


def reward_section(inputs: ReportInputs) -> ReportSection:
    """The mean reward of the first, the middle and the last fifth of the steps, and where it falls or stays."""
    table = reward_table(inputs.run.groups)
    table = table.select(table.is_complete)
    steps = np.unique(table.step)
    size = len(steps) // 5
    fifths = [steps[start : start + size] for start in (0, (len(steps) - size) // 2, len(steps) - size)]
    course = _reward_course(table, fifths) if len(steps) >= _MIN_STEPS_FOR_FIFTHS else None
    if course is None:
        return missing_section("reward", f"A course needs {_MIN_STEPS_FOR_FIFTHS} steps, there are {len(steps)}.")
    main = "" if isinstance(inputs.degeneracy, Unavailable) else inputs.degeneracy.prompts.reward
    has_others = main in table.rewards and not np.array_equal(table.rewards[main], table.reward)
    of_main = _reward_course(replace(table, reward=table.rewards[main]), fifths) if has_others else None
    means, (first, _, shared), fallen = table.sums(table.reward) / table.size, course.changes[0], course.falls
    is_relative = bool(np.ptp(means) <= EQUAL_REWARDS < np.ptp(table.reward))
    is_flat, rises = course.is_flat and not fallen and not is_relative, first.side_of_zero > 0 and not fallen
    goes = "falls" if fallen else "rises" if rises else "hardly rises" if is_flat else "is"
    asides, is_lost = [], of_main is not None and max(of_main.falls, default=0) >= _MIN_SHARED_PROMPTS
    if of_main is not None and (is_lost or (of_main.is_flat and rises)):
        apart = "" if fallen else f" while the mean reward {goes}"
        asides = [f"'{main}' {'falls' if is_lost else 'hardly rises'}{apart}: {' to '.join(of_main.levels)}."]
    lost = "" if fallen or is_lost else lost_sentence(verdict_courses(inputs.run))
    asides += [lost] if lost else []
    named = np.array(environments_of(table.prompts))
    for name in np.unique(named).tolist():
        part = _reward_course(table.select(named[table.prompt] == name), fifths, 2 * len(set(named)))
        if part is not None and max(part.falls, default=0) >= _MIN_SHARED_PROMPTS:
            asides.append(f"In '{name}' the mean reward falls: {' to '.join(part.levels)}.")
    asides += [course.hidden] if course.hidden else []
    some_fall = None if fallen or is_relative else _falling_prompts(table)
    asides += [some_fall] if some_fall else []
    severity: Severity = "unknown" if is_relative else "fine"
    if fallen or is_flat or asides:
        severity = "problem" if is_lost and not fallen else "look"
    asides += [f"The mean reward of every group is {means[0]:.3g}: it is no measure of progress."] * is_relative
    levels = [f"{level} at steps {part[0]} to {part[-1]}" for level, part in zip(course.levels, fifths, strict=True)]
    is_other = max(fallen, default=shared if rises else _MIN_SHARED_PROMPTS) < _MIN_SHARED_PROMPTS
    by_step = table.mean_by_step(means, np.ones(len(table)))
    return ReportSection(
        name="reward",
        findings=(
            *asides,
            f"The mean reward {goes}{':' * (goes != 'is')} {', '.join(levels)}{', of other prompts' * is_other}.",
            *(
                f"The last fifth against the {which}: {with_interval(change, '+.3g')}; "
                f"{counted(shared, 'prompt')} in both"
                + (
                    f", by {with_interval(same, '+.3g')}."
                    if same.is_defined and change.side_of_zero < 0 <= same.ends[1]
                    else "."
                )
                for which, (change, same, shared) in zip(("first", "middle one"), course.changes, strict=True)
            ),
        ),
        severity=severity,
        meaning="A fall on the same prompts is the policy's; between other prompts it may be theirs.",
        next_step=_HACKED
        if is_lost or lost
        else _after_fall([_MIN_SHARED_PROMPTS])
        if course.hidden
        else _FORGOTTEN
        if some_fall
        else _FLAT
        if not fallen and severity == "look"
        else _after_fall(fallen),
        charts=lines_over(list(by_step), "Mean reward", {"reward": list(by_step.values())}, y_label="mean reward"),
    )


_HACKED = "Read completions of late steps that score high: another reward pays for what loses this one."
_FORGOTTEN = "Sample the prompts that fall more often, or learn more slowly: what others gain seems to cost them."
_FLAT = "Look at the learning rate, KL and dead groups, and whether the reward tells good completions from bad ones."


def _after_fall(fallen: Sequence[int]) -> str:
    """What to do about a fall, by how many prompts both sides of each share."""
    if not fallen:
        return "Nothing to do."
    if max(fallen) < _MIN_SHARED_PROMPTS:
        return "Too few prompts return: sample some of the first ones again to tell a worse policy from harder prompts."
    return "Look at what changed before the fall (learning rate, KL, length, data), and go back to a checkpoint there."


_STAYED = "These are parts of a log that was reduced to its rewards; its completions stayed behind."


def length_section(inputs: ReportInputs) -> ReportSection:
    """Length and reward within groups, what was cut off, and shares of the gradient by length."""
    lengths = inputs.lengths.all_steps()
    if holds_rewards_alone(inputs.run.groups):
        return missing_section("length", _STAYED, "Name the log itself.")
    if not lengths.values.any():
        hint = "Log the completions (log_completions=True in TRL)."
        return missing_section("length", "The log has no completions to measure.", hint)
    correlation = correlation_within(lengths.values, lengths.rewards, lengths.groups, lengths.prompts)
    # the difference of both lines has the sign of the step's covariance
    steps = np.unique(lengths.steps).tolist()
    mean_lengths = np.bincount(lengths.steps, lengths.values) / np.maximum(np.bincount(lengths.steps), 1)
    change = _late([(step, float(mean_lengths[step])) for step in steps])
    direction = 0 if abs(correlation.value or 0.0) < _SMALL else correlation.side_of_zero
    apart, rewards = (within_groups(values, lengths.groups) for values in (lengths.values, lengths.rewards))
    weights = {"reward above": np.clip(rewards, 0, None), "reward below": np.clip(-rewards, 0, None)}
    return ReportSection(
        name="length",
        findings=(
            *([late_sentence(f"The mean length in {lengths.unit}", change)] if change else []),
            _correlation(correlation, direction, lengths.unit),
            _truncation(inputs.run, inputs.lengths.ends),
            _mean(lengths),
        ),
        severity="look" if change or direction else "fine" if correlation.is_defined else "unknown",
        meaning=metric("length_correlation").meaning,
        next_step=_LONGER
        if change and not direction
        else _LENGTH_ADVICE[direction]
        if correlation.is_defined
        else "Nothing to do while one of the two never differs.",
        charts=lines_over(
            steps,
            f"{lengths.unit.capitalize()} minus the group's mean, weighed by the reward's distance",
            {name: [_mean_at(lengths, step, apart, part) for step in steps] for name, part in weights.items()},
            y_label=f"{lengths.unit} beside the group's mean",
        ),
        tables=_quarters(lengths, inputs),
    )


_LONGER = "Read completions from both ends of the run: do they reason, repeat themselves, or run into the limit?"


_LENGTH_ADVICE = {
    -1: "Check that right answers are not cut off: a higher max_completion_length, or masking truncated completions, "
    "tells a short habit from a length limit.",
    0: _NOTHING,
    1: "Read long completions that pass: do they reason, or pad? Try a length penalty, or a loss that does not average "
    "over the tokens of each completion.",
}
"""The side of zero on which a correlation of some size surely is -> what to do."""


def _correlation(correlation: Estimate, direction: int, unit: str) -> str:
    if correlation.value is None:
        return f"Whether length goes with the reward is undefined: {correlation.undefined}."
    text = f"Within groups, length in {unit} and reward correlate at {correlation.value:+.2f}"
    if correlation.interval is None:
        return f"{text}."
    conclusions = {
        1: "longer completions are rewarded more",
        -1: "longer completions are rewarded less",
        0: "too little to matter" if correlation.side_of_zero else "no direction is certain",
    }
    return f"{text}{interval(correlation, '+.2f')}: {conclusions[direction]}."


def _truncation(run: Run, ends: Ends) -> str:
    if ends.num_judged:
        text = f"{ends.num_cut:,} of {ends.num_judged:,} completions were cut off at the length limit"
        mass = ends.frac_advantage
        return f"{text}." if mass is None else f"{text}; they hold {percent(mass)} of the summed absolute advantages."
    name = "completions/clipped_ratio"
    ratios = run.courses.course(name)[1].tolist()
    if ratios:
        mean = number(sum(ratios) / len(ratios), percent)
        return (
            f"The trainer logged that on average {mean} of completions were cut off ({name}); which ones is not in the "
            "log."
        )
    return "Which completions were cut off is not in the log."


def _mean(lengths: RunLengths) -> str:
    first, last = int(lengths.steps.min()), int(lengths.steps.max())
    means = [float(np.mean(lengths.values[lengths.steps == step])) for step in (first, last)]
    if first == last:
        return f"Completions have {means[0]:.1f} {lengths.unit} on average."
    return (
        f"Completions have {means[0]:.1f} {lengths.unit} on average at step {first} and {means[1]:.1f} at step {last}."
    )


def _mean_at(lengths: RunLengths, step: int, apart: Array, weights: Array) -> float | None:
    """Mean of the lengths of a step by these weights; None where all weights are zero."""
    at_step = lengths.steps == step
    total = float(weights[at_step].sum())
    return float(apart[at_step] @ weights[at_step]) / total if total > 0 else None


def _quarters(lengths: RunLengths, inputs: ReportInputs) -> tuple[ReportTable, ...]:
    """Rollouts by their length relative to that of their group, in four equal parts."""
    shares = {
        (group_id, sample): float(share) / len(inputs.live)
        for gram, matrix in inputs.live
        for group_id, sample, share in zip(gram.group_ids, gram.samples, projection_shares(matrix), strict=True)
    }
    apart, above = (within_groups(values, lengths.groups) for values in (lengths.values, lengths.rewards))
    order = np.argsort(apart, kind="stable")
    rows: list[tuple[Cell, ...]] = []
    names = ("shortest quarter", "second", "third", "longest quarter")
    for name, part in zip(names, np.array_split(order, 4), strict=True):
        if not len(part):
            continue
        ends = f"{apart[part].min():+.1f} to {apart[part].max():+.1f}"
        mean = round(float(above[part].mean()), 12) + 0.0  # what is left of equal numbers is no -6e-18
        rollouts = zip(lengths.groups[part].tolist(), lengths.samples[part].tolist(), strict=True)
        share = sum(shares.get((lengths.names[group], sample), 0.0) for group, sample in rollouts)
        rows.append((name, ends, mean, share if shares else Estimate.undefined_because("no gradient was recomputed")))
    return table_of_cells(
        "All rollouts by length; both numbers minus the mean of the rollout's group; share of the gradient = "
        f"{metric('projection_share').formula}, mean over the recomputed steps",
        [("completions", "text"), (lengths.unit, "text"), ("mean reward", "gap"), ("share of the gradient", "gap")],
        rows,
    )
