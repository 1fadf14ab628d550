"""How long work reports how far it is and what happened; the command line shows it on stderr, others may ignore it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

ProgressCallback = Callable[[float, int, str], None]
"""Called with (done, total, label) whenever work moved on; a part of a unit counts as that part."""


_NEARLY = 0.99  # a unit is done when it says so, and not when a first part of it is


def no_progress(done: float, total: int, label: str) -> None:
    """Report to nobody."""


def part(progress: ProgressCallback, done: int, total: int, label: str) -> ProgressCallback:
    """What the work within one unit reports to, so that the whole moves while the unit lasts.

    Args:
        done: Units before this one.
        label: What the units are, and which one this is.

    Returns:
        A callback for the parts of the unit. The whole never goes back, even where the unit is begun again.

    >>> part(lambda *told: print(*told), 1, 3, "steps, now step 4")(16, 64, "rollouts")
    1.25 3 steps, now step 4: 16 of 64 rollouts
    """
    furthest = 0.0

    def report(inner: float, of: int, what: str) -> None:
        nonlocal furthest
        furthest = max(furthest, min(_NEARLY, inner / of if of else 0.0))
        progress(done + furthest, total, f"{label}: {inner:.0f} of {of} {what}")

    return report


NoticeCallback = Callable[[str], None]  # called with a sentence that a person should read while the work goes on


def no_notice(sentence: str) -> None:
    """Tell nobody."""


Progress = ProgressCallback | bool
"""What public functions take: a callback, True for a line on stderr, False for silence."""

_REWRITE_EVERY = 0.2  # seconds between two looks of a line that is written over; an eye follows no more
_LINE_EVERY = 30.0  # seconds between two lines in a file, which keeps them all


def reporter(progress: Progress) -> ProgressCallback:
    """The callback that work reports to.

    Args:
        progress: A callback stays what it is. True: a line on stderr, written over in a terminal and in a notebook and
            gone when the work is done; where stderr goes into a file, a line every 30 seconds. False: nobody.

    >>> reporter(False) is no_progress and reporter(print) is print
    True
    """
    if not isinstance(progress, bool):
        return progress
    return _line_on_stderr() if progress else no_progress


def _line_on_stderr() -> ProgressCallback:
    live = sys.stderr.isatty() or type(sys.stderr).__module__.startswith("ipykernel")
    begun = said = time.monotonic()
    width = 0

    def report(done: float, total: int, label: str) -> None:
        nonlocal said, width
        now, finished = time.monotonic(), done >= total
        if live and finished:
            sys.stderr.write(f"\r{' ' * width}\r")
            width, said = 0, now
        elif now - said >= (_REWRITE_EVERY if live else _LINE_EVERY):
            text = f"{done:.0f} of {total} {label}, {now - begun:.0f} s"
            sys.stderr.write(f"\r{text:<{width}}" if live else f"{text}\n")
            width, said = len(text), now
        sys.stderr.flush()

    return report
