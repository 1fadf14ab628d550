"""How far the work is, on stderr: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from gradscope.progress import ProgressCallback, no_progress

LINE_EVERY = 30.0  # seconds between two lines in a file of logs: a run of an hour fills no more than two pages
FIRST_AFTER = 5.0
"""Seconds until the first line, where it can say what is left: who waits wants to know whether to wait."""
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
    said = begun = time.monotonic()
    of, first, wait, began_moving = 0, 0.0, FIRST_AFTER, False

    def report(done: float, total: int, label: str) -> None:
        nonlocal said, begun, of, first, wait, began_moving
        now = time.monotonic()
        if total != of or done < first:  # another piece of work
            begun, of, first, began_moving = now, total, done, False
        left = (total - done) * (now - begun) / (done - first) if first < done < total else None
        starts = left is not None and not began_moving
        due = LINE_EVERY if left is None or starts else wait
        if starts:  # its pace is that of loading a model
            begun, first, began_moving = now, done, True
        if now - said < due:
            return
        estimate = "" if left is None or left < 1 else f"about {_duration(left)} left: "
        sys.stderr.write(f"{estimate}{int(done)} of {total} {label}\n")
        sys.stderr.flush()
        said, wait = now, LINE_EVERY

    return report


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
