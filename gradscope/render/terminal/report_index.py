"""A folder of runs in the terminal: a line a run, its rewards as a sparkline."""

from __future__ import annotations

from rich.console import Group

from gradscope.render.terminal.layout import add_row, document, formulas, heading, new_table, source_line
from gradscope.render.terminal.sparkline import sparkline
from gradscope.render.words.escape import plain
from gradscope.render.words.numbers import Footnotes, format_estimate
from gradscope.results.report import RunIndex

_WIDTH = 12


def report_index_table(index: RunIndex) -> Group:
    """A line a run, then what the numbers say."""
    notes = Footnotes()
    values = [value for run in index.runs for value in run.reward_by_step if value is not None]
    low, high = min(values, default=0.0), max(values, default=1.0)
    table = new_table([("run", "left"), ("reward", "left"), ("mean", "right"), ("no gradient", "left")])
    for run in index.runs:
        add_row(
            table,
            plain(run.name, limit=30),
            sparkline(run.reward_by_step, low=low, high=high, width=_WIDTH),
            format_estimate(run.reward, notes, "norm"),
            format_estimate(run.frac_reward_zero_std, notes, "share"),
        )
    left_out = [f"not read: {name}: {reason}" for name, reason in index.left_out]
    head = heading(f"Report: {plain(index.name)}", source_line(index.source), *left_out)
    return document(head, [table, formulas("frac_reward_zero_std")], notes, index.findings)
