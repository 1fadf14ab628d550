"""Updates of weights against matrices whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest

from gradscope.metrics.gram.weight_update import linear_growth, principal_overlap, random_walk_gram


def test_an_update_within_the_principal_directions_is_all_there() -> None:
    rng = np.random.default_rng(0)
    left, right = np.linalg.qr(rng.normal(size=(8, 8)))[0], np.linalg.qr(rng.normal(size=(6, 6)))[0]
    initial = left[:, :6] @ np.diag([10.0, 9.0, 1.0, 1.0, 1.0, 1.0]) @ right.T
    inside, outside = np.outer(left[:, 0], right[:, 0]), np.outer(left[:, 5], right[:, 5])
    assert principal_overlap(initial, inside)[0].value == pytest.approx(1.0)
    share, null = principal_overlap(initial, inside + outside)
    assert share.value == pytest.approx(0.5)
    assert null.value == pytest.approx(1 / 48)  # one direction of 8 x 6 holds half of the energy


def test_a_random_update_has_the_null_share() -> None:
    rng = np.random.default_rng(1)
    initial = rng.normal(size=(40, 30))
    shares = [principal_overlap(initial, rng.normal(size=(40, 30))) for _ in range(20)]
    assert np.mean([share.value for share, _ in shares]) == pytest.approx(shares[0][1].value, rel=0.1)


def test_without_an_update_or_weights_there_is_no_overlap() -> None:
    assert principal_overlap(np.eye(2), np.zeros((2, 2)))[0].undefined == "the weights did not change"
    assert "are zero" in str(principal_overlap(np.zeros((2, 2)), np.eye(2))[0].undefined)


def test_growth_at_one_speed_in_one_direction_is_straight() -> None:
    times = np.array([1.0, 2.0, 5.0])
    assert linear_growth(np.outer(times, times), times).value == pytest.approx(1.0)
    assert linear_growth(np.eye(3), times).value < 0.5


def test_a_single_update_or_none_has_no_line() -> None:
    assert "a single update" in str(linear_growth([[1.0]], [5]).undefined)
    assert linear_growth(np.zeros((2, 2)), [1, 2]).undefined == "the weights did not change"


def test_a_random_walk_has_the_expected_products() -> None:
    rng, times = np.random.default_rng(2), [3, 6, 9]
    walks = np.cumsum(rng.normal(size=(9, 20_000)), axis=0)[[2, 5, 8]]
    np.testing.assert_allclose(walks @ walks.T / 20_000, random_walk_gram(times), rtol=0.05)
