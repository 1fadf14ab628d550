import numpy as np
import pytest
from scipy.linalg import subspace_angles

from gradscope.metrics.gram.weight_update import (
    factor_alignment,
    frame_of,
    linear_growth,
    principal_angle,
    principal_overlap,
    random_walk_gram,
    spectrum_drift,
    unrelated_factors,
    unrelated_matrix,
)


def test_an_update_within_the_principal_directions_is_all_there() -> None:
    rng = np.random.default_rng(0)
    left, right = np.linalg.qr(rng.normal(size=(8, 8)))[0], np.linalg.qr(rng.normal(size=(6, 6)))[0]
    initial = left[:, :6] @ np.diag([10.0, 9.0, 1.0, 1.0, 1.0, 1.0]) @ right.T
    inside, outside = np.outer(left[:, 0], right[:, 0]), np.outer(left[:, 5], right[:, 5])
    assert principal_overlap(frame_of(initial), inside)[0].value == pytest.approx(1.0)
    share, null = principal_overlap(frame_of(initial), inside + outside)
    assert share.value == pytest.approx(0.5)
    assert null.value == pytest.approx(1 / 48)  # one direction of 8 x 6 holds half of the energy


def test_a_random_update_has_the_null_share_and_none_has_no_share() -> None:
    rng = np.random.default_rng(1)
    initial = rng.normal(size=(40, 30))
    shares = [principal_overlap(frame_of(initial), rng.normal(size=(40, 30))) for _ in range(20)]
    assert np.mean([share.value for share, _ in shares]) == pytest.approx(shares[0][1].value, rel=0.1)
    assert principal_overlap(frame_of(np.eye(2)), np.zeros((2, 2)))[0].undefined == "the weights did not change"
    assert "are zero" in str(principal_overlap(frame_of(np.zeros((2, 2))), np.eye(2))[0].undefined)


def test_growth_at_one_speed_in_one_direction_is_straight_and_a_single_update_has_no_line() -> None:
    times = np.array([1.0, 2.0, 5.0])
    assert linear_growth(np.outer(times, times), times).value == pytest.approx(1.0)
    assert linear_growth(np.eye(3), times).value < 0.5
    assert "a single update" in str(linear_growth([[1.0]], [5]).undefined)
    assert linear_growth(np.zeros((2, 2)), [1, 2]).undefined == "the weights did not change"


def test_a_random_walk_has_the_expected_products() -> None:
    rng, times = np.random.default_rng(2), [3, 6, 9]
    walks = np.cumsum(rng.normal(size=(9, 20_000)), axis=0)[[2, 5, 8]]
    np.testing.assert_allclose(walks @ walks.T / 20_000, random_walk_gram(times), rtol=0.05)


RNG = np.random.default_rng(0)
MATRIX = RNG.normal(size=(9, 6))


def test_a_change_along_the_singular_directions_is_all_in_the_values() -> None:
    frame = frame_of(MATRIX)
    change = frame.left @ np.diag([0.3, 0.2, 0.1, 0.1, 0.0, 0.0]) @ frame.right
    after = frame_of(MATRIX + change)
    assert spectrum_drift(frame, after, float(np.linalg.norm(change))).value == pytest.approx(1.0)
    assert principal_angle(frame, after).value == pytest.approx(0.0, abs=1e-5)


def test_a_turned_matrix_keeps_its_values() -> None:
    turn = np.linalg.qr(RNG.normal(size=(9, 9)))[0]
    before, after = frame_of(MATRIX), frame_of(turn @ MATRIX)
    size = float(np.linalg.norm(turn @ MATRIX - MATRIX))
    assert spectrum_drift(before, after, size).value == pytest.approx(0.0, abs=1e-9)
    energy = np.cumsum(before.values**2) / np.sum(before.values**2)
    k = int(np.searchsorted(energy, 0.5) + 1)
    left = subspace_angles(before.left[:, :k], after.left[:, :k])
    mean = (np.sum(np.cos(left) ** 2) + k) / (2 * k)  # the right side stays
    assert principal_angle(before, after).value == pytest.approx(np.degrees(np.arccos(np.sqrt(mean))), abs=1e-5)


def test_a_small_unrelated_change_is_one_over_the_root_of_the_longer_side() -> None:
    """To first order u_i' D v_i has the variance of an entry."""
    before = frame_of(100 * np.diag(np.arange(60, 0, -1.0)))
    shares = []
    for seed in range(20):
        change = 1e-3 * unrelated_matrix((60, 60), 60, seed=seed)
        after = frame_of(100 * np.diag(np.arange(60, 0, -1.0)) + change)
        shares.append(spectrum_drift(before, after, 1e-3).value)
    assert np.mean(shares) == pytest.approx(1 / np.sqrt(60), rel=0.1)


def test_what_did_not_change_has_no_drift() -> None:
    frame = frame_of(MATRIX)
    assert spectrum_drift(frame, frame, 0.0).undefined == "the weights did not change"
    assert "is zero" in str(principal_angle(frame_of(np.zeros((2, 2))), frame_of(np.eye(2))).undefined)
    assert "is zero" in str(principal_angle(frame_of(np.eye(2)), frame_of(np.zeros((2, 2)))).undefined)


@pytest.mark.parametrize("rank", [2, 6])
def test_an_unrelated_matrix_has_its_rank_and_norm_one(rank: int) -> None:
    drawn = unrelated_matrix((9, 6), rank)
    assert np.linalg.matrix_rank(drawn) == rank
    assert np.linalg.norm(drawn) == pytest.approx(1.0)
    assert not np.allclose(drawn, unrelated_matrix((9, 6), rank, seed=1))


def test_unrelated_factors_align_by_chance_alone() -> None:
    left, right = unrelated_factors((400, 300), 16)
    assert factor_alignment(left, right).value == pytest.approx(1 / 4, rel=0.05)
    ones = [1.0] * 16
    assert factor_alignment(np.outer(left[:, 0], ones), np.outer(ones, right[0])).value == pytest.approx(1.0)
    assert factor_alignment(np.zeros((4, 2)), np.ones((2, 4))).undefined == "one of the two factors is still zero"
