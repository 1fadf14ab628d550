"""The policy by step, from the log alone: entropy, staleness, generation, and lengths against rewards.

Lengths are tokens where every rollout has its token ids, else characters of the text; the page says which.

Shapes: R rollouts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradscope.catalog.lookup import metric
from gradscope.diagnostics.report.sections.inputs import (
    Lengths,
    ReportInputs,
    RunLengths,
    along_line,
    missing_part,
    missing_section,
)
from gradscope.estimate import Estimate
from gradscope.findings.logged import late_sentence, risen_share
from gradscope.findings.rank_parts import entropy_findings
from gradscope.metrics.gram.geometry import projection_shares
from gradscope.metrics.outcomes.reward_shares import correlation_within, within_groups
from gradscope.metrics.uncertainty.levels import level_change
from gradscope.render.views.view import Column, lines_over, table_of_cells, tabulate
from gradscope.results import logged as results
from gradscope.results.rank import EntropyChange
from gradscope.results.report import Cell, Chart, ReportSection, ReportTable, Severity
from gradscope.rollouts.groups import holds_rewards_alone
from gradscope.say import interval, number, percent, with_interval

Array = NDArray[np.float64]

_SMALL = 0.1
"""Of a correlation: what is nearer to zero does not matter, however certain it is (Cohen 1988 calls 0.1 small)."""
_HALVED = 2 / 3  # of its mean, by which a line changes that halves or doubles from its first step to its last
_NOTHING = "Nothing to do while it is this near to zero, or its direction uncertain."


def entropy_section(inputs: ReportInputs) -> ReportSection:
    """Mean entropy of a token and where it is going."""
    entropy = inputs.logged.entropy
    if entropy.overall is None:
        return missing_part("entropy", entropy)
    mean, first, last = entropy.overall.mean, entropy.by_step[0], entropy.by_step[-1]
    trend = entropy.trend or Estimate.undefined_because("it was not computed")
    change = level_change({row.step or 0: row.mean.value for row in entropy.by_step if row.mean.value is not None})
    is_small = abs(trend.value or 0.0) < _HALVED * abs(mean.value or 0.0)
    moves = change.side if change else 0 if is_small else trend.side_of_zero
    if mean.value is None:
        level = f"The entropy of the log is not a number: {mean.undefined}."
    else:
        text, origin = with_interval(mean, ".3g"), "each token has its own"
        if entropy.origin != "tokens":  # the interval of a mean over steps says little where they go somewhere
            text, origin = number(mean.value, ".3g"), f"the trainer's own metric {entropy.origin}"
        steps = [f"{with_interval(row.mean, '.3g')} at step {row.step}" for row in (first, last)]
        ends = "" if first is last else f", {' and '.join(steps)}"
        level = f"Entropy is {text} nats a token{ends} ({origin})."
    return ReportSection(
        name="entropy",
        findings=(
            *([late_sentence("The entropy", change)] if change else []),
            level,
            *(() if change else along_line("it", trend, (first.step, last.step), "+.3g")),
            *entropy_findings(inputs.parts.entropy),
        ),
        severity="problem" if mean.value is None else "look" if moves else "fine",
        meaning=metric("entropy.mean").meaning,
        next_step=_ENTROPY_ADVICE[moves],
        charts=_by_step(entropy.by_step, "Entropy of the policy", {"entropy": "mean"}, y_label="nats a token"),
        tables=_predicted(inputs.parts.entropy),
    )


def _by_step(rows: Sequence[Any], title: str, numbers: Mapping[str, str], **axes: Any) -> tuple[Chart, ...]:
    """A line for each number, name -> field, of rows that have a step each."""
    lines = {name: [getattr(row, field).value for row in rows] for name, field in numbers.items()}
    return lines_over([row.step or 0 for row in rows], title, lines, **axes)


_ENTROPY_ADVICE = {
    -1: "Watch pass@k along with pass@1: where it falls too, keep exploration up (a higher upper clip, temperature, an "
    "entropy bonus, harder prompts).",
    0: "Nothing to do while it neither halves nor doubles.",
    1: "Read some completions: a policy that falls apart, a growing gap between sampler and trainer, and longer "
    "reasoning all raise it.",
}
"""The side to which the entropy surely moves by half -> what to do."""


def _predicted(changes: Sequence[EntropyChange]) -> tuple[ReportTable, ...]:
    """What each recomputed step does to the entropy of its own tokens, with the logged entropies."""
    caption = (
        "The entropy at the tokens of each recomputed step. predicted = "
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
    overall, num_gaps = staleness.overall, sum(row.logprob_gap.is_defined for row in staleness.by_lag)
    columns = [
        Column("updates behind", "lag", "count"),
        Column("rollouts", "num_rollouts", "count"),
        Column("share", "share", "share"),
        *([Column("mean gap", "logprob_gap", "norm")] if num_gaps else []),
    ]
    caption = "Rollouts by lag" + (f"; mean gap = {metric('logprob_gap').formula}" if num_gaps else "")
    if overall.max_lag.value == 0:
        advice = "Nothing to do: rollouts were started with the weights that were updated."
    elif num_gaps > 1:
        advice = (
            "Where the gap grows with the lag, bound the staleness (max_off_policy_steps in prime-rl) or correct with "
            "importance sampling; where it does not, the lag is harmless."
        )
    else:
        advice = "Log the log-probabilities of sampler and trainer as well: they tell whether the lag does harm."
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
        next_step=advice,
        charts=_by_step(
            staleness.by_step, "Updates behind", {"mean": "mean_lag", "largest": "max_lag"}, y_label="updates behind"
        ),
        tables=tabulate(caption, columns, staleness.by_lag),
    )


_HALF = 0.5  # truncated completions from which on the limit decides most of it
_MANY = 0.1  # truncated completions from which on the limit decides much of the reward
_SLOW = 3.0  # times the mean that the slowest rollout of a step takes before waiting for it is most of the step


def generation_section(inputs: ReportInputs) -> ReportSection:
    """Truncation and generation time by step."""
    generation = inputs.logged.generation
    if generation.overall is None:
        return missing_part("generation", generation)
    overall = generation.overall
    shares = [row.frac_truncated.value for row in generation.by_step if row.frac_truncated.value is not None]
    at_end = risen_share(shares)
    severity: Severity = "fine" if overall.frac_truncated.is_defined or overall.seconds.is_defined else "unknown"
    advice = "Nothing to do."
    if (share := max(overall.frac_truncated.value or 0.0, at_end)) > _MANY:
        severity = "problem" if share > _HALF else "look"
        advice = "Raise the length limit, or mask truncated completions, and see whether the reward follows."
    elif (overall.slowest_over_mean.value or 0.0) > _SLOW:
        severity = "look" if severity == "fine" else severity
        advice = "Let generation run ahead of training, or cut the longest completions: steps wait for a few of them."
    return ReportSection(
        name="generation",
        findings=tuple(_findings(overall, at_end)),
        severity=severity,
        meaning=metric("generation.frac_truncated").meaning,
        next_step=advice,
        charts=tuple(
            chart
            for title, name, y_label, y_range in (
                ("Completions that were cut off", "frac_truncated", "share of completions", (0.0, 1.0)),
                ("Time to generate a completion", "seconds", "seconds", None),
            )
            if any(getattr(row, name).is_defined for row in generation.by_step)
            for chart in _by_step(generation.by_step, title, {y_label: name}, y_label=y_label, y_range=y_range)
        ),
    )


def _findings(overall: results.GenerationNumbers, at_end: float) -> Iterator[str]:
    """What was cut off, ``at_end`` in the last fifth of steps where that is much more, and how long it took."""
    if overall.frac_truncated.value == 0:
        yield "No completion was cut off at the length limit."
    elif overall.frac_truncated.value is not None and at_end:  # the interval of a mean that goes somewhere says little
        mean = percent(overall.frac_truncated.value)
        yield f"{mean} of completions were cut off at the length limit, {percent(at_end)} in the last fifth of steps."
    elif overall.frac_truncated.is_defined:
        yield f"{with_interval(overall.frac_truncated, percent)} of completions were cut off at the length limit."
    else:
        yield f"Truncation is not known: {overall.frac_truncated.undefined}."
    if overall.seconds.is_defined:
        slowest, waits = overall.slowest_over_mean, ""
        if slowest.is_defined:
            waits = f"; the slowest of a step takes {with_interval(slowest, '.1f')} times its mean"
        yield f"A completion takes {with_interval(overall.seconds, '.3g')} seconds to generate{waits}."


_STAYED = "These are parts of a log that was reduced to its rewards; its completions stayed behind."


def length_section(inputs: ReportInputs) -> ReportSection:
    """Length and reward within groups, what was cut off, and shares of the gradient by length."""
    lengths = inputs.lengths.all_steps()
    if holds_rewards_alone(inputs.run.groups):
        return missing_section("length", _STAYED, "Name the log itself.")
    if not lengths.values.any():
        hint = "Log the completions (log_completions=True in TRL)."
        return missing_section("length", "The log has no completions to measure.", hint)
    columns, has_text = (lengths.values, lengths.rewards, lengths.groups, lengths.prompts), lengths.values > 0
    correlation = correlation_within(*(column if has_text.all() else column[has_text] for column in columns))
    # the difference of both lines has the sign of the step's covariance
    unique_steps, step_index = np.unique(lengths.steps, return_inverse=True)
    mean_lengths, steps = np.bincount(step_index, lengths.values) / np.bincount(step_index), unique_steps.tolist()
    change = level_change(dict(zip(steps, mean_lengths.tolist(), strict=True)))
    direction = correlation.side_of_zero * (correlation.is_defined and min(map(abs, correlation.ends)) >= _SMALL)
    deviations, rewards = (within_groups(values, lengths.groups) for values in (lengths.values, lengths.rewards))
    weights = {"reward above": np.clip(rewards, 0, None), "reward below": np.clip(-rewards, 0, None)}
    num_texts, num_empty = inputs.lengths.num_texts, inputs.lengths.num_empty
    frac_empty = num_empty / (num_texts + num_empty) if num_texts else 0.0
    is_empty = frac_empty > _FEW_EMPTY
    if is_empty:
        advice = _EMPTY
    elif change and not direction:
        advice = _LONGER
    elif correlation.is_defined:
        advice = _LENGTH_ADVICE[direction]
    else:
        advice = "Nothing to do while one of the two never differs."
    return ReportSection(
        name="length",
        findings=(
            *([f"{percent(frac_empty)} of completions are empty."] if is_empty else []),
            *[_correlation(correlation, direction, lengths.unit)] * bool(direction),
            *([late_sentence(f"The mean length in {lengths.unit}", change)] if change else []),
            *[_correlation(correlation, direction, lengths.unit)] * (not direction),
            _truncation(inputs.lengths),
            _mean(lengths),
        ),
        severity="look" if is_empty or change or direction else "fine" if correlation.is_defined else "unknown",
        meaning=metric("length_correlation").meaning,
        next_step=advice,
        charts=lines_over(
            steps,
            f"{lengths.unit.capitalize()} minus the group's mean, weighed by the reward's distance",
            {name: _mean_by_step(step_index, deviations, part) for name, part in weights.items()},
            y_label=f"{lengths.unit} minus the group's mean",
        ),
        tables=_quarters(lengths, deviations, rewards, inputs),
    )


_FEW_EMPTY = 0.02  # of the completions: what a sampler gives up on
_EMPTY = "Look at what failed there: the sampler, a tool or environment, or the parser that cut the completion."
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
    conclusion = ""
    if correlation.interval is not None:
        little = "too little to matter" if abs(correlation.value) < _SMALL else "perhaps too little to matter"
        uncertain = little if correlation.side_of_zero else "no direction is certain"
        rewarded = {1: "longer completions are rewarded more", -1: "longer completions are rewarded less"}
        conclusion = f"{interval(correlation, '+.2f')}: {rewarded.get(direction, uncertain)}"
    return f"Within groups, length in {unit} and reward correlate at {correlation.value:+.2f}{conclusion}."


def _truncation(lengths: Lengths) -> str:
    if not lengths.num_judged:
        return "Which completions were cut off is not in the log."
    mass = lengths.frac_advantage_cut
    held = "" if mass is None else f"; they hold {percent(mass)} of the summed absolute advantages"
    return f"{lengths.num_cut:,} of {lengths.num_judged:,} completions were cut off at the length limit{held}."


def _mean(lengths: RunLengths) -> str:
    steps = sorted({int(lengths.steps.min()), int(lengths.steps.max())})
    first, *last = [float(np.mean(lengths.values[lengths.steps == step])) for step in steps]
    ends = f" at step {steps[0]} and {last[0]:.1f} at step {steps[1]}" if last else ""
    return f"Completions have {first:.1f} {lengths.unit} on average{ends}."


def _mean_by_step(step_index: NDArray[np.int64], values: Array, weights: Array) -> list[float | None]:
    sums, totals = (np.bincount(step_index, column).tolist() for column in (values * weights, weights))
    return [part / total if total > 0 else None for part, total in zip(sums, totals, strict=True)]


def _quarters(lengths: RunLengths, deviations: Array, above: Array, inputs: ReportInputs) -> tuple[ReportTable, ...]:
    """Rollouts by their length relative to that of their group, in four equal parts."""
    shares = {
        (group_id, sample): float(share) / len(inputs.live)
        for gram, matrix in inputs.live
        for group_id, sample, share in zip(gram.group_ids, gram.samples, projection_shares(matrix), strict=True)
    }
    order = np.argsort(deviations, kind="stable")
    rows: list[tuple[Cell, ...]] = []
    names = ("shortest quarter", "second", "third", "longest quarter")
    for name, part in zip(names, np.array_split(order, 4), strict=True):
        if not len(part):
            continue
        ends = f"{deviations[part].min():+.1f} to {deviations[part].max():+.1f}"
        mean = round(float(above[part].mean()), 12) + 0.0  # what is left of equal numbers is no -6e-18
        share: Cell = Estimate.undefined_because("no gradient was recomputed")
        if shares:
            rollouts = zip(lengths.groups[part].tolist(), lengths.samples[part].tolist(), strict=True)
            share = sum(shares.get((lengths.names[group], sample), 0.0) for group, sample in rollouts)
        rows.append((name, ends, mean, share))
    return table_of_cells(
        "All rollouts by length; both numbers minus the mean of the rollout's group; share of the gradient = "
        f"{metric('projection_share').formula}, mean over the recomputed steps",
        [("completions", "text"), (lengths.unit, "text"), ("mean reward", "gap"), ("share of the gradient", "gap")],
        rows,
    )
