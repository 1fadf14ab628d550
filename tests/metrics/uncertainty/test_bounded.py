from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from gradscope.estimate import Estimate
from gradscope.metrics.uncertainty.bootstrap import bootstrap_mean
from gradscope.metrics.uncertainty.bounded import bounded_means
from gradscope.metrics.uncertainty.resampling import Resampling

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


@pytest.mark.parametrize("number", [1, 2, 8, 30])
@pytest.mark.parametrize("value", [1.0, 4.0, 16.0])
def test_equal_ranks_tell_nothing_of_their_spread(number: int, value: float) -> None:
    mean = mean_of([value] * number)
    assert (mean.value, mean.interval, mean.num_units) == (pytest.approx(value), None, number)


def test_ranks_that_differ_from_one_by_rounding_are_one() -> None:
    """One group of sixteen with a second direction is a rare event, and says so, whatever the others' last digits."""
    exact, rounded = ([1.0 + noise * place for place in range(15)] + [1.99] for noise in (0.0, 1e-7))
    assert mean_of(rounded, high=8.0).interval == mean_of(exact, high=8.0).interval
    assert mean_of(rounded, high=8.0).ends[1] > 2.0


def test_one_row_has_one_rank() -> None:
    assert mean_of([1.0, 1.0, 1.0], high=1.0).value == 1.0


def test_sub_groups_of_one_group_are_one_unit() -> None:
    mean = mean_of([2.0, 4.0, 5.0, 5.0], ["a", "a", "b", "b"])
    assert (mean.value, mean.num_units) == (4.0, 2)
    assert mean.interval == pytest.approx(mean_of([3.0, 5.0]).interval)


@settings(deadline=None)
@given(st.integers(2, 20).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.floats(1, n), min_size=1, max_size=14))))
def test_no_interval_leaves_the_range(case: tuple[int, list[float]]) -> None:
    rows, values = case
    low, high = mean_of(values, high=rows).ends
    equal = 1e-6 * rows
    assert 1.0 - 1e-12 <= low <= np.mean(values) + equal
    assert np.mean(values) - equal <= high <= rows * (1 + 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(2, 2), (0.5, 3), (6, 1)])
@pytest.mark.parametrize("number", [2, 4, 8])
def test_intervals_of_few_groups_hold_the_truth(shape: tuple[float, float], number: int) -> None:
    ranks = 1 + 15 * np.random.default_rng(number).beta(*shape, size=(2000, number))
    truth = 1 + 15 * shape[0] / sum(shape)
    held = [low <= truth <= high for low, high in (mean_of(row.tolist()).ends for row in ranks)]
    assert np.mean(held) > 0.92


@pytest.mark.slow
@pytest.mark.parametrize("rare", [0.05, 0.15])
def test_ranks_that_are_rarely_more_than_one_are_held_although_they_are_rounded(rare: float) -> None:
    """Sixteen groups of 8 rollouts: rank 2 with a small chance, else 1 up to the rounding of float32."""
    rng, held = np.random.default_rng(0), 0
    for _ in range(400):
        ranks = np.where(rng.random(16) < rare, 2.0, 1.0 + 1e-7 * rng.random(16))
        low, high = mean_of(ranks.tolist(), high=8.0).ends
        held += low - 1e-6 <= 1.0 + rare <= high + 1e-6 or np.ptp(ranks) < 1e-6
    assert held >= 0.93 * 400
