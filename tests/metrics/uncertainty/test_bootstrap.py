from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from gradscope.estimate import Estimate
from gradscope.metrics.uncertainty.bootstrap import (
    bootstrap_difference,
    bootstrap_mean,
    bootstrap_means,
    bootstrap_statistics,
    bounded_means,
)
from gradscope.metrics.uncertainty.intervals import Resampling, wilson_interval
from tests.work import num_calls

Array = NDArray[np.float64]


def draws(seed: int, size: int) -> Array:
    return np.random.default_rng(seed).beta(0.4, 0.8, size)


def test_interval_is_near_another_second_order_one() -> None:
    values = draws(0, 60)
    ours = bootstrap_mean(values, resampling=Resampling(num_resamples=20_000))
    theirs = stats.bootstrap((values,), np.mean, n_resamples=20_000, method="BCa", rng=np.random.default_rng(1))
    assert ours.value == pytest.approx(values.mean())
    assert (ours.low, ours.high) == pytest.approx(tuple(theirs.confidence_interval), abs=0.015)


def test_interval_covers_the_truth_as_often_as_it_says() -> None:
    truth, hits, trials = 0.4 / 1.2, 0, 400
    for seed in range(trials):
        mean = bootstrap_mean(draws(seed, 50), resampling=Resampling(num_resamples=500))
        hits += mean.low <= truth <= mean.high
    assert 0.91 <= hits / trials <= 0.98


def test_same_seed_same_interval() -> None:
    first, same, other = (bootstrap_mean(draws(3, 40), resampling=Resampling(seed=seed)) for seed in (5, 5, 6))
    assert first == same != other


def test_rows_of_one_prompt_are_one_unit() -> None:
    values = draws(4, 30)
    repeated, clusters = np.repeat(values, 10), np.repeat(np.arange(30), 10)
    clustered, single = bootstrap_mean(repeated, clusters), bootstrap_mean(values)
    assert clustered.num_units == 30
    assert (clustered.low, clustered.high) == pytest.approx((single.low, single.high))
    naive = bootstrap_mean(repeated)
    assert naive.high - naive.low < 0.5 * (clustered.high - clustered.low)


@pytest.mark.parametrize(("value", "low", "high"), [(0.0, 0.0, 0.1135), (1.0, 0.8865, 1.0)])
def test_certain_shares_keep_an_interval(value: float, low: float, high: float) -> None:
    mean = bootstrap_mean([value] * 30)
    assert (mean.value, mean.low, mean.high) == pytest.approx((value, low, high), abs=1e-4)
    assert bootstrap_mean([value] * 30, share=False).interval is None  # a constant that is no share


def test_few_units_have_no_bootstrap_interval_but_wilsons_or_students() -> None:
    assert bootstrap_mean([0.2, 0.9, 0.4], share=False).low is None
    assert bootstrap_mean([0.0, 1.0, 1.0]).low == pytest.approx(wilson_interval(2 / 3, 3)[0])
    values = draws(0, 8)
    mean = bootstrap_mean(values, share=False)
    theirs = stats.ttest_1samp(values, 0).confidence_interval()
    assert (mean.low, mean.high) == pytest.approx((theirs.low, theirs.high))


def test_rare_share_gets_wilsons_interval() -> None:
    values = [0.0] * 40 + [0.25, 0.5]
    mean = bootstrap_mean(values)
    assert (mean.low, mean.high) == pytest.approx(wilson_interval(0.75 / 42, 42))


def test_a_share_is_never_less_certain_than_wilsons_interval() -> None:
    # pass@10 of 64 prompts: three never solved, five nearly always; resamples without the three have hardly any error
    values = [0.0] * 3 + [0.875] * 2 + [0.964, 0.9986, 0.9999] + [1.0] * 56
    mean = bootstrap_mean(values)
    low, high = wilson_interval(float(np.mean(values)), 64)
    assert mean.low == pytest.approx(low)
    assert mean.high is not None
    assert mean.high <= high
    assert bootstrap_mean(values, share=False).low < 0.7  # the studentized end by itself


def test_difference_is_paired() -> None:
    first = draws(1, 50)
    shifted = bootstrap_difference(first, first + 0.1 * (draws(2, 50) > 0.5))
    assert shifted.low > 0.0
    unpaired = bootstrap_mean(first)
    assert shifted.high - shifted.low < 0.5 * (unpaired.high - unpaired.low)


def test_policies_that_agree_or_hardly_differ_keep_both_signs_open() -> None:
    same = bootstrap_difference([0.0, 1.0] * 15, [0.0, 1.0] * 15)
    assert (same.low, same.value, same.high) == pytest.approx((-0.1135, 0.0, 0.1135), abs=1e-4)
    after = [1.0] + [0.0] * 29
    rare = bootstrap_difference([0.0] * 30, after)
    assert rare.low < 0.0 < rare.value < rare.high < 0.2


def test_nothing_to_average_is_undefined() -> None:
    assert bootstrap_mean([]).undefined == "there is nothing to average"


def test_resampling_is_arithmetic_on_arrays_whatever_the_number_of_units() -> None:
    few, many = num_calls(lambda: bootstrap_mean(draws(0, 20))), num_calls(lambda: bootstrap_mean(draws(0, 160)))
    assert many < 1.5 * few


@pytest.mark.parametrize(
    ("measure", "message"),
    [
        (lambda: bootstrap_statistics(lambda sums: sums, np.zeros((0, 2))), "units are a non-empty table"),
        (lambda: bootstrap_statistics(lambda sums: sums, [[np.nan]]), "units and their statistics are finite numbers"),
        (lambda: bootstrap_means([[1.5]]), r"shares lie in \[0, 1\]"),
        (lambda: bootstrap_difference([1.0], [1.0, 2.0]), "paired values have one shape"),
    ],
)
def test_what_has_no_interval_is_refused(measure: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        measure()


QUICK = Resampling(num_resamples=100)


def mean_of(values: list[float], clusters: list[str] | None = None, *, high: float = 16.0) -> Estimate:
    (mean,) = bounded_means(np.array(values)[:, None], clusters, low=1.0, high=high, resampling=QUICK)
    return mean


def test_few_close_ranks_get_students_interval_and_not_wilsons() -> None:
    values = np.random.default_rng(0).normal(6.0, 0.8, 8)
    mean = mean_of(values.tolist())
    theirs = stats.ttest_1samp(values, 0).confidence_interval()
    assert (mean.low, mean.high) == pytest.approx((theirs.low, theirs.high), rel=0.03)
    wilson = bootstrap_mean((values - 1) / 15)
    assert mean.high - mean.low < 0.2 * 15 * (wilson.high - wilson.low)


@pytest.mark.parametrize(("value", "number"), [(1.0, 8), (4.0, 1), (4.0, 30), (16.0, 2)])
def test_equal_ranks_tell_nothing_of_their_spread(number: int, value: float) -> None:
    mean = mean_of([value] * number)
    assert (mean.value, mean.interval, mean.num_units) == (pytest.approx(value), None, number)
    assert mean_of([1.0] * number, high=1.0).value == 1.0  # one row has one rank


def test_ranks_that_differ_from_one_by_rounding_are_one() -> None:
    """One group of sixteen with a second direction is a rare event, and says so, whatever the others' last digits."""
    exact, rounded = ([1.0 + noise * step for step in range(15)] + [1.99] for noise in (0.0, 1e-7))
    assert mean_of(rounded, high=8.0).interval == mean_of(exact, high=8.0).interval
    assert mean_of(rounded, high=8.0).ends[1] > 2.0


def test_sub_groups_of_one_group_are_one_unit() -> None:
    mean = mean_of([2.0, 4.0, 5.0, 5.0], ["a", "a", "b", "b"])
    assert (mean.value, mean.num_units) == (4.0, 2)
    assert mean.interval == pytest.approx(mean_of([3.0, 5.0]).interval)


@given(st.integers(2, 20).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.floats(1, n), min_size=1, max_size=14))))
def test_no_interval_leaves_the_range(case: tuple[int, list[float]]) -> None:
    rows, values = case
    low, high = mean_of(values, high=rows).ends
    equal = 1e-6 * rows
    assert 1.0 - 1e-12 <= low <= np.mean(values) + equal
    assert np.mean(values) - equal <= high <= rows * (1 + 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "number"), [((2, 2), 2), ((0.5, 3), 4), ((6, 1), 4), ((0.5, 3), 8)])
def test_intervals_of_few_groups_hold_the_truth(shape: tuple[float, float], number: int) -> None:
    ranks = 1 + 15 * np.random.default_rng(number).beta(*shape, size=(2000, number))
    truth = 1 + 15 * shape[0] / sum(shape)
    held = [low <= truth <= high for low, high in (mean_of(row.tolist()).ends for row in ranks)]
    assert np.mean(held) > 0.92


@pytest.mark.slow
def test_ranks_that_are_rarely_more_than_one_are_held_although_they_are_rounded() -> None:
    """Sixteen groups of 8 rollouts: rank 2 with a chance of 0.15, else 1 up to the rounding of float32."""
    rng, held = np.random.default_rng(0), 0
    for _ in range(400):
        ranks = np.where(rng.random(16) < 0.15, 2.0, 1.0 + 1e-7 * rng.random(16))
        low, high = mean_of(ranks.tolist(), high=8.0).ends
        held += low - 1e-6 <= 1.15 <= high + 1e-6 or np.ptp(ranks) < 1e-6
    assert held >= 0.93 * 400
