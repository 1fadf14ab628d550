from collections.abc import Callable
from fractions import Fraction
from functools import partial
from itertools import combinations, product
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradscope.metrics.outcomes import groups


@given(st.integers(1, 1000), st.data())
def test_share_equals_exact_fractions(num_samples: int, data: st.DataObject) -> None:
    num_marked = data.draw(st.integers(0, num_samples))
    k = data.draw(st.integers(0, num_samples))
    exact = float(Fraction(comb(num_marked, k), comb(num_samples, k)))
    assert float(groups.frac_draws_all(num_samples, num_marked, k)) == pytest.approx(exact, rel=1e-11, abs=1e-300)


@pytest.mark.parametrize(
    ("measure", "message"),
    [
        (partial(groups.frac_draws_all, 4, -1, 1), "lies between 0 and the number of samples"),
        (partial(groups.frac_draws_all, 4, 5, 1), "lies between 0 and the number of samples"),
        (partial(groups.frac_draws_all, [4, 9], [1, 1], 5), "k = 5 draws need at least 5 samples, the fewest are 4"),
        (partial(groups.frac_draws_all, [4], [1], -1), "the number of draws is at least 0, got -1"),
        (partial(groups.all_equal_unbiased, [4], [[2, 2]], 0), "a group has at least 1 rollout, got 0"),
        (partial(groups.all_equal_unbiased, [4], [[1, 2]], 2), "add up to the number of samples"),
        (partial(groups.classify_group, [], 1.0), "a group has at least one reward, and all of them are finite"),
        (
            partial(groups.classify_group, [np.nan, 1.0], 1.0),
            "a group has at least one reward, and all of them are finite",
        ),
    ],
)
def test_what_no_group_can_be_is_refused(measure: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        measure()


@pytest.mark.parametrize(
    ("rewards", "threshold", "kind"),
    [
        ([1.0, 1.0], 1.0, "all_pass"),
        ([0.0, 0.0], 1.0, "all_fail"),
        ([0.0, 1.0], 1.0, "mixed"),
        ([0.3, 0.3], None, "tied"),
        ([0.3, 0.3 + 1e-9], None, "tied"),
        ([0.3, 0.3 + 2e-8], None, "mixed"),
        ([0.7, 0.7], 0.5, "all_pass"),
        ([0.7, 0.9], 0.5, "mixed"),
        ([float(np.float32(0.7))] * 2, 0.7, "all_pass"),
        ([1.0], 1.0, "all_pass"),
    ],
)
def test_kind_of_a_group(rewards: list[float], threshold: float | None, kind: str) -> None:
    assert groups.classify_group(rewards, threshold) == kind


@pytest.mark.parametrize(
    ("rewards", "threshold"),
    [
        *((rewards, 1.0) for rewards in ([0, 1], [1, 1], [0, 0], [-1, 1], [-1])),
        *((rewards, None) for rewards in ([0, 0.1], [-1, 0], [])),
    ],
)
def test_only_obvious_rewards_are_binary(rewards: list[float], threshold: float | None) -> None:
    assert groups.binary_threshold(rewards) == threshold


def test_pass_is_inclusive() -> None:
    assert groups.passes([0.5, 0.499], 0.5).tolist() == [True, False]


@given(st.lists(st.integers(0, 3), min_size=2, max_size=7), st.data())
def test_unbiased_share_equals_enumeration(rewards: list[int], data: st.DataObject) -> None:
    size = data.draw(st.integers(1, len(rewards)))
    expected = np.mean([len(set(group)) == 1 for group in list(combinations(rewards, size))])
    counts = groups.level_counts([float(reward) for reward in rewards])
    assert groups.all_equal_unbiased([len(rewards)], [counts], size)[0] == pytest.approx(expected)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_unbiased_share_is_unbiased(size: int) -> None:
    p, n = 0.3, 5
    expected = sum(
        p**c * (1 - p) ** (n - c) * float(groups.all_equal_unbiased(n, [c, n - c], size))
        for c in map(sum, product((0, 1), repeat=n))
    )
    assert expected == pytest.approx(float(groups.iid_prediction(p, size)))


def test_a_single_rollout_is_always_equal_and_levels_within_tolerance_are_one() -> None:
    assert groups.all_equal_unbiased([4], [[2, 2]], 1).tolist() == [1.0]
    assert groups.level_counts([0.1, 0.1 + 1e-10, 0.5, -1.0]).tolist() == [1, 2, 1]
