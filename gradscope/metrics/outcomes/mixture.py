"""The distribution of pass rates over prompts, seen through binomial counts.

Legend: n samples of a prompt, c of them passing, U distinct pairs (n, c), B sets of weights, K grid points.

Two mixing distributions are fitted to the same counts. The beta distribution has two parameters, so it can be carried
beyond the samples; the non-parametric maximum likelihood estimate (NPMLE; Laird 1978) has no shape at all, so it shows
where the beta is wrong. Both are maximum likelihood. The NPMLE is restricted to a grid, on which its likelihood is
concave, and found by EM; the beta-binomial is found on a grid of mean and intraclass correlation and then polished.

Written here: scipy has no NPMLE, and its betabinom and binom are in scipy.stats, whose import would make `gradscope
degeneracy` a third slower (0.35 s of 1.1 s); the formulas are theirs, from scipy.special.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize
from scipy.special import betaln, expit, gammaln, xlog1py, xlogy

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

NUM_POINTS = 151
"""Points of the NPMLE's grid, denser towards 0 and 1, both of which are among them. At 1/2 they are 0.01 apart, less
than the standard error of a rate of 1,000 samples (0.016), and the first above 0 is 0.0001: no log tells more."""
NUM_UPDATES = 1000
"""EM updates; the likelihood then changes in the sixth digit."""
_MEANS = np.linspace(-9.0, 9.0, 73)
_CORRELATIONS = np.linspace(-9.0, 9.0, 73)
"""Logits of the means and intraclass correlations that the beta-binomial search starts from: from 0.0001 to 0.9999,
beyond which no log of thousands of samples tells rates apart, in steps of 1/4, fine enough for resamples as they are
and for the polish of a fit to begin in the valley of the maximum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassCounts:
    """Counts of groups or prompts, equal ones merged."""

    num_samples: Counts
    """n of each distinct pair, [U]."""
    num_passing: Counts
    """c of each distinct pair, [U]."""
    weight: Array
    """How many prompts have it, [U]."""
    pair: Counts
    """The pair of each prompt, [J]."""

    @classmethod
    def of(cls, num_samples: ArrayLike, num_passing: ArrayLike) -> PassCounts:
        """Merge equal counts.

        Args:
            num_samples: n of each prompt, [J].
            num_passing: c of each prompt, [J].

        Returns:
            The merged counts.

        Raises:
            ValueError: There is no prompt, or a count is impossible.
        """
        n, c = np.asarray(num_samples, dtype=np.int64), np.asarray(num_passing, dtype=np.int64)
        if not len(n) or np.any(c < 0) or np.any(c > n):
            raise ValueError("a distribution needs prompts with 0 <= c <= n")
        pairs, index, weight = np.unique(np.column_stack([n, c]), axis=0, return_inverse=True, return_counts=True)
        return cls(
            num_samples=pairs[:, 0], num_passing=pairs[:, 1], weight=weight.astype(np.float64), pair=index.reshape(-1)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BetaMixture:
    """Pass rates that follow Beta(a, b)."""

    a: Array
    """First shape, [...]."""
    b: Array
    """Second shape, [...]."""

    def all_pass(self, size: int) -> Array:
        """Chance that ``size`` samples of a prompt all pass, B(a + size, b) / B(a, b), [...]."""
        return np.asarray(np.exp(betaln(self.a + size, self.b) - betaln(self.a, self.b)), dtype=np.float64)

    def all_fail(self, size: int) -> Array:
        """Chance that ``size`` samples of a prompt all fail, B(a, b + size) / B(a, b), [...]."""
        return np.asarray(np.exp(betaln(self.a, self.b + size) - betaln(self.a, self.b)), dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class GridMixture:
    """Pass rates that take the values of a grid."""

    points: Array
    """The grid, ascending from 0 to 1, [K]."""
    weights: Array
    """Their probabilities, [..., K]."""

    def all_pass(self, size: int) -> Array:
        """Chance that ``size`` samples of a prompt all pass, sum of w p^size, [...]."""
        return np.asarray(self.weights @ self.points**size, dtype=np.float64)

    def all_fail(self, size: int) -> Array:
        """Chance that ``size`` samples of a prompt all fail, sum of w (1-p)^size, [...]."""
        return np.asarray(self.weights @ (1.0 - self.points) ** size, dtype=np.float64)


def fit_beta_binomial(counts: PassCounts) -> BetaMixture:
    """The beta distribution of pass rates by maximum likelihood (Skellam 1948).

    Returns:
        Its shapes, scalars.

    Example:
        >>> fitted = fit_beta_binomial(PassCounts.of([4] * 5, [0, 1, 2, 3, 4]))
        >>> round(float(fitted.a), 2), round(float(fitted.b), 2)
        (1.0, 1.0)
    """
    start = _best_on_grid(counts, counts.weight[None, :])[0]

    def loss(logits: Array) -> float:
        a, b = _shapes(logits)
        return -float(counts.weight @ _log_beta_binomial(counts, a, b)) / float(counts.weight.sum())

    bounds = [(_MEANS[0], _MEANS[-1]), (_CORRELATIONS[0], _CORRELATIONS[-1])]
    polished = minimize(loss, start, method="L-BFGS-B", bounds=bounds)
    a, b = _shapes(polished.x if polished.fun < loss(start) else start)
    return BetaMixture(a=a, b=b)


def fit_beta_binomials(counts: PassCounts, weights: Array) -> BetaMixture:
    """Beta distributions for many sets of weights at once, to the resolution of the grid: for resamples.

    Args:
        counts: The counts, whose own weights are not used.
        weights: How many prompts have each pair, [B, U].

    Returns:
        Shapes, [B].
    """
    a, b = _shapes(_best_on_grid(counts, weights).T)
    return BetaMixture(a=a, b=b)


def fit_npmle(counts: PassCounts, weights: Array | None = None, *, num_updates: int = NUM_UPDATES) -> GridMixture:
    """The distribution of pass rates of maximum likelihood among all distributions on a grid (Laird 1978), by EM.

    Args:
        weights: How many prompts have each pair, for resamples, [B, U]; None: those of the counts.
        num_updates: EM updates.

    Returns:
        The distribution; weights [K], or [B, K].

    Example:
        >>> fitted = fit_npmle(PassCounts.of([200] * 4, [0, 0, 200, 200]))
        >>> [round(float(fitted.weights[fitted.points <= 0.001].sum()), 2), round(float(fitted.all_pass(1)), 2)]
        [0.5, 0.5]
    """
    points = np.sin(np.linspace(0.0, np.pi / 2, NUM_POINTS)) ** 2
    n, c = counts.num_samples[:, None], counts.num_passing[:, None]
    # Relative to the most likely p of each pair, so that no likelihood of 1,000 samples underflows.
    log_likelihood = xlogy(c, points) + xlog1py(n - c, -points)
    likelihood = np.exp(log_likelihood - log_likelihood.max(axis=1, keepdims=True))
    observed = counts.weight if weights is None else weights
    share = observed / observed.sum(axis=-1, keepdims=True)
    mass = np.full((*share.shape[:-1], NUM_POINTS), 1.0 / NUM_POINTS)
    for _ in range(num_updates):
        mass = mass * ((share / (mass @ likelihood.T)) @ likelihood)
    return GridMixture(points=points, weights=mass)


def beta_binomial_chances(num_samples: int, mixture: BetaMixture) -> Array:
    """The beta-binomial distribution: chance of each number of passing samples.

    Args:
        num_samples: n.
        mixture: The pass rates, scalars.

    Returns:
        Chances of c = 0 ... n, [n + 1].

    Example:
        >>> beta_binomial_chances(3, BetaMixture(a=np.array(1.0), b=np.array(1.0))).round(4).tolist()
        [0.25, 0.25, 0.25, 0.25]
    """
    c = np.arange(num_samples + 1)
    pairs = PassCounts(num_samples=np.full(len(c), num_samples), num_passing=c, weight=np.ones(len(c)), pair=c)
    return np.asarray(np.exp(_log_beta_binomial(pairs, mixture.a, mixture.b)), dtype=np.float64)


def binomial_chances(num_samples: int, pass_rate: float) -> Array:
    """The binomial distribution: chance of each number of passing samples.

    Args:
        num_samples: n.
        pass_rate: p.

    Returns:
        Chances of c = 0 ... n, [n + 1].

    Example:
        >>> binomial_chances(2, 0.5).round(4).tolist()
        [0.25, 0.5, 0.25]
    """
    c = np.arange(num_samples + 1)
    log_chance = (
        _log_choose(np.full(len(c), num_samples), c) + xlogy(c, pass_rate) + xlog1py(num_samples - c, -pass_rate)
    )
    return np.asarray(np.exp(log_chance), dtype=np.float64)


def _best_on_grid(counts: PassCounts, weights: Array) -> Array:
    """Logits of mean and correlation with the highest likelihood on the grid, [B, 2]."""
    grid = np.stack(np.meshgrid(_MEANS, _CORRELATIONS, indexing="ij"), axis=-1).reshape(-1, 2)
    a, b = _shapes(grid.T)
    table = _log_beta_binomial(counts, a[:, None], b[:, None])
    return np.asarray(grid[np.argmax(weights @ table.T, axis=1)], dtype=np.float64)


def _shapes(logits: Array) -> tuple[Array, Array]:
    """Shapes a and b from the logits of the mean and of the intraclass correlation 1 / (a + b + 1)."""
    mean, correlation = expit(logits[0]), expit(logits[1])
    total = 1.0 / correlation - 1.0
    return mean * total, (1.0 - mean) * total


def _log_beta_binomial(counts: PassCounts, a: Array, b: Array) -> Array:
    n, c = counts.num_samples, counts.num_passing
    return np.asarray(_log_choose(n, c) + betaln(c + a, n - c + b) - betaln(a, b), dtype=np.float64)


def _log_choose(n: Counts, c: Counts) -> Array:
    return np.asarray(gammaln(n + 1) - gammaln(c + 1) - gammaln(n - c + 1), dtype=np.float64)
