from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import permutation_test
from scipy.stats import t as student

from gradscope.estimate import Estimate
from gradscope.metrics.uncertainty.one_sided import rise_by_flips, rise_by_interval


@pytest.mark.parametrize("num_pairs", [5, 12, 40])
def test_flips_are_those_of_scipy(num_pairs: int) -> None:
    values = np.random.default_rng(num_pairs).normal(0.3, 1, num_pairs)
    theirs = permutation_test(
        (values,), np.sum, permutation_type="samples", alternative="greater", n_resamples=20_000, rng=0
    )
    assert rise_by_flips(values, 0.0) == pytest.approx(theirs.pvalue, abs=0.01)


def test_a_margin_is_taken_off_each_pair() -> None:
    values = np.random.default_rng(0).normal(0.5, 1, 30)
    assert rise_by_flips(values, 0.4) == rise_by_flips(values - 0.4, 0.0)


def test_pairs_that_do_not_differ_say_nothing() -> None:
    assert rise_by_flips([0.0, 0.0], 0.0) == 1.0
    assert rise_by_flips([0.0] * 50 + [1.0], 0.0) == 0.5


def test_a_p_value_of_an_interval_is_students() -> None:
    half = float(student.ppf(0.975, 11)) * 0.2
    change = Estimate(value=0.5, low=0.5 - half, high=0.5 + half, num_units=12)
    assert rise_by_interval(change, 0.1) == pytest.approx(float(student.sf(0.4 / 0.2, 11)))


def test_an_empty_interval_knows() -> None:
    sure = Estimate(value=0.5, low=0.5, high=0.5, num_units=3)
    assert (rise_by_interval(sure, 0.4), rise_by_interval(sure, 0.5)) == (0.0, 1.0)


def test_without_an_interval_there_is_no_p_value() -> None:
    with pytest.raises(ValueError, match="a p-value needs an interval"):
        rise_by_interval(Estimate.exact(0.5), 0.0)
