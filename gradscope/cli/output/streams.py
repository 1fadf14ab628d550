"""stdout is data, stderr is talk; neither lets a log's text act on the terminal. Of several processes one prints."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from itertools import pairwise

from rich.console import Console, RenderableType
from rich.text import Text

from gradscope.machine.processes import process_index, speaks
from gradscope.render.words import QUIET, STYLES, plain
from gradscope.writing import naming

_PREFIXES = {
    "error:": f"bold {STYLES['problem']}",
    "hint:": f"bold {STYLES['unknown']}",
    "warning:": f"bold {STYLES['look']}",
    "note:": QUIET,
    "read ": QUIET,
    "wrote ": QUIET,
}
_PASTED = ("error:", "hint:")
"""What may hold a command, which stays in one line: a terminal breaks it where it likes, and copies it whole."""
_WORD = re.compile(r"(?:`[^`]*`|'[^']*'|\S)+")


def say(line: str) -> None:
    """Talk to the person: one escaped line on stderr, its first word colored; a terminal breaks it between words."""
    if not speaks():
        return
    text = Text(plain(line))
    for prefix, style in _PREFIXES.items():
        if line.startswith(prefix):
            text.stylize(style, 0, len(prefix))
    console = _console(sys.stderr)
    if console.is_terminal and line.startswith(_PASTED):
        text = _broken(text, console.width)
    console.print(text, soft_wrap=not console.is_terminal or line.startswith(_PASTED))


def _broken(text: Text, width: int) -> Text:
    """Lines broken between words, and never within what is quoted, which is there to be pasted."""
    starts = [0]
    for word in _WORD.finditer(text.plain):
        if word.end() - starts[-1] > width and word.start() > starts[-1]:
            starts.append(word.start())
    lines = text.divide(starts[1:])
    for line in lines:
        line.rstrip()
    return Text("\n").join(lines)


def pause() -> None:
    """An empty line between talk and answer where one terminal shows both."""
    if sys.stdout.isatty() and sys.stderr.isatty():
        say("")


def show_line(line: str, *, style: str = "") -> None:
    """Print a line on stdout, whatever its length: a path, say, which is there to be copied."""
    if process_index() == 0:
        _console(sys.stdout).print(Text(plain(line), style=style), soft_wrap=True)


def show_command(words: Sequence[str]) -> None:
    """Print a command to paste, behind ``$``: in one line, or in lines that fit the terminal and a shell joins."""
    console = _console(sys.stdout)
    if not console.is_terminal:
        show_line(f"$ {shlex.join(words)}", style="bold")
        return
    lines = ["$"]
    for part in _parts(words):
        if len(lines[-1]) + len(part) + 3 > console.width and lines[-1].strip():
            lines[-1] += " \\"
            lines.append("   ")
        lines[-1] += f" {part}"
    for line in lines:
        show_line(line, style="bold")


def _parts(words: Sequence[str]) -> list[str]:
    """What stays together: an option and its value."""
    parts: list[str] = []
    for before, word in pairwise(["", *words]):
        if before.startswith("-") and not word.startswith("-"):
            parts[-1] += f" {shlex.quote(word)}"
        else:
            parts.append(shlex.quote(word))
    return parts


def show(renderable: RenderableType) -> None:
    """Print a result on stdout; in a pipe without color and without the blanks that pad a terminal's lines."""
    console = _console(sys.stdout)
    with naming("stdout"):
        if not console.is_terminal:
            write_data(rendered(renderable))
        elif process_index() == 0:
            console.print(renderable)


def rendered(renderable: RenderableType) -> str:
    """What :func:`show` would print, for who prints it."""
    console = _console(sys.stdout)
    with console.capture() as printed:
        console.print(renderable)
    text = printed.get()
    return text if console.is_terminal else "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def write_data(text: str) -> None:
    """Write a document on stdout as it stands, its final newline included."""
    if process_index() == 0:
        with naming("stdout"):
            sys.stdout.write(text)


def _console(stream: object) -> Console:
    return Console(file=stream, markup=False, emoji=False, highlight=False)  # type: ignore[arg-type]
