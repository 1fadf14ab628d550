"""Claims: how many hold, what was measured beside what chance gives, and what each verdict rests on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gradscope.render.terminal.answer import SCREEN_ROWS, Blocks, answer
from gradscope.render.terminal.layout import draw_table, losses
from gradscope.render.views.view import Column, Word
from gradscope.render.words.escape import cell, plain
from gradscope.render.words.numbers import Footnotes, Style, format_number
from gradscope.render.words.tones import STYLES, Tone
from gradscope.results.verdicts import NOT_SHOWN, ClaimRow, ClaimsReport
from gradscope.say import as_ranges, with_interval

_TONES: Mapping[str, Tone] = {"supported": "fine", "contradicted": "problem", "cannot_tell": "unknown"}


def claims_table(report: ClaimsReport, show: Sequence[str] = ()) -> Group:
    """How many claims hold, those that the run decides at a glance, the others by name; ``show`` adds the reasons."""
    plural = "s" if len(report.steps) > 1 else ""
    steps = f"gradients of step{plural} {as_ranges(report.steps)}" if report.steps else "no gradient was recomputed"
    return answer(
        "claims",
        report.findings,
        _answer(report.claims),
        facts=[*losses([report.source]), steps],
        findings=report.findings[1:],
        views={"reasons": lambda notes: map(_paragraph, _by_sentence(report.claims))},
        show=show,
    )


def _answer(rows: Sequence[ClaimRow]) -> Blocks:
    """The claims that this run supports or contradicts, the names of those it does not show, a count of the rest."""
    decided = [row for row in rows if row.verdict != "cannot_tell"]
    told = [row for row in decided if row.words != NOT_SHOWN]
    if told:
        yield _verdicts(told[:SCREEN_ROWS])
    if len(told) > SCREEN_ROWS:
        yield cell(f"{len(told) - SCREEN_ROWS} more are decided: --show reasons.")
    not_shown = [row.name for row in decided if row.words == NOT_SHOWN]
    if not_shown:
        yield cell(f"not shown by our measure: {', '.join(not_shown)}")
    if len(decided) < len(rows):
        yield Text.assemble(("cannot tell: ", STYLES["unknown"]), f"{len(rows) - len(decided)} (--show reasons)")


def _verdicts(rows: Sequence[ClaimRow]) -> Table:
    columns = (
        Column("claim", "name", limit=28),
        Column("measured", _measured),
        Column("by chance", lambda row: row.null.value, _style),
        Column("verdict", lambda row: Word(row.words, _TONES[row.verdict])),
    )
    return draw_table(columns, rows, Footnotes())


def _measured(row: ClaimRow) -> str | None:
    if row.estimate.value is None:
        return None
    return with_interval(row.estimate, lambda value: format_number(value, _style(row)))


def _style(row: ClaimRow) -> Style:
    """Ranks around 1 to 100 have two decimals, shares and differences of shares three."""
    shown = (row.estimate.value, row.null.value, *(row.estimate.interval or ()))
    return "rank" if any(value is not None and abs(value) > 1 for value in shown) else "share"


def _by_sentence(rows: Sequence[ClaimRow]) -> list[list[ClaimRow]]:
    """Rows of one sentence together."""
    found: dict[str, list[ClaimRow]] = {}
    for row in rows:
        found.setdefault(f"{row.source} {row.claim}", []).append(row)
    return list(found.values())


def _paragraph(rows: Sequence[ClaimRow]) -> Group:
    lines: list[RenderableType] = [cell(rows[0].claim, style="bold"), cell(rows[0].source)]
    for row in rows:
        text = Text.assemble((row.words, STYLES[_TONES[row.verdict]]), f"  {plain(row.metric)}. {plain(row.why)}")
        lines.append(Padding(text, (0, 0, 0, 2)))
    unsettled = dict.fromkeys(row.settle for row in rows if row.verdict == "cannot_tell")
    lines += [Padding(cell(f"Would settle it: {settle}"), (0, 0, 0, 2)) for settle in unsettled]
    return Group(*lines)
