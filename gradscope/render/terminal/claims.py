"""Claims as a table: what was measured beside what chance gives, the verdict, and below it what each rests on."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gradscope.render.terminal.layout import Column, add_row, document, heading, new_table, source_line
from gradscope.render.words.escape import cell, plain
from gradscope.render.words.numbers import UNDEFINED, Footnotes, format_number
from gradscope.results.claims import ClaimRow, ClaimsReport
from gradscope.say import with_interval

_STYLES = {"supported": "green", "contradicted": "red", "cannot_tell": "yellow"}


def claims_table(report: ClaimsReport) -> Group:
    """The verdicts at a glance, then a paragraph a claim."""
    steps = f"gradients of steps {', '.join(map(str, report.steps))}" if report.steps else "no gradient was recomputed"
    head = heading("Claims", source_line(report.source), steps)
    blocks: list[RenderableType] = [_verdicts(report.claims), *map(_paragraph, _by_sentence(report.claims))]
    return document(head, blocks, Footnotes(), report.findings)


def _verdicts(rows: Sequence[ClaimRow]) -> Table:
    columns: list[Column] = [("claim", "left"), ("measured", "left"), ("beside", "right"), ("verdict", "left")]
    table = new_table(columns)
    for row in rows:
        null = UNDEFINED if row.null.value is None else format_number(row.null.value, "rank")
        verdict = Text(row.verdict.replace("_", " "), style=_STYLES[row.verdict])
        add_row(table, cell(row.name, limit=28), _measured(row), null, verdict)
    return table


def _measured(row: ClaimRow) -> str:
    if row.estimate.value is None:
        return UNDEFINED
    return with_interval(row.estimate, lambda value: format_number(value, "rank"))


def _by_sentence(rows: Sequence[ClaimRow]) -> list[list[ClaimRow]]:
    """Rows of one sentence together."""
    found: dict[str, list[ClaimRow]] = {}
    for row in rows:
        found.setdefault(f"{row.source} {row.claim}", []).append(row)
    return list(found.values())


def _paragraph(rows: Sequence[ClaimRow]) -> Group:
    lines: list[RenderableType] = [cell(rows[0].claim, style="bold"), cell(rows[0].source, style="dim")]
    for row in rows:
        text = Text()
        text.append(row.verdict.replace("_", " "), style=_STYLES[row.verdict])
        text.append(f"  {plain(row.metric)}. {plain(row.why)}")
        lines.append(Padding(text, (0, 0, 0, 2)))
    unsettled = dict.fromkeys(row.settle for row in rows if row.verdict == "cannot_tell")
    lines += [Padding(cell(f"Would settle it: {settle}", style="dim"), (0, 0, 0, 2)) for settle in unsettled]
    return Group(*lines)
