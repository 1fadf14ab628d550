"""Levels of a series of numbers by step: where it jumps, and where it ends on another level than it had.

Shapes: N steps of a series, W of windows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import numpy as np
from msgspec import Struct
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from scipy.special import stdtrit

from gradscope.metrics.uncertainty.steps import LEVEL, TO_SIGMA, Array, StepValues, comparable

MIN_STEPS_OF_LEVELS = 20  # steps below which the last fifth is a handful
_QUARTILES = (0.25, 0.75)
_MIN_LATE = 5  # steps of the end, and of the levels around a jump
_MAX_MEDIAN = 25  # steps of such a level at most
_STRICTER = 1.5  # how much more the end has to change by


class LateChange(Struct, frozen=True, kw_only=True):
    """A series whose last fifth or twentieth of steps lies on another level than its first two thirds, or a share."""

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
    """Where a series without negative numbers ends, if that is this many times its level before, or one over it.

    ``by_size`` takes absolute values. No test of a trend, which a series that bends or jumps at its end fails: the
    medians are facts, and the quartiles of both parts have to be apart. Of the last twentieth more is asked. None
    otherwise, and with fewer than twenty steps.

    >>> late_change({step: 1.0 if step < 30 else 5.0 for step in range(40)}, factor=3.0)
    LateChange(before=1.0, late=5.0, before_until=25, since=32, until=39)
    """
    series = StepValues.from_mapping(values)
    is_finite = np.isfinite(series.numbers)
    steps, numbers = series.steps[is_finite], series.numbers[is_finite]
    numbers = np.abs(numbers) if by_size else numbers
    if len(steps) < MIN_STEPS_OF_LEVELS or numbers.min() < 0:
        return None
    num_before = int(share_before * len(steps))
    for size, times in ((len(steps) // 5, factor), (_twentieth(len(steps)), _STRICTER * factor)):
        parts = numbers[:num_before], numbers[-size:]
        before, late = (float(np.median(part)) for part in parts)
        low, high = sorted(parts, key=np.median)
        separated = np.quantile(low, _QUARTILES[1]) < np.quantile(high, _QUARTILES[0])
        if separated and max(before, late) >= times * min(before, late):
            return LateChange(
                before=before,
                late=late,
                before_until=int(steps[num_before - 1]),
                since=int(steps[-size]),
                until=int(steps[-1]),
            )
    return None


def collapse(values: Mapping[int, float]) -> LateChange | None:
    """Where a series ends at five times its level over the first twentieth of steps, or a fifth of it."""
    return late_change(values, factor=5.0, share_before=0.05)


def level_change(values: Mapping[int, float]) -> LateChange | None:
    """Where a series collapses at any time, or its level has doubled or halved late, or since the first tenth.

    A line may miss either. Negative numbers count as 0: an entropy in float32 may be -5e-7.
    """
    clipped = {step: max(value, 0.0) for step, value in values.items()}
    return collapse(clipped) or late_change(clipped, factor=2.0) or late_change(clipped, factor=2.0, share_before=0.1)


_SUDDEN = 0.5  # of the change, that one step makes on top of a line: a ramp has less
_STEPS_A_DEGREE = 5  # of freedom, of the spread of changes over five steps


class Jump(Struct, frozen=True, kw_only=True):
    """A series that changes within a few steps, by medians of five steps, in long series of up to 25."""

    before: float
    after: float
    end: float  # of the last steps
    step: int  # the first on the new level
    num_median: int  # steps of each median


def _twentieth(num_steps: int) -> int:
    """Steps of the end of a series, and of the levels around a jump: five or more."""
    return max(num_steps // 20, _MIN_LATE)


def jump(values: Mapping[int, float], *, factor: float) -> Jump | None:
    """The largest sudden rise of a series without negative numbers by almost this factor.

    The medians of the five steps before and after, or of a twentieth of a long series, differ by the factor but for a
    sixth of it, by more than chance makes of as many, and a line through these steps leaves half of it to one step, in
    logarithms, which tells it from a ramp, as of a KL that grows from nothing. The ranks of up to 25 steps on either
    side are apart beyond chance, too: where a series takes turns between two levels, medians jump. None with fewer than
    ten steps.

    >>> jump({step: 1.0 if step < 8 else 5.0 for step in range(40)}, factor=3.0)
    Jump(before=1.0, after=5.0, end=5.0, step=8, num_median=5)
    """
    steps, numbers, in_logs = comparable(values)
    return _largest(steps, numbers, np.log(numbers), _ALMOST + math.log(factor), _SUDDEN) if in_logs else None


def drop(values: Mapping[int, float], *, share: float, lasts: bool = True) -> Jump | None:
    """The largest fall within a few steps by this share of the range, beyond chance, that half lasts to the end.

    Where it is not to last, one of which half comes back.
    """
    series = StepValues.from_mapping(values)
    usable = np.isfinite(series.numbers)
    steps, numbers = series.steps[usable], series.numbers[usable]
    fall = _largest(steps, numbers, -numbers, share * float(np.ptp(numbers)), 0.0) if len(steps) else None
    return fall if fall is not None and (2 * fall.end < fall.before + fall.after) == lasts else None


_ALMOST = math.log(5 / 6)  # medians of five steps are off by that much


def _largest(steps: NDArray[np.int64], numbers: Array, scaled: Array, min_rise: float, share: float) -> Jump | None:
    """The largest rise of numbers on some scale, [N] each, by ``min_rise``, of which one step makes this ``share``."""
    number, longest = len(steps), min(_twentieth(len(steps)), _MAX_MEDIAN)
    for size in sorted({longest, _MIN_LATE}, reverse=True):  # near the ends there is no room for more than five
        first = np.arange(size, number - size + 1)  # of the new level
        if not len(first):
            continue
        rises, step_rises = _rises(scaled, size), sliding_window_view(scaled, 2 * size) @ _step_kernel(size)
        rises_enough = (rises >= min_rise) & (step_rises >= share * rises) & (rises > 0)
        if size < longest:
            rises_enough &= (first < longest) | (first > number - longest)
        while rises_enough.any():
            index = int(np.argmax(np.where(rises_enough, rises + step_rises, -math.inf)))
            if _is_above(scaled, int(first[index])):
                break
            rises_enough[max(index - size, 0) : index + size] = False
        else:
            continue
        detrended = scaled - np.where(np.arange(number) < first[index], 0.0, rises[index])
        spread = TO_SIGMA * float(np.median(np.abs(_rises(detrended, size))))
        if rises[index] > spread * float(stdtrit(max(number / _STEPS_A_DEGREE, 1.0), 1 - LEVEL / number)):
            parts = numbers[index : index + size], numbers[index + size : index + 2 * size], numbers[-size:]
            before, after, end = (float(np.median(part)) for part in parts)
            return Jump(before=before, after=after, end=end, step=int(steps[first[index]]), num_median=size)
    return None


def _rises(scaled: Array, size: int) -> Array:
    medians = np.median(sliding_window_view(scaled, size), axis=1)
    return np.asarray(medians[size:] - medians[:-size])


def _is_above(scaled: Array, index: int) -> bool:
    """Whether the next five or 25 numbers rank above the 25 before, beyond chance among all."""
    from scipy.stats import mannwhitneyu  # whose import takes as long as a log, and few series have a rise

    before = scaled[max(index - _MAX_MEDIAN, 0) : index]
    for after in (scaled[index : index + num] for num in (_MIN_LATE, _MAX_MEDIAN)):
        pairs = len(before) * len(after)
        excess = np.sum(np.sign(after[:, None] - before)) / 2  # of the pairs that rise over half of all
        if excess < _MIN_SCORE * math.sqrt(pairs * (len(before) + len(after) + 1) / 12):
            continue  # the exact test takes a thousand times as long
        if mannwhitneyu(after, before, alternative="greater", method="exact").pvalue < LEVEL / len(scaled):
            return True
    return False


_MIN_SCORE = 2.5  # standard deviations of the rank sum: five steps above five are 2.6 off, and chance in 1 of 252


def _step_kernel(size: int) -> Array:
    """Weights of twice as many numbers for the step in their middle, where a line with a step is fitted."""
    position = np.arange(2.0 * size)
    return np.asarray(np.linalg.pinv(np.stack([np.ones(2 * size), position, position >= size], axis=1))[2])
