from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import subspace_angles

from gradscope.estimate import Estimate
from gradscope.metrics.gram.spectrum import (
    center_grams,
    effective_rank,
    effective_ranks,
    energy_rank,
    factor_alignment,
    frame_of,
    gaussian_directions,
    gaussian_matrix_values,
    linear_growth,
    noise_floor,
    num_draws,
    principal_angle,
    principal_overlap,
    random_walk_gram,
    rank_estimates,
    shuffled_within,
    singular_values_from_gram,
    spectrum_drift,
    stable_rank,
    unrelated_factors,
    unrelated_matrix,
)

LADDER = ("stable_rank", "participation_ratio", "spectral_entropy_rank", "effective_rank")


def value(estimate: Estimate) -> float:
    assert estimate.value is not None
    return estimate.value


def ladder(spectrum: ArrayLike) -> list[float]:
    ranks = rank_estimates(spectrum, 0.0)
    return [value(ranks[name]) for name in LADDER]


def rows(seed: int, num_rows: int, num_columns: int, decay: float) -> NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(num_rows, num_columns)) * np.exp(-decay * np.arange(num_rows))[:, None]


matrices = st.builds(
    rows, st.integers(0, 10_000), st.integers(1, 12), st.integers(1, 12), st.floats(0.0, 6.0, allow_subnormal=False)
)


@given(matrices)
def test_ranks_climb_the_ladder(matrix: NDArray[np.float64]) -> None:
    spectrum = np.linalg.svd(matrix, compute_uv=False)
    ranks = [1.0, *ladder(spectrum), value(rank_estimates(spectrum, 0.0)["numerical_rank"]), min(matrix.shape)]
    assert all(low <= high * (1 + 1e-9) for low, high in pairwise(ranks))


@given(matrices, st.floats(-30, 30), st.integers(0, 100))
def test_ranks_do_not_depend_on_scale_or_row_order(matrix: NDArray[np.float64], exponent: float, seed: int) -> None:
    shuffled = matrix[np.random.default_rng(seed).permutation(len(matrix))] * 10.0**exponent
    before, after = (np.linalg.svd(rows, compute_uv=False) for rows in (matrix, shuffled))
    assert ladder(after) == pytest.approx(ladder(before), rel=1e-9)


@given(matrices)
def test_gram_and_matrix_have_the_same_singular_values(matrix: NDArray[np.float64]) -> None:
    spectrum = np.linalg.svd(matrix, compute_uv=False)
    from_gram = singular_values_from_gram(matrix @ matrix.T)
    floor = noise_floor(matrix @ matrix.T, 1e-15)
    np.testing.assert_allclose(from_gram[: len(spectrum)], spectrum, atol=floor)
    np.testing.assert_allclose(from_gram[len(spectrum) :], 0.0, atol=floor)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_orthonormal_rows_count_in_full(scale: float) -> None:
    spectrum = singular_values_from_gram(np.eye(5) * scale**2)
    assert ladder(spectrum) == pytest.approx([5.0] * 4)
    assert value(energy_rank(spectrum, 0.9)) == 5.0
    assert value(rank_estimates(spectrum, noise_floor(np.eye(5) * scale**2, 1e-12))["numerical_rank"]) == 5.0


def test_identical_rows_count_as_one() -> None:
    gram = np.full((6, 6), 2.0)
    spectrum = singular_values_from_gram(gram)
    assert ladder(spectrum)[:3] == pytest.approx([1.0] * 3)
    # The square root of rounding (1e-8 a value) enters the entropy of s itself.
    assert value(effective_rank(spectrum)) == pytest.approx(1.0, abs=1e-5)
    assert value(rank_estimates(spectrum, noise_floor(gram, 1e-15))["numerical_rank"]) == 1.0


def test_two_clusters_count_as_two_by_their_weight() -> None:
    rows = np.array([[1.0, 0.0]] * 5 + [[0.0, 2.0]] * 3)  # singular values sqrt(3) 2 and sqrt(5)
    spectrum = singular_values_from_gram(rows @ rows.T)
    assert spectrum[:2] == pytest.approx([12**0.5, 5**0.5])
    assert ladder(spectrum)[:2] == pytest.approx([17 / 12, 17**2 / (12**2 + 5**2)])
    assert value(rank_estimates(spectrum, noise_floor(rows @ rows.T, 1e-12))["numerical_rank"]) == 2.0
    shares = np.array([12**0.5, 5**0.5]) / (12**0.5 + 5**0.5)
    assert value(effective_rank(spectrum)) == pytest.approx(float(np.exp(-np.sum(shares * np.log(shares)))), abs=1e-5)


def test_worked_example_of_the_ladder() -> None:
    spectrum = [1.0, 1.0, 1.0, 0.1, 0.1]
    assert [round(rank, 2) for rank in ladder(spectrum)] == [3.02, 3.04, 3.11, 3.70]


@pytest.mark.parametrize(("share", "expected"), [(0.5, 1), (0.64, 1), (0.65, 2), (0.9, 2), (0.999, 3), (1.0, 3)])
def test_energy_rank_counts_squares(share: float, expected: int) -> None:
    assert value(energy_rank([8.0, 5.5, np.sqrt(100 - 64 - 30.25)], share)) == expected


def test_zero_matrix_has_no_rank() -> None:
    spectrum = singular_values_from_gram(np.zeros((3, 3)))
    estimates = [*rank_estimates(spectrum, 0.0).values(), stable_rank(spectrum), effective_rank(spectrum)]
    assert all(estimate.undefined == "the matrix is zero: no row carries a gradient" for estimate in estimates)
    assert all(estimate.num_units == 3 for estimate in estimates)


def test_centering_subtracts_the_mean_row() -> None:
    matrix = rows(3, 5, 4, 0.5)
    centered = matrix - matrix.mean(axis=0)
    np.testing.assert_allclose(center_grams(matrix @ matrix.T), centered @ centered.T, atol=1e-12)


NO_SPECTRUM = "singular values are finite, non-negative numbers in one dimension"
NO_SHARE = "a share of energy is above 0 and at most 1"


@pytest.mark.parametrize(
    ("measure", "arguments", "message"),
    [
        (singular_values_from_gram, ([[1.0, 2.0]],), "a Gram matrix is square"),
        (singular_values_from_gram, ([[np.nan]],), "a Gram matrix holds finite numbers"),
        (singular_values_from_gram, ([[1.0, 0.5], [0.0, 1.0]],), "a Gram matrix is symmetric"),
        *((effective_rank, (np.asarray(spectrum),), NO_SPECTRUM) for spectrum in ([[1.0]], [np.inf], [-1.0])),
        *((energy_rank, ([1.0], share), NO_SHARE) for share in (0.0, 1.1)),
        (shuffled_within, ([1.0, 2.0], [0], 1), "2 advantages need as many groups"),
    ],
)
def test_what_is_no_matrix_spectrum_or_share_is_refused(measure: Any, arguments: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        measure(*arguments)


seeds = st.integers(0, 10_000)


@given(seeds, st.integers(1, 12))
def test_shuffles_keep_the_advantages_of_every_group(seed: int, num_rollouts: int) -> None:
    rng = np.random.default_rng(seed)
    advantages, groups = rng.normal(size=num_rollouts), rng.integers(3, size=num_rollouts)
    for dealt in shuffled_within(advantages, groups, 5, seed=seed):
        for group in range(3):
            assert sorted(dealt[groups == group]) == sorted(advantages[groups == group])


def test_every_shuffle_is_as_likely_as_every_other() -> None:
    counts = np.unique(shuffled_within([1.0, 2.0, 3.0], [0, 0, 0], 6000), axis=0, return_counts=True)[1]
    assert len(counts) == 6
    assert counts.min() > 900


def test_gaussian_cosines_are_those_of_gaussian_rows() -> None:
    rows = np.random.default_rng(1).normal(size=(4000, 3, 5))
    rows /= np.linalg.norm(rows, axis=-1, keepdims=True)
    explicit = rows @ rows.swapaxes(-1, -2)
    directions = gaussian_directions(3, 5, 4000)
    drawn = directions @ directions.swapaxes(-1, -2)
    np.testing.assert_allclose(np.mean(drawn**2, axis=0), np.mean(explicit**2, axis=0), atol=0.02)
    np.testing.assert_allclose(np.mean(drawn[:, 0, 1] ** 2), 1 / 5, atol=0.02)


def test_more_rows_than_columns_span_the_columns() -> None:
    (directions,) = gaussian_directions(6, 2, 1)
    assert directions.shape == (6, 2)
    np.testing.assert_allclose(np.linalg.norm(directions, axis=1), 1.0)


@pytest.mark.parametrize(("shape", "tolerance"), [((8, 8), 0.035), ((64, 64), 0.01), ((64, 192), 0.005)])
def test_the_limit_law_gives_the_rank_of_gaussian_matrices(shape: tuple[int, int], tolerance: float) -> None:
    drawn = [np.linalg.svd(np.random.default_rng(i).normal(size=shape), compute_uv=False) for i in range(50)]
    expected = np.mean(effective_ranks(np.stack(drawn)))
    assert float(effective_ranks(gaussian_matrix_values(*shape))) == pytest.approx(expected, rel=tolerance)
    assert gaussian_matrix_values(*shape).tolist() == gaussian_matrix_values(*shape[::-1]).tolist()


def test_small_matrices_are_drawn_more_often() -> None:
    assert [num_draws(size) for size in (1, 4, 16, 64, 1024)] == [32, 32, 8, 2, 2]


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


def test_unrelated_factors_align_only_by_chance() -> None:
    left, right = unrelated_factors((400, 300), 16)
    assert factor_alignment(left, right).value == pytest.approx(1 / 4, rel=0.05)
    ones = [1.0] * 16
    assert factor_alignment(np.outer(left[:, 0], ones), np.outer(ones, right[0])).value == pytest.approx(1.0)
    assert factor_alignment(np.zeros((4, 2)), np.ones((2, 4))).undefined == "one of the two factors is still zero"
