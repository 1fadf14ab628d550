"""What would other advantage formulations have done with the same rollouts?

The gradient of a formulation is arithmetic on the Gram matrix K of score vectors, so nothing is trained or sampled
anew. The KL part is left out: it does not depend on the advantage.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gradscope.advantages.registry import FORMULATIONS, GRAM_FORMULATIONS, LOGGED
from gradscope.catalog.lookup import metric
from gradscope.diagnostics.rank.formulations import measure_formulations, measure_interference, measure_kinds
from gradscope.diagnostics.rank.rows import StepRows, SubGroup, advantages_of, step_rows, sub_groups
from gradscope.diagnostics.rank.spectrum import mean_null_ranks, null_values
from gradscope.diagnostics.report.sections.inputs import ReportInputs, missing_section
from gradscope.errors import GradscopeError
from gradscope.estimate import Estimate
from gradscope.metrics.gram.geometry import batch_norm, cosine_of_updates, gradient_gram, row_norms
from gradscope.metrics.gram.spectrum import ZERO_MATRIX, effective_rank, singular_values_from_gram
from gradscope.render.views.view import Column, entry, tabulate
from gradscope.results.report import Cell, Chart, ColumnStyle, ReportColumn, ReportSection, ReportTable, Series

Array = NDArray[np.float64]

NAME = "formulations"
QUESTION = "What would other advantages have done with the same rollouts?"

_Row = tuple[Cell, ...]
_NULLS = {"shuffled": "null: shuffled", "unweighted": "null: scores alone"}
"""The null models shown beside a rank, and the heads of their columns."""

_SAME = 0.99
"""A cosine of eight degrees."""


def formulations_section(inputs: ReportInputs) -> ReportSection:
    """Norm, cosine, rank beside its nulls and dead share of every formulation, means over the recomputed steps."""
    if not inputs.grams:
        return missing_section(NAME, QUESTION, inputs.no_grams)
    steps = [step_rows(gram) for gram in inputs.grams]
    names = (LOGGED, *FORMULATIONS, *GRAM_FORMULATIONS)
    rows: list[_Row] = [(name, *_means([_measure(step, name) for step in steps])) for name in names]
    return ReportSection(
        name=NAME,
        question=QUESTION,
        findings=_findings(rows, len(steps)),
        severity="fine",
        meaning=metric("update_cosine").meaning,
        next_step=_next_step(rows),
        command=inputs.command("rank", "--advantage", "all"),
        charts=_chart(rows),
        tables=(
            _table(rows, [step.step for step in steps]),
            *_noise_table(steps),
            *_kinds_table(steps[-1], names),
            *_interference_table(steps[-1], names),
        ),
    )


def _measure(rows: StepRows, name: str) -> tuple[Estimate, ...]:
    """Norm, cosine with the logged update, effective rank, its null models and dead share of one step."""
    parts = sub_groups(rows, None)
    try:
        by_group = advantages_of(rows, parts, name)
    except GradscopeError as error:
        reason = error.message.rstrip(".").replace(f" '{name}'", " such")  # one for all that have the same
        return (Estimate.undefined_because(reason),) * (4 + len(_NULLS))
    weights = np.zeros(len(rows.group_ids))
    for part, values in zip(parts, by_group, strict=True):
        weights[part.index] = values
    matrix = gradient_gram(rows.gram, weights)
    cosine = Estimate.undefined_because("the log has no advantage per rollout")
    if rows.advantages is not None:
        cosine = cosine_of_updates(rows.gram, weights, rows.advantages)
    return (
        Estimate.exact(batch_norm(matrix)),
        cosine,
        effective_rank(singular_values_from_gram(matrix)),
        *_null_ranks(rows, parts, by_group),
        Estimate.exact(sum(not np.any(values) for values in by_group) / len(by_group)),
    )


def _null_ranks(rows: StepRows, parts: Sequence[SubGroup], by_group: Sequence[Array]) -> tuple[Estimate, ...]:
    """Effective rank of the whole step under the null models, on the live groups: what a rank is read against."""
    live = [(part, values) for part, values in zip(parts, by_group, strict=True) if np.any(values != 0)]
    if not live:
        return (Estimate.undefined_because(ZERO_MATRIX),) * len(_NULLS)
    index = np.concatenate([part.index for part, _ in live])
    weights = np.concatenate([values for _, values in live])
    scores = rows.gram[np.ix_(index, index)]
    values = null_values(
        scores[None],
        row_norms(gradient_gram(scores, weights))[None],
        weights[None],
        np.repeat(np.arange(len(live)), [len(part.index) for part, _ in live])[None],
        num_columns=rows.num_parameters,
        centered=False,
    )
    ranks = mean_null_ranks(values)
    return tuple(ranks[name] for name in _NULLS)


def _means(steps: list[tuple[Estimate, ...]]) -> tuple[Estimate, ...]:
    """ReportColumn means over the steps that have a value; the first reason where none has."""
    means = []
    for column in zip(*steps, strict=True):
        values = [estimate.value for estimate in column if estimate.value is not None]
        means.append(Estimate.exact(float(np.mean(values)), num_units=len(values)) if values else column[0])
    return tuple(means)


def _findings(rows: list[_Row], num_steps: int) -> tuple[str, ...]:
    steps = "1 step" if num_steps == 1 else f"{num_steps} steps"
    cosines = {
        str(row[0]): row[2].value for row in rows[1:] if isinstance(row[2], Estimate) and row[2].value is not None
    }
    if not cosines:
        return (f"The gradients of {len(rows) - 1} formulations were formed at {steps}; see the table.",)
    near, far = max(cosines, key=lambda name: cosines[name]), min(cosines, key=lambda name: cosines[name])
    return (
        f"On the same rollouts of {steps}, {far} would have gone farthest from the logged update (cosine "
        f"{cosines[far]:.3f}), {near} nearest to it ({cosines[near]:.3f}).",
    )


def _next_step(rows: list[_Row]) -> str:
    """Which formulations are the logged update at another step size, by name."""
    cosines = {str(name): cosine.value for name, _, cosine, *_ in rows[1:] if isinstance(cosine, Estimate)}
    same = [name for name, value in cosines.items() if value is not None and value >= _SAME]
    other = sorted((value, name) for name, value in cosines.items() if value is not None and value < _SAME)
    if not same and not other:
        return "Log advantages (log_completions=True in TRL): without them there is no update to compare with."
    first = f"The logged update at another step size (cosine from {_SAME} on): {', '.join(same) or 'none'}."
    return f"{first} Farthest from it, and worth a run: {', '.join(name for _, name in other[:3])}." if other else first


def _chart(rows: list[_Row]) -> tuple[Chart, ...]:
    cosines = [(str(row[0]), row[2].value) for row in rows if isinstance(row[2], Estimate) and row[2].value is not None]
    if not cosines:
        return ()
    return (
        Chart(
            title="Cosine with the logged update",
            kind="bars",
            places=tuple(name for name, _ in cosines),
            series=(Series(name="cosine", values=tuple(value for _, value in cosines)),),
            x_label="cosine",
        ),
    )


def _noise_table(steps: Sequence[StepRows]) -> tuple[ReportTable, ...]:
    """By step how far groups agree under the logged advantage, and how many would make the update mostly signal."""
    updates = [update for step in steps for update in measure_formulations(step, (LOGGED,))]
    if not updates:
        return ()
    styles: dict[str, ColumnStyle] = {"group_cosine": "gap", "signal_to_noise": "gap", "critical_batch_size": "norm"}
    caption = "; ".join(f"{metric(name).title} = {metric(name).formula}" for name in styles)
    columns = (Column(metric(name).title, name, style) for name, style in styles.items())
    return (tabulate(caption, (Column("step", "step", "count"), *columns), updates),)


def _kinds_table(rows: StepRows, names: Sequence[str]) -> tuple[ReportTable, ...]:
    """What each kind of group gives to the updates of the last step, where it gives anything."""
    parts = [part for part in measure_kinds(rows, names) if part.norm.value != 0.0]
    if not parts:
        return ()
    caption = (
        f"Step {rows.step} by kind of group: {metric('kinds.norm').formula}, its cosine with the whole update, and its "
        f"alignment with pass@k = {metric('kinds.alignment.pass@k').formula}"
    )
    columns = (
        Column("advantage", "advantage"),
        Column("groups", lambda part: part.kind.replace("_", "-")),
        Column("number", "num_groups", "count"),
        Column("norm", "norm", "norm"),
        Column("cosine, update", "cosine", "gap"),
        *(Column(f"cosine, {target}", entry("alignment", target), "gap") for target in parts[0].alignment),
    )
    return (tabulate(caption, columns, parts),)


def _interference_table(rows: StepRows, names: Sequence[str]) -> tuple[ReportTable, ...]:
    """What the prompts of the last step do to each other's correct answers, where that is defined."""
    interference, _ = measure_interference(rows, names)
    known = [of for of in interference if of.transfer.is_defined or of.frac_hurt.is_defined]
    if not known:
        return ()
    caption = (
        f"Step {rows.step} between prompts: pairs that hurt = {metric('interference.frac_hurt').formula}; "
        f"transfer = {metric('interference.transfer').formula}"
    )
    columns = (
        Column("advantage", "advantage"),
        Column("pairs that hurt", "frac_hurt", "share"),
        Column("cosine", "cosine", "gap"),
        Column("transfer", "transfer", "gap"),
    )
    return (tabulate(caption, columns, known),)


def _table(rows: list[_Row], steps: list[int]) -> ReportTable:
    shown = ", ".join(map(str, steps))
    return ReportTable(
        caption=f"Means over step {shown}, without the KL part; update cosine = {metric('update_cosine').formula}; "
        f"effective rank of the whole step = {metric('effective_rank').formula}. Beside it the rank that the same live "
        "rollouts have with their advantages dealt anew within each group, and with none: a rank near these is not the "
        "formulation's doing",
        columns=(
            ReportColumn(title="advantage"),
            ReportColumn(title="gradient norm", style="norm"),
            ReportColumn(title="update cosine", style="gap"),
            ReportColumn(title="effective rank", style="rank"),
            *(ReportColumn(title=title, style="rank") for title in _NULLS.values()),
            ReportColumn(title="dead groups", style="share"),
        ),
        rows=tuple(rows),
    )
