"""stdout is data, stderr is talk; neither lets a log's text act on the terminal. Of several processes one prints.

Progress is on stderr, a bar on a terminal and a line now and then elsewhere; the commands to paste next are below the
answer.
"""

from __future__ import annotations

import re
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise

import typer
from rich.console import Console, RenderableType
from rich.text import Text

from gradscope.machine import num_processes, process_index, speaks
from gradscope.progress import ProgressCallback, no_progress
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
"""Text that may hold a command, which stays on one line: a terminal wraps it, and copies it as one."""
_WORD = re.compile(r"(?:`[^`]*`|'[^']*'|\S)+")


def say(line: str) -> None:
    """Talk to the person: one escaped line on stderr, its first word colored; a terminal breaks it between words.

    Where stderr cannot be written, on a full disk, the line is lost and the answer is not.
    """
    if not speaks():
        return
    text = Text(plain(line))
    for prefix, style in _PREFIXES.items():
        if line.startswith(prefix):
            text.stylize(style, 0, len(prefix))
    console = _console(sys.stderr)
    if console.is_terminal and line.startswith(_PASTED):
        text = _broken(text, console.width)
    with suppress(OSError):
        console.print(text, soft_wrap=not console.is_terminal or line.startswith(_PASTED))


def _broken(text: Text, width: int) -> Text:
    """Lines broken between words, and never within quotes, whose content is to be pasted."""
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
    parts: list[str] = []
    for before, word in pairwise(["", *words]):
        if before.startswith("-") and not word.startswith("-"):
            parts[-1] += f" {shlex.quote(word)}"
        else:
            parts.append(shlex.quote(word))
    for part in parts:
        if len(lines[-1]) + len(part) + 3 > console.width and lines[-1].strip():
            lines[-1] += " \\"
            lines.append("   ")
        lines[-1] += f" {part}"
    for line in lines:
        show_line(line, style="bold")


def show(renderable: RenderableType) -> None:
    """Print a result on stdout; in a pipe without color and without the blanks that pad a terminal's lines."""
    console = _console(sys.stdout)
    with naming("stdout"):
        if not console.is_terminal:
            write_data(rendered(renderable))
        elif process_index() == 0:
            console.print(renderable)


def rendered(renderable: RenderableType) -> str:
    """The output of :func:`show` as text, for another printer."""
    console = _console(sys.stdout)
    with console.capture() as printed:
        console.print(renderable)
    text = printed.get()
    return text if console.is_terminal else "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def write_data(text: str) -> None:
    """Write a document on stdout unchanged, its final newline included."""
    if process_index() == 0:
        with naming("stdout"):
            sys.stdout.write(text)


def _console(stream: object) -> Console:
    return Console(file=stream, markup=False, emoji=False, highlight=False)  # type: ignore[arg-type]


_SWITCHES = frozenset({"--json", "--force", "--follow", "--update-baseline"})
_WITH_VALUE = frozenset({"--output", "-o", "--show", "--every", "--idle"})
"""Options that the next command has no use for: it prints, once, and it does not replace files."""


def typed_again(typed: Sequence[str]) -> list[str]:
    """The arguments typed behind a command that decide what is computed: no files, no JSON, no tables."""
    arguments: list[str] = []
    words = iter(typed)
    for word in words:
        name, has_value, _ = word.partition("=")
        if name in _WITH_VALUE:
            if not has_value:
                next(words, None)
        elif word not in _SWITCHES and not (word.startswith("-o") and not word.startswith("--")):
            arguments.append(word)
    return arguments


def of_same_run(context: typer.Context, command: str) -> list[str]:
    """Another command on the same run, with those of the options typed that it has too."""
    other = context.find_root().command.commands[command]  # type: ignore[attr-defined]
    shared = {word for param in other.params for word in param.opts}
    has_value = {word: not getattr(param, "is_flag", True) for param in context.command.params for word in param.opts}
    shared_words: list[str] = []
    words = iter(typed_again(context.meta["typed"]))
    for word in words:
        name, equals, _ = word.partition("=")
        words_of_option = [word, *([next(words, "")] if has_value.get(name) and not equals else [])]
        if not word.startswith("-") or name in shared:
            shared_words += words_of_option
    return [command, *shared_words]


def show_next(*commands: Sequence[str], blank_line: bool = True) -> None:
    """Print commands to paste, the words behind ``gradscope`` each; of several processes none, they have a launcher."""
    if num_processes() == 1:
        if blank_line:
            show_line("")
        for words in commands:
            show_command(["gradscope", *words])


LINE_EVERY = 30.0  # seconds between two lines in a file of logs: a run of an hour fills no more than two pages
FIRST_AFTER = 5.0
"""Seconds until the first line that can estimate the remaining time, so that a user knows whether to wait."""
_BAR = 20


@contextmanager
def progress_bar(*, quiet: bool) -> Iterator[ProgressCallback]:
    """A bar for work that reports how far it is; on a stderr that is no terminal a line from time to time."""
    if quiet:
        yield no_progress
        return
    if not sys.stderr.isatty():
        yield _lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Column

    console = Console(file=sys.stderr, markup=False, emoji=False)
    label_room = Column(ratio=1, no_wrap=True, overflow="ellipsis")
    columns = (
        TimeRemainingColumn(),
        BarColumn(bar_width=_BAR),
        MofNCompleteColumn(),
        TextColumn("{task.description}", markup=False, table_column=label_room),
    )
    with Progress(*columns, console=console, transient=True, expand=True) as bar:
        task = bar.add_task("starting", total=None)

        def report(done: float, total: int, label: str) -> None:
            bar.update(task, completed=done, total=total, description=label)

        yield report


def _lines() -> ProgressCallback:
    last_line = begun = time.monotonic()
    last_total, first, wait, began_moving = 0, 0.0, FIRST_AFTER, False

    def report(done: float, total: int, label: str) -> None:
        nonlocal last_line, begun, last_total, first, wait, began_moving
        now = time.monotonic()
        if total != last_total or done < first:  # another piece of work
            begun, last_total, first, began_moving = now, total, done, False
        left = (total - done) * (now - begun) / (done - first) if first < done < total else None
        starts = left is not None and not began_moving
        due = LINE_EVERY if left is None or starts else wait
        if starts:  # its pace is that of loading a model
            left = left if done - first >= 1 else None  # and a part of a step may be next to nothing
            begun, first, began_moving = now, done, True
        if now - last_line < due:
            return
        minutes = round((left or 0.0) / 60)
        duration = f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
        duration = f"{left:.0f} s" if left is not None and left < 90 else duration
        estimate = "" if left is None or left < 1 else f"about {duration} left: "
        with suppress(OSError):  # as in `say`
            sys.stderr.write(f"{estimate}{int(done)} of {total} {label}\n")
            sys.stderr.flush()
        last_line, wait = now, LINE_EVERY

    return report
