"""Which rollouts and groups make up a step's gradient: shares, cosines, cancellation, and the top ones with text.

Shapes: R rollouts of a step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gradscope.catalog.lookup import metric
from gradscope.diagnostics.report.sections.inputs import ReportInputs, missing_section
from gradscope.estimate import Estimate
from gradscope.metrics.gram.geometry import (
    batch_norm,
    cancellation,
    cosines_to_sum,
    projection_shares,
    row_norms,
    top_share,
)
from gradscope.render.views.view import Column, tabulate
from gradscope.results.report import Cell, Chart, ReportColumn, ReportSection, ReportTable, Series
from gradscope.rollouts.run import Run
from gradscope.say import percent

if TYPE_CHECKING:
    from gradscope.gradients.step.step_gram import StepGram

Array = NDArray[np.float64]

NAME = "contributions"
QUESTION = "Which rollouts and groups make up the gradient?"
NUM_TOP = 10
"""Rollouts shown with their text."""
TEXT_LIMIT = 400
"""Characters of a text that the page shows; the log has the rest."""

_LARGE_SHARE = 0.25
"""One rollout with a quarter of a step's gradient decides its direction about as much as all others."""


def contributions_section(inputs: ReportInputs) -> ReportSection:
    """Shares of the gradient: a row a step, and the rollouts with the largest part of the largest gradient."""
    steps = [(gram, matrix) for gram in inputs.grams if (matrix := gram.policy_gram) is not None and matrix.sum() > 0]
    if not steps:
        return missing_section(NAME, QUESTION, inputs.no_grams)
    largest = next(pair for pair in steps if pair[0].step == inputs.largest_step)
    return ReportSection(
        name=NAME,
        question=QUESTION,
        findings=_findings(*largest),
        severity="look" if _largest_share(largest[1]) >= _LARGE_SHARE else "fine",
        meaning=f"{metric('projection_share').meaning} Cancellation is {metric('cancellation').meaning}",
        next_step=_next_step(largest[1]),
        command=inputs.command("rank", "--step", str(largest[0].step)),
        charts=(_bars(*largest),),
        tables=(_by_step(steps), _by_group(*largest), _top(inputs.run, *largest)),
    )


def _largest_share(matrix: Array) -> float:
    return float(np.max(np.abs(projection_shares(matrix))))


def _next_step(matrix: Array) -> str:
    share = _largest_share(matrix)
    text = "Read the rollouts below: is this what the reward should teach?"
    if share < _LARGE_SHARE:
        return f"{text} No single one carries more than {percent(share)} of the gradient."
    return f"{text} One carries {percent(share)}: clipping the norm (max_grad_norm) or a larger batch evens it out."


def _findings(gram: StepGram, matrix: Array) -> tuple[str, ...]:
    shares, held = projection_shares(matrix), top_share(matrix)
    survives = cancellation(matrix)
    top = int(np.argmax(shares))
    against = int((shares < 0).sum())
    first = (
        f"At step {gram.step}, the largest gradient recomputed, the top tenth of {len(shares)} rollouts holds "
        f"{percent(held.value or 0.0)} of the summed gradient norms, and {percent(survives.value or 0.0)} of that sum "
        "survives in the step's gradient."
    )
    second = (
        f"The largest single part is sample {gram.samples[top]} of group {gram.group_ids[top]}: {percent(shares[top])} "
        f"of the gradient along its own direction; {against} rollouts pull against it."
    )
    return first, second


def _bars(gram: StepGram, matrix: Array) -> Chart:
    shares = projection_shares(matrix)
    order = np.argsort(-np.abs(shares), kind="stable")[:20]
    return Chart(
        title=f"Parts of the gradient of step {gram.step}, the 20 largest rollouts",
        kind="bars",
        places=tuple(f"{gram.group_ids[index]} #{gram.samples[index]}" for index in order),
        series=(Series(name="share", values=tuple(float(shares[index]) for index in order)),),
        x_label="share along the gradient",
    )


def _by_step(steps: list[tuple[StepGram, Array]]) -> ReportTable:
    return tabulate(
        f"Each recomputed step. top tenth = {metric('top_share').formula}; "
        f"cancellation = {metric('cancellation').formula}",
        (
            Column("step", lambda pair: pair[0].step, "count"),
            Column("rollouts", lambda pair: len(pair[1]), "count"),
            Column("with gradient", lambda pair: int((np.diag(pair[1]) > 0).sum()), "count"),
            Column("norm", lambda pair: batch_norm(pair[1]), "norm"),
            Column("top tenth", lambda pair: top_share(pair[1]), "share"),
            Column("cancellation", lambda pair: cancellation(pair[1]), "share"),
        ),
        steps,
    )


def _by_group(gram: StepGram, matrix: Array) -> ReportTable:
    """Share and inner cancellation of each live group of one step."""
    ids, shares = np.array(gram.group_ids), projection_shares(matrix)
    rows: list[tuple[Cell, ...]] = []
    for group_id in dict.fromkeys(gram.group_ids):
        index = np.flatnonzero(ids == group_id)
        inner = matrix[np.ix_(index, index)]
        if np.trace(inner) > 0:
            rewards = gram.rewards[index]
            mean = (
                Estimate.undefined_because("a reward is missing") if np.isnan(rewards).any() else float(rewards.mean())
            )
            rows.append((group_id, mean, float(shares[index].sum()), batch_norm(inner), cancellation(inner)))
    return ReportTable(
        caption=f"Live groups of step {gram.step}; share = {metric('projection_share').formula}, summed over the group",
        columns=(
            ReportColumn(title="group"),
            ReportColumn(title="mean reward", style="share"),
            ReportColumn(title="share", style="gap"),
            ReportColumn(title="norm", style="norm"),
            ReportColumn(title="cancellation", style="share"),
        ),
        rows=tuple(sorted(rows, key=lambda row: -abs(float(row[2])))),  # type: ignore[arg-type]
    )


def _top(run: Run, gram: StepGram, matrix: Array) -> ReportTable:
    shares, cosine, norms = projection_shares(matrix), cosines_to_sum(matrix), row_norms(matrix)
    rollouts = {(r.group_id, r.sample): r for group in run.groups_at(gram.step) for r in group.rollouts}
    rows: list[tuple[Cell, ...]] = []
    for index in np.argsort(-np.abs(shares), kind="stable")[:NUM_TOP]:
        rollout = rollouts[gram.group_ids[index], gram.samples[index]]
        rows.append(
            (
                f"{rollout.group_id} #{rollout.sample}",
                rollout.reward,
                rollout.advantage,
                float(shares[index]),
                float(cosine[index]) if norms[index] > 0 else Estimate.undefined_because("its gradient is zero"),
                excerpt(rollout.prompt),
                excerpt(rollout.completion),
            )
        )
    return ReportTable(
        caption=f"The {len(rows)} rollouts with the largest part of step {gram.step}; "
        f"cosine = {metric('cosine_to_sum').formula}",
        columns=(
            ReportColumn(title="rollout"),
            ReportColumn(title="reward", style="norm"),
            ReportColumn(title="advantage", style="norm"),
            ReportColumn(title="share", style="gap"),
            ReportColumn(title="cosine", style="gap"),
            ReportColumn(title="prompt"),
            ReportColumn(title="completion"),
        ),
        rows=tuple(rows),
    )


def excerpt(text: str, limit: int = TEXT_LIMIT) -> str:
    """The beginning and end of a text: a completion's answer stands at its end."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]} […] {text[-half:]}"
