"""A comparison: the decisions of the tests, the effect of a change, and further tables of cells and tests."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from gradscope.estimate import Estimate
from gradscope.render.terminal.answer import Answer, Blocks
from gradscope.render.terminal.layout import draw_table, losses
from gradscope.render.views.view import Column, Word, entry
from gradscope.render.words import Footnotes, cell, metric_title, no_interval, pair_label, plain
from gradscope.results.compare import ComparedPair, Comparison
from gradscope.say import counted

_AT_ONCE = 2  # metrics that fit 80 columns
_MAX_PAIRS = 6
_METRIC, _LABEL = 16, 29  # characters of a name, as many as leave room for the numbers in 80 columns
_OVER_PROMPTS = "Difference of the two runs, the second minus the first [95 % interval]"
_OVER_SEEDS = "Mean difference over seeds [95 % interval]"
_ORDER = ("decides", "suggests", "differ", "open")


def compare_table(comparison: Comparison, show: Sequence[str] = ()) -> Group:
    """The decisions of the tests, the most telling differences, and open questions; ``show`` adds tables."""
    cells = counted(len(comparison.cells), "cell") + ", by the seeds in the runs' names" * comparison.has_seeds_in_names
    tested = [f"{cells}, {comparison.num_tests} tests"] if comparison.num_tests else []
    return Answer(
        command="compare",
        headline=comparison.findings or ("Nothing could be compared.",),
        table=_answer(comparison),
        facts=[*losses([comparison.source]), *tested],
        findings=comparison.findings[1:],
        views={
            "cells": lambda notes: _cells(comparison, notes) if comparison.pairs else (),
            "pairs": lambda notes: [_pairs(comparison, name, notes) for name in comparison.metrics if comparison.pairs],
        },
    ).screen(show)


def _cells(comparison: Comparison, notes: Footnotes) -> Blocks:
    """Means by cell, a few metrics at once."""
    head = (
        Column("cell", lambda cell: Word("\n  ".join(plain(part, limit=26) for part in cell.name.split(", ")))),
        Column("seeds", lambda cell: str(len(cell.seeds)), "count"),
    )
    means = [
        Column(metric_title(name), entry("metrics", name), "share", lambda cell: no_interval(len(cell.seeds), "runs"))
        for name in comparison.metrics
    ]
    for start in range(0, len(means), _AT_ONCE):
        yield draw_table([*head, *means[start : start + _AT_ONCE]], comparison.cells, notes)


def _answer(comparison: Comparison) -> Blocks:
    """The differences, those that the tests decide first; means where there is nothing to compare in pairs."""
    notes = Footnotes()
    if not comparison.pairs:
        yield from _cells(comparison, notes)
    else:
        few = not _has_several(comparison)
        pairs = sorted(
            comparison.pairs,
            key=lambda pair: (
                _ORDER.index(pair.verdict),
                1.0 if pair.p_value is None else pair.p_value,
                -pair.within_runs.effect_over_interval if pair.within_runs and pair.within_runs.interval else 0.0,
            ),
        )
        unknown = [pair for pair in pairs if few and pair.within_runs is None and pair.difference.value is None]
        pairs = [pair for pair in pairs if pair not in unknown]
        is_paired = any(pair.within_runs for pair in pairs)
        if few:
            yield Text(pair_label(comparison.pairs[0], comparison))
        if pairs:
            yield cell(_OVER_PROMPTS if is_paired else _OVER_SEEDS)
            yield _differences(pairs[:_MAX_PAIRS], comparison, notes)
        if len(pairs) > _MAX_PAIRS:
            yield cell(f"{len(pairs) - _MAX_PAIRS} more differences: --show pairs.")
        for reason in dict.fromkeys(pair.undefined for pair in unknown):
            names = ", ".join(pair.metric for pair in unknown if pair.undefined == reason)
            yield cell(f"Not compared: {names} ({reason}).")
    yield from map(cell, notes.lines())


def _differences(pairs: Sequence[ComparedPair], comparison: Comparison, notes: Footnotes) -> Table:
    has_several = _has_several(comparison)

    def label(pair: ComparedPair) -> Word:
        lines = pair_label(pair, comparison).split("\n")
        return Word("\n".join(line if len(line) <= _LABEL else f"{line[: _LABEL - 1]}…" for line in lines))

    def reason_of(pair: ComparedPair) -> str:
        if not pair.within_runs:
            return pair.undefined or ""
        return "too few steps or prompts" if pair.within_runs.value else "the two agree in it"

    columns = (
        Column("metric", "metric", limit=_METRIC if has_several else _LABEL),
        *([Column("pair", label)] if has_several else []),
        Column("difference", lambda pair: pair.within_runs or pair.difference, "gap", interval_note=reason_of),
        Column("verdict", lambda pair: Word(pair.verdict, "fine" if pair.verdict in ("decides", "differ") else "")),
    )
    return draw_table(columns, pairs, notes)


def _has_several(comparison: Comparison) -> bool:
    """Whether more than two cells are compared; of two, one line names the pair."""
    return len({(pair.first, pair.second) for pair in comparison.pairs}) > 1


def _pairs(comparison: Comparison, metric: str, notes: Footnotes) -> Table:
    columns = (
        Column(metric_title(metric), lambda pair: Word(pair_label(pair, comparison))),
        Column("difference", "difference", "gap", ""),
        Column("p", lambda pair: _p(pair.p_value, pair), "count"),
        Column("p,\nHolm", lambda pair: _p(pair.p_holm, pair), "count"),
        Column("p,\nflips", lambda pair: _p(pair.sign_flip_p_holm, pair), "count"),
    )
    of_metric = [pair for pair in comparison.pairs if pair.metric == metric]
    return draw_table(columns, of_metric, notes, is_bold=lambda pair: pair.verdict == "decides")


def _p(value: float | None, pair: ComparedPair) -> str | Estimate:
    if value is None:
        return Estimate.undefined_because(pair.undefined or "fewer than 8 pairs: sign flips cannot decide")
    return f"{value:.3f}" if value >= 0.001 else "< 0.001"
