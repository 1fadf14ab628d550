"""The one shape of every answer: the verdict, a table, findings that fit a screen, and tables that ``--show`` adds."""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from msgspec import Struct
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from gradscope.render.terminal.layout import UNBOUND, bullet
from gradscope.render.terminal.names import ALL, TABLES, VERDICT
from gradscope.render.words import QUIET, STYLES, Footnotes, Tone, cell

Blocks = Iterator[RenderableType]
Views = Mapping[str, Callable[[Footnotes], Iterable[RenderableType]]]
"""Name -> its tables; none where the result has nothing of it."""
MAX_FINDINGS = 3  # besides the verdict; more than three are not read
SCREEN_ROWS = 8  # of an answer's table: more do not fit a screen with their verdict
_WIDTH, _LINES = 80, 19
"""Of an answer for which no table is asked: a terminal of 24 lines less what was read (two), the next command and the
lines around it."""
_OFFER = "--show adds"


class Answer(Struct, frozen=True, kw_only=True):
    """What a command has to say about a result."""

    command: str
    headline: Sequence[RenderableType]
    """The verdict of one or two sentences, then the findings, of which at most three are shown, and none that goes
    beyond a screen where no table is asked for."""
    facts: Sequence[str] = ()  # the subject of the table, a line each
    table: Iterable[RenderableType]
    findings: Sequence[str] = ()  # all of them, for ``--show findings``
    views: Views
    offered: Collection[str] | None = None  # further tables with rows, where that is known without drawing them
    absent: Mapping[str, str] = {}
    """Name of a further table -> why the result has nothing for it, where that is known."""
    tone: Tone = ""

    def screen(self, show: Sequence[str]) -> Group:
        """The verdict, facts, table and findings, the tables that were asked for, and a line that names the others."""
        verdict, *headline_findings = self.headline
        first = cell(str(verdict), style=f"bold {STYLES[self.tone]}".strip())
        if VERDICT in show:
            return Group(first)
        names, views = TABLES.get(self.command, ()), self.views
        chosen = [name for name in names if name in show or ALL in show]
        parts: list[RenderableType] = [first, Text(), *(cell(fact, style=QUIET) for fact in self.facts), *self.table]
        notes = Footnotes()
        shown = {name: list(views[name](notes)) for name in chosen if name in views}
        unchosen = [name for name in names if name not in chosen]
        unseen, offered = Footnotes(is_shown=False), self.offered
        if offered is None:
            offered = [name for name in unchosen if name in views and any(True for _ in views[name](unseen))]
        left = [name for name in unchosen if name in ("findings", *offered)]
        sentences = self.findings if "findings" in chosen else headline_findings[:MAX_FINDINGS]
        items: list[RenderableType] = [
            bullet(sentence) if isinstance(sentence, str) else sentence for sentence in sentences
        ]
        if not chosen:
            room = _LINES - _height([*parts, Text(), Text(), *_further_tables(left)])
            ends = accumulate(_height([item]) for item in items)
            items = [item for item, end in zip(items, ends, strict=True) if end <= room]
        if "findings" in left and "findings" not in offered and len(self.findings) <= len(items):
            left.remove("findings")
        if items:
            parts += [Text(), *items]
        for name in chosen:
            if name in shown and (shown[name] or ALL not in show):
                why = f": {self.absent[name]}" if name in self.absent else ""
                missing = cell(f"There is no table of {name} in this result{why}.")
                parts += (part for block in shown[name] or [missing] for part in (Text(), block))
        parts += [Text(), *map(cell, lines)] if (lines := notes.lines()) else []
        if left:
            parts += [Text(), *_further_tables(left)]
        return Group(*parts)


def _further_tables(names: Sequence[str]) -> list[Text]:
    return [cell(f"{_OFFER} {', '.join(names)}; or {ALL}.", style=QUIET)] if names else []


def _height(parts: Sequence[RenderableType]) -> int:
    """Lines at 80 columns, a row of a table in one, whatever the actual width: an answer is the same everywhere."""
    console = Console(file=io.StringIO(), width=_WIDTH, markup=False, emoji=False, highlight=False)
    unbound = console.options.update(width=UNBOUND)
    return sum(len(console.render_lines(part, unbound if isinstance(part, Table) else None)) for part in parts)


def offers_more(printed: Group) -> bool:
    """Whether an answer ends in the line that names further tables."""
    last = printed.renderables[-1]
    return isinstance(last, Text) and last.plain.startswith(_OFFER)
