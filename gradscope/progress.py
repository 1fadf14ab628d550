"""Progress and messages of long work; the command line shows them on stderr, other callers may ignore them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

ProgressCallback = Callable[[float, int, str], None]
"""Called with (done, total, label) whenever work moved on; a part of a unit counts as that part."""


_NEARLY = 0.99  # a unit is done when it says so, and not when a first part of it is


def no_progress(done: float, total: int, label: str) -> None:
    """Ignore progress."""


def part(progress: ProgressCallback, done: int, total: int, label: str) -> ProgressCallback:
    """A callback for the work within one unit, so that the total advances during the unit.

    Args:
        done: Units before this one.
        label: Name of the units, and of this one.

    Returns:
        A callback for the parts of the unit. The total never goes back, even where the unit is begun again.

    >>> part(lambda *report: print(*report), 1, 3, "steps, now step 4")(16, 64, "rollouts")
    1.25 3 steps, now step 4: 16 of 64 rollouts
    """
    furthest = 0.0

    def report(inner: float, num_units: int, unit: str) -> None:
        nonlocal furthest
        furthest = max(furthest, min(_NEARLY, inner / num_units if num_units else 0.0))
        progress(done + furthest, total, f"{label}: {inner:.0f} of {num_units} {unit}")

    return report


NoticeCallback = Callable[[str], None]  # called with a sentence for the user during the work


def no_notice(sentence: str) -> None:
    """Ignore messages."""


Progress = ProgressCallback | bool
"""The argument of public functions: a callback, True for a line on stderr, False for silence."""

_REWRITE_EVERY = 0.2  # seconds between two looks of a line that is written over; an eye follows no more
_LINE_EVERY = 30.0  # seconds between two lines in a file, which keeps them all


def reporter(progress: Progress) -> ProgressCallback:
    """The callback that work reports to.

    Args:
        progress: A callback is returned. True: a line on stderr, written over in a terminal and in a notebook and
            gone when the work is done; where stderr goes into a file, a line every 30 seconds. False: silence.

    >>> reporter(False) is no_progress and reporter(print) is print
    True
    """
    if not isinstance(progress, bool):
        return progress
    return _line_on_stderr() if progress else no_progress


def _line_on_stderr() -> ProgressCallback:
    live = sys.stderr.isatty() or type(sys.stderr).__module__.startswith("ipykernel")
    begun = last_line = time.monotonic()
    width = 0

    def report(done: float, total: int, label: str) -> None:
        nonlocal last_line, width
        now, finished = time.monotonic(), done >= total
        if live and finished:
            sys.stderr.write(f"\r{' ' * width}\r")
            width, last_line = 0, now
        elif now - last_line >= (_REWRITE_EVERY if live else _LINE_EVERY):
            text = f"{done:.0f} of {total} {label}, {now - begun:.0f} s"
            sys.stderr.write(f"\r{text:<{width}}" if live else f"{text}\n")
            width, last_line = len(text), now
        sys.stderr.flush()

    return report
