from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from gradscope.metrics.gram.lanczos import _converged, lanczos, matrix_free_spectrum
from gradscope.metrics.gram.spectrum import effective_rank, participation_ratio, spectral_entropy_rank, stable_rank


def planted(values, seed=0):
    """A symmetric matrix with the given singular values of X."""
    basis = np.linalg.qr(np.random.default_rng(seed).normal(size=(len(values), len(values))))[0]
    return basis @ np.diag(np.asarray(values) ** 2) @ basis.T


DECAYING = np.exp(-np.arange(200) / 25.0)


def test_residual_bounds_hold():
    matrix, start = planted(DECAYING), np.random.default_rng(1).normal(size=200)
    for num_steps in (5, 15, 40):
        found = lanczos(lambda vector: matrix @ vector, start, num_steps)
        distance = np.abs(found.values[:, None] - DECAYING**2).min(axis=1)
        assert np.all(distance <= found.bounds + 1e-12)
        assert found.weights.sum() == pytest.approx(1)


def test_as_many_steps_as_rows_give_every_value():
    values = np.array([3.0, 2.0, 1.0, 0.5])
    found = lanczos(lambda vector: planted(values) @ vector, np.ones(4), 10)
    np.testing.assert_allclose(found.values, values**2, rtol=1e-10)


def test_a_space_that_ends_early_is_noticed():
    found = lanczos(lambda vector: np.diag([2.0, 2.0, 5.0]) @ vector, np.ones(3), 3)
    np.testing.assert_allclose(found.values, [5.0, 2.0])
    np.testing.assert_allclose(found.bounds, 0.0)


@pytest.mark.parametrize("seed", range(4))
def test_intervals_cover_the_exact_ranks(seed):
    matrix = planted(DECAYING)
    found = matrix_free_spectrum(lambda vector: matrix @ vector, 200, seed=seed)
    exact = {
        "effective_rank": effective_rank,
        "spectral_entropy_rank": spectral_entropy_rank,
        "stable_rank": stable_rank,
        "participation_ratio": participation_ratio,
    }
    for name, rank in exact.items():
        estimate, truth = getattr(found, name), rank(DECAYING).value
        assert estimate.low - 1e-9 <= truth <= estimate.high + 1e-9
        assert abs(estimate.value - truth) < 0.15 * truth
    assert found.num_products == 32 + 8 * 16
    assert np.all(np.abs(found.singular_values - DECAYING[: len(found.singular_values)]) <= found.bounds + 1e-9)
    assert len(found.singular_values) >= 5


def test_the_interval_covers_as_often_as_it_says():
    matrix = planted(DECAYING)
    truth = effective_rank(DECAYING).value
    inside = 0
    for seed in range(60):
        estimate = matrix_free_spectrum(lambda vector: matrix @ vector, 200, num_steps=2, seed=seed).effective_rank
        inside += estimate.low <= truth <= estimate.high
    assert inside >= 54


def test_a_zero_matrix_has_no_rank():
    found = matrix_free_spectrum(lambda vector: 0.0 * vector, 10)
    assert found.effective_rank.undefined is not None
    assert len(found.singular_values) == 0


def test_scale_does_not_matter():
    matrix = planted(DECAYING)
    first, second = (matrix_free_spectrum(lambda v, c=c: c * (matrix @ v), 200) for c in (1.0, 1e-12))
    assert first.effective_rank.value == pytest.approx(second.effective_rank.value, rel=1e-6)
    assert second.energy == pytest.approx(1e-12 * first.energy)


def test_what_cannot_be_done_is_refused():
    with pytest.raises(ValueError, match="a start that is not zero"):
        lanczos(lambda vector: vector, np.zeros(3), 2)
    with pytest.raises(ValueError, match="at least two probes"):
        matrix_free_spectrum(lambda vector: vector, 3, num_probes=1)


def test_a_value_is_stated_while_it_is_known_to_one_percent():
    ritz = lanczos(lambda vector: np.diag([9.0, 4.0, 1.0]) @ vector, np.ones(3), 3)
    bounds = np.array([0.0, 0.0099 * 4.0, 0.0101 * 1.0])  # of the squares; a root is known to bound / root
    values, errors = _converged(dataclasses.replace(ritz, bounds=bounds), 0.0)
    np.testing.assert_allclose(values, [3.0, 2.0])
    np.testing.assert_allclose(errors, [0.0, 0.0099 * 2.0])
