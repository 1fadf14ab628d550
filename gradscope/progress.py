"""How long work reports how far it is; the command line draws the bar on stderr, a library caller may ignore it."""

from __future__ import annotations

from collections.abc import Callable

ProgressCallback = Callable[[int, int, str], None]
"""Called with (done, total, label) whenever a unit of work is finished."""


def no_progress(done: int, total: int, label: str) -> None:
    """Report to nobody.

    Args:
        done: Units finished.
        total: Units in all.
        label: What a unit is.
    """
