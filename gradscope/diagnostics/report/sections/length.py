"""Does length or truncation drive the update?

Lengths are tokens where every rollout has its token ids, else characters of the text; the page says which.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gradscope.catalog.lookup import metric
from gradscope.diagnostics.report.lengths import Ends, RunLengths, lengths_of
from gradscope.diagnostics.report.sections.inputs import ReportInputs, Unavailable, missing_section
from gradscope.estimate import Estimate
from gradscope.metrics.gram.geometry import projection_shares
from gradscope.metrics.outcomes.reward_shares import correlation_within, within_groups
from gradscope.render.views.view import lines_over
from gradscope.results.report import Cell, Chart, ReportColumn, ReportSection, ReportTable
from gradscope.rollouts.groups import holds_rewards_alone
from gradscope.rollouts.run import Run
from gradscope.say import interval, number, percent

Array = NDArray[np.float64]

NAME = "length"
QUESTION = "Does length or truncation drive the update?"
_STAYED = Unavailable(
    reason="These are parts of a log that was reduced to its rewards; its completions stayed behind.",
    hint="Name the log itself.",
)


def length_section(inputs: ReportInputs) -> ReportSection:
    """Length and reward within groups, what was cut off, and shares of the gradient by length."""
    found = inputs.lengths or lengths_of(inputs.run)
    lengths = found.whole()
    if holds_rewards_alone(inputs.run.groups):
        return missing_section(NAME, QUESTION, _STAYED)
    if not lengths.values.any():
        hint = "Log the completions (log_completions=True in TRL)."
        return missing_section(NAME, QUESTION, Unavailable(reason="The log has no completions to measure.", hint=hint))
    correlation = correlation_within(lengths.values, lengths.rewards, lengths.groups, lengths.prompts)
    return ReportSection(
        name=NAME,
        question=QUESTION,
        findings=(_correlation(correlation, lengths.unit), _truncation(inputs.run, found.ends), _mean(lengths)),
        severity="look" if correlation.side_of_zero else "fine" if correlation.is_defined else "unknown",
        meaning=metric("length_correlation").meaning,
        next_step=_next_step(correlation),
        charts=_charts(lengths),
        tables=(_quarters(lengths, inputs),),
    )


def _correlation(correlation: Estimate, unit: str) -> str:
    if correlation.value is None:
        return f"Whether length goes with the reward is undefined: {correlation.undefined}."
    text = f"Within groups, length in {unit} and reward correlate at {correlation.value:+.2f}"
    if correlation.interval is None:
        return f"{text}."
    conclusions = {
        1: "longer completions are rewarded more",
        -1: "longer completions are rewarded less",
        0: "no direction is certain",
    }
    return f"{text}{interval(correlation, '+.2f')}: {conclusions[correlation.side_of_zero]}."


def _truncation(run: Run, ends: Ends) -> str:
    if ends.num_judged:
        text = f"{ends.num_cut:,} of {ends.num_judged:,} completions were cut off at the length limit"
        mass = ends.frac_advantage
        return f"{text}." if mass is None else f"{text}; they hold {percent(mass)} of the summed absolute advantages."
    name = "completions/clipped_ratio"
    ratios = [values[name] for values in run.metrics.values() if name in values]
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


def _next_step(correlation: Estimate) -> str:
    if correlation.side_of_zero > 0:
        return (
            "Read long completions that pass: do they reason, or pad? Try a length penalty, or a loss that does not "
            "average over the tokens of each completion."
        )
    if correlation.side_of_zero < 0:
        return (
            "Check that right answers are not cut off: a higher max_completion_length, or masking truncated "
            "completions, tells a short habit from a length limit."
        )
    if correlation.value is None:
        return "Nothing to do while one of the two never differs."
    return "Nothing to do while the interval holds zero."


def _charts(lengths: RunLengths) -> tuple[Chart, ...]:
    """What the correlation is made of: the difference of both lines has the sign of the step's covariance."""
    steps = np.unique(lengths.steps).tolist()
    apart, rewards = _within(lengths)
    weights = {"reward above": np.clip(rewards, 0, None), "reward below": np.clip(-rewards, 0, None)}
    return lines_over(
        steps,
        f"{lengths.unit.capitalize()} minus the group's mean, weighed by the reward's distance",
        {name: [_mean_at(lengths, step, apart, part) for step in steps] for name, part in weights.items()},
        y_label=f"{lengths.unit} beside the group's mean",
    )


def _within(lengths: RunLengths) -> tuple[Array, Array]:
    """Length and reward of each rollout minus the means of its group."""
    return within_groups(lengths.values, lengths.groups), within_groups(lengths.rewards, lengths.groups)


def _mean_at(lengths: RunLengths, step: int, apart: Array, weights: Array) -> float | None:
    """Mean of the lengths of a step by these weights; None where all weights are zero."""
    here = lengths.steps == step
    total = float(weights[here].sum())
    return float(apart[here] @ weights[here]) / total if total > 0 else None


def _quarters(lengths: RunLengths, inputs: ReportInputs) -> ReportTable:
    """Rollouts by their length beside that of their group, in four equal parts."""
    shares = _gradient_shares(inputs)
    apart, above = _within(lengths)
    order = np.argsort(apart, kind="stable")
    rows: list[tuple[Cell, ...]] = []
    names = ("shortest quarter", "second", "third", "longest quarter")
    for name, part in zip(names, np.array_split(order, 4), strict=True):
        if not len(part):
            continue
        ends = f"{apart[part].min():+.1f} to {apart[part].max():+.1f}"
        mean = round(float(above[part].mean()), 12) + 0.0  # what is left of equal numbers is no -6e-18
        rows.append((name, ends, mean, _sum_of(shares, lengths, part)))
    return ReportTable(
        caption="All rollouts by length; both numbers minus the mean of the rollout's group; share of the gradient = "
        f"{metric('projection_share').formula}, mean over the recomputed steps",
        columns=(
            ReportColumn(title="completions"),
            ReportColumn(title=lengths.unit),
            ReportColumn(title="mean reward", style="gap"),
            ReportColumn(title="share of the gradient", style="gap"),
        ),
        rows=tuple(rows),
    )


def _gradient_shares(inputs: ReportInputs) -> dict[tuple[str, int], float]:
    """Each recomputed rollout's part of its step's gradient, divided by the number of such steps."""
    steps = [(gram, matrix) for gram in inputs.grams if (matrix := gram.policy_gram) is not None and matrix.sum() > 0]
    return {
        (group_id, sample): float(share) / len(steps)
        for gram, matrix in steps
        for group_id, sample, share in zip(gram.group_ids, gram.samples, projection_shares(matrix), strict=True)
    }


def _sum_of(shares: dict[tuple[str, int], float], lengths: RunLengths, part: NDArray[np.intp]) -> Estimate | float:
    if not shares:
        return Estimate.undefined_because("no gradient was recomputed")
    rollouts = zip(lengths.groups[part].tolist(), lengths.samples[part].tolist(), strict=True)
    return sum(shares.get((lengths.names[group], sample), 0.0) for group, sample in rollouts)
