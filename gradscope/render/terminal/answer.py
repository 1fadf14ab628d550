"""The one shape of every answer: the verdict, a table, three findings, and the names of what ``--show`` adds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal, TypeVar

from rich.console import Group, RenderableType
from rich.text import Text

from gradscope.render.terminal.layout import bullet
from gradscope.render.terminal.names import ALL, TABLES, VERDICT
from gradscope.render.words.escape import cell
from gradscope.render.words.numbers import Footnotes

Blocks = Iterator[RenderableType]
Views = Mapping[str, Callable[[Footnotes], Iterable[RenderableType]]]
"""Name -> its tables; none where the result has nothing of it."""
Tone = Literal["fine", "look", "problem", "unknown", ""]

Item = TypeVar("Item")

MOST_ROWS = 12
"""Of an answer's table; of more, as many are shown and one line counts the rest."""
MOST_FINDINGS = 3
"""Beside the verdict; more than three are not read."""
STYLES: Mapping[Tone, str] = {"fine": "green", "look": "yellow", "problem": "red", "unknown": "cyan", "": ""}
"""The colors of a verdict, the same for every command; its words say the same without color."""


def answer(
    command: str,
    headline: Sequence[str],
    table: Iterable[RenderableType],
    *,
    facts: Sequence[str] = (),
    findings: Sequence[str] = (),
    views: Views,
    show: Sequence[str] = (),
    tone: Tone = "",
) -> Group:
    """A result as it is printed.

    Args:
        command: Whose answer it is; its names of tables decide the order.
        headline: The verdict of one or two sentences, then the findings to show, of which the first three are.
        table: What stands below the verdict, at most 15 lines.
        facts: Where the numbers came from, a line each.
        findings: All of them, for ``--show findings``.
        views: The further tables.
        show: Names of those to print, ``all`` of them, or the ``verdict`` alone.
        tone: What the verdict's color says.

    Returns:
        The verdict, facts, table and findings, what was asked for, and one line that names what was not.
    """
    verdict, *said = headline
    first = cell(verdict, style=f"bold {STYLES[tone]}".strip())
    if VERDICT in show:
        return Group(first)
    names = TABLES.get(command, ())
    chosen = [name for name in names if name in show or ALL in show]
    parts: list[RenderableType] = [first, Text(), *(cell(fact, style="dim") for fact in facts), Text(), *table]
    said = list(findings) if "findings" in chosen else said[:MOST_FINDINGS]
    if said:
        parts += [Text(), *map(bullet, said)]
    has = {name: any(True for _ in view(Footnotes())) for name, view in views.items()}
    has["findings"] = len(findings) > len(said)
    parts += _further({name: views[name] for name in chosen if name in views and (has[name] or ALL not in show)})
    left = [name for name in names if name not in chosen and has.get(name)]
    if left:
        parts += [Text(), cell(f"--show adds {', '.join(left)}; or {ALL}.", style="dim")]
    return Group(*parts)


def evenly(items: Sequence[Item]) -> Sequence[Item]:
    """At most MOST_ROWS of them, evenly spaced, the first and the last among these."""
    if len(items) <= MOST_ROWS:
        return items
    return [items[round(place * (len(items) - 1) / (MOST_ROWS - 1))] for place in range(MOST_ROWS)]


def _further(views: Views) -> Blocks:
    """The tables that were asked for, with one list of footnotes."""
    notes = Footnotes()
    for name, view in views.items():
        blocks = list(view(notes)) or [cell(f"There is no table of {name} in this result.", style="dim")]
        for block in blocks:
            yield from (Text(), block)
    yield from footnotes(notes)


def footnotes(notes: Footnotes) -> Blocks:
    """The footnotes of the tables above, behind an empty line; nothing where there are none."""
    if notes.lines():
        yield from (Text(), *(cell(line, style="dim") for line in notes.lines()))
