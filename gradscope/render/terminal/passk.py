"""pass@k as a table: one file by k, or two files side by side. Letters: n samples of a prompt, k the budget."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gradscope.render.terminal.layout import add_row, document, formulas, heading, new_table, rows_set_aside
from gradscope.render.words.escape import plain
from gradscope.render.words.numbers import Footnotes, format_estimate, format_number
from gradscope.results.passk import PassAtKComparison, PassAtKDifference, PassAtKReport, PassAtKTable


def pass_at_k_table(report: PassAtKReport) -> Group:
    """A table per file, the paired comparisons, then what it means."""
    notes = Footnotes()
    facts = [_facts(table) for table in report.tables]
    blocks: list[RenderableType] = []
    for table in report.tables:
        blocks.append(_one(table, notes, named=len(report.tables) > 1))
        if table.forecasts:
            blocks.append(_beyond(table, notes))
    comparisons = [report.comparison] if report.comparison is not None else []
    for comparison in (*comparisons, *report.further_comparisons):
        blocks += [_paired(comparison, notes), Text(_solved(comparison))]
    compared = ("compression_factor",) if comparisons else ()
    blocks.append(formulas("pass_at_k", "pass_hat_k", *compared))
    return document(heading("pass@k", *facts), blocks, notes, report.findings)


def _facts(table: PassAtKTable) -> str:
    fewest, most = table.num_samples
    samples = str(fewest) if fewest == most else f"{fewest} to {most}"
    facts = f"{table.name}: {table.num_prompts:,} prompts, {samples} samples each ({table.source.recognized})"
    return f"{facts}{rows_set_aside(table.source)}"


def _one(table: PassAtKTable, notes: Footnotes, *, named: bool) -> Table:
    name = f"pass@k of {plain(table.name, limit=24)}" if named else "pass@k [95 % interval]"
    rendered = new_table([("k", "right"), (name, "left"), ("pass^k (all k correct)", "left")])
    for row in table.rows:
        add_row(
            rendered,
            str(row.k),
            format_estimate(row.pass_at_k, notes, "share"),
            format_estimate(row.pass_hat_k, notes, "share"),
        )
    return rendered


def _beyond(table: PassAtKTable, notes: Footnotes) -> Table:
    name = f"forecast pass@k of {plain(table.name, limit=24)}"
    rendered = new_table([("k", "right"), (name, "left"), ("forecast pass^k", "left")])
    for row in table.forecasts:
        shares = (row.pass_at_k, row.pass_hat_k)
        add_row(rendered, str(row.k), *(format_estimate(share, notes, "share") for share in shares))
    return rendered


def _paired(comparison: PassAtKComparison, notes: Footnotes) -> Table:
    first, second = plain(comparison.first, limit=14), plain(comparison.second, limit=14)
    rendered = new_table(
        [
            ("k", "right"),
            (f"{second} - {first}", "left"),
            ("ahead", "right"),
            ("behind", "right"),
            ("ties", "right"),
            ("m", "left"),
        ]
    )
    for row in comparison.rows:
        add_row(
            rendered,
            str(row.k),
            format_estimate(row.difference, notes, "gap"),
            str(row.second_wins),
            str(row.first_wins),
            str(row.ties),
            _compression(row, notes),
        )
    return rendered


def _compression(row: PassAtKDifference, notes: Footnotes) -> str:
    if row.compression_at_least is not None:
        return f"> {format_number(row.compression_at_least, 'rank')}"
    return format_estimate(row.compression_factor, notes, "rank")


def _solved(comparison: PassAtKComparison) -> str:
    solved = comparison.solved
    first, second = plain(comparison.first), plain(comparison.second)
    unpaired = f" In one file only: {comparison.num_unpaired}." if comparison.num_unpaired else ""
    return (
        f"Prompts with a correct sample, of {comparison.num_prompts} paired: both {solved.both}, only {first} "
        f"{solved.first_only}, only {second} {solved.second_only}, neither {solved.neither}.{unpaired}"
    )
