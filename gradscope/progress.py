"""How long work reports how far it is and what happened; the command line shows it on stderr, others may ignore it."""

from __future__ import annotations

from collections.abc import Callable

ProgressCallback = Callable[[float, int, str], None]
"""Called with (done, total, label) whenever work moved on; a part of a unit counts as that part."""


_NEARLY = 0.99
"""A unit is done when it says so, and not when a first part of it is."""


def no_progress(done: float, total: int, label: str) -> None:
    """Report to nobody."""


def part(progress: ProgressCallback, done: int, total: int, label: str) -> ProgressCallback:
    """What the work within one unit reports to, so that the whole moves while the unit lasts.

    Args:
        progress: Told of the whole.
        done: Units before this one.
        total: Units in all.
        label: What the units are, and which one this is.

    Returns:
        A callback for the parts of the unit. The whole never goes back, even where the unit is begun again.

    Example:
        >>> part(lambda *told: print(*told), 1, 3, "steps, now step 4")(16, 64, "rollouts")
        1.25 3 steps, now step 4: 16 of 64 rollouts
    """
    furthest = 0.0

    def report(inner: float, of: int, what: str) -> None:
        nonlocal furthest
        furthest = max(furthest, min(_NEARLY, inner / of if of else 0.0))
        progress(done + furthest, total, f"{label}: {inner:.0f} of {of} {what}")

    return report


NoticeCallback = Callable[[str], None]
"""Called with a sentence that a person should read while the work goes on."""


def no_notice(sentence: str) -> None:
    """Tell nobody."""
