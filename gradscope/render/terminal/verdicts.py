"""Verdicts: a check, a line a requirement, and the claims of papers, each with its measurement."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from gradscope.render.terminal.answer import SCREEN_ROWS, Answer, Blocks
from gradscope.render.terminal.layout import add_row, draw_table, losses, new_table
from gradscope.render.views.view import Column, Word
from gradscope.render.words import STYLES, UNDEFINED, Footnotes, Style, Tone, cell, condition, format_number, plain
from gradscope.results.verdicts import CheckReport, ClaimRow, ClaimsReport, Verdict
from gradscope.say import counted, named_steps, with_interval

_TONES: Mapping[str, Tone] = {"pass": "fine", "fail": "problem", "unknown": "unknown"}
_ORDER = ("fail", "unknown", "pass")


def check_table(report: CheckReport, show: Sequence[str] = ()) -> Group:
    """The outcome of all, then a line a requirement, those that need a look first; ``show`` adds tables."""
    by_outcome = sorted(report.verdicts, key=lambda verdict: _ORDER.index(verdict.outcome))
    open_ones = [verdict for verdict in by_outcome if verdict.outcome != "pass" and not verdict.allowed]
    # without the command that looks closer, which is below the answer
    advice = [row.advice if row.command else row.next_step for row in open_ones]
    return Answer(
        command="check",
        headline=(
            _headline(report),
            *report.findings,
            *(
                f"{row.metric}: {row.estimate.undefined or words or row.meaning}"
                for row, words in zip(open_ones, advice, strict=True)
            ),
        ),
        table=_answer(report.verdicts if len(by_outcome) <= SCREEN_ROWS else by_outcome),
        facts=losses([report.source]),
        views={"requirements": lambda notes: map(_paragraph, report.verdicts)},
        tone=_TONES[report.outcome],
    ).screen(show)


def _headline(report: CheckReport) -> str:
    """The outcome with its counts."""
    counts = {name: sum(verdict.outcome == name for verdict in report.verdicts) for name in _ORDER}
    words = {"fail": "failed", "unknown": "undecided", "pass": "held"}
    parts = [f"{number} {words[name]}" for name, number in counts.items() if number]
    number = len(report.verdicts)
    if not number:
        return f"Check: {report.outcome}. Nothing was required."
    near = sum(verdict.outcome == "pass" and verdict.is_within_chance for verdict in report.verdicts)
    by_luck = f" ({near} within chance of its limit)" if near else ""
    return f"Check: {report.outcome}. Of {counted(number, 'requirement')}: {', '.join(parts)}{by_luck}."


def _answer(verdicts: Sequence[Verdict]) -> Blocks:
    table = new_table([("", "left"), ("requirement", "left"), ("is", "left"), ("of", "left")])
    for verdict in verdicts[:SCREEN_ROWS]:
        required, value = condition(verdict), _value(verdict)
        if verdict.change is not None and verdict.change.change.is_defined:  # which is judged
            required, value = f"change of {verdict.metric}", with_interval(verdict.change.change, "+.3g")
        add_row(table, _outcome(verdict), required, value, verdict.of)
    if verdicts:
        yield table
    if len(verdicts) > SCREEN_ROWS:
        yield cell(f"{len(verdicts) - SCREEN_ROWS} more requirements: --show requirements.")


def _outcome(verdict: Verdict) -> Text:
    word = Text(verdict.outcome.upper(), style=STYLES[_TONES[verdict.outcome]])
    return word.append(" (allowed)", style="default") if verdict.allowed else word


def _paragraph(verdict: Verdict) -> Group:
    head = _outcome(verdict).append(f"  {plain(condition(verdict))}, is {_value(verdict)}", style="default")
    sentences = [sentence for sentence in (verdict.meaning, verdict.next_step) if sentence]
    return Group(head, *(Padding(cell(sentence), (0, 0, 0, 2)) for sentence in sentences))


def _value(verdict: Verdict) -> str:
    """The number; the reason why there is none is in the meaning below."""
    estimate = verdict.estimate
    if estimate.value is None:
        return UNDEFINED
    return with_interval(estimate, lambda number: format_number(number, "norm"))


_CLAIM_WIDTH, _MEASURED_WIDTH = 44, 23  # with the value by chance, 80 columns
_EXPLAINS = re.compile(r"[:;]|, and ")
_CLAIM_TONES: Mapping[str, Tone] = {"supported": "fine", "contradicted": "problem", "cannot_tell": "unknown"}


def claims_table(report: ClaimsReport, show: Sequence[str] = ()) -> Group:
    """How many claims hold, those that the run decides at a glance, the others by name; ``show`` adds the reasons."""
    steps = f"gradients of {named_steps(report.steps)}" if report.steps else "no gradient was recomputed"
    by_sentence: dict[str, list[ClaimRow]] = {}
    for row in report.claims:
        by_sentence.setdefault(f"{row.source} {row.claim}", []).append(row)
    return Answer(
        command="claims",
        headline=report.findings,
        table=_claims_answer(report.claims),
        facts=[*losses([report.source]), steps],
        findings=report.findings[1:],
        views={"reasons": lambda notes: map(_claim_paragraph, by_sentence.values())},
    ).screen(show)


def _claims_answer(rows: Sequence[ClaimRow]) -> Blocks:
    """The claims that this run supports or contradicts, as many as a screen bears, a table a verdict."""
    decided = [row for words in ("contradicted", "supported") for row in rows if row.words == words]
    for words, shown in groupby(decided[:SCREEN_ROWS], attrgetter("words")):
        claims = list(shown)
        columns = (
            Column(words.ljust(_CLAIM_WIDTH), partial(_in_short, rows=claims)),
            Column("measured".ljust(_MEASURED_WIDTH), _measured),
            Column("against", "null.value", _style),
        )
        yield draw_table(columns, claims, Footnotes())
    if len(decided) > SCREEN_ROWS:
        yield cell(f"{len(decided) - SCREEN_ROWS} more are decided: --show reasons.")


def _in_short(row: ClaimRow, rows: Sequence[ClaimRow]) -> Word:
    """The claim without its explanation, with the part that distinguishes it from the others of its sentence."""
    sentence = _EXPLAINS.split(row.claim)[0].removesuffix(".")
    if sum(other.claim == row.claim for other in rows) > 1:
        sentence += f" ({row.name.rpartition('.')[2].replace('_', ' ')})"
    return Word("\n  ".join(textwrap.wrap(plain(sentence), _CLAIM_WIDTH - 2)))


def _measured(row: ClaimRow) -> str | None:
    if row.estimate.value is None:
        return None
    return with_interval(row.estimate, lambda value: format_number(value, _style(row)))


def _style(row: ClaimRow) -> Style:
    """Ranks around 1 to 100 have two decimals, shares and differences of shares three."""
    shown = (row.estimate.value, row.null.value, *(row.estimate.interval or ()))
    return "rank" if any(value is not None and abs(value) > 1 for value in shown) else "share"


def _claim_paragraph(rows: Sequence[ClaimRow]) -> Group:
    lines: list[RenderableType] = [cell(rows[0].claim, style="bold"), cell(rows[0].source)]
    for row in rows:
        measured, null = _measured(row), row.null.value
        against = "" if null is None else f" against {format_number(null, _style(row))}"
        number = "" if measured is None else f"{measured}{against}: "
        words = f"  {number}{plain(row.metric)}. {plain(row.why)}"
        text = Text.assemble((row.words, STYLES[_CLAIM_TONES[row.verdict]]), words)
        lines.append(Padding(text, (0, 0, 0, 2)))
    unsettled = dict.fromkeys(row.settle for row in rows if row.verdict == "cannot_tell")
    lines += [Padding(cell(f"Would settle it: {settle}"), (0, 0, 0, 2)) for settle in unsettled]
    return Group(*lines)
