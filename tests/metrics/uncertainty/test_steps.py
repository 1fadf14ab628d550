import math

import numpy as np
import pytest
from scipy.stats import linregress
from scipy.stats import t as student

from gradscope.estimate import Estimate
from gradscope.metrics.uncertainty.steps import (
    MIN_NEIGHBORS,
    MIN_STEPS,
    NUM_NEIGHBORS,
    Deviation,
    changes_between,
    deviation_of,
    mean_difference,
    mean_of_steps,
    most_deviating,
    trend,
    trend_within,
    widened_by_steps,
)


def persistent(rng: np.random.Generator, num_steps: int, correlation: float) -> np.ndarray:
    values = rng.normal(size=num_steps + 200)
    for index in range(1, len(values)):
        values[index] += correlation * values[index - 1]
    return values[200:]


@pytest.mark.slow
@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
def test_two_stretches_of_one_process_seldom_differ_beyond_their_intervals(correlation: float) -> None:
    rng = np.random.default_rng(1)
    num_apart = 0
    for _ in range(150):
        a, b = (mean_of_steps(series[-20:]) for series in persistent(rng, 200, correlation).reshape(2, 100))
        reach = np.hypot(a.ends[1] - (a.value or 0.0), b.ends[1] - (b.value or 0.0))
        num_apart += abs((a.value or 0.0) - (b.value or 0.0)) > reach
    assert num_apart <= 0.05 * 150


def test_of_uncorrelated_steps_the_interval_is_not_far_from_students() -> None:
    rng = np.random.default_rng(2)
    halves = [(e := mean_of_steps(values)).ends[1] - (e.value or 0.0) for values in rng.normal(size=(200, 100))]
    assert 0.3 < float(np.mean(halves)) < 0.5  # Student's: 0.198; what drifts they leave possible is the rest


@pytest.mark.parametrize("num_steps", [40, 400])
def test_a_drift_below_noise_widens_the_interval_of_a_mean(num_steps: int) -> None:
    rng = np.random.default_rng(3)
    noise = rng.normal(size=num_steps)
    still, moved = (mean_of_steps(s) for s in (noise, noise + np.repeat(rng.normal(size=10), num_steps // 10)))
    assert moved.ends[1] - moved.ends[0] > 1.5 * (still.ends[1] - still.ends[0])
    assert moved.num_units < still.num_units


def test_few_steps_have_no_interval_and_equal_ones_an_empty_one() -> None:
    few = mean_of_steps(range(MIN_STEPS - 1))
    assert (few.value, few.interval) == (4.0, None)
    assert mean_of_steps([0.5] * 12).interval == (0.5, 0.5)


def test_a_slow_drift_under_noise_seldom_passes_for_a_trend_and_a_learning_curve_does() -> None:
    rng, steps = np.random.default_rng(6), np.arange(600)
    many_series = [0.3 * persistent(rng, 600, 0.95) + rng.normal(size=600) for _ in range(60)]
    assert sum(trend(steps, series).side_of_zero != 0 for series in many_series) <= 6  # 25 by single steps alone
    assert sum(mean_of_steps(series).side_of_zero != 0 for series in many_series) <= 4  # 8 by these
    curves = [6 * (1 - np.exp(-steps / 200)) + persistent(rng, 600, 0.5) for _ in range(10)]
    assert all(trend(steps, curve).side_of_zero == 1 for curve in curves)
    assert trend(np.repeat([1, 2, 10**6], 40), rng.normal(size=120)).side_of_zero == 0  # and no warning


def fifth(values: np.ndarray, first: int = 0, second: int = 4) -> Estimate:
    """The change from one fifth of a series to another."""
    size = len(values) // 5
    (change,) = changes_between(values, [tuple(slice(n * size, (n + 1) * size) for n in (first, second))])
    return change


@pytest.mark.slow
@pytest.mark.parametrize("num_steps", [60, 200, 1000])
def test_parts_differ_where_a_course_levels_off_falls_late_or_dips_and_seldom_where_it_wanders(num_steps: int) -> None:
    """The interval of a trend about a parabola held zero in half of curves that level off."""
    rng, time = np.random.default_rng(num_steps), np.arange(num_steps) / num_steps
    courses = {
        (0, 4): (1 - np.exp(-time / 0.1), np.minimum(time / 0.3, 1.0), time),
        (4, 2): (np.clip((0.9 - time) / 0.2, 0.0, 1.0), np.exp(-time / 0.1) + 2 * (time < 0.7)),
        (2, 0): (np.clip(np.abs(time - 0.5) / 0.15, 0.0, 1.0),),
    }
    for parts, shapes in courses.items():
        for shape in shapes:
            noise = rng.normal(scale=0.01 * num_steps**0.5, size=(10, num_steps))
            assert sum(fifth(shape + row, *parts).side_of_zero == 1 for row in noise) >= 9
    wander = [persistent(rng, num_steps, correlation) for correlation in (0.0, 0.5, 0.8, 0.9) for _ in range(25)]
    assert sum(fifth(series).side_of_zero != 0 for series in wander) <= 5


def test_the_change_between_parts_is_that_of_their_means_and_has_none_where_steps_are_few() -> None:
    values = np.random.default_rng(8).normal(size=300)
    change = fifth(values)
    assert change.value == pytest.approx(values[240:].mean() - values[:60].mean())
    assert change.ends[0] + change.ends[1] == pytest.approx(2 * (change.value or 0.0))
    (few,) = changes_between(np.zeros(9), [(slice(0, 2), slice(7, 9))])
    assert few.undefined == "of fewer than ten steps it is not known how far they wander"
    (large,) = changes_between([1e200] * 10, [(slice(0, 2), slice(8, 10))])
    assert large.undefined == "numbers beyond 1e150 have no variance that can be computed"


def test_trend_is_the_regression_line_from_end_to_end() -> None:
    steps = np.array([1, 2, 5, 9, 12])
    values = np.array([0.3, 0.5, 0.4, 0.8, 0.7])
    line = linregress(steps, values)
    half = student.ppf(0.975, 1) * line.stderr * 11  # few steps have one degree of freedom
    change = trend(steps, values)
    assert change.value == pytest.approx(line.slope * 11)
    assert half < change.ends[1] - line.slope * 11 < 2 * half
    assert change.ends[1] + change.ends[0] == pytest.approx(2 * line.slope * 11)


def test_large_steps_cost_no_digits() -> None:
    assert trend(np.arange(10) + 1_000_000_000, np.arange(10) / 9).value == pytest.approx(1.0)


@pytest.mark.slow
@pytest.mark.parametrize("num_steps", [20, 150])
def test_a_slow_drift_is_seldom_a_trend_and_a_learning_curve_is_one(num_steps: int) -> None:
    """Noise on a drift twice as large, correlated by 0.95: 16 to 35 % of 150 series had a trend; 10 % may."""
    rng, steps = np.random.default_rng(num_steps), np.arange(num_steps)
    drifts = [persistent(rng, num_steps, 0.95) * 0.62 + rng.normal(size=num_steps) for _ in range(150)]
    assert sum(trend(steps, drift).side_of_zero != 0 for drift in drifts) <= 15
    curve = 8 * (1 - np.exp(-3 * steps / num_steps))
    assert sum(trend(steps, curve + rng.normal(size=num_steps)).side_of_zero for _ in range(40)) >= 32


@pytest.mark.slow
@pytest.mark.parametrize(("num_steps", "noise"), [(60, 0.0), (200, 0.1), (600, 0.0)])
def test_a_random_walk_is_seldom_a_trend(num_steps: int, noise: float) -> None:
    """Of 100 walks of 600 steps 68 had one while every drift had noise above it."""
    rng, steps = np.random.default_rng(7), np.arange(num_steps)
    walks = rng.normal(size=(100, num_steps)).cumsum(axis=1)
    walks += rng.normal(size=walks.shape) * noise * num_steps**0.5
    assert sum(trend(steps, walk).side_of_zero != 0 for walk in walks) <= 20


@pytest.mark.slow
@pytest.mark.parametrize(("length", "correlation"), [(5, 0.5), (5, 0.9), (12, 0.9), (30, 0.0), (40, 0.9)])
def test_a_trend_of_noise_that_persists_is_seldom_taken_for_one(correlation: float, length: int) -> None:
    """Student's interval takes a fifth to a half of such series for a trend; at most 5 % are here."""
    rng = np.random.default_rng(length)
    ends = [trend(np.arange(length), persistent(rng, length, correlation)).ends for _ in range(200)]
    assert np.mean([not low <= 0 <= high for low, high in ends]) < 0.075


def test_a_trend_that_is_there_is_seen() -> None:
    rng = np.random.default_rng(0)
    changes = [trend(np.arange(30), np.linspace(0, 3, 30) + rng.normal(size=30)).side_of_zero for _ in range(100)]
    assert changes.count(1) > 50


def test_within_units_that_are_all_there_it_is_the_trend_of_the_means() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(12, 4)) + np.arange(4)
    change = trend_within(np.repeat(np.arange(12), 4), np.tile(np.arange(4), 12), values.ravel())
    assert change.value == pytest.approx(trend(np.arange(12), values.mean(axis=1)).value)


def test_within_units_a_change_of_units_is_no_change() -> None:
    steps = [1, 2, 3, 4, 5, 6]
    assert trend_within(steps, list("aabbcc"), [0.0, 0.0, 5.0, 5.0, 9.0, 9.0]).value == pytest.approx(0.0)
    assert trend_within(steps, list("aabbcd"), [0.0, 1.0, 5.0, 6.0, 9.0, 3.0]).value == pytest.approx(3.0)


@pytest.mark.slow
@pytest.mark.parametrize(("num_epochs", "correlation"), [(2, 0.0), (3, 0.9), (6, 0.9)])
def test_within_prompts_that_return_luck_that_persists_is_no_trend(num_epochs: int, correlation: float) -> None:
    rng, claimed = np.random.default_rng(num_epochs), 0
    for _ in range(200):
        shock = persistent(rng, num_epochs * 8, correlation)
        level, steps = rng.normal(size=32), np.repeat(np.arange(num_epochs * 8), 4)
        prompts = np.tile(np.arange(32), num_epochs)
        values = level[prompts] + shock[steps] + 0.3 * rng.normal(size=len(steps))
        claimed += trend_within(steps, prompts, values).side_of_zero != 0
    assert claimed <= 15


@pytest.mark.parametrize("shift", [0, 1])
def test_two_runs_are_compared_step_by_step_where_they_have_the_same_steps(shift: int) -> None:
    rng, curve = np.random.default_rng(0), 5 * np.tanh(np.arange(60) / 20)
    first, second = (curve + rng.normal(size=60) / 10 for _ in range(2))
    change = mean_difference(dict(enumerate(first)), dict(enumerate(second + 0.5, start=shift)))
    assert change.value == pytest.approx(0.5 + second.mean() - first.mean())
    assert change.side_of_zero == 1 - shift  # else what both learn is noise


def test_without_an_interval_over_steps_that_over_prompts_stays() -> None:
    by_prompts = Estimate(value=0.1, low=0.0, high=0.2, num_units=50)
    assert widened_by_steps(by_prompts, Estimate.exact(0.0)) == by_prompts
    assert widened_by_steps(Estimate.exact(0.1), by_prompts) == Estimate.exact(0.1)
    narrow = Estimate(value=0.0, low=-0.01, high=0.01, num_units=9)
    assert widened_by_steps(by_prompts, narrow) == by_prompts


def test_a_trend_needs_a_value_a_step_and_three_different_steps() -> None:
    with pytest.raises(ValueError, match="one value a step is needed"):
        trend([1, 2, 3], [1.0, 2.0])
    assert "there are 2" in str(trend([1, 1, 2, 2], [0.0, 1.0, 0.0, 1.0]).undefined)


def deviation_in(values: dict[int, float], step: int, chosen_from: int = 1) -> Deviation:
    deviation = deviation_of(values, step, num_chosen_from=chosen_from)
    assert isinstance(deviation, Deviation)
    return deviation


def test_it_is_the_median_absolute_deviation_of_logarithms() -> None:
    values = np.exp(np.random.default_rng(0).normal(size=31))
    logs = np.log(values)
    rest = logs[:-1]
    spread = 1.4826 * np.median(np.abs(rest - np.median(rest)))
    deviation = deviation_in(dict(enumerate(values.tolist())), 30)
    assert deviation.deviation == pytest.approx((logs[-1] - np.median(rest)) / spread)
    assert deviation.num_neighbors == 30


def test_numbers_of_either_sign_are_taken_as_they_are() -> None:
    deviation = deviation_in({step: float((-1) ** step * (step % 3)) for step in range(20)} | {20: 9.0}, 20)
    assert deviation.deviation > 4


def test_only_the_nearest_steps_count() -> None:
    values = {step: 100.0 + step % 3 for step in range(200)} | {step: 1.0 + step % 3 for step in range(200, 300)}
    deviation = deviation_in(values, 299)
    assert deviation.num_neighbors == NUM_NEIGHBORS
    assert deviation.typical < 4


def test_a_step_without_a_finite_number_is_no_neighbor_and_a_zero_is_the_smallest() -> None:
    values = {step: 1.0 + step % 4 for step in range(12)}
    assert deviation_in(values | {3: math.nan, 4: math.inf}, 11).num_neighbors == 9
    assert deviation_in(values | {12: 0.0}, 11) == deviation_in(values | {12: 1.0}, 11)


@pytest.mark.parametrize(
    "usual",
    [
        [1.0] * 60,  # as after clipping
        [1.0] * 36 + (1 - np.random.default_rng(0).random(24) / 2).tolist(),
        [0.1] * 40 + [0.2] * 20,
        [0.0] * 59 + [0.001],  # a KL with three decimals
    ],
)
def test_a_spike_stands_out_where_half_of_the_steps_have_the_same_number(usual: list[float]) -> None:
    values = dict(enumerate(np.random.default_rng(1).permutation(usual).tolist()))
    assert not any(deviation_in(values, step, 60).is_unusual for step in values)
    assert most_deviating(values | {30: 20.0}) == 30
    assert deviation_in(values | {30: 20.0}, 30, 60).is_unusual


@pytest.mark.parametrize("sign", [1, -1])
def test_a_spike_stands_out_from_a_series_that_rises_or_falls(sign: int) -> None:
    noise = np.random.default_rng(0).normal(size=60)
    many_series = [np.exp(-3 * np.linspace(0, 1, 60) * sign + 0.1 * noise), sign * np.linspace(-3, 3, 60) + 0.1 * noise]
    for series, spike in zip(many_series, (3 * many_series[0][41], many_series[1][41] + 1.2), strict=True):
        values = dict(enumerate(series.tolist()))
        assert not deviation_in(values, most_deviating(values) or 0, 60).is_unusual
        assert most_deviating(values | {41: spike}) == 41
        deviation = deviation_in(values | {41: spike}, 41, 60)
        assert deviation.is_unusual
        assert deviation.typical == pytest.approx(series[41], rel=0.3, abs=0.3)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (dict.fromkeys(range(20), 0.0), "it is zero at every step"),
        (dict.fromkeys(range(20), -1 / 3), "the other steps have the same number"),
        ({step: 1.0 + step for step in range(MIN_NEIGHBORS)}, "7 other steps have the number, and a spread needs 8"),
    ],
)
def test_undefined_results_say_why(values: dict[int, float], reason: str) -> None:
    assert deviation_of(values, 1, num_chosen_from=1) == reason
    assert most_deviating({step: values[step] for step in range(MIN_NEIGHBORS)}) is None


@pytest.mark.slow
@pytest.mark.parametrize("num_steps", [10, 30])
def test_one_run_in_twenty_has_a_step_that_stands_out_by_chance(num_steps: int) -> None:
    """At most 9 % of 200 runs of log-normal steps: 5 % and two standard errors."""
    chance, alarms = np.random.default_rng(num_steps), 0
    for _ in range(200):
        values = dict(enumerate(np.exp(0.3 * chance.normal(size=num_steps)).tolist()))
        alarms += any(deviation_in(values, step, num_steps).is_unusual for step in values)
    assert alarms <= 18


@pytest.mark.slow
@pytest.mark.parametrize(("family", "num_steps"), [("student 3", 20), ("power 4", 60), ("student 3", 200)])
def test_a_heavy_tail_is_no_spike_and_ten_times_a_tight_series_is(family: str, num_steps: int) -> None:
    """Of 60 steps 29 to 90 % of such runs had a step that stands out."""
    rng, alarms, detected = np.random.default_rng(num_steps), 0, 0
    name, degrees = family.split()
    for _ in range(60):
        healthy = (
            np.exp(0.3 * rng.standard_t(int(degrees), num_steps)) if name == "student" else 1 + rng.pareto(4, num_steps)
        )
        spiked = np.exp(0.2 * rng.normal(size=num_steps)) * np.where(
            np.arange(num_steps) == rng.integers(num_steps), 10, 1
        )
        for numbers in (healthy, spiked):
            values = dict(enumerate(numbers.tolist()))
            stands_out = deviation_in(values, most_deviating(values) or 0, num_steps).is_unusual
            alarms += stands_out and numbers is healthy
            detected += stands_out and numbers is spiked
    assert alarms <= (26 if family == "student 3" else 14)
    assert detected >= 57


@pytest.mark.parametrize(("times", "is_unusual"), [(1.06, False), (1.4, True)])
def test_a_smooth_series_has_no_spike_of_a_few_percent(times: float, is_unusual: bool) -> None:
    values = {step: 0.03 * (1.0 + 0.001 * (step % 7)) for step in range(200)} | {100: 0.03 * times}
    assert deviation_in(values, 100, 200).is_unusual == is_unusual


def test_a_bound_for_a_step_that_was_named_is_lower_than_for_the_furthest_of_many() -> None:
    values = {step: 1.0 + step % 4 for step in range(40)}
    assert deviation_in(values, 3).by_chance < deviation_in(values, 3, 40).by_chance


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_the_most_deviating_step_is_that_of_a_walk_over_all(seed: int) -> None:
    rng = np.random.default_rng(seed)
    steps = np.cumsum(rng.integers(1, 1 + rng.integers(1, 6), rng.integers(1, 160)))
    numbers = rng.normal(size=len(steps)) if seed % 2 else rng.lognormal(size=len(steps))
    values = dict(zip(steps.tolist(), numbers.tolist(), strict=True))
    for step in rng.choice(steps, 5).tolist():
        values[step] = float(rng.choice([math.nan, 0.0, 1.0]))
    deviations = {step: deviation_of(values, step, num_chosen_from=1) for step in values if math.isfinite(values[step])}
    expected = {step: first.deviation for step, first in deviations.items() if isinstance(first, Deviation)}
    assert most_deviating(values) == max(expected, key=lambda step: expected[step], default=None)
    if seed % 2 == 0:  # no number is negative
        smallest = min(value for value in values.values() if value > 0)
        values = {step: value or smallest for step, value in values.items()}
    for step, first in deviations.items():  # the neighbors by a sort of all steps
        rest = [other for other, value in values.items() if other != step and math.isfinite(value)]
        nearest = sorted(rest, key=lambda other: (abs(other - step), other))[:NUM_NEIGHBORS]
        assert not isinstance(first, Deviation) or first.typical == np.median([values[other] for other in nearest])


def test_steps_with_one_far_from_the_rest_have_a_trend() -> None:
    """A parabola over them is a line, and no fit to both has one answer."""
    values = np.random.default_rng(0).normal(size=12)
    change = trend([*range(11), 2**53], values)
    assert change.interval is not None
    assert change.ends[0] < change.ends[1]


@pytest.mark.parametrize("large", [1e151, -1e308])
def test_numbers_whose_squares_no_float_holds_have_neither_mean_nor_trend(large: float) -> None:
    values = [0.5] * 11 + [large]
    twice = trend_within(list(range(12)) * 2, ["a"] * 12 + ["b"] * 12, values * 2)
    for estimate in (mean_of_steps(values), trend(range(12), values), twice):
        assert estimate.undefined == "numbers beyond 1e150 have no variance that can be computed"
