"""The one shape of every answer: the verdict, a table, three findings, and the names of what ``--show`` adds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from rich.console import Group, RenderableType
from rich.text import Text

from gradscope.render.terminal.layout import bullet
from gradscope.render.terminal.names import ALL, TABLES, VERDICT
from gradscope.render.words.escape import cell
from gradscope.render.words.numbers import Footnotes
from gradscope.render.words.tones import QUIET, STYLES, Tone

Blocks = Iterator[RenderableType]
Views = Mapping[str, Callable[[Footnotes], Iterable[RenderableType]]]
"""Name -> its tables; none where the result has nothing of it."""
MOST_FINDINGS = 3
"""Beside the verdict; more than three are not read."""


def answer(
    command: str,
    headline: Sequence[str],
    table: Iterable[RenderableType],
    *,
    facts: Sequence[str] = (),
    findings: Sequence[str] = (),
    views: Views,
    show: Sequence[str] = (),
    absent: Mapping[str, str] = MappingProxyType({}),
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
        absent: Name of a further table -> why the result has nothing for it, where that is known.
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
    parts: list[RenderableType] = [first, Text(), *(cell(fact, style=QUIET) for fact in facts), Text(), *table]
    said = list(findings) if "findings" in chosen else said[:MOST_FINDINGS]
    if said:
        parts += [Text(), *map(bullet, said)]
    notes = Footnotes()
    shown = {name: list(views[name](notes if name in chosen else Footnotes())) for name in names if name in views}
    for name in chosen:
        if name in shown and (shown[name] or ALL not in show):
            why = f": {absent[name]}" if name in absent else ""
            missing = cell(f"There is no table of {name} in this result{why}.")
            parts += (part for block in shown[name] or [missing] for part in (Text(), block))
    parts += footnotes(notes)
    more = {**shown, "findings": len(findings) > len(said)}
    left = [name for name in names if name not in chosen and more.get(name)]
    if left:
        parts += [Text(), cell(f"--show adds {', '.join(left)}; or {ALL}.", style=QUIET)]
    return Group(*parts)


def footnotes(notes: Footnotes) -> Blocks:
    """The footnotes of the tables above, behind an empty line; nothing where there are none."""
    if notes.lines():
        yield from (Text(), *map(cell, notes.lines()))
