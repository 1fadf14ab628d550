"""Numbers of training steps: the uncertainty of their mean, their trend, and outliers among them.

Legend: n steps, D ways in which they may drift, N steps of a series, J rows. Neighboring steps resemble each other, and
a drift as slow as the run looks like a change. Nothing in a run says how slow its drifts are, so what they may do to a
mean or a trend is averaged over all that the steps leave likely.

Written here: ``scipy.stats.linregress`` is the same line, behind an import that takes a third of a second, and takes
steps for independent.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtr, stdtrit

from gradscope.estimate import Estimate
from gradscope.metrics.uncertainty.bootstrap import cluster_numbers, deviations_within
from gradscope.metrics.uncertainty.intervals import COVERAGE, UPPER_TAIL, difference_of, student_quantile

Array = NDArray[np.float64]

MIN_STEPS = 10
"""With fewer steps nothing shows how neighbors resemble each other."""
_MAX_BLOCKS = 512  # means of neighbors that stand for the steps of a longer series: enough to tell a drift from noise
_SHARES_OF_DRIFT = (0.05, 0.1, 0.2, 0.4, 0.7, 0.9, 0.99)
_TINY = 1e-300
_MAX = 1e150
_TOO_LARGE = Estimate.undefined_because("numbers beyond 1e150 have no variance that can be computed")
_TOO_FEW = Estimate.undefined_because("of fewer than ten steps it is not known how far they wander")
_NUM_TIMES = 7  # correlation times of a drift, from one step to as many as may matter, a constant ratio apart
_NO_DRIFT = 0.3
"""How likely steps are to be independent before they are seen. With less the intervals of steps that are would be
twice as wide, with more slow drifts below noise would pass for trends."""
_MEAN_PRIOR, _TREND_PRIOR = (2.0, 0.0, _SHARES_OF_DRIFT), (1.0, 0.5, (*_SHARES_OF_DRIFT, 1.0))
"""The longest correlation time, in lengths of the series, the power of a time to which its prior is proportional, and
the shares of drifts. A drift slower than the series moves a mean all the same and is but a line to a trend, which hangs
on the slowest: without one that has no noise, two thirds of random walks of 600 steps would have a trend."""
_COSINES_A_DEGREE = 5
"""Cosines for each degree of freedom, which need not be whole: the slow ones give the scale of a drift. With all
of them counted a fifth of series of a dozen steps that are correlated by 0.9 would have a trend."""


class _Drifts(Struct, frozen=True):
    """Noise of single steps with a drift below it, an autoregression of order one, in D kinds of unit variance."""

    mean_variance: Array  # n times the variance of the mean, [D]
    cosine_variances: Array  # variance of the coefficient of each cosine, [D, n - 1]
    log_prior: Array  # [D]


@lru_cache(maxsize=8)
def _drifts(num_steps: int, longest: float, power: float, shares: tuple[float, ...]) -> _Drifts:
    """Those of a series of n steps, with the longest time, the power of the prior and the drifts' shares."""
    lags = np.arange(1, num_steps)
    angles = np.pi * lags / num_steps
    mean_variance, cosine_variances, weights = [1.0], [np.ones(num_steps - 1)], [0.0]
    for time in np.geomspace(1.0, longest * num_steps, _NUM_TIMES):
        r = math.exp(-1 / time)
        spectrum = (1 - r * r) / (1 - 2 * r * np.cos(angles) + r * r)
        sum_variance = 1 + 2 * float(np.sum((1 - lags / num_steps) * r**lags))
        mean_variance += [1 + share * (sum_variance - 1) for share in shares]
        cosine_variances += [1 + share * (spectrum - 1) for share in shares]
        weights += [time**power] * len(shares)
    prior = (1 - _NO_DRIFT) * np.array(weights) / sum(weights)
    prior[0] = _NO_DRIFT
    return _Drifts(np.array(mean_variance), np.array(cosine_variances), np.log(prior))


def _cosines(values: Array) -> Array:
    """The coefficients of cos(pi k (i + 1/2) / n), k from 1 to n - 1, of unit variance for independent unit values."""
    # scipy.fft has them in a call, and takes as long to import as a log
    num, k = len(values), np.arange(1, len(values))
    waves = np.fft.rfft(values, 2 * num)[k] * np.exp(-0.5j * np.pi * k / num)
    return np.asarray(waves.real * math.sqrt(2 / num), dtype=np.float64)


def _blocks(values: Array, most: int = _MAX_BLOCKS) -> Array:
    """Means of neighbors, at most so many, the first few left out where they do not fill one."""
    size = -(-len(values) // most)
    return np.asarray(values[len(values) % size :].reshape(-1, size).mean(axis=1), dtype=np.float64)


def _fit(variances: Array, cosines: Array, fitted: Array) -> tuple[Array, Array]:
    """The weighed squares of cosines, [k], of each variance, [D, k], and its likelihood without a constant, [D] each.

    m series, [m, k], are fitted to them and averaged over, as is the scale of the variances.
    """
    weighed = fitted[None] / variances[:, None]  # [D, m, k]
    gram, proj = weighed @ fitted.T, weighed @ cosines
    squares = (1 / variances) @ cosines**2 - np.sum(proj * np.linalg.solve(gram, proj[..., None])[..., 0], axis=1)
    squares, num_free = np.maximum(squares, 0.0), len(cosines) - len(fitted)
    log_volume = np.log(variances).sum(axis=1) + np.linalg.slogdet(gram)[1]
    log_volume += num_free * np.log(np.maximum(squares, _TINY))
    return squares, -log_volume / 2


def _half_interval(variances: Array, log_weights: Array, num_cosines: int) -> float:
    """Half the 95 % interval of a mixture of Student's distributions about one value, [D] each."""
    if not variances.any():
        return 0.0
    free = max(num_cosines / _COSINES_A_DEGREE, 1.0)
    weights = np.exp(log_weights - log_weights.max())
    weights, spreads = weights / weights.sum(), np.sqrt(variances)
    spreads = np.maximum(spreads, _NOTHING * spreads.max())
    low, high = 0.0, float(spreads.max()) * float(stdtrit(free, UPPER_TAIL))
    for _ in range(40):
        middle = (low + high) / 2
        outside = float(weights @ stdtr(free, -middle / spreads)) * 2
        low, high = (middle, high) if outside > 1 - COVERAGE else (low, middle)
    return high


def mean_of_steps(values: ArrayLike) -> Estimate:
    """A mean over steps, [n], with an interval that holds where steps resemble their neighbors.

    The steps are taken for noise with a drift below it, an autoregression of order one whose share of the variance and
    whose correlation time, up to twice the series, are not known: the interval is that of Student's distributions
    averaged over them, weighed by how likely they make the cosines of the series (Whittle's likelihood, as Mueller &
    Watson 2018, Econometrica 86, average over slow drifts). Differences between runs, not within one, such as a seed's
    luck, are not in it. ``num_units`` is how many independent steps they are worth; no interval for fewer than ten.

    >>> rng = np.random.default_rng(0)
    >>> estimate = mean_of_steps(rng.normal(size=40))
    >>> round(estimate.low, 2), round(estimate.value, 2), round(estimate.high, 2)
    (-0.93, -0.06, 0.81)
    >>> mean_of_steps([1.0, 2.0, 3.0]).interval
    """
    numbers = np.asarray(values, dtype=np.float64)
    if np.abs(numbers).max() > _MAX:
        return _TOO_LARGE
    mean = float(numbers.mean())
    if len(numbers) < MIN_STEPS:
        return Estimate.exact(mean, num_units=len(numbers))
    if not np.ptp(numbers):
        return Estimate(value=mean, low=mean, high=mean, num_units=len(numbers))
    blocks = _blocks(numbers - mean)
    drifts, free = _drifts(len(blocks), *_MEAN_PRIOR), len(blocks) - 1
    squares, log_likelihood = _fit(drifts.cosine_variances, _cosines(blocks), np.zeros((0, free)))
    log_weights = drifts.log_prior + log_likelihood
    half = _half_interval(squares / free * drifts.mean_variance / len(blocks), log_weights, free)
    units = len(blocks) * float(np.average(1 / drifts.mean_variance, weights=np.exp(log_weights - log_weights.max())))
    return Estimate(value=mean, low=mean - half, high=mean + half, num_units=max(round(units), 2))


def mean_difference(first: Mapping[int, float], second: Mapping[int, float]) -> Estimate:
    """How much higher the mean over steps of one run is than that of another, of their numbers by step.

    Step by step where both have the same steps, so that what both do over the run is no noise; else from the
    interval of each. Undefined where a run has fewer than ten steps.

    >>> mean_difference({1: 0.5}, {1: 0.7}).undefined
    'of fewer than ten steps it is not known how far they wander'
    """
    if min(len(first), len(second)) < MIN_STEPS:
        return _TOO_FEW
    if first.keys() == second.keys():
        return mean_of_steps([second[step] - first[step] for step in sorted(first)])
    return difference_of(*(mean_of_steps([run[step] for step in sorted(run)]) for run in (first, second)))


def widened_by_steps(change: Estimate, by_steps: Estimate, *, reach: float = math.inf) -> Estimate:
    """A change with the interval of prompts, at least as wide as that over steps, and within ``reach`` of zero.

    What all rollouts of a step have in common, as a policy that wanders, is no prompt's luck. As it is where either has
    no interval.

    >>> by_prompts = Estimate(value=0.5, low=0.25, high=0.75, num_units=50)
    >>> widened_by_steps(by_prompts, Estimate(value=0.0, low=-0.75, high=0.75, num_units=9), reach=1.0).interval
    (-0.25, 1.0)
    """
    if change.value is None or change.interval is None or by_steps.interval is None:
        return change
    half = (by_steps.interval[1] - by_steps.interval[0]) / 2
    low, high = max(change.value - half, -reach), min(change.value + half, reach)
    num_units = by_steps.num_units if half > change.value - change.interval[0] else change.num_units
    return replace(change, low=min(change.interval[0], low), high=max(change.interval[1], high), num_units=num_units)


_MIN_POINTS = 3
_NOTHING = 1e-9


def trend(steps: ArrayLike, values: ArrayLike) -> Estimate:
    """Change from the first to the last step along the least-squares line, b (x_last - x_first).

    b = sum (x - mean x)(y - mean y) / sum (x - mean x)^2. The interval allows for noise with a drift below it, as that
    of :func:`mean_of_steps`, here of a correlation time up to the length of the series, and from ten steps on about a
    parabola, for a learning curve bends. Fewer than three steps have no line.

    Raises:
        ValueError: There is not one value a step.

    >>> change = trend([1, 2, 3, 4], [0.5, 0.4, 0.2, 0.1])
    >>> round(change.low, 3), round(change.value, 3), round(change.high, 3)
    (-1.116, -0.42, 0.276)
    >>> trend([1, 2], [0.5, 0.4]).undefined
    'a trend needs three steps, there are 2'
    """
    times, numbers = _checked(steps, values)
    if len(np.unique(times)) < _MIN_POINTS:
        return _too_few(len(np.unique(times)))
    if np.abs(numbers).max() > _MAX:
        return _TOO_LARGE
    x, y = (times - times.mean()) / np.ptp(times), numbers - numbers.mean()
    slope = float(x @ y) / float(x @ x)
    half = _half_of_sum(x / float(x @ x), y, x)
    return Estimate(value=slope, low=slope - half, high=slope + half, num_units=len(x))


def _half_of_sum(weights: Array, values: Array, times: Array) -> float:
    """Half the interval of a sum of values with weights that add up to zero, [n] each, about a parabola over times."""
    blocks = _blocks(values)
    drifts, size = _drifts(len(blocks), *_TREND_PRIOR), len(values) // len(blocks)
    powers = (times, times**2)[: 2 if len(values) >= MIN_STEPS else 1]
    _, sizes, fitted = np.linalg.svd(np.stack([_cosines(_blocks(power)) for power in powers]), full_matrices=False)
    fitted = fitted[sizes > _NOTHING * sizes[0]]  # of steps but for one far apart, a parabola is a line
    squares, log_likelihood = _fit(drifts.cosine_variances, _cosines(blocks), fitted)
    free = len(blocks) - 1 - len(fitted)
    variances = squares / free * (drifts.cosine_variances @ (_cosines(_blocks(weights)) * size) ** 2)
    return _half_interval(variances, drifts.log_prior + log_likelihood, free)


_BLOCKS_OF_PARTS, _KNOTS, _WIDTHS = 128, 16, (1, 2, 4, 8)  # a ramp lasts so many sixteenths, a bump twice as many
_RATE, _RATES = 8.0, (4.0, 16.0, 32.0)  # time constants in the series of a course that levels off


@lru_cache(maxsize=8)
def _shapes(num_blocks: int) -> tuple[Array, ...]:
    """Cosines, [3, k], of a learning curve and a ramp, a bump or another curve; orthogonal, of length 1."""
    time, shapes = np.linspace(0.0, _KNOTS, num_blocks), list[Array]()
    curve = [time, np.exp(-_RATE / _KNOTS * time)]
    for width in _WIDTHS:
        shapes += [np.clip(time, start, start + width) for start in range(_KNOTS - width + 1)]
        shapes += [np.maximum(width - np.abs(time - peak), 0.0) for peak in range(width, _KNOTS - width + 1)]
    shapes += [np.exp(-rate / _KNOTS * time) for rate in _RATES]
    cosines = [np.stack([_cosines(part) for part in (*curve, shape)]) for shape in shapes if np.ptp(shape)]
    return tuple(np.linalg.svd(parts, full_matrices=False)[2] for parts in cosines)


def changes_between(values: ArrayLike, parts: Sequence[tuple[slice, slice]]) -> list[Estimate]:
    """How much higher the mean of one part of a series is than that of another, for each pair of parts, [n] steps.

    The interval allows for noise with a drift below it, as that of :func:`trend`, about a learning curve with a ramp, a
    bump or another curve: what levels off, falls late or dips is no drift. The shape is averaged over, as likely as the
    steps make it. Undefined for fewer than ten.

    >>> noise = np.random.default_rng(0).normal(scale=0.1, size=60)
    >>> (change,) = changes_between(1 - np.exp(-np.arange(60) / 6) + noise, [(slice(0, 12), slice(48, 60))])
    >>> round(change.low, 2), round(change.value, 2), round(change.high, 2)
    (0.21, 0.48, 0.75)
    """
    numbers = np.asarray(values, dtype=np.float64)
    if len(numbers) < MIN_STEPS:
        return [_TOO_FEW] * len(parts)
    if np.abs(numbers).max() > _MAX:
        return [_TOO_LARGE] * len(parts)
    blocks = _blocks(numbers - numbers.mean(), _BLOCKS_OF_PARTS)
    drifts, cosines, num_each = _drifts(len(blocks), *_TREND_PRIOR), _cosines(blocks), len(numbers) // len(blocks)
    fits = [_fit(drifts.cosine_variances, cosines, shape) for shape in _shapes(len(blocks))]
    squares, likely = (np.array(of_shapes) for of_shapes in zip(*fits, strict=True))  # [shapes, D]
    shares = np.exp(likely - likely.max())
    squares = np.average(squares, axis=0, weights=np.maximum(shares, _TINY))
    log_weights, free, changes = drifts.log_prior + np.log(shares.sum(axis=0) + _TINY), len(blocks) - 4, []
    for first, second in parts:
        weights = np.zeros(len(numbers))
        weights[second] += 1 / len(weights[second])
        weights[first] -= 1 / len(weights[first])
        of_unit = drifts.cosine_variances @ (_cosines(_blocks(weights, _BLOCKS_OF_PARTS)) * num_each) ** 2 / free
        half = _half_interval(squares * of_unit, log_weights, free)
        change = float(numbers[second].mean() - numbers[first].mean())
        changes.append(Estimate(value=change, low=change - half, high=change + half, num_units=len(numbers)))
    return changes


def trend_within(steps: ArrayLike, units: ArrayLike, values: ArrayLike) -> Estimate:
    """The same within units that are seen at several steps, such as prompts that return: each has a level of its own.

    Steps and numbers are those of a unit minus its means, so a change of units is no change. The interval is the wider
    of that of sums by step, for rows of one step have its luck in common (clusters), where levels that are fitted count
    as rows that are not there, and of that of :func:`trend`, for what the units of a step have in common. Each row has
    its step, unit and number, [J] each; undefined where fewer than three units return.

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
    if np.abs(numbers).max() > _MAX:
        return _TOO_LARGE
    x, y, num = deviations_within(times / np.ptp(times), unit), deviations_within(numbers, unit), len(names)
    spread = float(x @ x)
    slope = float(x @ y) / spread
    left = 1 - (int(unit.max()) + 1) / len(x)
    scores = np.bincount(step, weights=x * (y - slope * x))
    variance = float(scores @ scores) / left * num / (num - 2) / spread**2
    num_visits = np.bincount(unit)[unit]  # a unit's mean holds a part of each of its rows
    step_means = np.bincount(step, weights=y * num_visits / (num_visits - 1)) / np.bincount(step)
    by_drift = _half_of_sum(np.bincount(step, weights=x) / spread, step_means, (names - names.mean()) / np.ptp(names))
    half = max(student_quantile(max(num * left - 2, 1)) * variance**0.5, by_drift)
    return Estimate(value=slope, low=slope - half, high=slope + half, num_units=num)


def _checked(steps: ArrayLike, values: ArrayLike) -> tuple[Array, Array]:
    times, numbers = np.asarray(steps, dtype=np.float64), np.asarray(values, dtype=np.float64)
    if times.shape != numbers.shape or times.ndim != 1:
        raise ValueError(f"one value a step is needed, got shapes {times.shape} and {numbers.shape}")
    return times, numbers


def _too_few(number: int) -> Estimate:
    return Estimate.undefined_because(f"a trend needs three steps, there are {number}")


NUM_NEIGHBORS = 50
"""Steps around the one in question: enough for a median and a spread, few enough that a trend moves them little."""
MIN_NEIGHBORS = 8  # with fewer a spread says little
LEVEL = 0.05  # share of runs without an outlier in which the furthest step would lie beyond ``by_chance``
TO_SIGMA = 1.4826  # from the median absolute deviation to the standard deviation of a normal distribution
_EFFICIENCY = 0.37
"""Of the median absolute deviation: it estimates a spread as well as the standard deviation of this share would."""

_STEEP, _MIN_ON_LINE = 0.5, 20
"""Of the spread is less left about a line through the outer thirds of this many neighbors, these follow it."""
_LEAST_SPREAD = 0.05
"""Of logarithms: a running mean moves by less from step to step, and what is a twentieth off is no spike."""


class Deviation(Struct, frozen=True, kw_only=True):
    """A step's number compared with its neighbors'."""

    typical: float  # median of the neighbors, at this step where they go up or down
    deviation: float
    """Standard deviations from it, of logarithms where no step's number is negative; the spread is the neighbors'
    median absolute deviation, of logarithms at least 0.05."""
    by_chance: float
    """What the furthest of all steps exceeds in one run of twenty, were all of them normal and alike; for one
    beyond that, what it exceeds with a tail like that of the other deviations, if that is more."""
    num_neighbors: int  # n

    @property
    def is_unusual(self) -> bool:
        """Whether it lies above all that chance would do to that many steps."""
        return self.deviation > self.by_chance


class StepValues(Mapping[int, float]):
    """A number a step, in arrays: as a dict millions of them take ten times the memory."""

    def __init__(self, steps: NDArray[np.int64], numbers: Array) -> None:
        self.steps = steps  # ascending, [N]
        self.numbers = numbers  # [N]

    @classmethod
    def from_mapping(cls, values: Mapping[int, float]) -> StepValues:
        """The same numbers; such as are in arrays already as they are."""
        if isinstance(values, cls):
            return values
        steps = np.fromiter(values, np.int64, len(values))
        order = np.argsort(steps, kind="stable")
        return cls(steps[order], np.fromiter(values.values(), np.float64, len(values))[order])

    def not_finite(self) -> list[int]:
        """The steps with NaN or infinity."""
        return [int(step) for step in self.steps[~np.isfinite(self.numbers)]]

    def __getitem__(self, step: int) -> float:
        row = np.searchsorted(self.steps, step)
        if row == len(self.steps) or self.steps[row] != step:
            raise KeyError(step)
        return float(self.numbers[row])

    def __iter__(self) -> Iterator[int]:
        return iter(self.steps.tolist())

    def __len__(self) -> int:
        return len(self.steps)


def deviation_of(values: Mapping[int, float], step: int, *, num_chosen_from: int) -> Deviation | str:
    """A step's number compared with those of the up to 50 steps nearest to it, or the reason why it cannot be.

    Numbers that are not finite do not count; zeros do as the smallest number above them where none is negative.
    ``num_chosen_from`` is the number of steps that this one was selected from for being far off; 1 where it was named
    beforehand.

    >>> deviation = deviation_of({step: 1 + step % 2 for step in range(20)} | {20: 60.0}, 20, num_chosen_from=21)
    >>> deviation.typical, deviation.is_unusual
    (1.5, True)
    """
    steps, numbers, in_logs = comparable(values)
    indices = np.flatnonzero(steps == step)
    if not len(indices):
        return "it is zero at every step"
    num_neighbors = min(len(steps) - 1, NUM_NEIGHBORS)
    if num_neighbors < MIN_NEIGHBORS:
        return f"{num_neighbors} other steps have the number, and a spread needs {MIN_NEIGHBORS}"
    (typical,), (deviation,) = _deviations(steps, numbers, indices, in_logs=in_logs)
    if math.isnan(deviation):
        return "the other steps have the same number"
    # Student's quantile: the spread and the median are estimates themselves, from few steps poor ones
    median_error = math.sqrt(1 + math.pi / (2 * num_neighbors))
    quantile = float(stdtrit(_EFFICIENCY * (num_neighbors - 1), (1 - LEVEL) ** (1 / num_chosen_from)))
    by_chance = median_error * quantile
    if abs(deviation) > by_chance:
        around = np.arange(len(steps))[max(int(indices[0]) - _AROUND, 0) : int(indices[0]) + _AROUND]
        deviations = _deviations(steps, numbers, around, in_logs=in_logs)[1] * math.copysign(1.0, deviation)
        by_chance = _beyond_tail(deviations[np.isfinite(deviations)], num_chosen_from, minimum=by_chance)
    return Deviation(
        typical=float(typical), deviation=float(deviation), by_chance=by_chance, num_neighbors=num_neighbors
    )


_AROUND = 1000  # steps before and after one whose deviations show how heavy the tail is
_CENSORED = 3  # the highest third of the tail, or two, may be events: only their number counts
_START_OF_TAIL = 2.5  # deviations: nearer the median, what is twice as far off is common
_SHAPES = np.array([1e-6, 0.1, 0.2, 0.3, 0.4, 0.5])[:, None, None]
"""Of logarithms: next to 0 for a norm with a power law, 1/3 for one whose logarithm is Student's with 3 degrees."""
_SCALES = np.geomspace(0.1, 10, 40)[:, None]  # over the mean excess
_TAIL_LEVEL = 0.35
"""Chance of a step beyond it by all shapes and scales together. With .2 one step of ten times the level was missed in
half of the runs whose logarithms have a deviation of .3, with .35 in a tenth; a tail as heavy as Student's with 5
degrees has a step beyond it in a twentieth of 60-step runs (docs/spike.md)."""


def _beyond_tail(deviations: Array, num_chosen_from: int, *, minimum: float) -> float:
    """What the furthest of this many steps may reach by chance with the upper tail of these, [N]; at least ``minimum``.

    A generalized Pareto distribution of the excesses of the highest 2 N^(1/2) (Pickands 1975, Annals of Statistics 3),
    averaged over its shape and scale by how likely they make all but the very highest, which are censored. Where the
    highest j are further above the next one than a power law of 3 makes them, the next one bounds instead: j times the
    logarithm of such a ratio is exponential (Renyi 1953, Acta Mathematica Hungarica 4).
    """
    ordered, size = np.sort(deviations)[::-1], int(2 * len(deviations) ** 0.5)
    excesses = ordered[max(size // _CENSORED, 2) : size] - ordered[size]
    ranks = np.arange(1, len(ordered) // 2 + 1)
    gaps = np.maximum(ordered[ranks], _START_OF_TAIL) * (2 * LEVEL ** (-1 / ranks)) ** (1 / 3)
    by_gap = float(gaps.min(where=ordered[: len(ranks)] > gaps, initial=math.inf))
    if not (mean := float(excesses.mean())):
        return max(min(float(ordered[size]), by_gap), minimum)
    inverse = 1 / _SHAPES[:, 0]
    logs = np.log1p(_SHAPES * excesses / mean / _SCALES)  # [shapes, scales, excesses]
    likely = -len(excesses) * np.log(_SCALES[:, 0]) - (1 + inverse) * logs.sum(axis=2)
    likely -= (size - len(excesses)) * inverse * logs[:, :, 0]
    weights = np.exp(likely - likely.max())
    reached = np.geomspace(0.1, 1e4, 200)
    log_beyond = -np.log1p(_SHAPES * reached / _SCALES) / _SHAPES + math.log(num_chosen_from * size / len(ordered))
    chance = np.tensordot(weights / weights.sum(), -np.expm1(-np.exp(log_beyond)), axes=2)
    by_tail = ordered[size] + mean * reached[np.argmax(chance < _TAIL_LEVEL)]
    return max(min(float(by_tail), by_gap), minimum)


def most_deviating(values: Mapping[int, float]) -> int | None:
    """The first step with the largest :class:`Deviation`; None where no step has one."""
    steps, deviations = _all_deviations(values)
    return None if np.isnan(deviations).all() else int(steps[np.nanargmax(deviations)])


def steps_beyond(values: Mapping[int, float], bound: float) -> list[int]:
    """The steps with a larger :class:`Deviation` than a bound, ascending."""
    steps, deviations = _all_deviations(values)
    return [int(step) for step in steps[deviations > bound]]


def _all_deviations(values: Mapping[int, float]) -> tuple[NDArray[np.int64], Array]:
    """The steps that can be compared, [N], and their deviations; NaN without a spread."""
    steps, numbers, in_logs = comparable(values)
    if len(steps) <= MIN_NEIGHBORS:
        return steps, np.full(len(steps), math.nan)
    parts = np.array_split(np.arange(len(steps)), len(steps) // _AT_ONCE + 1)
    return steps, np.concatenate([_deviations(steps, numbers, part, in_logs=in_logs)[1] for part in parts])


_AT_ONCE = 1 << 14  # steps whose neighbors are looked at together


def comparable(values: Mapping[int, float]) -> tuple[NDArray[np.int64], Array, bool]:
    """Steps with finite numbers, ascending, [N], these, [N], and whether they are compared by their logarithms."""
    series = StepValues.from_mapping(values)
    numbers, usable = series.numbers, np.isfinite(series.numbers)
    in_logs = bool(np.min(numbers, where=usable, initial=math.inf) >= 0)
    if in_logs:  # a KL that is rounded to zero is at most the smallest that was logged
        smallest = np.min(numbers, where=usable & (numbers > 0), initial=math.inf)
        numbers = np.where(numbers == 0, smallest, numbers)
        usable = usable & np.isfinite(numbers)
    return series.steps[usable], numbers[usable], in_logs


def _deviations(
    steps: NDArray[np.int64], numbers: Array, indices: NDArray[np.int64], *, in_logs: bool
) -> tuple[Array, Array]:
    """The median of the numbers nearest to P steps, by index, and the deviations from it, [P]; NaN without a spread."""
    size = min(NUM_NEIGHBORS, len(steps) - 1)
    first, last = np.maximum(indices - size, 0), np.minimum(indices, len(steps) - 1 - size)
    while (first < last).any():  # of two steps at one distance the earlier is the nearer
        middle = (first + last) // 2
        next_index = np.minimum(middle + size + 1, len(steps) - 1)
        is_near = steps[indices] - steps[middle] <= steps[next_index] - steps[indices]
        is_near |= middle + size + 1 == len(steps)
        first, last = np.where(is_near, first, middle + 1), np.where(is_near, middle, last)
    around = first[:, None] + np.arange(size)
    around += around >= indices[:, None]
    scaled, targets = (
        (np.log(numbers[around]), np.log(numbers[indices])) if in_logs else (numbers[around], numbers[indices])
    )
    (middles, spreads), typical = _middles(scaled), _medians(numbers[around])
    if size >= _MIN_ON_LINE:
        third, distances = size // 3, steps[around] - steps[indices][:, None]
        rises = _medians(scaled[:, -third:]) - _medians(scaled[:, :third])
        slopes = rises / (distances[:, -third:].mean(axis=1) - distances[:, :third].mean(axis=1))
        on_line, about_line = _middles(scaled - slopes[:, None] * distances)
        is_steep = about_line < _STEEP * spreads
        middles, spreads = np.where(is_steep, on_line, middles), np.where(is_steep, about_line, spreads)
        typical = np.where(is_steep, np.exp(on_line) if in_logs else on_line, typical)
    half_digit = _last_digit(numbers) / 2  # by which a number that is logged with few digits may be off
    if in_logs:
        spreads = np.maximum(spreads, np.maximum(np.log1p(half_digit / np.exp(middles)), _LEAST_SPREAD))
    else:
        spreads = np.maximum(spreads, half_digit)
    with np.errstate(divide="ignore", invalid="ignore"):
        deviations = np.where(spreads == 0, math.nan, (targets - middles) / spreads)
    return typical, deviations


def _last_digit(numbers: Array) -> float:
    """The value of one in the last decimal of numbers that have at most three of them; 0 where some have more."""
    first, digits = numbers[:_AT_ONCE], (10.0**-num for num in range(4))
    return next((unit for unit in digits if np.allclose(first, np.round(first / unit) * unit, rtol=1e-12, atol=0)), 0.0)


def _medians(rows: Array) -> Array:
    """The median of each row, [P]; NumPy sorts short rows seven times as fast as it finds their medians."""
    ordered, half = np.sort(rows, axis=1), rows.shape[1] // 2
    return np.asarray((ordered[:, half] + ordered[:, ~half]) / 2)


def _middles(rows: Array) -> tuple[Array, Array]:
    """The median and the spread of each row, [P]: by absolute deviations, where half of them are zero by the others."""
    middles = _medians(rows)
    sizes = np.abs(rows - middles[:, None])
    spreads = TO_SIGMA * _medians(sizes)
    return middles, np.where(spreads > 0, spreads, 2 * math.sqrt(math.pi / 2) * sizes.mean(axis=1))
