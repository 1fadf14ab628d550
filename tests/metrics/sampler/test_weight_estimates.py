"""What importance weights leave of a sample, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from gradscope.metrics.gram.part_sums import POSITIVE, SHARE, jackknifed_on
from gradscope.metrics.sampler.weight_estimates import weight_estimates


def test_equal_weights_are_worth_every_unit() -> None:
    found = weight_estimates(np.full(8, 1.0), [0, 0, 1, 1, 2, 2, 3, 3])
    assert (found.kept.value, found.ess.value, found.chi2.value) == (1.0, 1.0, 0.0)


def test_intervals_leave_groups_out() -> None:
    weights, groups = np.array([1.0, 2.0, 0.0, 1.0, 0.5, 0.5]), np.array([0, 0, 1, 1, 2, 2])
    found = weight_estimates(weights, groups)
    assert found.kept.value == pytest.approx(5 / 6)
    assert found.ess.value == pytest.approx(5.0**2 / (6 * 6.5))
    assert found.chi2.value == pytest.approx(6.5 / 6 - 1)
    without = [weights[groups != group] for group in range(3)]
    values = [of.sum() ** 2 / len(of) / np.square(of).sum() for of in (weights, *without)]
    assert found.ess.interval == pytest.approx(jackknifed_on(values, SHARE).interval)
    moments = [np.square(of).mean() for of in (weights, *without)]
    assert found.chi2.interval == pytest.approx(np.array(jackknifed_on(moments, POSITIVE).interval) - 1)


def test_nothing_is_left_where_all_are_masked() -> None:
    found = weight_estimates(np.zeros(6), [0, 0, 1, 1, 2, 2])
    assert found.kept.value == 0.0
    assert found.ess.undefined == "every weight is zero"
    assert found.chi2.value == -1.0


def test_two_groups_tell_no_interval() -> None:
    assert weight_estimates([1.0, 2.0], [0, 1]).ess.interval is None
