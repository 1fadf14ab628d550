"""A comparison: what the tests decide, what changing one thing did, and further tables of cells and tests."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from gradscope.render.terminal.answer import Blocks, answer
from gradscope.render.terminal.layout import Column, add_row, new_table, source_line
from gradscope.render.words.compare_labels import metric_title, pair_label
from gradscope.render.words.escape import cell, plain
from gradscope.render.words.numbers import Footnotes, format_estimate, why_alone
from gradscope.render.words.tones import STYLES
from gradscope.results.compare import ComparedCell, ComparedPair, Comparison

_AT_ONCE = 2
"""Metrics beside each other in 80 columns."""
_MOST_PAIRS = 6
_METRIC, _LABEL = 16, 29
"""Characters of a name, as many as leave room for the numbers in 80 columns."""
_OVER_PROMPTS = "Difference of the two runs [95 % interval over their prompts]"
_OVER_SEEDS = "Mean difference over seeds [95 % interval]"
_ORDER = ("decides", "suggests", "open")


def compare_table(comparison: Comparison, show: Sequence[str] = ()) -> Group:
    """What the tests decide, the differences that say most, and what stays open.

    Args:
        comparison: What was compared.
        show: Further tables, of :data:`~gradscope.render.terminal.names.TABLES`, ``all``, or ``verdict``.

    Returns:
        What rich prints.
    """
    cells = "1 cell" if len(comparison.cells) == 1 else f"{len(comparison.cells)} cells"
    tested = [f"{cells}, {comparison.num_tests} tests"] if comparison.num_tests else []
    return answer(
        "compare",
        comparison.findings or ("Nothing could be compared.",),
        _answer(comparison),
        facts=[source_line(comparison.source), *tested],
        findings=comparison.findings[1:],
        views={
            "cells": lambda notes: _cells(comparison, notes) if comparison.pairs else (),
            "pairs": lambda notes: [_pairs(comparison, name, notes) for name in comparison.metrics if comparison.pairs],
        },
        show=show,
    )


def _cells(comparison: Comparison, notes: Footnotes) -> Blocks:
    """Means by cell, a few metrics at once."""
    for start in range(0, len(comparison.metrics), _AT_ONCE):
        yield _means(comparison, comparison.metrics[start : start + _AT_ONCE], notes)


def _answer(comparison: Comparison) -> Blocks:
    """The differences, those that the tests decide first; means where there is nothing to compare in pairs."""
    notes = Footnotes()
    if not comparison.pairs:
        yield from _cells(comparison, notes)
    else:
        pairs = sorted(comparison.pairs, key=_weight)
        within = any(pair.within_runs for pair in pairs)
        if not _has_several(comparison):
            yield Text(pair_label(pairs[0], comparison))
        yield cell(_OVER_PROMPTS if within else _OVER_SEEDS)
        yield _differences(pairs[:_MOST_PAIRS], comparison, notes)
        if len(pairs) > _MOST_PAIRS:
            yield cell(f"{len(pairs) - _MOST_PAIRS} more differences: --show pairs.")
    yield from map(cell, notes.lines())


def _weight(pair: ComparedPair) -> tuple[int, float]:
    return _ORDER.index(pair.verdict), 1.0 if pair.p_value is None else pair.p_value


def _differences(pairs: Sequence[ComparedPair], comparison: Comparison, notes: Footnotes) -> Table:
    several = _has_several(comparison)
    label_column: list[Column] = [("pair", "left")] if several else []
    table = new_table([("metric", "left"), *label_column, ("difference", "left"), ("verdict", "left")])
    for pair in pairs:
        shown = pair.within_runs or pair.difference
        difference = format_estimate(shown, notes, "gap")
        if shown.interval is None and pair.undefined:
            difference += notes.number(pair.undefined)
        verdict = Text(pair.verdict, style=STYLES["fine"] if pair.verdict == "decides" else "")
        labels = [_label(pair, comparison)] if several else []
        add_row(table, cell(pair.metric, limit=_METRIC if several else _LABEL), *labels, difference, verdict)
    return table


def _has_several(comparison: Comparison) -> bool:
    """Whether more than two cells are compared; of two, one line names the pair."""
    return len({(pair.first, pair.second) for pair in comparison.pairs}) > 1


def _label(pair: ComparedPair, comparison: Comparison) -> Text:
    lines = Text(pair_label(pair, comparison)).split("\n")
    for line in lines:
        line.truncate(_LABEL, overflow="ellipsis")
    return Text("\n").join(lines)


def _means(comparison: Comparison, metrics: tuple[str, ...], notes: Footnotes) -> Table:
    table = new_table([("cell", "left"), ("seeds", "right"), *((metric_title(name), "left") for name in metrics)])
    for one in comparison.cells:
        numbers = (_mean(one, name, notes) for name in metrics)
        name = "\n  ".join(plain(part, limit=26) for part in one.name.split(", "))
        add_row(table, Text(name), str(len(one.seeds)), *numbers)
    return table


def _mean(one: ComparedCell, metric: str, notes: Footnotes) -> str:
    """A cell's mean; without an interval with the reason."""
    return format_estimate(one.metrics[metric], notes, "share", alone=why_alone(len(one.seeds), "runs"))


def _pairs(comparison: Comparison, metric: str, notes: Footnotes) -> Table:
    table = new_table(
        [
            (metric_title(metric), "left"),
            ("difference", "left"),
            *((title, "right") for title in ("p", "p,\nHolm", "p,\nflips")),
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
    return f"{value:.3f}" if value >= 0.001 else "< 0.001"
