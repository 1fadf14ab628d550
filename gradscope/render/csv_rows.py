"""The records of each result's CSV tables, where they are not simply one of its sequences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gradscope.results.compare import Comparison
from gradscope.results.degeneracy import DegeneracyReport
from gradscope.results.envelope import to_jsonable
from gradscope.results.passk import PassAtKReport
from gradscope.results.report import RunIndex, RunReport

Tables = Mapping[str, Iterable[Any]]
"""Table -> its records."""


def attributes(*names: str) -> Callable[[Any], Tables]:
    """Tables that are sequences of the result itself, under their own names."""
    return lambda result: {name: getattr(result, name) for name in names}


def comparison_rows(comparison: Comparison) -> Tables:
    """Cells, pairs, and a row for each point of a learning curve."""
    points = [
        {"cell": curve.cell, "metric": curve.metric, "step": step, "mean": mean, "low": low, "high": high}
        for curve in comparison.curves
        for step, mean, low, high in zip(curve.steps, curve.mean, curve.low, curve.high, strict=True)
    ]
    return {"cells": comparison.cells, "pairs": comparison.pairs, "curves": points}


def degeneracy_rows(report: DegeneracyReport) -> Tables:
    """The report's sequences, the histogram of pass rates and the plans of a target among them."""
    names = (
        *("by_step", "by_group_size", "by_policy", "by_environment", "predictions"),
        *("advantages", "by_reward", "by_prompt"),
    )
    plans = () if report.target is None else report.target.plans
    return {**attributes(*names)(report), "histogram": report.pass_rates.histogram, "plans": plans}


def pass_at_k_rows(report: PassAtKReport) -> Tables:
    """Rows beside their file's name, differences beside the names of their pair, and what each evaluation is of."""
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


def section_rows(report: RunReport) -> Tables:
    """Each question with its severity and its one sentence; tables and charts of a section are in the JSON."""
    rows = [
        {"name": one.name, "severity": one.severity, "question": one.question, "finding": one.headline}
        for one in report.sections
    ]
    return {"sections": rows}


def run_rows(index: RunIndex) -> Tables:
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
