"""Intervals by leaving one out: exact for means, wide enough for ranks."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from gradscope.metrics.gram.spectrum import effective_ranks, singular_values_from_grams
from gradscope.metrics.uncertainty.jackknife import crossed_jackknife, jackknife


def without_each(values: np.ndarray) -> np.ndarray:
    return (values.sum() - values) / (len(values) - 1)


def test_the_interval_of_a_mean_is_students() -> None:
    values = np.random.default_rng(0).normal(size=9)
    found = jackknife(values.mean(), [without_each(values)], low=-9.0, high=9.0)
    expected = stats.t.interval(0.95, 8, loc=values.mean(), scale=stats.sem(values))
    assert (found.low, found.high) == pytest.approx(expected)
    assert found.num_units == 9


def test_the_variances_of_strata_add_up() -> None:
    values = np.random.default_rng(1).normal(size=(2, 6))
    left_out = [values.mean() + (without_each(row) - row.mean()) / 2 for row in values]
    found = jackknife(values.mean(), left_out, low=-9.0, high=9.0)
    error = np.sqrt(sum(stats.sem(row) ** 2 for row in values)) / 2
    assert (found.high or 0.0) - values.mean() == pytest.approx(stats.t.ppf(0.975, 10) * error)


def test_an_interval_stays_where_the_statistic_can_be() -> None:
    found = jackknife(1.1, [[1.0, 1.9, 1.1, 1.3]], low=1.0, high=1.5)
    assert (found.low, found.high) == (1.0, 1.5)


def test_what_hangs_on_one_unit_or_has_too_few_is_undefined() -> None:
    alone = jackknife(1.5, [[1.0, 1.1, np.nan, 1.2]], low=1.0, high=4.0)
    assert alone.undefined == "it hangs on a single unit, without which it does not exist"
    assert jackknife(1.5, [[1.0, 1.0]], low=1.0, high=2.0).undefined == "leaving one of 2 out leaves too little"
    assert jackknife(1.5, [], low=1.0, high=2.0).undefined == "leaving one of 0 out leaves too little"


def ranks(rows: np.ndarray) -> np.ndarray:
    return effective_ranks(singular_values_from_grams(rows @ np.swapaxes(rows, -1, -2)))


@pytest.mark.parametrize(("uneven", "least"), [(False, 0.92), (True, 0.85)])
def test_it_covers_the_mean_rank_of_rows_that_were_not_drawn(uneven: bool, least: float) -> None:
    """Two groups of 8 rows with a common direction, of like norms and of norms that differ by orders of magnitude."""
    rng = np.random.default_rng(2)

    def draw(times: int) -> np.ndarray:
        sizes = rng.exponential(size=(times, 2, 8, 1)) if uneven else 1.0
        return rng.normal(size=(times, 2, 8, 20)) * sizes + 0.7

    truth, rows = float(ranks(draw(5000)).mean()), draw(300)
    left_out = np.stack([ranks(np.delete(rows, place, axis=2)) for place in range(8)], axis=-1)
    inside = 0
    for mine, without in zip(ranks(rows), left_out, strict=True):
        of_mean = [(mine.sum() - mine[place] + without[place]) / 2 for place in range(2)]
        found = jackknife(float(mine.mean()), of_mean, low=1.0, high=8.0)
        inside += (found.low or 0.0) <= truth <= (found.high or 0.0)
    assert inside / 300 >= least


def test_of_one_sample_alone_the_crossed_interval_is_students() -> None:
    values = np.random.default_rng(3).normal(size=7)
    found = crossed_jackknife(values.mean(), [without_each(values), np.full(5, values.mean())], low=-9.0, high=9.0)
    expected = stats.t.interval(0.95, 6, loc=values.mean(), scale=stats.sem(values))
    assert found.interval == pytest.approx(expected)
    assert found.num_units == 12


def test_the_crossed_interval_of_two_means_is_welchs() -> None:
    """A sum of two samples' means: Satterthwaite's degrees of freedom, as in Welch's test."""
    rng = np.random.default_rng(4)
    first, second = rng.normal(size=6), 3 * rng.normal(size=9)
    left_out = [without_each(first) + second.mean(), first.mean() + without_each(second)]
    found = crossed_jackknife(first.mean() + second.mean(), left_out, low=-99.0, high=99.0)
    welch = stats.ttest_ind(first, -second, equal_var=False).confidence_interval(0.95)
    assert found.interval == pytest.approx((welch.low, welch.high))
    cut = crossed_jackknife(first.mean() + second.mean(), left_out, low=-0.01, high=0.01)
    assert (cut.low, cut.high) == (-0.01, 0.01)


def test_where_no_unit_changes_anything_there_is_no_crossed_interval() -> None:
    found = crossed_jackknife(0.25, [np.full(4, 0.25), np.full(3, 0.25)], low=0.0, high=1.0)
    assert (found.value, found.interval, found.num_units) == (0.25, None, 7)
