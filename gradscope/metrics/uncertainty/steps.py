"""Numbers of training steps: the uncertainty of their mean, their trend, and outliers among them.

Legend: n steps of a mean or neighbors of a step, T steps of the run, N steps of a course, J rows. Neighboring steps
resemble each other. Student's interval takes them for independent and is far too narrow; none of the three remedies
here is right for every course, so the widest of them counts.

Written here: ``scipy.stats.linregress`` is the same line, behind an import that takes a third of a second, and takes
steps for independent.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Literal

import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

from gradscope.estimate import Estimate
from gradscope.metrics.uncertainty.bootstrap import cluster_numbers, deviations_within
from gradscope.metrics.uncertainty.intervals import student_quantile

Array = NDArray[np.float64]

MIN_STEPS = 10
"""With fewer steps no remedy keeps its promise: at a correlation of 0.95 and n = 8 a tenth of equal runs differ."""
_MIN_WINDOWS = 4
_MAX_CORRELATION = 0.98


def mean_of_steps(values: ArrayLike, course: ArrayLike) -> Estimate:
    """A mean over steps, [n], with an interval that holds where steps resemble their neighbors.

    The variance of the mean is the one that gives the widest interval of these: s^2 / m with m the number of
    independent steps that n correlated ones are worth (:func:`independent_steps`), m - 1 degrees of freedom; the same
    of the means of 2, 4, 8 and more steps about a cubic, while 16 are left, for noise of single steps hides a slow
    drift; the projections on the first 0.41 n^(2/3) cosines (Lazarus, Lewis, Stock & Watson 2018, J. Business &
    Economic Statistics 36), as many degrees of freedom; and the spread, about their line, of the means of windows of n
    steps over all steps of the run, [T], which notices drifts that are slow compared with n. Differences between runs,
    not within one, such as a seed's luck, is in none of them. ``num_units`` is the degrees of freedom plus one; no
    interval for fewer than ten steps.

    >>> rng = np.random.default_rng(0)
    >>> estimate = mean_of_steps(*[rng.normal(size=40)] * 2)
    >>> round(estimate.low, 2), round(estimate.value, 2), round(estimate.high, 2)
    (-0.6, -0.06, 0.48)
    >>> mean_of_steps([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]).interval
    """
    chosen, run = np.asarray(values, dtype=np.float64), np.asarray(course, dtype=np.float64)
    mean = float(chosen.mean())
    if len(chosen) < MIN_STEPS:
        return Estimate.exact(mean, num_units=len(chosen))
    if not np.ptp(chosen):
        return Estimate(value=mean, low=mean, high=mean, num_units=len(chosen))
    half, free = max((student_quantile(free) * variance**0.5, free) for variance, free in _variances(chosen, run))
    return Estimate(value=mean, low=mean - half, high=mean + half, num_units=round(free) + 1)


def independent_steps(deviations: ArrayLike, *, num_fitted: int = 1, errors: float = 0.0) -> float:
    """How many independent numbers correlated ones are worth, n (1 - r) / (1 + r) at a lag-one correlation of r.

    r is corrected for its bias in short courses, r + (1 + 4 r) / n about a mean (Marriott & Pope 1954, Biometrika 41)
    and r + (2 + 5 r) / n about a line, where two numbers were fitted (Shaman & Stine 1988, J. American Statistical
    Association 83, for the least-squares estimate), and counts as 0 where it is negative. It is assumed to be larger
    than it seems by so many standard errors, ((1 - r^2) / n)^(1/2).

    >>> independent_steps([1.0, -1.0] * 10), independent_steps(range(20)) < 2
    (20.0, True)
    """
    numbers = np.asarray(deviations, dtype=np.float64)
    centered = numbers - numbers.mean()
    squares = float(centered @ centered)
    raw = float(centered[1:] @ centered[:-1]) / squares if squares else 0.0
    seen = raw + (num_fitted + (3 + num_fitted) * raw) / len(numbers)
    error = float(np.sqrt(max(1 - seen**2, 0.0) / len(numbers)))
    correlation = min(max(seen + errors * error, 0.0), _MAX_CORRELATION)
    return len(numbers) * (1 - correlation) / (1 + correlation)


def error_of_part(values: ArrayLike, size: int) -> float:
    """The standard error of a mean over ``size`` neighboring ones of n steps, by how all deviate from a cubic.

    They are taken to resemble their neighbors by one standard error of their correlation more than they do.
    """
    numbers = np.asarray(values, dtype=np.float64)
    at = np.arange(len(numbers), dtype=np.float64)
    deviations = numbers - np.polynomial.Polynomial.fit(at, numbers, _DEGREE_OF_MEAN)(at)
    variance = float(deviations @ deviations) / (len(numbers) - _DEGREE_OF_MEAN - 1)
    each = len(numbers) / independent_steps(deviations, num_fitted=2, errors=1.0)  # steps that one is worth
    return math.sqrt(variance * min(each, size) / size)


def _variances(chosen: Array, run: Array) -> Iterator[tuple[float, float]]:
    """Each remedy's variance of the mean, and its degrees of freedom."""
    worth = max(independent_steps(chosen), 2.0)
    yield float(chosen.var()) / (1 - 1 / worth) / worth, worth - 1
    for _, drift, left in _drifts(
        np.arange(len(chosen), dtype=np.float64), chosen, _MIN_BLOCKS_OF_MEAN, _DEGREE_OF_MEAN
    ):
        worth = max(independent_steps(drift, num_fitted=2) * left / len(drift), 2.0)
        yield float(drift @ drift) / left / worth, worth - 1
    num_cosines = max(2, int(0.41 * len(chosen) ** (2 / 3)))
    k = np.arange(1, num_cosines + 1)
    waves = (np.fft.rfft(chosen, 2 * len(chosen))[k] * np.exp(-0.5j * np.pi * k / len(chosen))).real
    # sums of cos(pi k (i + 1/2) / n) x_i; scipy.fft has them in a call, and takes as long to import as a log
    yield float(np.mean(waves**2)) * 2 / len(chosen) ** 2, num_cosines
    num_windows = len(run) // len(chosen)
    if num_windows >= _MIN_WINDOWS:
        means = run[-num_windows * len(chosen) :].reshape(num_windows, -1).mean(axis=1)
        line = np.polynomial.Polynomial.fit(np.arange(num_windows), means, 1)
        residuals = means - line(np.arange(num_windows))
        yield float(residuals @ residuals) / (num_windows - 2), num_windows - 2


_MIN_BLOCKS_OF_MEAN, _DEGREE_OF_MEAN = 16, 3
_MIN_BLOCKS_OF_TREND, _DEGREE_OF_TREND = 32, 5
"""With half as many blocks the interval of independent steps would be twice as wide, as it is with lines or no curve at
all for learning curves; of higher degrees a polynomial follows the drift."""


def _drifts(x: Array, y: Array, least: int, degree: int) -> Iterator[tuple[Array, Array, int]]:
    """Means of 2, 4, 8 and more of x, while so many are left, with the deviations of those of y from a polynomial.

    With them the degrees of freedom that it leaves.
    """
    while len(x) >= 2 * least:
        x, y = (values[len(x) % 2 :].reshape(-1, 2).mean(axis=1) for values in (x, y))
        if len(x) <= 1 << 14:  # a fit to a million steps would take as much memory as its log
            yield x, y - np.polynomial.Polynomial.fit(at := np.arange(len(x)), y, degree)(at), len(x) - degree - 1


_MIN_POINTS = 3
_NOTHING = 1e-9
_ERRORS = 1.5
"""Standard errors by which the correlation of neighboring steps is assumed larger than observed: the least, in halves,
with which courses without a trend show one in at most 5 %, at correlations up to 0.95 and from 3 steps on."""


def trend(steps: ArrayLike, values: ArrayLike) -> Estimate:
    """Change from the first to the last step along the least-squares line, b (x_last - x_first).

    b = sum (x - mean x)(y - mean y) / sum (x - mean x)^2; the interval is Student's, b +- t s / sqrt(sum (x - mean
    x)^2), s^2 the summed squares of the deviations from the line over M - 2, times N / (N - 2), and M - 2 degrees of
    freedom. M is what the deviations are worth in independent ones by :func:`independent_steps`, at least 3 of them.
    Fewer than ten steps do not show how neighbors resemble each other, and count as 3; fewer than three have
    no line. Wider counts: the same of the means of 2, 4, 8 and more steps, while 32 are left, with their deviations
    from a polynomial of the fifth degree in place of those from the line, for noise of single steps hides a slow
    drift, and a learning curve is none.

    Raises:
        ValueError: There is not one value a step.

    >>> change = trend([1, 2, 3, 4], [0.5, 0.4, 0.2, 0.1])
    >>> round(change.low, 3), round(change.value, 3), round(change.high, 3)
    (-1.498, -0.42, 0.658)
    >>> trend([1, 2], [0.5, 0.4]).undefined
    'a trend needs three steps, there are 2'
    """
    times, numbers = _checked(steps, values)
    if len(np.unique(times)) < _MIN_POINTS:
        return _too_few(len(np.unique(times)))
    x, y = (times - times.mean()) / np.ptp(times), numbers - numbers.mean()
    slope = float(x @ y) / float(x @ x)
    line = (x, y - slope * x, len(x) - 2)
    half = max(map(_half_of_trend, *zip(line, *_drifts(x, y, _MIN_BLOCKS_OF_TREND, _DEGREE_OF_TREND), strict=True)))
    return Estimate(value=slope, low=slope - half, high=slope + half, num_units=len(x))


def _half_of_trend(x: Array, deviations: Array, left: int) -> float:
    """Half the interval of a slope from deviations that have so many degrees of freedom where they are independent."""
    num, spread = len(x), float(np.sum((x - x.mean()) ** 2))
    free = max(_worth(deviations) * (left + 2) / num, _MIN_POINTS) - 2
    variance = float(deviations @ deviations) * num / left / free / spread
    return float(student_quantile(free) * variance**0.5)


def trend_within(steps: ArrayLike, units: ArrayLike, values: ArrayLike) -> Estimate:
    """The same within units that are seen at several steps, such as prompts that return: each has a level of its own.

    Steps and numbers are those of a unit minus its means, so a change of units is no change. The error is made of sums
    by step, for rows of one step have its luck in common (clusters), and of the correlation of neighboring steps as in
    :func:`trend`; levels that are fitted count as rows that are not there. Each row has its step, unit and number, [J]
    each; undefined where fewer than three units return.

    Raises:
        ValueError: There is not one value a step.

    >>> change = trend_within([1, 2, 3, 1, 2, 3], list("aaabbb"), [0.0, 0.1, 0.2, 0.7, 0.8, 0.9])
    >>> round(change.value, 3)
    0.2
    >>> trend_within([1, 2, 3], list("abc"), [0.0, 0.1, 0.2]).undefined
    'a trend needs three steps, there are 0'
    """
    times, numbers = _checked(steps, values)
    unit = cluster_numbers(units)
    returns = np.bincount(unit, weights=np.abs(deviations_within(times, unit)))[unit] > _NOTHING
    times, numbers, unit = times[returns], numbers[returns], cluster_numbers(np.asarray(unit)[returns])
    names, step = np.unique(times, return_inverse=True)
    if len(names) < _MIN_POINTS:
        return _too_few(len(names))
    x, y, num = deviations_within(times / np.ptp(times), unit), deviations_within(numbers, unit), len(names)
    spread = float(x @ x)
    slope = float(x @ y) / spread
    residual = y - slope * x
    left = 1 - (int(unit.max()) + 1) / len(x)
    free = max(_worth(np.bincount(step, weights=residual) / np.bincount(step)) * left, _MIN_POINTS) - 2
    scores = np.bincount(step, weights=x * residual)
    variance = float(scores @ scores) / left * num**2 / (num - 2) / free
    half = student_quantile(free) * variance**0.5 / spread
    return Estimate(value=slope, low=slope - half, high=slope + half, num_units=num)


def _checked(steps: ArrayLike, values: ArrayLike) -> tuple[Array, Array]:
    times, numbers = np.asarray(steps, dtype=np.float64), np.asarray(values, dtype=np.float64)
    if times.shape != numbers.shape or times.ndim != 1:
        raise ValueError(f"one value a step is needed, got shapes {times.shape} and {numbers.shape}")
    return times, numbers


def _too_few(number: int) -> Estimate:
    return Estimate.undefined_because(f"a trend needs three steps, there are {number}")


def _worth(deviations: Array) -> float:
    """Independent steps that so many are worth; the least of a trend where they are too few to tell."""
    if len(deviations) < MIN_STEPS:
        return float(_MIN_POINTS)
    return independent_steps(deviations, num_fitted=2, errors=_ERRORS)


NUM_NEIGHBORS = 50
"""Steps around the one in question: enough for a median and a spread, few enough that a trend moves them little."""
MIN_NEIGHBORS = 8  # with fewer a spread says little
LEVEL = 0.05  # share of runs without an outlier in which the furthest step would lie beyond ``by_chance``
_TO_SIGMA = 1.4826  # from the median absolute deviation to the standard deviation of a normal distribution
_EFFICIENCY = 0.37
"""Of the median absolute deviation: it tells a spread as well as the standard deviation of so much of the sample."""


class Deviation(Struct, frozen=True, kw_only=True):
    """A step's number compared with its neighbors'."""

    typical: float  # median of the neighbors
    deviation: float
    """Standard deviations from it, of logarithms where no step's number is negative; the spread is the neighbors'
    median absolute deviation."""
    by_chance: float
    """What the furthest of as many steps exceeds in one run of twenty, were all of them normal and alike."""
    num_neighbors: int  # n

    @property
    def is_unusual(self) -> bool:
        """Whether it lies above all that chance would do to that many steps."""
        return self.deviation > self.by_chance


def deviation_of(values: Mapping[int, float], step: int, *, num_chosen_from: int) -> Deviation | str:
    """A step's number compared with those of the up to 50 steps nearest to it, or the reason why it cannot be.

    Numbers that are not finite do not count, nor do zeros where no number is negative. ``num_chosen_from`` is the
    number of steps that this one was selected from for being far off; 1 where it was named beforehand.

    >>> deviation = deviation_of({step: 1 + step % 2 for step in range(20)} | {20: 60.0}, 20, num_chosen_from=21)
    >>> deviation.typical, deviation.is_unusual
    (1.5, True)
    """
    steps, numbers, in_logs = _comparable(values)
    indices = np.flatnonzero(steps == step)
    if not len(indices):
        return "it is zero"
    num_neighbors = min(len(steps) - 1, NUM_NEIGHBORS)
    if num_neighbors < MIN_NEIGHBORS:
        return f"{num_neighbors} other steps have the number, and a spread needs {MIN_NEIGHBORS}"
    neighbors, (deviation,) = _deviations(steps, numbers, indices, in_logs=in_logs)
    if math.isnan(deviation):
        return "half of the other steps have the same number"
    # Student's quantile: the spread and the median are estimates themselves, from few steps poor ones
    of_median = math.sqrt(1 + math.pi / (2 * num_neighbors))
    quantile = float(stdtrit(_EFFICIENCY * (num_neighbors - 1), (1 - LEVEL) ** (1 / num_chosen_from)))
    return Deviation(
        typical=float(np.median(neighbors)),
        deviation=float(deviation),
        by_chance=of_median * quantile,
        num_neighbors=num_neighbors,
    )


def most_deviating(values: Mapping[int, float]) -> int | None:
    """The first step with the largest :class:`Deviation`; None where no step has one."""
    steps, deviations = _every_deviation(values)
    return None if np.isnan(deviations).all() else int(steps[np.nanargmax(deviations)])


def steps_beyond(values: Mapping[int, float], bound: float) -> list[int]:
    """The steps with a larger :class:`Deviation` than a bound, ascending."""
    steps, deviations = _every_deviation(values)
    return [int(step) for step in steps[deviations > bound]]


def _every_deviation(values: Mapping[int, float]) -> tuple[NDArray[np.int64], Array]:
    """The steps that can be compared, [N], and their deviations; NaN without a spread."""
    steps, numbers, in_logs = _comparable(values)
    if len(steps) <= MIN_NEIGHBORS:
        return steps, np.full(len(steps), math.nan)
    parts = np.array_split(np.arange(len(steps)), len(steps) // _AT_ONCE + 1)
    return steps, np.concatenate([_deviations(steps, numbers, part, in_logs=in_logs)[1] for part in parts])


_AT_ONCE = 1 << 14  # steps whose neighbors are looked at together


def _comparable(values: Mapping[int, float]) -> tuple[NDArray[np.int64], Array, bool]:
    """Steps with finite numbers, ascending, [N], these, [N], and whether they are compared by their logarithms."""
    steps = np.fromiter(values, np.int64, len(values))
    numbers = np.fromiter(values.values(), np.float64, len(values))
    in_logs = bool(np.min(numbers, where=np.isfinite(numbers), initial=math.inf) >= 0)
    usable = np.isfinite(numbers)
    if in_logs:  # a norm of zero, of a step without a live group, is of another kind
        usable &= numbers > 0
    order = np.argsort(steps[usable], kind="stable")
    return steps[usable][order], numbers[usable][order], in_logs


def _deviations(
    steps: NDArray[np.int64], numbers: Array, indices: NDArray[np.int64], *, in_logs: bool
) -> tuple[Array, Array]:
    """The numbers nearest to P steps, by index, [P, n], and the deviations from these, [P]; NaN without a spread."""
    size = min(NUM_NEIGHBORS, len(steps) - 1)
    first, last = np.maximum(indices - size, 0), np.minimum(indices, len(steps) - 1 - size)
    while (first < last).any():  # of two steps at one distance the earlier is the nearer
        middle = (first + last) // 2
        behind = np.minimum(middle + size + 1, len(steps) - 1)
        is_near = steps[indices] - steps[middle] <= steps[behind] - steps[indices]
        is_near |= middle + size + 1 == len(steps)
        first, last = np.where(is_near, first, middle + 1), np.where(is_near, middle, last)
    around = first[:, None] + np.arange(size)
    neighbors = numbers[around + (around >= indices[:, None])]
    scaled, own = (np.log(neighbors), np.log(numbers[indices])) if in_logs else (neighbors, numbers[indices])
    middles = np.median(scaled, axis=1)
    spreads = _TO_SIGMA * np.median(np.abs(scaled - middles[:, None]), axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return neighbors, np.where(spreads == 0, math.nan, (own - middles) / spreads)


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
    steps = sorted(step for step, value in values.items() if math.isfinite(value))
    numbers = np.array([values[step] for step in steps])
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
                before=before, late=late, before_until=steps[num_before - 1], since=steps[-num_late], until=steps[-1]
            )
    return None
