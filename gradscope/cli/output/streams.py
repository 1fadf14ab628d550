"""stdout is data, stderr is talk; neither lets a log's text act on the terminal."""

from __future__ import annotations

import sys

from rich.console import Console, RenderableType
from rich.text import Text

from gradscope.render.words.escape import plain

_PREFIXES = {"error:": "bold red", "hint:": "bold cyan", "warning:": "bold yellow", "note:": "bold"}


def say(line: str) -> None:
    """Talks to the person: one escaped line on stderr.

    Args:
        line: The line; a leading ``error:``, ``hint:``, ``warning:`` or ``note:`` is colored on a terminal.
    """
    text = Text(plain(line))
    for prefix, style in _PREFIXES.items():
        if line.startswith(prefix):
            text.stylize(style, 0, len(prefix))
    _console(sys.stderr).print(text, soft_wrap=True)


def show_line(line: str, *, style: str = "") -> None:
    """Prints a command or a path on stdout, in one line whatever its length: it is there to be copied.

    Args:
        line: The line.
        style: A rich style for a terminal.
    """
    _console(sys.stdout).print(Text(plain(line), style=style), soft_wrap=True)


def show(renderable: RenderableType) -> None:
    """Prints a result on stdout; in a pipe without color and without the blanks that pad a terminal's lines.

    Args:
        renderable: What rich prints, already free of markup.
    """
    console = _console(sys.stdout)
    if console.is_terminal:
        console.print(renderable)
        return
    with console.capture() as printed:
        console.print(renderable)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in printed.get().splitlines()))


def write_data(text: str) -> None:
    """Writes a document on stdout as it stands.

    Args:
        text: The document, with its final newline.
    """
    sys.stdout.write(text)


def _console(stream: object) -> Console:
    return Console(file=stream, markup=False, emoji=False, highlight=False)  # type: ignore[arg-type]
