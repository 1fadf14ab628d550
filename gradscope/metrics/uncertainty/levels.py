"""Levels of a course of numbers by step: where it jumps, and where it ends on another level than it had.

Shapes: N steps of a course, W of windows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import numpy as np
from msgspec import Struct
from numpy.lib.stride_tricks import sliding_window_view

from gradscope.metrics.uncertainty.steps import StepValues, comparable

MIN_STEPS_OF_LEVELS = 20  # steps below which the last fifth is a handful
_QUARTILES = (0.25, 0.75)
_LEAST_LATE, _STRICTER = 5, 1.5  # steps of a collapse just before the end, and how much more it has to change by


class LateChange(Struct, frozen=True, kw_only=True):
    """A course whose last fifth or twentieth of steps lies on another level than its first two thirds, or a share."""

    before: float  # median of the first steps
    late: float  # median of the last steps
    before_until: int  # last of the first steps
    since: int  # the first of these
    until: int  # the last

    @property
    def side(self) -> Literal[-1, 1]:
        """Whether it ends higher or lower."""
        return 1 if self.late > self.before else -1


def late_change(
    values: Mapping[int, float], *, factor: float, share_before: float = 2 / 3, by_size: bool = False
) -> LateChange | None:
    """Where a course without negative numbers ends, if that is this many times its level before, or one over it.

    ``by_size`` takes absolute values. No test of a trend, which a course that bends or jumps at its end fails: the
    medians are facts, and the quartiles of both parts have to be apart. Of the last twentieth more is asked. None
    otherwise, and with fewer than twenty steps.

    >>> late_change({step: 1.0 if step < 30 else 5.0 for step in range(40)}, factor=3.0)
    LateChange(before=1.0, late=5.0, before_until=25, since=32, until=39)
    """
    course = StepValues.of(values)
    is_finite = np.isfinite(course.numbers)
    steps, numbers = course.steps[is_finite], course.numbers[is_finite]
    numbers = np.abs(numbers) if by_size else numbers
    if len(steps) < MIN_STEPS_OF_LEVELS or numbers.min() < 0:
        return None
    num_before = int(share_before * len(steps))
    for num_late, times in ((len(steps) // 5, factor), (max(len(steps) // 20, _LEAST_LATE), _STRICTER * factor)):
        parts = numbers[:num_before], numbers[-num_late:]
        before, late = (float(np.median(part)) for part in parts)
        low, high = sorted(parts, key=np.median)
        is_apart = np.quantile(low, _QUARTILES[1]) < np.quantile(high, _QUARTILES[0])
        if is_apart and max(before, late) >= times * min(before, late):
            return LateChange(
                before=before,
                late=late,
                before_until=int(steps[num_before - 1]),
                since=int(steps[-num_late]),
                until=int(steps[-1]),
            )
    return None


def collapse(values: Mapping[int, float]) -> LateChange | None:
    """Where a course ends at five times its level over the first twentieth of steps, or a fifth of it."""
    return late_change(values, factor=5.0, share_before=0.05)


def level_change(values: Mapping[int, float]) -> LateChange | None:
    """Where a course collapses at any time, or its level has doubled or halved late, or since the first tenth.

    A line may miss either. Negative numbers count as 0: an entropy in float32 may be -5e-7.
    """
    clipped = {step: max(value, 0.0) for step, value in values.items()}
    return collapse(clipped) or late_change(clipped, factor=2.0) or late_change(clipped, factor=2.0, share_before=0.1)


_WINDOW = 5  # steps before and after a jump that have to agree: of fewer the luck of noise is one
_SUDDEN = 0.5  # of the change, in logarithms, that lies between all steps before and all after: a ramp has less


class Jump(Struct, frozen=True, kw_only=True):
    """A course that rises within one step, by medians of five steps."""

    before: float
    after: float
    end: float  # of the last steps
    step: int  # the first on the new level


def jump(values: Mapping[int, float], *, factor: float) -> Jump | None:
    """The most sudden rise of a course without negative numbers by this factor, of at least five steps to five others.

    That one step makes half of it, in logarithms, tells it from a ramp, as of a KL that grows from nothing. Of 300
    healthy courses of 12 to 200 steps at most 3 % have one of three, or of ten times, but for 8 % of 200 steps whose
    logarithms wander by a deviation of .5 and .8 from step to step (three times); rises of 6 and 30 times are found in
    98 to 100 % where noise is .15 and .3 of it. None with fewer than ten steps.

    >>> jump({step: 1.0 if step < 8 else 5.0 for step in range(40)}, factor=3.0)
    Jump(before=1.0, after=5.0, end=5.0, step=8)
    """
    steps, numbers, in_logs = comparable(values)
    if not in_logs or len(steps) < 2 * _WINDOW:
        return None
    windows = sliding_window_view(np.log(numbers), _WINDOW)  # [W, 5]
    before, after = windows[:-_WINDOW], windows[_WINDOW:]
    rises = np.median(after, axis=1) - np.median(before, axis=1)
    gaps = after.min(axis=1) - before.max(axis=1)
    gaps = np.where((rises >= math.log(factor)) & (gaps >= _SUDDEN * rises), gaps, -math.inf)
    at = int(np.argmax(gaps))
    if gaps[at] == -math.inf:
        return None
    parts = numbers[at : at + _WINDOW], numbers[at + _WINDOW : at + 2 * _WINDOW], numbers[-_WINDOW:]
    before_it, after_it, end = (float(np.median(part)) for part in parts)
    return Jump(before=before_it, after=after_it, end=end, step=int(steps[at + _WINDOW]))
