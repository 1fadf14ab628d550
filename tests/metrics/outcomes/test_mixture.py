from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from gradscope.metrics.outcomes.mixture import (
    BetaMixture,
    PassCounts,
    beta_binomial_chances,
    binomial_chances,
    fit_beta_binomial,
    fit_beta_binomials,
    fit_npmle,
)


def drawn(
    num_prompts: int = 400, num_samples: int = 16, a: float = 0.5, b: float = 1.5
) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return np.full(num_prompts, num_samples), rng.binomial(num_samples, rng.beta(a, b, num_prompts))


def test_chances_agree_with_scipy() -> None:
    chances = beta_binomial_chances(9, BetaMixture(a=np.array(0.4), b=np.array(2.0)))
    assert chances == pytest.approx(stats.betabinom.pmf(np.arange(10), 9, 0.4, 2.0))
    assert binomial_chances(9, 0.3) == pytest.approx(stats.binom.pmf(np.arange(10), 9, 0.3))
    assert binomial_chances(3, 0.0).tolist() == [1.0, 0.0, 0.0, 0.0]


def test_beta_binomial_finds_its_parameters() -> None:
    found = fit_beta_binomial(PassCounts.of(*drawn(num_prompts=20_000)))
    assert (float(found.a), float(found.b)) == pytest.approx((0.5, 1.5), rel=0.06)


def test_fit_of_many_weights_is_the_grid_point_next_to_the_fit() -> None:
    counts = PassCounts.of(*drawn())
    one, many = fit_beta_binomial(counts), fit_beta_binomials(counts, np.stack([counts.weight, counts.weight]))
    assert many.a == pytest.approx(float(one.a), rel=0.3)
    assert many.all_fail(32) == pytest.approx(float(one.all_fail(32)), abs=0.02)


def test_npmle_has_the_highest_likelihood() -> None:
    counts = PassCounts.of(*drawn(num_samples=4))
    free = fit_npmle(counts)
    chances = stats.binom.pmf(np.arange(5)[:, None], 4, free.points) @ free.weights
    shape = fit_beta_binomial(counts)
    log_likelihood = counts.weight @ np.log(chances)
    assert log_likelihood >= counts.weight @ np.log(beta_binomial_chances(4, shape)) - 1e-6
    assert free.weights.sum() == pytest.approx(1.0)
    # At its maximum no point of the grid would raise it (Lindsay 1983).
    gradient = (counts.weight / chances) @ stats.binom.pmf(np.arange(5)[:, None], 4, free.points) / counts.weight.sum()
    assert gradient.max() < 1.005


@pytest.mark.parametrize(("n", "c"), [([], []), ([4], [5])])
def test_impossible_counts_are_refused(n: list[int], c: list[int]) -> None:
    with pytest.raises(ValueError, match="a distribution needs prompts with 0 <= c <= n"):
        PassCounts.of(n, c)
