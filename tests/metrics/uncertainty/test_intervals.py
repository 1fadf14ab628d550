import math

import numpy as np
import pytest
from scipy import stats

from gradscope.estimate import Estimate
from gradscope.metrics.gram.spectrum import effective_ranks, singular_values_from_grams
from gradscope.metrics.outcomes.degeneracy import estimate_degeneracies
from gradscope.metrics.uncertainty import intervals
from gradscope.metrics.uncertainty.bootstrap import bootstrap_mean
from tests.metrics.outcomes.test_degeneracy import table_of


def test_every_form_of_the_level_is_the_same_level() -> None:
    assert (intervals.COVERAGE, intervals.UPPER_TAIL, intervals.QUANTILES) == (0.95, 0.975, (0.025, 0.975))
    assert stats.norm.cdf(intervals.NORMAL) - stats.norm.cdf(-intervals.NORMAL) == pytest.approx(
        intervals.COVERAGE, abs=1e-15
    )


def test_what_is_not_asked_for_is_usual() -> None:
    values = np.random.default_rng(0).random(40)
    assert intervals.Resampling() == intervals.RESAMPLING
    assert bootstrap_mean(values) == bootstrap_mean(values, resampling=intervals.Resampling(num_resamples=2000, seed=0))


def test_wilson_agrees_with_scipy_and_is_exact_at_the_ends() -> None:
    theirs = stats.binomtest(7, 40).proportion_ci(method="wilson")
    assert intervals.wilson_interval(7 / 40, 40) == pytest.approx((theirs.low, theirs.high))
    assert intervals.wilson_interval(0.0, 30)[0] == 0.0
    assert intervals.wilson_interval(1.0, 30)[1] == 1.0


@pytest.mark.parametrize(
    ("ends", "image"), [((0.1, 0.2), (0.64, 0.81)), ((1.2, 1.5), (0.04, 0.25)), ((0.5, 1.2), (0.0, 0.25))]
)
def test_image_knows_the_minimum(ends: tuple[float, float], image: tuple[float, float]) -> None:
    assert intervals.image_of_interval(lambda x: (x - 1) ** 2, ends, turns_at=1.0) == pytest.approx(image)


def test_independent_intervals_add_in_squares_on_their_own_sides() -> None:
    first = Estimate(value=1.0, low=0.7, high=1.3, num_units=9)
    difference = intervals.difference_of(first, Estimate(value=3.0, low=2.6, high=3.4, num_units=8))
    assert (difference.value, *difference.ends) == pytest.approx((2.0, 1.5, 2.5))
    assert difference.num_units == 8


def test_a_skewed_side_makes_a_skewed_difference() -> None:
    first, last = Estimate(value=0.0, low=-0.3, high=0.1), Estimate(value=1.0, low=0.6, high=1.8)
    # Below: how far last may be lower and first higher, sqrt(0.4^2 + 0.1^2); above: sqrt(0.8^2 + 0.3^2).
    assert intervals.difference_of(first, last).ends == pytest.approx((1 - 0.17**0.5, 1 + 0.73**0.5))


def test_a_side_without_an_interval_only_shifts_and_two_of_them_differ_by_a_fact() -> None:
    difference = intervals.difference_of(Estimate.exact(0.1), Estimate(value=0.5, low=0.3, high=0.8))
    assert difference.ends == pytest.approx((0.2, 0.7))
    assert intervals.difference_of(Estimate.exact(1.0), Estimate.exact(3.0)) == Estimate.exact(2.0)


def test_correlation_narrows_a_difference_down_to_nothing() -> None:
    first, last = Estimate(value=0.3, low=0.2, high=0.4), Estimate(value=0.5, low=0.4, high=0.6)
    independent, together = intervals.difference_of(first, last), intervals.difference_of(first, last, correlation=0.9)
    assert together.high - together.low < 0.5 * (independent.high - independent.low)
    assert intervals.difference_of(first, last, correlation=1.0).ends == pytest.approx((0.2, 0.2))


@pytest.mark.parametrize(("first", "last"), [("dead", None), (None, "dead"), ("dead", "later")])
def test_an_undefined_side_leaves_no_difference(first: str | None, last: str | None) -> None:
    sides = [Estimate.exact(1.0) if reason is None else Estimate.undefined_because(reason) for reason in (first, last)]
    assert intervals.difference_of(*sides) == Estimate.undefined_because("dead")


def test_a_ratio_is_the_difference_of_logarithms() -> None:
    first = Estimate(value=0.2, low=0.1, high=0.3, num_units=9)
    last = Estimate(value=0.5, low=0.4, high=0.8, num_units=8)
    ratio = intervals.ratio_of(first, last, correlation=0.3)
    logs = [Estimate(value=math.log(e.value), low=math.log(e.low), high=math.log(e.high)) for e in (first, last)]
    assert ratio.value == pytest.approx(2.5)
    assert [math.log(end) for end in ratio.ends] == pytest.approx(intervals.difference_of(*logs, correlation=0.3).ends)
    assert ratio.num_units == 8


def test_a_ratio_at_zero_keeps_the_ends_that_it_has() -> None:
    first = Estimate(value=0.2, low=0.1, high=0.4)
    assert intervals.ratio_of(first, Estimate(value=0.0, low=0.0, high=0.3)).ends == (0.0, pytest.approx(3.0))
    assert intervals.ratio_of(first, Estimate(value=0.1, low=0.0, high=0.2)).low == 0.0
    assert intervals.ratio_of(Estimate(value=0.1, low=0.0, high=0.2), first).interval is None
    assert intervals.ratio_of(Estimate.exact(0.5), Estimate.exact(0.25)) == Estimate.exact(0.5, num_units=1)
    assert intervals.ratio_of(Estimate.exact(0.0), first).undefined == "it is relative to zero"
    assert intervals.ratio_of(first, Estimate.undefined_because("no rewards")).undefined == "no rewards"


def test_intervals_of_a_relative_gap_hold_their_truth() -> None:
    """100 prompts of Beta(.5, .5), groups of 4: D = 0.547, p = 1/2, so the gap is 3.375 times the prediction."""
    rng = np.random.default_rng(0)
    held = []
    for _ in range(60):
        passed = rng.binomial(4, rng.beta(0.5, 0.5, 100))
        table = table_of([(1, f"p{index:02}", 4, number) for index, number in enumerate(passed.tolist())])
        relative = estimate_degeneracies([table], resampling=intervals.Resampling(num_resamples=200))[0].relative_gap
        held.append(relative.low <= 2 * 35 / 128 / 0.125 - 1 <= relative.high)
    assert np.mean(held) > 0.85


@pytest.mark.slow
def test_one_more_value_lies_inside_as_often_as_it_says() -> None:
    """999 of 1,000 for normal samples of six; the Monte Carlo error of the share is 0.0005."""
    draw = np.random.default_rng(0).normal(3.0, 0.2, (20_000, 7))
    inside = 0
    for row in draw:
        low, high = intervals.prediction_interval(row[:6].tolist())
        inside += low <= row[6] <= high
    assert inside / len(draw) == pytest.approx(0.999, abs=0.0015)


def test_equal_values_leave_no_room_and_a_single_value_is_no_sample() -> None:
    assert intervals.prediction_interval([2.0, 2.0, 2.0]) == (2.0, 2.0)
    with pytest.raises(ValueError, match="two values"):
        intervals.prediction_interval([1.0])


def without_each(values: np.ndarray) -> np.ndarray:
    return (values.sum() - values) / (len(values) - 1)


def test_the_interval_of_a_mean_is_students_and_stays_where_the_statistic_can_be() -> None:
    values = np.random.default_rng(0).normal(size=9)
    estimate = intervals.jackknife(values.mean(), [without_each(values)], low=-9.0, high=9.0)
    expected = stats.t.interval(0.95, 8, loc=values.mean(), scale=stats.sem(values))
    assert (estimate.low, estimate.high) == pytest.approx(expected)
    assert estimate.num_units == 9
    cut = intervals.jackknife(1.1, [[1.0, 1.9, 1.1, 1.3]], low=1.0, high=1.5)
    assert (cut.low, cut.high) == (1.0, 1.5)


def test_the_variances_of_strata_add_up() -> None:
    values = np.random.default_rng(1).normal(size=(2, 6))
    left_out = [values.mean() + (without_each(row) - row.mean()) / 2 for row in values]
    estimate = intervals.jackknife(values.mean(), left_out, low=-9.0, high=9.0)
    error = np.sqrt(sum(stats.sem(row) ** 2 for row in values)) / 2
    assert (estimate.high or 0.0) - values.mean() == pytest.approx(stats.t.ppf(0.975, 10) * error)


def test_what_hangs_on_one_unit_or_has_too_few_is_undefined() -> None:
    single = intervals.jackknife(1.5, [[1.0, 1.1, np.nan, 1.2]], low=1.0, high=4.0)
    assert single.undefined == "it hangs on a single unit, without which it does not exist"
    for values, num in (([[1.0, 1.0]], 2), ([], 0)):
        reason = intervals.jackknife(1.5, values, low=1.0, high=2.0).undefined
        assert reason == f"leaving one of {num} out leaves too little"


def ranks(rows: np.ndarray) -> np.ndarray:
    return effective_ranks(singular_values_from_grams(rows @ np.swapaxes(rows, -1, -2)))


@pytest.mark.slow
@pytest.mark.parametrize(("uneven", "lower"), [(False, 0.92), (True, 0.85)])
def test_it_covers_the_mean_rank_of_rows_that_were_not_drawn(uneven: bool, lower: float) -> None:
    """Two groups of 8 rows with a common direction, of like norms and of norms that differ by orders of magnitude."""
    rng = np.random.default_rng(2)

    def draw(times: int) -> np.ndarray:
        sizes = rng.exponential(size=(times, 2, 8, 1)) if uneven else 1.0
        return rng.normal(size=(times, 2, 8, 20)) * sizes + 0.7

    truth, rows = float(ranks(draw(5000)).mean()), draw(300)
    left_out = np.stack([ranks(np.delete(rows, index, axis=2)) for index in range(8)], axis=-1)
    inside = 0
    for mine, replicates in zip(ranks(rows), left_out, strict=True):
        means_without = [(mine.sum() - mine[index] + replicates[index]) / 2 for index in range(2)]
        estimate = intervals.jackknife(float(mine.mean()), means_without, low=1.0, high=8.0)
        inside += (estimate.low or 0.0) <= truth <= (estimate.high or 0.0)
    assert inside / 300 >= lower


def test_the_crossed_interval_of_one_sample_is_students() -> None:
    values = np.random.default_rng(3).normal(size=7)
    parts = [without_each(values), np.full(5, values.mean())]
    estimate = intervals.crossed_jackknife(values.mean(), parts, low=-9.0, high=9.0)
    expected = stats.t.interval(0.95, 6, loc=values.mean(), scale=stats.sem(values))
    assert estimate.interval == pytest.approx(expected)
    assert estimate.num_units == 12
    still = intervals.crossed_jackknife(0.25, [np.full(4, 0.25), np.full(3, 0.25)], low=0.0, high=1.0)
    assert (still.value, still.interval, still.num_units) == (0.25, None, 7)


def test_the_crossed_interval_of_two_means_is_welchs() -> None:
    """A sum of two samples' means: Satterthwaite's degrees of freedom, as in Welch's test."""
    rng = np.random.default_rng(4)
    first, second = rng.normal(size=6), 3 * rng.normal(size=9)
    left_out = [without_each(first) + second.mean(), first.mean() + without_each(second)]
    estimate = intervals.crossed_jackknife(first.mean() + second.mean(), left_out, low=-99.0, high=99.0)
    welch = stats.ttest_ind(first, -second, equal_var=False).confidence_interval(0.95)
    assert estimate.interval == pytest.approx((welch.low, welch.high))
    cut = intervals.crossed_jackknife(first.mean() + second.mean(), left_out, low=-0.01, high=0.01)
    assert (cut.low, cut.high) == (-0.01, 0.01)
