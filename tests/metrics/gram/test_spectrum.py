from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import ArrayLike, NDArray

from gradscope.estimate import Estimate
from gradscope.metrics.gram.spectrum import (
    center_grams,
    effective_rank,
    effective_ranks,
    energy_rank,
    gaussian_directions,
    gaussian_matrix_values,
    noise_floor,
    num_draws,
    rank_estimates,
    shuffled_within,
    singular_values_from_gram,
    stable_rank,
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
    before, after = (np.linalg.svd(one, compute_uv=False) for one in (matrix, shuffled))
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
