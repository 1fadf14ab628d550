"""How noisy the gradient is under each baseline, worked by hand on groups of two."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gradscope.diagnostics.rank.reward_baselines import baseline_groups, measure_baselines
from tests.diagnostics.rank.test_rollout_spectra import make_rows


def rows_of(rewards, squared_norms, groups):
    rows, _ = make_rows(list(rewards), list(groups))
    return replace(rows, gram=np.diag(squared_norms))


def test_second_moments_of_one_pair_by_hand() -> None:
    # rewards 1 and 0, |s|^2 3 and 1: leave-one-out is (3 + 1)/2, zero 3/2, the mean (3 + 1)/8, 3/4 is the best constant
    (group,) = baseline_groups(rows_of([1.0, 0.0], [3.0, 1.0], "aa"))
    assert group.moments["leave_one_out"] == pytest.approx(2.0)
    assert group.moments["zero"] == pytest.approx(1.5)
    assert group.moments["group_mean"] == pytest.approx(0.5)
    assert group.moments["optimal"] == pytest.approx(0.375)
    whole, step, alone = measure_baselines([group])
    assert (whole.step, step.step, alone.group_id) == (None, 3, "a")
    assert alone.optimal_baseline.value == pytest.approx(0.75)
    assert alone.relative_noise["zero"].value == pytest.approx(0.75)
    assert alone.relative_noise["optimal"].value == pytest.approx(0.1875)
    assert alone.relative_noise["zero"].low is None  # a single group has no interval
    assert alone.reward_norm_correlation.value == pytest.approx(1.0)


def test_groups_add_up_before_they_are_divided() -> None:
    groups = baseline_groups(rows_of([1.0, 0.0, 1.0, 0.0], [3.0, 1.0, 2.0, 2.0], "aabb"))
    whole = measure_baselines(groups)[0]
    assert whole.relative_noise["zero"].value == pytest.approx((1.5 + 1.0) / (2.0 + 2.0))
    assert whole.optimal_baseline.value == pytest.approx((0.75 + 0.5) / 2)
    assert (whole.num_groups, whole.pass_rate) == (2, 0.5)


def test_groups_without_rewards_or_of_one_rollout_take_no_part() -> None:
    assert baseline_groups(rows_of([1.0, float("nan"), 1.0], [1.0, 1.0, 1.0], "aab")) == []
    assert measure_baselines([]) == ()


def test_a_group_of_equal_rewards_has_no_noise_to_compare_with() -> None:
    groups = baseline_groups(rows_of([1.0, 1.0], [3.0, 1.0], "aa"))
    whole, step = measure_baselines(groups)  # and none for a group whose rewards are equal
    assert whole.relative_noise["zero"].undefined == (
        "leave_one_out has no gradient here, so there is nothing to compare with"
    )
    assert step.optimal_baseline.undefined == "no group has rewards that differ and a gradient"
