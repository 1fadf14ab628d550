"""Spectra of a matrix that is only known by its products: Lanczos for the largest values, quadrature for the rest.

Nothing here forms the matrix K = X X' (N x N, symmetric, positive semi-definite). The largest eigenvalues come with a
bound on their error, sums over all eigenvalues with a standard error.

Sources: Golub and Meurant, "Matrices, Moments and Quadrature with Applications" (2010), chapters 4 and 11; Ubaru, Chen
and Saad, "Fast Estimation of tr(f(A)) via Stochastic Lanczos Quadrature" (SIAM J. Matrix Anal. Appl. 38, 2017).

Shapes: N rows, k steps, m probes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gradscope.estimate import Estimate
from gradscope.metrics.gram.spectrum import ZERO_MATRIX, Array
from gradscope.metrics.uncertainty.level import NORMAL

Product = Callable[[Array], Array]
"""From a vector [N] to K times it."""

_BREAKDOWN = 1e-10
"""A residual below this share of the largest diagonal entry is rounding: the start reaches no more of the space."""
_KNOWN = 0.01
"""A singular value counts as known where its bound is at most this share of it: its energy is then known to 2 %,
finer than the probes know the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ritz:
    """What k steps of Lanczos know about K, seen from one starting vector."""

    values: Array
    """Approximate eigenvalues, descending, not negative, [k]."""
    bounds: Array
    """Each lies within this of an eigenvalue of K, in exact arithmetic, [k]."""
    weights: Array
    """Share of the starting vector's squared length that each stands for; they add up to 1, [k]."""
    vectors: Array
    """Approximate eigenvectors, [N, k]."""
    first_half: tuple[Array, Array]
    """Values and weights after half the steps: how far they differ says how far quadrature has come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixFreeSpectrum:
    """A spectrum without its matrix."""

    singular_values: Array
    """The largest singular values of X whose bound is small, descending."""
    bounds: Array
    """Bound on the error of each."""
    effective_rank: Estimate
    """exp H(s / sum s), with a 95 % interval of the probes."""
    spectral_entropy_rank: Estimate
    """exp H(s^2 / sum s^2), likewise."""
    stable_rank: Estimate
    """sum s^2 / s_1^2, likewise."""
    participation_ratio: Estimate
    """(sum s^2)^2 / sum s^4, likewise."""
    energy: float
    """sum s^2."""
    num_products: int
    """Products with K."""


def lanczos(product: Product, start: Array, num_steps: int) -> Ritz:
    """Lanczos's method with full reorthogonalization.

    Args:
        product: K.
        start: Where it starts, not zero, [N].
        num_steps: k; fewer are taken where the space that ``start`` reaches is smaller.

    Returns:
        Ritz values, their residual bounds and the quadrature weights.

    Raises:
        ValueError: The start is zero or there is no step.

    Example:
        >>> matrix = np.diag([4.0, 1.0, 0.0])
        >>> np.round(lanczos(lambda vector: matrix @ vector, np.ones(3), 3).values, 6).tolist()
        [4.0, 1.0, 0.0]
    """
    length = float(np.linalg.norm(start))
    if length == 0 or num_steps < 1:
        raise ValueError("Lanczos needs a start that is not zero and at least one step")
    basis = [start / length]
    diagonal: list[float] = []
    off_diagonal: list[float] = []
    for _ in range(min(num_steps, len(start))):
        image = np.asarray(product(basis[-1]), dtype=np.float64)
        diagonal.append(float(basis[-1] @ image))
        known = np.stack(basis)
        for _ in range(2):  # once is not enough in floating point, twice is
            image = image - known.T @ (known @ image)
        off_diagonal.append(float(np.linalg.norm(image)))
        if off_diagonal[-1] <= _BREAKDOWN * max(1e-300, float(np.max(np.abs(diagonal)))):
            off_diagonal[-1] = 0.0
            break
        basis.append(image / off_diagonal[-1])
    values, vectors = _eigen(diagonal, off_diagonal)
    half = -(-len(diagonal) // 2) if off_diagonal[-1] else len(diagonal)
    half_values, half_vectors = _eigen(diagonal[:half], off_diagonal[:half])
    return Ritz(
        values=values,
        bounds=off_diagonal[-1] * np.abs(vectors[-1]),
        weights=vectors[0] ** 2,
        vectors=np.stack(basis[: len(diagonal)], axis=1) @ vectors,
        first_half=(half_values, half_vectors[0] ** 2),
    )


def _eigen(diagonal: list[float], off_diagonal: list[float]) -> tuple[Array, Array]:
    """Eigenvalues of the tridiagonal matrix, descending and not negative, and its eigenvectors."""
    values, vectors = np.linalg.eigh(np.diag(diagonal) + np.diag(off_diagonal[:-1], 1) + np.diag(off_diagonal[:-1], -1))
    return np.clip(values[::-1], 0.0, None), vectors[:, ::-1]


def matrix_free_spectrum(
    product: Product,
    num_rows: int,
    *,
    num_steps: int = 32,
    num_probes: int = 8,
    probe_steps: int = 16,
    seed: int = 0,
    relative_error: float = 1e-14,
) -> MatrixFreeSpectrum:
    """The spectrum of X from products with K = X X' alone.

    The largest singular values are Ritz values of one long run. Of sums over all eigenvalues their part is known; the
    rest is a mean over random signs z with those eigenvectors taken out: E[z' f(K) z] = tr f(K), each quadratic form by
    Gauss quadrature on its Ritz values. Intervals hold the probes' standard error (jackknife) and what the ranks still
    changed over the second half of the quadrature's steps.

    Args:
        num_steps: Steps of the long run; 32 gave 5 largest values or more to 1 % on every group that was tried.
        num_probes: m, at least 2: their spread is the standard error, which 8 probes know to about a quarter of it.
        probe_steps: Steps of each probe's run; half of them are the check, so 16 are the fewest whose check is a
            quadrature of 8 points. A spectrum with very many values near zero needs more than that for its effective
            rank, and the interval is then too short (docs/engine.md).
        relative_error: Error of a product by its arithmetic, over the largest eigenvalue: no bound goes below it.

    Returns:
        The largest values with bounds, the ranks with intervals.

    Raises:
        ValueError: Fewer than two probes.

    Example:
        >>> found = matrix_free_spectrum(lambda vector: 4.0 * vector, 50)
        >>> round(found.effective_rank.value, 6), np.round(found.singular_values, 6).tolist()
        (50.0, [2.0])
    """
    if num_probes < 2:
        raise ValueError("a standard error needs at least two probes")
    rng = np.random.default_rng(seed)
    counted = _Counted(product)
    top = lanczos(counted, rng.standard_normal(num_rows), num_steps)
    largest = float(top.values[0])
    if largest == 0.0:
        zero = Estimate.undefined_because(ZERO_MATRIX, num_units=num_rows)
        return MatrixFreeSpectrum(
            singular_values=np.zeros(0),
            bounds=np.zeros(0),
            effective_rank=zero,
            spectral_entropy_rank=zero,
            stable_rank=zero,
            participation_ratio=zero,
            energy=0.0,
            num_products=counted.number,
        )
    values, bounds = _converged(top, relative_error * largest)
    known = top.vectors[:, : len(values)]
    exact = _terms(values**2 / largest).sum(axis=1)
    probes = []
    for _ in range(num_probes):
        signs = rng.choice([-1.0, 1.0], num_rows)
        probes.append(_probe(counted, signs - known @ (known.T @ signs), known, probe_steps, largest))
    traces = exact + np.stack(probes)
    return MatrixFreeSpectrum(
        singular_values=values,
        bounds=bounds,
        effective_rank=_jackknife(traces, _effective_rank, num_rows),
        spectral_entropy_rank=_jackknife(traces, _spectral_entropy_rank, num_rows),
        stable_rank=_jackknife(traces, _stable_rank, num_rows),
        participation_ratio=_jackknife(traces, _participation_ratio, num_rows),
        energy=float(traces[:, 0, 2].mean()) * largest,
        num_products=counted.number,
    )


class _Counted:
    """A product that counts its calls."""

    def __init__(self, product: Product) -> None:
        self._product, self.number = product, 0

    def __call__(self, vector: Array) -> Array:
        self.number += 1
        return self._product(vector)


def _converged(top: Ritz, error: float) -> tuple[Array, Array]:
    """Leading singular values known to 1 %, with their bounds: |s - sqrt(theta)| <= bound / sqrt(theta)."""
    roots = np.sqrt(top.values)
    bounds = np.divide(top.bounds + error, roots, out=np.full_like(roots, np.inf), where=roots > 0)
    is_known = bounds <= _KNOWN * roots
    num_known = len(roots) if is_known.all() else int(np.argmin(is_known))
    return roots[:num_known], bounds[:num_known]


def _terms(values: Array) -> Array:
    """K^(1/2), K^(1/2) log K^(1/2), K, K log K and K^2 at each eigenvalue, [5, k]."""
    roots, logs = np.sqrt(values), np.log(np.where(values > 0, values, 1.0))
    return np.stack([roots, 0.5 * roots * logs, values, values * logs, values**2])


def _probe(product: Product, start: Array, known: Array, num_steps: int, largest: float) -> Array:
    """One probe's estimates of the traces of what is not known yet, after all steps and after half of them, [2, 5]."""
    if float(start @ start) <= _BREAKDOWN:
        return np.zeros((2, 5))
    found = lanczos(lambda vector: _without(known, product(vector)), start, num_steps)
    halves = ((found.values, found.weights), found.first_half)
    # Any vector's mean quadratic form is tr f / dimension; the dimension is known, so its spread need not enter.
    terms = np.stack([_terms(values / largest) @ weights for values, weights in halves])
    return np.asarray((len(start) - known.shape[1]) * terms)


def _without(known: Array, vector: Array) -> Array:
    return np.asarray(vector - known @ (known.T @ vector))


def _effective_rank(traces: Array) -> float:
    return float(np.exp(np.log(traces[0]) - traces[1] / traces[0]))


def _spectral_entropy_rank(traces: Array) -> float:
    return float(np.exp(np.log(traces[2]) - traces[3] / traces[2]))


def _stable_rank(traces: Array) -> float:
    return float(traces[2])


def _participation_ratio(traces: Array) -> float:
    return float(traces[2] ** 2 / traces[4])


def _jackknife(traces: Array, rank: Callable[[Array], float], num_rows: int) -> Estimate:
    """A function of mean traces [m, 2, 5] with its interval, kept where a rank can be."""
    whole, half = (rank(mean) for mean in traces.mean(axis=0))
    num_probes = len(traces)
    without = np.array([rank(np.delete(traces[:, 0], probe, axis=0).mean(axis=0)) for probe in range(num_probes)])
    error = NORMAL * float(np.sqrt((num_probes - 1) * np.mean((without - without.mean()) ** 2))) + abs(whole - half)
    value = min(max(whole, 1.0), float(num_rows))
    return Estimate(
        value=value, low=max(1.0, value - error), high=min(float(num_rows), value + error), num_units=num_probes
    )
