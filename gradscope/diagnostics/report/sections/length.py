"""Does length or truncation drive the update?

Lengths are tokens where every rollout has its token ids, else characters of the text; the page says which.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradscope.catalog.lookup import metric
from gradscope.diagnostics.logged.generation import ENDED
from gradscope.diagnostics.report.sections.inputs import ReportInputs, Unavailable, missing_section
from gradscope.estimate import Estimate
from gradscope.metrics.gram.row_shares import projection_shares
from gradscope.metrics.outcomes.reward_shares import correlation_within, within_groups
from gradscope.results.report import Cell, Chart, Column, ReportSection, ReportTable, Series
from gradscope.rollouts.run import Run
from gradscope.rollouts.types import Rollout
from gradscope.say import interval, number, percent

Array = NDArray[np.float64]

NAME = "length"
QUESTION = "Does length or truncation drive the update?"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lengths:
    """The rollouts with a reward, and how long each is."""

    unit: str
    rollouts: tuple[Rollout, ...]
    prompts: tuple[str, ...]
    steps: tuple[int, ...]
    values: tuple[int, ...]


def length_section(inputs: ReportInputs) -> ReportSection:
    """Length and reward within groups, what was cut off, and shares of the gradient by length."""
    lengths = _lengths(inputs.run)
    if not any(lengths.values):
        hint = "Log the completions (log_completions=True in TRL)."
        return missing_section(NAME, QUESTION, Unavailable(reason="The log has no completions to measure.", hint=hint))
    correlation = correlation_within(
        lengths.values,
        [rollout.reward or 0.0 for rollout in lengths.rollouts],
        [rollout.group_id for rollout in lengths.rollouts],
        lengths.prompts,
    )
    return ReportSection(
        name=NAME,
        question=QUESTION,
        findings=(_correlation(correlation, lengths.unit), _truncation(inputs.run), _mean(lengths)),
        meaning=metric("length_correlation").meaning,
        next_step=_next_step(correlation),
        charts=_charts(lengths),
        tables=(_quarters(lengths, inputs),),
    )


def _lengths(run: Run) -> _Lengths:
    rows = [
        (group, rollout)
        for group in run.groups
        if all(reward is not None for reward in group.rewards)
        for rollout in group.rollouts
    ]
    exact = bool(rows) and all(rollout.completion_ids is not None for _, rollout in rows)
    return _Lengths(
        unit="tokens" if exact else "characters",
        rollouts=tuple(rollout for _, rollout in rows),
        prompts=tuple(group.prompt_id for group, _ in rows),
        steps=tuple(group.step for group, _ in rows),
        values=tuple(r.num_tokens or 0 if exact else len(r.completion) for _, r in rows),
    )


def _correlation(correlation: Estimate, unit: str) -> str:
    if correlation.value is None:
        return f"Length says nothing about the advantage: {correlation.undefined}."
    text = f"Within groups, length in {unit} and reward correlate at {correlation.value:+.2f}"
    if correlation.interval is None:
        return f"{text}."
    conclusions = {
        1: "longer completions are rewarded more",
        -1: "longer completions are rewarded less",
        0: "no direction is certain",
    }
    return f"{text}{interval(correlation, '+.2f')}: {conclusions[correlation.side_of_zero]}."


def _truncation(run: Run) -> str:
    rollouts = [rollout for group in run.groups for rollout in group.rollouts]
    judged = [rollout for rollout in rollouts if rollout.status in ENDED]
    if judged:
        cut = [rollout for rollout in judged if rollout.status == "truncated"]
        text = f"{len(cut):,} of {len(judged):,} completions were cut off at the length limit"
        sizes = [abs(rollout.advantage) for rollout in judged if rollout.advantage is not None]
        if not cut or len(sizes) < len(judged) or not sum(sizes):
            return f"{text}."
        mass = sum(abs(rollout.advantage or 0.0) for rollout in cut) / sum(sizes)
        return f"{text}; they hold {percent(mass)} of the summed absolute advantages."
    name = "completions/clipped_ratio"
    ratios = [values[name] for values in run.metrics.values() if name in values]
    if ratios:
        mean = number(sum(ratios) / len(ratios), percent)
        return (
            f"The trainer logged that on average {mean} of completions were cut off ({name}); which ones is not in the "
            "log."
        )
    return "Which completions were cut off is not in the log."


def _mean(lengths: _Lengths) -> str:
    first, last = min(lengths.steps), max(lengths.steps)
    rows = list(zip(lengths.values, lengths.steps, strict=True))
    means = [np.mean([value for value, at in rows if at == step]) for step in (first, last)]
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
        return "Nothing to do: the rewards do not tell lengths apart."
    return "Nothing to do while the interval holds zero."


def _charts(lengths: _Lengths) -> tuple[Chart, ...]:
    """What the correlation is made of: the difference of both lines has the sign of the step's covariance."""
    steps = sorted(set(lengths.steps))
    if len(steps) < 2:
        return ()
    apart, rewards = _within(lengths)
    return (
        Chart(
            title=f"{lengths.unit.capitalize()} minus the group's mean, weighed by the reward's distance",
            kind="lines",
            places=tuple(steps),
            series=tuple(
                Series(name=name, values=tuple(_mean_at(lengths, step, apart, weights) for step in steps))
                for name, weights in (
                    ("reward above", np.clip(rewards, 0, None)),
                    ("reward below", np.clip(-rewards, 0, None)),
                )
            ),
        ),
    )


def _within(lengths: _Lengths) -> tuple[Array, Array]:
    """Length and reward of each rollout minus the means of its group."""
    ids = [rollout.group_id for rollout in lengths.rollouts]
    rewards = [rollout.reward or 0.0 for rollout in lengths.rollouts]
    return within_groups(lengths.values, ids), within_groups(rewards, ids)


def _mean_at(lengths: _Lengths, step: int, apart: Array, weights: Array) -> float | None:
    """Mean of the lengths of a step by these weights; None where all weights are zero."""
    here = np.array(lengths.steps) == step
    total = float(weights[here].sum())
    return float(apart[here] @ weights[here]) / total if total > 0 else None


def _quarters(lengths: _Lengths, inputs: ReportInputs) -> ReportTable:
    """Rollouts by their length beside that of their group, in four equal parts."""
    shares = _gradient_shares(inputs)
    apart, above = _within(lengths)
    order = np.argsort(apart, kind="stable")
    rows: list[tuple[Cell, ...]] = []
    names = ("shortest quarter", "second", "third", "longest quarter")
    for name, part in zip(names, np.array_split(order, 4), strict=True):
        if not len(part):
            continue
        rollouts = [lengths.rollouts[index] for index in part]
        ends = f"{apart[part].min():+.1f} to {apart[part].max():+.1f}"
        rows.append((name, ends, float(above[part].mean()), _sum_of(shares, rollouts)))
    return ReportTable(
        caption="All rollouts by length; both numbers minus the mean of the rollout's group; share of the gradient = "
        f"{metric('projection_share').formula}, mean over the recomputed steps",
        columns=(
            Column(title="completions"),
            Column(title=lengths.unit),
            Column(title="mean reward", style="gap"),
            Column(title="share of the gradient", style="gap"),
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


def _sum_of(shares: dict[tuple[str, int], float], rollouts: Sequence[Rollout]) -> Estimate | float:
    if not shares:
        return Estimate.undefined_because("no gradient was recomputed")
    return sum(shares.get((rollout.group_id, rollout.sample), 0.0) for rollout in rollouts)
