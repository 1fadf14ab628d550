from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from gradscope.metrics.outcomes.pass_rates.mixture import (
    InflatedBeta,
    PassCounts,
    binomial_chances,
    fit_inflated_beta,
    fit_npmle,
)


def drawn(
    num_prompts: int = 400, num_samples: int = 16, a: float = 0.5, b: float = 1.5
) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return np.full(num_prompts, num_samples), rng.binomial(num_samples, rng.beta(a, b, num_prompts))


def test_chances_agree_with_scipy() -> None:
    inner = stats.betabinom.pmf(np.arange(10), 9, 0.4, 2.0)
    assert InflatedBeta(a=0.4, b=2.0).chances(9) == pytest.approx(inner)
    inflated = InflatedBeta(a=0.4, b=2.0, at_zero=0.2, at_one=0.1)
    assert inflated.chances(9) == pytest.approx(0.7 * inner + 0.2 * (np.arange(10) == 0) + 0.1 * (np.arange(10) == 9))
    assert (inflated.all_fail(9), inflated.all_pass(9)) == pytest.approx(tuple(inflated.chances(9)[[0, 9]]))
    assert binomial_chances(9, 0.3) == pytest.approx(stats.binom.pmf(np.arange(10), 9, 0.3))
    assert binomial_chances(3, [0.0, 1.0]).T.tolist() == [[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]]


def test_beta_binomial_finds_its_parameters() -> None:
    found = fit_inflated_beta(PassCounts.of(*drawn(num_prompts=20_000)))
    assert (found.a, found.b) == pytest.approx((0.5, 1.5), rel=0.06)
    assert (found.at_zero, found.at_one, found.num_parameters) == (0.0, 0.0, 2)


@pytest.mark.parametrize("ends", [(0.575, 0.0), (0.0, 0.3), (0.3, 0.3)])
def test_inflation_is_found_where_it_is(ends: tuple[float, float]) -> None:
    rng = np.random.default_rng(1)
    kind, inner = rng.random(4000), rng.beta(2, 2, 4000)
    rates = np.where(kind < ends[0], 0.0, np.where(kind < sum(ends), 1.0, inner))
    # Groups of two sizes tell the two ends apart for each size of its own.
    n = np.where(np.arange(4000) % 2, 8, 12)
    found = fit_inflated_beta(PassCounts.of(n, rng.binomial(n, rates)))
    assert (found.at_zero, found.at_one) == pytest.approx(ends, abs=0.03)
    assert (found.at_zero == 0.0, found.at_one == 0.0) == (ends[0] == 0.0, ends[1] == 0.0)
    assert found.num_parameters == 2 + sum(end > 0 for end in ends)
    assert (found.a, found.b) == pytest.approx((2.0, 2.0), rel=0.25)


def test_npmle_has_the_highest_likelihood() -> None:
    counts = PassCounts.of(*drawn(num_samples=4))
    free = fit_npmle(counts)
    chances = stats.binom.pmf(np.arange(5)[:, None], 4, free.points) @ free.weights
    log_likelihood = counts.weight @ np.log(chances)
    assert log_likelihood >= counts.weight @ np.log(fit_inflated_beta(counts).chances(4)) - 1e-6
    assert free.weights.sum() == pytest.approx(1.0)
    # At its maximum no point of the grid would raise it (Lindsay 1983).
    gradient = (counts.weight / chances) @ stats.binom.pmf(np.arange(5)[:, None], 4, free.points) / counts.weight.sum()
    assert gradient.max() < 1.005


@pytest.mark.parametrize(("n", "c"), [([], []), ([4], [5])])
def test_impossible_counts_are_refused(n: list[int], c: list[int]) -> None:
    with pytest.raises(ValueError, match="a distribution needs prompts with 0 <= c <= n"):
        PassCounts.of(n, c)
