"""A comparison as tables: what each cell did, and for each metric what changing one thing did."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gradscope.render.terminal.layout import add_row, document, formulas, heading, new_table, source_line
from gradscope.render.words.compare_labels import metric_title, pair_label
from gradscope.render.words.escape import plain
from gradscope.render.words.numbers import Footnotes, format_estimate
from gradscope.results.compare import ComparedPair, Comparison

_AT_ONCE = 2
"""Metrics beside each other in 80 columns."""


def compare_table(comparison: Comparison) -> Group:
    """Means by cell, paired differences by metric, then what they say."""
    notes = Footnotes()
    blocks: list[RenderableType] = [
        _means(comparison, comparison.metrics[start : start + _AT_ONCE], notes)
        for start in range(0, len(comparison.metrics), _AT_ONCE)
    ]
    if comparison.pairs:
        blocks += [_pairs(comparison, metric, notes) for metric in comparison.metrics]
    own = [name for name in comparison.metrics if "@" not in name]
    budgets = ["pass_at_k"] if len(own) < len(comparison.metrics) else []
    tests = ("paired_difference", "p_holm", "sign_flip_p_holm") if comparison.pairs else ()
    blocks.append(formulas(*budgets, *own, *tests))
    cells = "1 cell" if len(comparison.cells) == 1 else f"{len(comparison.cells)} cells"
    facts = f"{cells}, {comparison.num_tests} tests; means over seeds [95 % interval]"
    return document(heading("Runs compared", source_line(comparison.source), facts), blocks, notes, comparison.findings)


def _means(comparison: Comparison, metrics: tuple[str, ...], notes: Footnotes) -> Table:
    table = new_table([("cell", "left"), ("seeds", "right"), *((metric_title(name), "left") for name in metrics)])
    for cell in comparison.cells:
        numbers = (format_estimate(cell.metrics[name], notes, "share") for name in metrics)
        name = "\n  ".join(plain(part, limit=26) for part in cell.name.split(", "))
        add_row(table, Text(name), str(len(cell.seeds)), *numbers)
    return table


def _pairs(comparison: Comparison, metric: str, notes: Footnotes) -> Table:
    table = new_table(
        [
            (metric_title(metric), "left"),
            ("difference", "left"),
            *((title, "right") for title in ("p", "Holm", "flips")),
        ]
    )
    for pair in comparison.pairs:
        if pair.metric == metric:
            add_row(
                table,
                Text(pair_label(pair, comparison)),
                format_estimate(pair.difference, notes, "gap"),
                _p(pair.p_value, pair, notes),
                _p(pair.p_holm, pair, notes),
                _p(pair.sign_flip_p_holm, pair, notes),
                style="bold" if pair.verdict == "decides" else None,
            )
    return table


def _p(value: float | None, pair: ComparedPair, notes: Footnotes) -> str:
    if value is None:
        return notes.mark(pair.undefined or "fewer than 8 pairs: sign flips cannot decide")
    return f"{value:.3f}" if value >= 0.001 else f"{value:.0e}"
