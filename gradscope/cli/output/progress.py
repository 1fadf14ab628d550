"""The progress bar: on stderr, and only where someone watches."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from gradscope.progress import ProgressCallback, no_progress


@contextmanager
def progress_bar(*, quiet: bool) -> Iterator[ProgressCallback]:
    """A bar for work that reports how far it is; on a stderr that is no terminal it reports to nobody."""
    if quiet or not sys.stderr.isatty():
        yield no_progress
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
