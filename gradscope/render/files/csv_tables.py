"""Results as tidy tables: one CSV per table, one row per thing measured, one column per number.

An estimate becomes five columns (``x``, ``x_low``, ``x_high``, ``x_num_units``, ``x_undefined``), a mapping one column
per key (``logged.grad_norm``). Sequences that are no table of their own, such as singular values, are left to the
arrays file.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from gradscope.render.files.document import Report, command_of
from gradscope.results.check import CheckReport
from gradscope.results.compare import Comparison
from gradscope.results.degeneracy import DegeneracyReport
from gradscope.results.envelope import to_jsonable
from gradscope.results.passk import PassAtKComparison, PassAtKReport
from gradscope.results.rank import RankReport
from gradscope.results.replay import ReplayReport
from gradscope.results.report import ReportSection, RunIndex, RunReport, RunSummary

Row = dict[str, Any]

_RANK_TABLES = (
    "curve",
    "token_curve",
    "spectra",
    "steps",
    "formulations",
    "shares",
    "baselines",
    "comparisons",
    "sparsity",
    "updates",
    "gradient_updates",
)
_ESTIMATE_KEYS = {"value", "low", "high", "num_units", "undefined"}


def tidy_tables(result: Report) -> dict[str, list[Row]]:
    """The tables of a result.

    Args:
        result: What a command found.

    Returns:
        File stem -> rows. Empty tables are left out.
    """
    command = command_of(result)
    tables = {f"{command}_{name}": [_flat(row) for row in rows] for name, rows in _tables(result).items()}
    return {name: rows for name, rows in tables.items() if rows}


def render_csv(rows: Sequence[Row]) -> str:
    """Rows as CSV text.

    Args:
        rows: From :func:`tidy_tables`; they may differ in columns.

    Returns:
        A header and one line per row; an absent or null value is an empty cell.
    """
    columns = list(dict.fromkeys(column for row in rows for column in row))
    stream = io.StringIO(newline="")
    writer = csv.DictWriter(stream, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


def _tables(result: Report) -> dict[str, list[Any]]:
    if isinstance(result, DegeneracyReport):
        return _degeneracy(result)
    if isinstance(result, Comparison):
        return {"cells": list(result.cells), "pairs": list(result.pairs), "curves": _points(result)}
    if isinstance(result, PassAtKReport):
        return _pass_at_k(result)
    if isinstance(result, RankReport):
        return {name: list(getattr(result, name)) for name in _RANK_TABLES}
    if isinstance(result, ReplayReport):
        return {"steps": list(result.steps)}
    if isinstance(result, RunReport):
        return {"sections": [_section(section) for section in result.sections]}
    if isinstance(result, RunIndex):
        return {"runs": [_run(run) for run in result.runs]}
    return _verdicts(result)


def _run(run: RunSummary) -> Row:
    """The numbers of a run; its curves are in the JSON."""
    estimates = {name: getattr(run, name) for name in ("frac_reward_zero_std", "reward", "reward_change")}
    return {"name": run.name, "num_steps": len(run.steps), "num_rollouts": run.num_rollouts, **estimates}


def _section(section: ReportSection) -> Row:
    return {"name": section.name, "question": section.question, "finding": section.headline}


def _points(result: Comparison) -> list[Row]:
    return [
        {"cell": curve.cell, "metric": curve.metric, "step": step, "mean": mean, "low": low, "high": high}
        for curve in result.curves
        for step, mean, low, high in zip(curve.steps, curve.mean, curve.low, curve.high, strict=True)
    ]


def _degeneracy(result: DegeneracyReport) -> dict[str, list[Any]]:
    return {
        "by_step": list(result.by_step),
        "by_group_size": list(result.by_group_size),
        "by_policy": list(result.by_policy),
        "predictions": list(result.predictions),
        "advantages": list(result.advantages),
        "by_reward": list(result.by_reward),
        "histogram": list(result.pass_rates.histogram),
        "plans": [] if result.target is None else list(result.target.plans),
    }


def _verdicts(result: CheckReport) -> dict[str, list[Any]]:
    return {"verdicts": list(result.verdicts)}


def _pass_at_k(result: PassAtKReport) -> dict[str, list[Any]]:
    rows = [{"name": table.name, **to_jsonable(row)} for table in result.tables for row in table.rows]
    comparisons = ([result.comparison] if result.comparison else []) + list(result.further_comparisons)
    return {"tables": rows, "differences": [row for comparison in comparisons for row in _differences(comparison)]}


def _differences(comparison: PassAtKComparison) -> list[Row]:
    names = {"first": comparison.first, "second": comparison.second}
    return [{**names, **to_jsonable(row)} for row in comparison.rows]


def _flat(record: Any) -> Row:
    flat: Row = {}
    for name, value in to_jsonable(record).items():
        flat |= _columns(name, value)
    return flat


def _columns(name: str, value: Any) -> Row:
    if isinstance(value, Mapping):
        if set(value) == _ESTIMATE_KEYS:
            return {name if key == "value" else f"{name}_{key}": value[key] for key in value}
        return {column: item for key in value for column, item in _columns(f"{name}.{key}", value[key]).items()}
    if name == "shape":
        return {"num_rows": value[0], "num_columns": value[1]}
    if isinstance(value, list):
        return {}
    return {name: value}
