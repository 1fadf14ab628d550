"""A folder of runs on one page: the same curves of every run, small, on common scales, and one table of numbers."""

from __future__ import annotations

from collections.abc import Sequence

from gradscope.render.html.chart import render_chart
from gradscope.render.html.escape import text
from gradscope.render.html.page import document
from gradscope.render.html.scale import widened
from gradscope.render.html.table import render_table
from gradscope.results.report import Chart, Column, ReportTable, RunIndex, RunSummary, Series

_CURVES = (
    ("reward_by_step", "mean reward"),
    ("degenerate_by_step", "groups without a gradient"),
    ("grad_norm_by_step", "gradient norm, as logged"),
)


def render_index(index: RunIndex) -> str:
    """The page of a folder of runs.

    Args:
        index: The runs.

    Returns:
        A complete HTML document.
    """
    first, *others = index.findings
    more = "".join(f"<li>{text(finding)}</li>" for finding in others)
    left_out = "".join(f"<li>not read: {text(name)}: {text(reason)}</li>" for name, reason in index.left_out)
    facts = f"<li>{text(index.source.path)}: {text(index.source.recognized)}</li>{left_out}"
    scales = {name: _scale(index.runs, name) for name, _ in _CURVES}
    cards = "".join(_card(run, number, scales) for number, run in enumerate(index.runs, start=1))
    body = (
        f'<header><h1>{text(index.name)}</h1><ul class="facts">{facts}</ul>'
        f'<p class="finding">{text(first)}</p><ul class="more">{more}</ul></header>'
        f'<main><section id="table"><h2>Numbers</h2>{render_table(_table(index.runs), "runs-table")}</section>'
        '<section id="runs"><h2>Curves</h2><p class="caption">Each kind of curve has one vertical scale on all runs. '
        f'A run\'s own page: its command.</p><div class="runs">{cards}</div></section></main>'
    )
    return document(f"{index.name}: gradscope report", body)


def _scale(runs: Sequence[RunSummary], name: str) -> tuple[float, float]:
    if name == "degenerate_by_step":
        return (0.0, 1.0)
    return widened([value for run in runs for value in getattr(run, name) if value is not None] or [0.0, 1.0])


def _card(run: RunSummary, number: int, scales: dict[str, tuple[float, float]]) -> str:
    charts = "".join(
        render_chart(
            Chart(
                title=title,
                kind="lines",
                places=run.steps,
                series=(Series(name=title, values=getattr(run, name)),),
                y_range=scales[name],
            ),
            f"run-{number}-{name}",
        )
        for name, title in _CURVES
        if any(value is not None for value in getattr(run, name))
    )
    return f'<article id="run-{number}"><h3>{text(run.name)}</h3>{charts}<code>{text(run.command)}</code></article>'


def _table(runs: Sequence[RunSummary]) -> ReportTable:
    return ReportTable(
        caption="Change of the reward: along the least-squares line from the first to the last step. "
        "No gradient: share of groups with equal rewards",
        columns=(
            Column(title="run"),
            Column(title="steps", style="count"),
            Column(title="rollouts", style="count"),
            Column(title="mean reward", style="norm"),
            Column(title="its change", style="gap"),
            Column(title="no gradient", style="share"),
        ),
        rows=tuple(
            (run.name, len(run.steps), run.num_rollouts, run.reward, run.reward_change, run.frac_reward_zero_std)
            for run in runs
        ),
    )
