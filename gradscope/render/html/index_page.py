"""A folder of runs on one page: the same curves of every run, small, on common scales, and one table of numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gradscope.render.html.chart import widened
from gradscope.render.html.page import render_document
from gradscope.render.views.view import Column, tabulate
from gradscope.results.report import Chart, ReportTable, RunIndex, RunSummary, Series

_CURVES = {
    "reward_by_step": "mean reward",
    "degenerate_by_step": "groups without a gradient",
    "grad_norm_by_step": "gradient norm, as logged",
}


def render_index(index: RunIndex) -> str:
    """The page of a folder of runs, a complete HTML document."""
    scales = {name: _scale(index.runs, name) for name in _CURVES}
    cards = [(run, _charts(run, scales)) for run in index.runs]
    return render_document("index.html", title=index.name, index=index, table=_table(index.runs), cards=cards)


def _scale(runs: Sequence[RunSummary], name: str) -> tuple[float, float]:
    if name == "degenerate_by_step":
        return (0.0, 1.0)
    values = [value for run in runs for value in getattr(run, name) if value is not None and math.isfinite(value)]
    return widened(values or [0.0, 1.0])


def _charts(run: RunSummary, scales: dict[str, tuple[float, float]]) -> dict[str, Chart]:
    """The curves of a run by their names, without those that its log lacks."""
    return {
        name: Chart(
            title=title,
            kind="lines",
            places=run.steps,
            series=(Series(name=title, values=getattr(run, name)),),
            y_range=scales[name],
        )
        for name, title in _CURVES.items()
        if any(value is not None for value in getattr(run, name))
    }


def _table(runs: Sequence[RunSummary]) -> ReportTable:
    return tabulate(
        "Change of the reward: along the least-squares line from the first to the last step. "
        "No gradient: share of groups with equal rewards",
        (
            Column("run", "name"),
            Column("steps", lambda run: len(run.steps), "count"),
            Column("rollouts", "num_rollouts", "count"),
            Column("mean reward", "reward", "norm"),
            Column("its change", "reward_change", "gap"),
            Column("no gradient", "frac_reward_zero_std", "share"),
        ),
        runs,
    )
