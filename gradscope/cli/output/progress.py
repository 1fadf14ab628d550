"""How far the work is, on stderr: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from gradscope.progress import ProgressCallback, no_progress

LINE_EVERY = 30.0
"""Seconds between two lines in a file of logs: a run of an hour fills no more than two pages."""


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

    console = Console(file=sys.stderr, markup=False, emoji=False)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)

        def report(done: int, total: int, label: str) -> None:
            bar.update(task, completed=done, total=total, description=label)

        yield report


def _lines() -> ProgressCallback:
    said = begun = time.monotonic()
    of, first = 0, 0

    def report(done: int, total: int, label: str) -> None:
        nonlocal said, begun, of, first
        now = time.monotonic()
        if total != of or done < first:  # another piece of work
            begun, of, first = now, total, done
        if now - said < LINE_EVERY:
            return
        left = (total - done) * (now - begun) / (done - first) if done > first else None
        estimate = "" if left is None else f", about {_duration(left)} left"
        sys.stderr.write(f"{done} of {total} {label}{estimate}\n")
        sys.stderr.flush()
        said = now

    return report


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
