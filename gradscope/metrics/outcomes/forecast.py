"""Degeneracy and pass@k beyond the samples that were drawn, from a fitted distribution of pass rates.

Legend: n samples of a prompt, c of them passing, J groups, G group size, k budget.

From n samples the first n moments of the pass rates can be learned, and a larger G asks for higher ones: no data decide
between a prompt that never passes and one that passes once in a thousand. So the value of a forecast is a model's, that
of the zero-and-one-inflated beta-binomial, and it is refused where Pearson's test speaks against the model. Its
interval is not the model's: it holds whatever the distribution of pass rates is (:mod:`.rate_bounds`). Where that says
nothing, the forecast is refused too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import chdtrc

from gradscope.estimate import Estimate
from gradscope.metrics.outcomes.mixture import (
    GridMixture,
    InflatedBeta,
    PassCounts,
    RateBounds,
    fit_inflated_beta,
    fit_npmle,
)
from gradscope.metrics.uncertainty.studentized import cluster_numbers

Array = NDArray[np.float64]

MOST_TIMES = 8  # a forecast reaches this many times as far as the samples; hiding tested it up to 6.25 times
MIN_PROMPTS = 10  # with fewer prompts there is no distribution to speak of
MOST_UNCERTAIN = 0.6  # a wider interval of a share says nothing
LEAST_FIT = 0.05
"""Below this p-value of the goodness of fit the value of a forecast would be that of a shape that the counts refute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRates:
    """The fitted distribution of pass rates."""

    shape: InflatedBeta  # the fit that gives forecasts their value
    free: GridMixture  # the NPMLE
    bounds: RateBounds  # what gives them their interval
    num_prompts: int  # prompts, the independent units
    num_samples: int  # the median n, which bounds how far a forecast reaches
    goodness_of_fit: Estimate  # p-value of Pearson's chi-squared test of the shape

    def degeneracy(self, group_size: int) -> Estimate:
        """Forecast share of degenerate groups.

        Args:
            group_size: G.

        Returns:
            The forecast; undefined where the data cannot support it.
        """
        value = self.shape.all_pass(group_size) + self.shape.all_fail(group_size)
        return self._forecast(f"G = {group_size}", group_size, value, lambda p: p**group_size + (1 - p) ** group_size)

    def pass_at_k(self, k: int) -> Estimate:
        """Forecast chance that at least one of k samples passes.

        Args:
            k: The budget.

        Returns:
            The forecast; undefined where the data cannot support it.
        """
        return self._forecast(f"k = {k}", k, 1.0 - self.shape.all_fail(k), lambda p: 1.0 - (1.0 - p) ** k)

    def pass_hat_k(self, k: int) -> Estimate:
        """Forecast chance that all k samples pass.

        Args:
            k: The budget.

        Returns:
            The forecast; undefined where the data cannot support it.
        """
        return self._forecast(f"k = {k}", k, self.shape.all_pass(k), lambda p: p**k)

    def _forecast(self, what: str, size: int, value: float, share: Callable[[Array], Array]) -> Estimate:
        reason, fit = None, self.goodness_of_fit.value
        if size > MOST_TIMES * self.num_samples:
            reason = f"{what} is more than {MOST_TIMES} times the {self.num_samples} samples of a prompt"
        elif fit is not None and fit < LEAST_FIT:
            reason = f"no inflated beta distribution of pass rates fits the counts (p = {fit:.2g})"
        if reason is not None:
            return Estimate.undefined_because(reason, num_units=self.num_prompts)
        low, high = self.bounds.interval(share)
        if high - low > MOST_UNCERTAIN:
            reason = f"a forecast at {what} could be anything from {low:.2f} to {high:.2f}"
            return Estimate.undefined_because(reason, num_units=self.num_prompts)
        return Estimate(value=value, low=min(low, value), high=max(high, value), num_units=self.num_prompts)


def fit_pass_rates(num_samples: ArrayLike, num_passing: ArrayLike, prompts: ArrayLike | None = None) -> PassRates | str:
    """Fit the distribution of pass rates.

    Args:
        num_samples: n of each group, [J].
        num_passing: c of each group, [J].
        prompts: The prompt of each group, the independent unit, [J]; None: each group is its own.

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
    labels = np.arange(len(counts.pair)) if prompts is None else cluster_numbers(prompts)
    num_prompts = int(labels.max()) + 1
    if num_prompts < MIN_PROMPTS:
        return f"a distribution of pass rates needs at least {MIN_PROMPTS} prompts, there are {num_prompts}"
    if np.all((counts.num_passing == 0) | (counts.num_passing == counts.num_samples)):
        return "no group is mixed, so nothing shows how often a hard prompt passes or an easy one fails"
    shape, free = fit_inflated_beta(counts), fit_npmle(counts)
    n, c = (np.asarray(numbers, dtype=np.int64) for numbers in (num_samples, num_passing))
    return PassRates(
        shape=shape,
        free=free,
        bounds=RateBounds.of(n, c, labels, free),
        num_prompts=num_prompts,
        num_samples=int(np.median(n)),
        goodness_of_fit=goodness_of_fit(counts, shape, num_prompts),
    )


def goodness_of_fit(counts: PassCounts, shape: InflatedBeta, num_prompts: int) -> Estimate:
    """Pearson's chi-squared test of the inflated beta-binomial: a small p-value speaks against it.

    Neighboring cells are joined until each is expected to hold five. Groups of one prompt are not independent: counts
    are taken down to as many as there are prompts.

    Args:
        shape: Their fit.
        num_prompts: Independent units among the groups.

    Returns:
        The p-value; undefined where too few cells are left.

    Example:
        >>> counts = PassCounts.of([4] * 100, [0, 1, 2, 3, 4] * 20)
        >>> round(goodness_of_fit(counts, fit_inflated_beta(counts), 100).value, 2)
        1.0
    """
    num_groups = int(counts.weight.sum())
    sizes = np.unique(counts.num_samples).tolist()
    statistic, cells = 0.0, 0
    for size in sizes:
        rows = counts.num_samples == size
        observed = np.zeros(size + 1)
        observed[counts.num_passing[rows]] = counts.weight[rows] * num_prompts / num_groups
        joined = _joined(observed, observed.sum() * shape.chances(size))
        statistic += float(np.sum((joined[:, 0] - joined[:, 1]) ** 2 / joined[:, 1]))
        cells += len(joined)
    freedom = cells - len(sizes) - shape.num_parameters
    if freedom < 1:
        reason = (
            f"{num_prompts} prompts fill {cells} cells of five, too few to test a shape with {shape.num_parameters} "
            "parameters"
        )
        return Estimate.undefined_because(reason, num_units=num_prompts)
    return Estimate.exact(float(chdtrc(freedom, statistic)), num_units=num_prompts)


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
