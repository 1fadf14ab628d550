"""Null models: each takes one thing away and keeps the rest."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradscope.metrics.gram.null_models import gaussian_cosines, gaussian_matrix_values, num_draws, shuffled_within
from gradscope.metrics.gram.spectrum import effective_ranks

seeds = st.integers(0, 10_000)


@settings(deadline=None)
@given(seeds, st.integers(1, 12))
def test_shuffles_keep_the_advantages_of_every_group(seed: int, num_rollouts: int) -> None:
    rng = np.random.default_rng(seed)
    advantages, groups = rng.normal(size=num_rollouts), rng.integers(3, size=num_rollouts)
    for dealt in shuffled_within(advantages, groups, 5, seed=seed):
        for group in range(3):
            assert sorted(dealt[groups == group]) == sorted(advantages[groups == group])


def test_every_shuffle_is_as_likely_as_every_other() -> None:
    dealt = shuffled_within([1.0, 2.0, 3.0], [0, 0, 0], 6000)
    counts = np.unique(dealt, axis=0, return_counts=True)[1]
    assert len(counts) == 6
    assert counts.min() > 900


def test_shuffles_need_one_group_a_rollout() -> None:
    with pytest.raises(ValueError, match="2 advantages need as many groups"):
        shuffled_within([1.0, 2.0], [0], 1)


def test_gaussian_cosines_are_those_of_gaussian_rows() -> None:
    rows = np.random.default_rng(1).normal(size=(4000, 3, 5))
    rows /= np.linalg.norm(rows, axis=-1, keepdims=True)
    explicit = rows @ rows.swapaxes(-1, -2)
    drawn = gaussian_cosines(3, 5, 4000)
    np.testing.assert_allclose(np.mean(drawn**2, axis=0), np.mean(explicit**2, axis=0), atol=0.02)
    np.testing.assert_allclose(np.mean(drawn[:, 0, 1] ** 2), 1 / 5, atol=0.02)


def test_more_rows_than_columns_span_the_columns() -> None:
    (cosines,) = gaussian_cosines(6, 2, 1)
    assert np.linalg.matrix_rank(cosines) == 2
    np.testing.assert_allclose(np.diag(cosines), 1.0)


@pytest.mark.parametrize(("shape", "tolerance"), [((8, 8), 0.035), ((64, 64), 0.01), ((64, 192), 0.005)])
def test_the_limit_law_gives_the_rank_of_gaussian_matrices(shape: tuple[int, int], tolerance: float) -> None:
    drawn = [np.linalg.svd(np.random.default_rng(i).normal(size=shape), compute_uv=False) for i in range(50)]
    expected = np.mean(effective_ranks(np.stack(drawn)))
    assert float(effective_ranks(gaussian_matrix_values(*shape))) == pytest.approx(expected, rel=tolerance)


def test_matrices_and_their_transposes_have_the_same_values() -> None:
    assert gaussian_matrix_values(3, 7).tolist() == gaussian_matrix_values(7, 3).tolist()


def test_small_matrices_are_drawn_more_often() -> None:
    assert [num_draws(size) for size in (1, 4, 16, 64, 1024)] == [32, 32, 8, 2, 2]
