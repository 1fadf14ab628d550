"""A check: the outcome, a line a requirement, what the first failures mean, and every requirement in full."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Group
from rich.padding import Padding
from rich.text import Text

from gradscope.render.terminal.answer import SCREEN_ROWS, Blocks, answer
from gradscope.render.terminal.layout import add_row, losses, new_table
from gradscope.render.words.escape import cell, plain
from gradscope.render.words.labels import condition
from gradscope.render.words.numbers import UNDEFINED, format_number
from gradscope.render.words.tones import STYLES, Tone
from gradscope.results.verdicts import CheckReport, Verdict
from gradscope.say import with_interval

_TONES: Mapping[str, Tone] = {"pass": "fine", "fail": "problem", "unknown": "unknown"}
_ORDER = ("fail", "unknown", "pass")


def check_table(report: CheckReport, show: Sequence[str] = ()) -> Group:
    """The outcome of all, then a line a requirement, those that need a look first where there are many.

    Args:
        report: What was checked.
        show: Further tables, of :data:`~gradscope.render.terminal.names.TABLES`, ``all``, or ``verdict``.

    Returns:
        What rich prints.
    """
    open_ones = [verdict for verdict in _by_outcome(report) if verdict.outcome != "pass" and not verdict.allowed]
    return answer(
        "check",
        (
            _headline(report),
            *report.findings,
            *(f"{verdict.metric}: {_why(verdict)}" for verdict in open_ones),
        ),
        _answer(report),
        facts=losses([report.source]),
        views={"requirements": lambda notes: map(_paragraph, report.verdicts)},
        show=show,
        tone=_TONES[report.outcome],
    )


def _headline(report: CheckReport) -> str:
    """The outcome with its counts."""
    counts = {name: sum(verdict.outcome == name for verdict in report.verdicts) for name in _ORDER}
    words = {"fail": "failed", "unknown": "undecided", "pass": "held"}
    parts = [f"{number} {words[name]}" for name, number in counts.items() if number]
    number = len(report.verdicts)
    return f"Check: {report.outcome}. Of {number} requirement{'s' * (number != 1)}: {', '.join(parts)}."


def _by_outcome(report: CheckReport) -> list[Verdict]:
    return sorted(report.verdicts, key=lambda verdict: _ORDER.index(verdict.outcome))


def _answer(report: CheckReport) -> Blocks:
    table = new_table([("", "left"), ("requirement", "left"), ("is", "left")])
    few = len(report.verdicts) <= SCREEN_ROWS
    shown = report.verdicts if few else _by_outcome(report)[:SCREEN_ROWS]
    for verdict in shown:
        add_row(table, _outcome(verdict), cell(condition(verdict), limit=44), _value(verdict))
    yield table
    if not few:
        yield cell(f"{len(report.verdicts) - len(shown)} more requirements: --show requirements.")


def _why(verdict: Verdict) -> str:
    """What the table does not say of a failure: why there is no number, or what to try."""
    return verdict.estimate.undefined or verdict.next_step or verdict.meaning


def _outcome(verdict: Verdict) -> Text:
    word = Text(verdict.outcome.upper(), style=STYLES[_TONES[verdict.outcome]])
    return word.append(" (allowed)", style="default") if verdict.allowed else word


def _paragraph(verdict: Verdict) -> Group:
    head = _outcome(verdict).append(f"  {plain(condition(verdict))}, is {_value(verdict)}", style="default")
    sentences = [sentence for sentence in (verdict.meaning, verdict.next_step) if sentence]
    return Group(head, *(Padding(cell(sentence), (0, 0, 0, 2)) for sentence in sentences))


def _value(verdict: Verdict) -> str:
    """The number; why there is none is said in the meaning below."""
    estimate = verdict.estimate
    if estimate.value is None:
        return UNDEFINED
    return with_interval(estimate, lambda number: format_number(number, "norm"))
