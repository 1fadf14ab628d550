"""How long work reports how far it is and what happened; the command line shows it on stderr, others may ignore it."""

from __future__ import annotations

from collections.abc import Callable

ProgressCallback = Callable[[int, int, str], None]
"""Called with (done, total, label) whenever a unit of work is finished."""


def no_progress(done: int, total: int, label: str) -> None:
    """Report to nobody."""


NoticeCallback = Callable[[str], None]
"""Called with a sentence that a person should read while the work goes on."""


def no_notice(sentence: str) -> None:
    """Tell nobody."""
