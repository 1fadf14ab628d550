"""The output of each result: one row a command names its document, its table, its figures and its CSV files.

A new command adds a row to ``SPECS`` and nothing else here. Drawing functions and result types are named and not
imported, so that a command loads matplotlib only where it draws, and only its own records and table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from gradscope.catalog.lookup import CATALOG
from gradscope.results.envelope import to_jsonable

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Group

    from gradscope.results.compare import Comparison
    from gradscope.results.degeneracy import DegeneracyReport
    from gradscope.results.passk import PassAtKReport
    from gradscope.results.report import RunIndex
    from gradscope.results.source import Source


Tables = Mapping[str, Iterable[Any]]  # table -> its records


def _attributes(*names: str) -> Callable[[Any], Tables]:
    """Tables that are sequences of the result itself, under their own names."""
    return lambda result: {name: getattr(result, name) for name in names}


def _comparison_rows(comparison: Comparison) -> Tables:
    """Cells, pairs, and a row for each point of a learning curve."""
    points = [
        {"cell": curve.cell, "metric": curve.metric, "step": step, "mean": mean, "low": low, "high": high}
        for curve in comparison.curves
        for step, mean, low, high in zip(curve.steps, curve.mean, curve.low, curve.high, strict=True)
    ]
    return {"cells": comparison.cells, "pairs": comparison.pairs, "curves": points}


def _degeneracy_rows(report: DegeneracyReport) -> Tables:
    """The report's sequences, the histogram of pass rates and the plans of a target among them."""
    names = (
        *("by_step", "by_group_size", "by_policy", "by_environment", "predictions"),
        *("advantages", "by_reward", "by_prompt"),
    )
    plans = () if report.target is None else report.target.plans
    return {**_attributes(*names)(report), "histogram": report.pass_rates.histogram, "plans": plans}


def _pass_at_k_rows(report: PassAtKReport) -> Tables:
    """Rows with their file's name, differences with the names of their pair, and the subject of each evaluation."""
    rows = [{"name": table.name, **to_jsonable(row)} for table in report.tables for row in table.rows]
    comparisons = (*([report.comparison] if report.comparison else []), *report.further_comparisons)
    differences = [
        {"first": comparison.first, "second": comparison.second, **to_jsonable(row)}
        for comparison in comparisons
        for row in comparison.rows
    ]
    evaluations = [
        {"name": table.name, "num_prompts": table.num_prompts, **to_jsonable(table.evaluation)}
        for table in report.tables
        if table.evaluation is not None
    ]
    return {"tables": rows, "differences": differences, "evaluations": evaluations}


def _run_rows(index: RunIndex) -> Tables:
    """The numbers of each run; its curves are in the JSON."""
    estimates = ("frac_reward_zero_std", "reward", "reward_change")
    rows = [
        {
            "name": run.name,
            "num_steps": len(run.steps),
            "num_rollouts": run.num_rollouts,
            **{name: getattr(run, name) for name in estimates},
        }
        for run in index.runs
    ]
    return {"runs": rows}


class ResultSpec(Struct, frozen=True, kw_only=True):
    """How one type of result reaches its readers."""

    result: str  # ``module:type`` below :mod:`gradscope.results`
    name: str  # the command, which is also the schema's name and the stem of its files
    table: str
    """``module:function`` below :mod:`gradscope.render`: from the result to a renderable of rich; names of further
    tables are a second argument where there are any."""
    csv: Callable[[Any], Mapping[str, Iterable[Any]]]  # from the result to its CSV tables: name -> records
    figures: str | None = None  # ``module:function``: from the result to its figures, file stem -> figure
    arrays: str | None = None  # ``module:function``: writes arrays into a folder
    definitions: Callable[[Any], Iterable[str]] | None = None
    """From the result to the metrics whose formulas the document states; None: all that the command computes."""
    sources: Callable[[Any], Sequence[Source]] = lambda result: (result.source,)
    """From the result to its inputs, in the order given."""


SPECS = (
    ResultSpec(
        result="verdicts:CheckReport",
        name="check",
        table="terminal.verdicts:check_table",
        csv=_attributes("verdicts"),
        definitions=lambda report: (verdict.metric for verdict in report.verdicts if verdict.metric in CATALOG),
    ),
    ResultSpec(
        result="verdicts:ClaimsReport",
        name="claims",
        table="terminal.verdicts:claims_table",
        csv=_attributes("claims"),
        definitions=lambda _: (),
    ),
    ResultSpec(
        result="compare:Comparison",
        name="compare",
        table="terminal.compare:compare_table",
        figures="figures.compare:draw_comparison",
        csv=_comparison_rows,
        definitions=lambda comparison: (*comparison.metrics, *metrics_of("compare")),
    ),
    ResultSpec(
        result="degeneracy:DegeneracyReport",
        name="degeneracy",
        table="terminal.degeneracy:degeneracy_table",
        figures="figures.degeneracy:draw_degeneracy",
        csv=_degeneracy_rows,
    ),
    ResultSpec(
        result="passk:PassAtKReport",
        name="passk",
        table="terminal.passk:pass_at_k_table",
        figures="figures.passk:draw_pass_at_k",
        csv=_pass_at_k_rows,
        sources=lambda report: report.sources,
    ),
    ResultSpec(
        result="rank:RankReport",
        name="rank",
        table="terminal.rank:rank_table",
        figures="figures.rank:draw_rank",
        arrays="files:write_spectra",
        csv=_attributes(
            *("curve", "token_curve", "spectra", "steps", "formulations", "kinds", "shares", "baselines"),
            *("interference", "influences", "heldout", "heldout_influences"),
            *("comparisons", "weight_curve", "size_changes", "sparsity", "updates", "gradient_updates"),
            *("adapters", "optimizers", "modules"),
            *("corrections", "token_kinds", "entropy_changes", "token_kl", "turns", "logprob_changes"),
        ),
    ),
    ResultSpec(
        result="norms:ReplayReport",
        name="replay",
        table="terminal.norms:replay_table",
        figures="figures.norms:draw_replay",
        csv=_attributes("steps"),
    ),
    ResultSpec(
        result="report:RunReport",
        name="report",
        table="terminal.report:report_table",
        figures="figures.report:draw_report",
        # each question with its severity and its one sentence; tables and charts of a section are in the JSON
        csv=lambda report: {
            "sections": [
                {
                    "name": section.name,
                    "severity": section.severity,
                    "question": section.question,
                    "finding": section.headline,
                }
                for section in report.sections
            ]
        },
    ),
    ResultSpec(
        result="report:RunIndex",
        name="report_index",
        table="terminal.report:report_index_table",
        figures="figures.report:draw_report",
        csv=_run_rows,
        definitions=lambda _: ("frac_reward_zero_std",),
    ),
    ResultSpec(
        result="norms:SpikeReport",
        name="spike",
        table="terminal.norms:spike_table",
        figures="figures.norms:draw_spike",
        csv=_attributes("metrics", "rollouts", "removals", "tokens", "tensors"),
    ),
)
"""One row a type of result."""


def spec_of(result: object) -> ResultSpec:
    """How a result reaches its readers; TypeError, a caller's bug, where no command finds such a thing."""
    of_type = f"{type(result).__module__.removeprefix('gradscope.results.')}:{type(result).__name__}"
    for spec in SPECS:
        if spec.result == of_type:
            return spec
    raise TypeError(f"no command finds a {type(result).__name__}")


def metrics_of(command: str) -> list[str]:
    """The metrics of the catalogue that a command computes."""
    return [entry.name for entry in CATALOG.values() if entry.command == command]


def render_table(result: object, show: Sequence[str] = ()) -> Group:
    """A result for a terminal, right at 80 columns; ``show`` names further tables of its command."""
    draw = load(spec_of(result).table)
    table: Group = draw(result, show) if show else draw(result)
    return table


def draw_figures(result: object) -> dict[str, Figure]:
    """The figures of a result, by file stem; none where it has nothing to draw."""
    from gradscope.render.figures.style import figure_style

    figures = spec_of(result).figures
    if figures is None:
        return {}
    with figure_style():
        drawn: dict[str, Figure] = load(figures)(result)
    return drawn


def load(name: str) -> Callable[..., Any]:
    """The function that a row names as ``module:function``, its module imported now."""
    module, _, function = name.partition(":")
    loaded: Callable[..., Any] = getattr(import_module(f"gradscope.render.{module}"), function)
    return loaded
