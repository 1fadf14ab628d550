"""Degeneracy and pass@k beyond the samples that were drawn, from a fitted distribution of pass rates.

Legend: n samples of a prompt, c of them passing, J groups, B resamples, G group size, k budget.

From n samples the first n moments of the pass rates can be learned, and a larger G asks for higher ones: no data decide
between a prompt that never passes and one that passes once in a thousand. So every forecast is a model's. Its value is
the beta-binomial's, whose errors were the smaller ones where samples were hidden (``benchmarks/forecast.py``); its
interval reaches over the resamples of both the beta-binomial and the NPMLE, which disagree exactly where the shape is
not known. Where that says nothing, the forecast is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import chdtrc

from gradscope.estimate import Estimate
from gradscope.metrics.outcomes.mixture import (
    BetaMixture,
    GridMixture,
    PassCounts,
    beta_binomial_chances,
    fit_beta_binomial,
    fit_beta_binomials,
    fit_npmle,
)
from gradscope.metrics.uncertainty.level import QUANTILES
from gradscope.metrics.uncertainty.studentized import merged_units

Array = NDArray[np.float64]

MOST_TIMES = 8
"""A forecast reaches this many times as far as the samples; hiding tested it up to 6.25 times."""
MIN_PROMPTS = 10
"""With fewer prompts there is no distribution to speak of."""
MOST_UNCERTAIN = 0.6
"""A wider interval of a share says nothing."""
NUM_RESAMPLES = 200
"""Refits behind an interval; its ends move by less than a tenth of its width."""
_UPDATES_OF_RESAMPLES = 300
"""EM updates of each of them, fewer than for the fit: an interval's ends need fewer digits than its value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRates:
    """The fitted distribution of pass rates, with its resamples."""

    beta: BetaMixture
    """The beta-binomial fit."""
    free: GridMixture
    """The NPMLE."""
    resampled_beta: BetaMixture
    """Beta-binomial fits of resamples of prompts, [B]."""
    resampled_free: GridMixture
    """NPMLEs of the same resamples, [B, K]."""
    num_prompts: int
    """Prompts, the unit of resampling."""
    num_samples: int
    """The median n, which bounds how far a forecast reaches."""
    goodness_of_fit: Estimate
    """p-value of Pearson's chi-squared test of the beta-binomial, groups taken as independent."""

    def degeneracy(self, group_size: int) -> Estimate:
        """Forecast share of degenerate groups.

        Args:
            group_size: G.

        Returns:
            The forecast; undefined where the data cannot support it.
        """
        return self._forecast(
            f"G = {group_size}", group_size, lambda p: p.all_pass(group_size) + p.all_fail(group_size)
        )

    def pass_at_k(self, k: int) -> Estimate:
        """Forecast chance that at least one of k samples passes.

        Args:
            k: The budget.

        Returns:
            The forecast; undefined where the data cannot support it.
        """
        return self._forecast(f"k = {k}", k, lambda p: 1.0 - p.all_fail(k))

    def pass_hat_k(self, k: int) -> Estimate:
        """Forecast chance that all k samples pass.

        Args:
            k: The budget.

        Returns:
            The forecast; undefined where the data cannot support it.
        """
        return self._forecast(f"k = {k}", k, lambda p: p.all_pass(k))

    def _forecast(self, what: str, size: int, share: Callable[[BetaMixture | GridMixture], Array]) -> Estimate:
        if size > MOST_TIMES * self.num_samples:
            reason = f"{what} is more than {MOST_TIMES} times the {self.num_samples} samples of a prompt"
            return Estimate.undefined_because(reason, num_units=self.num_prompts)
        value = float(share(self.beta))
        ends = np.array([np.quantile(share(fits), QUANTILES) for fits in (self.resampled_beta, self.resampled_free)])
        low, high = min(float(ends[:, 0].min()), value), max(float(ends[:, 1].max()), value)
        if high - low > MOST_UNCERTAIN:
            reason = f"a forecast at {what} could be anything from {low:.2f} to {high:.2f}"
            return Estimate.undefined_because(reason, num_units=self.num_prompts)
        return Estimate(value=value, low=low, high=high, num_units=self.num_prompts).within(0.0, 1.0)


def fit_pass_rates(
    num_samples: ArrayLike, num_passing: ArrayLike, prompts: ArrayLike | None = None, *, seed: int = 0
) -> PassRates | str:
    """Fit the distribution of pass rates.

    Args:
        num_samples: n of each group, [J].
        num_passing: c of each group, [J].
        prompts: The prompt of each group, the unit of resampling, [J]; None: each group is its own.
        seed: Seed of the resampling.

    Returns:
        The distribution, or the reason why these groups do not show one.

    Example:
        >>> fit_pass_rates([4] * 3, [0, 1, 2])
        'a distribution of pass rates needs at least 10 prompts, there are 3'
        >>> rates = fit_pass_rates([4] * 50, [0, 1, 2, 3, 4] * 10)
        >>> round(rates.degeneracy(8).value, 3)
        0.222
    """
    counts = PassCounts.of(num_samples, num_passing)
    labels = np.arange(len(counts.pair)) if prompts is None else np.unique(np.asarray(prompts), return_inverse=True)[1]
    num_prompts = int(labels.max()) + 1
    if num_prompts < MIN_PROMPTS:
        return f"a distribution of pass rates needs at least {MIN_PROMPTS} prompts, there are {num_prompts}"
    if np.all((counts.num_passing == 0) | (counts.num_passing == counts.num_samples)):
        return "no group is mixed, so nothing shows how often a hard prompt passes or an easy one fails"
    unit = merged_units(num_prompts)[labels.reshape(-1)]
    units = np.zeros((int(unit.max()) + 1, len(counts.weight)))
    np.add.at(units, (unit, counts.pair), 1.0)
    drawn = np.random.default_rng(seed).multinomial(len(units), np.full(len(units), 1 / len(units)), NUM_RESAMPLES)
    weights = drawn @ units
    beta = fit_beta_binomial(counts)
    return PassRates(
        beta=beta,
        free=fit_npmle(counts),
        resampled_beta=fit_beta_binomials(counts, weights),
        resampled_free=fit_npmle(counts, weights, num_updates=_UPDATES_OF_RESAMPLES),
        num_prompts=num_prompts,
        num_samples=int(np.median(np.asarray(num_samples))),
        goodness_of_fit=goodness_of_fit(counts, beta),
    )


def goodness_of_fit(counts: PassCounts, beta: BetaMixture) -> Estimate:
    """Pearson's chi-squared test of the beta-binomial distribution: a small p-value speaks against it.

    Neighboring cells are joined until each is expected to hold five groups.

    Args:
        beta: Their fit.

    Returns:
        The p-value; undefined where too few cells are left.

    Example:
        >>> counts = PassCounts.of([4] * 100, [0, 1, 2, 3, 4] * 20)
        >>> round(goodness_of_fit(counts, fit_beta_binomial(counts)).value, 2)
        1.0
    """
    num_groups = int(counts.weight.sum())
    sizes = np.unique(counts.num_samples).tolist()
    statistic, cells = 0.0, 0
    for size in sizes:
        rows = counts.num_samples == size
        observed = np.zeros(size + 1)
        observed[counts.num_passing[rows]] = counts.weight[rows]
        joined = _joined(observed, observed.sum() * beta_binomial_chances(size, beta))
        statistic += float(np.sum((joined[:, 0] - joined[:, 1]) ** 2 / joined[:, 1]))
        cells += len(joined)
    freedom = cells - len(sizes) - 2
    if freedom < 1:
        reason = f"{num_groups} groups fill {cells} cells of five, too few to test a shape with two parameters"
        return Estimate.undefined_because(reason, num_units=num_groups)
    return Estimate.exact(float(chdtrc(freedom, statistic)), num_units=num_groups)


def _joined(observed: Array, expected: Array) -> Array:
    """Neighboring cells joined until five are expected in each, [cells, 2]."""
    cells: list[list[float]] = [[0.0, 0.0]]
    for seen, awaited in zip(observed.tolist(), expected.tolist(), strict=True):
        if cells[-1][1] >= 5.0:
            cells.append([0.0, 0.0])
        cells[-1][0] += seen
        cells[-1][1] += awaited
    if len(cells) > 1 and cells[-1][1] < 5.0:
        seen, awaited = cells.pop()
        cells[-1][0] += seen
        cells[-1][1] += awaited
    return np.array(cells)
