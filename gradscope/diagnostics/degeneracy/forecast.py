"""Beyond the logged group size: forecasts, the distribution behind them, and what a target share of dead groups takes.

Legend: n rollouts of a group, c of them passing, G group size.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gradscope.estimate import Estimate
from gradscope.metrics.outcomes.degeneracy import NO_THRESHOLD, GroupTable
from gradscope.metrics.outcomes.forecast import MOST_TIMES, PassRates, fit_pass_rates
from gradscope.metrics.outcomes.mixture import beta_binomial_chances, binomial_chances
from gradscope.metrics.uncertainty.level import QUANTILES
from gradscope.results.degeneracy import GroupSizeDegeneracy
from gradscope.results.signal import PassRateDistribution, RateBin, TargetDegeneracy, TargetPlan

Array = NDArray[np.float64]

HOPELESS, SOLVED = 0.01, 0.99
"""Pass rates up to the one and from the other are the ends of the distribution."""
_MOST_INNER_BINS = 20


def pass_rates_of(table: GroupTable, *, seed: int) -> PassRates | str:
    """The distribution of pass rates of a log.

    Args:
        table: The groups.
        seed: Seed of the resampling.

    Returns:
        The distribution, or the reason why there is none.
    """
    if table.num_passing is None:
        return NO_THRESHOLD
    full = (table.num_passing == 0) | (table.num_passing == table.size)
    if np.any(full != table.dead):
        return "rewards within pass or fail differ, so passes do not tell which groups have equal rewards"
    return fit_pass_rates(table.size, table.num_passing, table.prompt, seed=seed)


def describe_pass_rates(table: GroupTable, rates: PassRates | str) -> PassRateDistribution:
    """The distribution as a result: shapes, fit, end masses, histogram.

    Args:
        table: The groups.
        rates: From :func:`pass_rates_of`.

    Returns:
        The description; its numbers are undefined where there is no distribution.
    """
    if isinstance(rates, str):
        unknown = Estimate.undefined_because(rates, num_units=len(table.size))
        return PassRateDistribution(
            beta_a=unknown,
            beta_b=unknown,
            goodness_of_fit=unknown,
            frac_hopeless=unknown,
            frac_solved=unknown,
            histogram=(),
        )
    points, weights, resampled = rates.free.points, rates.free.weights, rates.resampled_free.weights

    def mass(inside: NDArray[np.bool_]) -> Estimate:
        value = float(weights[inside].sum())
        low, high = np.quantile(resampled[:, inside].sum(axis=1), QUANTILES).tolist()
        return Estimate(value=value, low=min(low, value), high=max(high, value), num_units=rates.num_prompts)

    return PassRateDistribution(
        beta_a=Estimate.exact(float(rates.beta.a), num_units=rates.num_prompts),
        beta_b=Estimate.exact(float(rates.beta.b), num_units=rates.num_prompts),
        goodness_of_fit=rates.goodness_of_fit,
        frac_hopeless=mass(points <= HOPELESS),
        frac_solved=mass(points >= SOLVED),
        histogram=_histogram(table, rates),
    )


def forecast_at_size(
    rates: PassRates | str, group_size: int, predicted: Callable[[int], Estimate]
) -> GroupSizeDegeneracy:
    """A row of the report for a group size beyond the rollouts that were logged.

    Args:
        rates: From :func:`pass_rates_of`.
        group_size: G.
        predicted: The i.i.d. prediction at a group size.

    Returns:
        The row; undefined with the reason where there is no forecast.
    """
    degenerate = rates.degeneracy(group_size) if isinstance(rates, PassRates) else Estimate.undefined_because(rates)
    prediction = predicted(group_size)
    gap = degenerate if degenerate.value is None else _less(degenerate, prediction)
    return GroupSizeDegeneracy(
        group_size=group_size, degeneracy=degenerate, iid_prediction=prediction, jensen_gap=gap, method="forecast"
    )


def plan_for_target(
    target: float,
    now: GroupSizeDegeneracy,
    at_size: Callable[[int], GroupSizeDegeneracy],
    tokens_per_rollout: Estimate,
) -> TargetDegeneracy:
    """What it takes that at most a share of groups is degenerate.

    Args:
        target: The share.
        now: The logged group size.
        at_size: The share at another group size.
        tokens_per_rollout: Mean completion tokens.

    Returns:
        As logged, by larger groups and by resampling.
    """
    larger = _smallest_size(target, now, at_size)
    share = now.degeneracy.value or 0.0
    if share <= target:
        drawn = Estimate.exact(float(now.group_size), num_units=now.degeneracy.num_units)
    elif share >= 1.0:
        drawn = Estimate.undefined_because("no group is alive, so no number of groups would give one")
    else:
        drawn = _resampled(now, target)
    reached = now.degeneracy if share <= target else Estimate.exact(target, num_units=now.degeneracy.num_units)
    plans = (
        _plan("now", now, Estimate.exact(float(now.group_size)), tokens_per_rollout),
        _unreached(now, target)
        if larger is None
        else _plan("larger groups", larger, Estimate.exact(float(larger.group_size)), tokens_per_rollout),
        TargetPlan(
            plan="resampling",
            group_size=now.group_size,
            degeneracy=reached if drawn.is_defined else drawn,
            rollouts_per_group=drawn,
            tokens_per_group=_times(drawn, tokens_per_rollout),
            method=now.method,
        ),
    )
    return TargetDegeneracy(target=target, plans=plans)


def _smallest_size(
    target: float, now: GroupSizeDegeneracy, at_size: Callable[[int], GroupSizeDegeneracy]
) -> GroupSizeDegeneracy | None:
    """The smallest group size that meets the target; the share falls with G, so halving finds it."""
    low, high = 2, MOST_TIMES * now.group_size

    def meets(row: GroupSizeDegeneracy) -> bool:
        return row.degeneracy.value is not None and row.degeneracy.value <= target

    if not meets(at_size(high)):
        # The last sizes may be refused as too uncertain while nearer ones are not.
        known = [size for size in range(now.group_size, high) if at_size(size).degeneracy.is_defined]
        high = max(known, default=now.group_size)
        if not meets(at_size(high)):
            return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if meets(at_size(middle)) else (middle + 1, high)
    return at_size(low)


def _plan(plan: str, row: GroupSizeDegeneracy, drawn: Estimate, tokens_per_rollout: Estimate) -> TargetPlan:
    return TargetPlan(
        plan="now" if plan == "now" else "larger groups",
        group_size=row.group_size,
        degeneracy=row.degeneracy,
        rollouts_per_group=drawn,
        tokens_per_group=_times(drawn, tokens_per_rollout),
        method=row.method,
    )


def _unreached(now: GroupSizeDegeneracy, target: float) -> TargetPlan:
    reason = f"no group size up to {MOST_TIMES} times {now.group_size} is known to bring the share to {target:g}"
    unknown = Estimate.undefined_because(reason, num_units=now.degeneracy.num_units)
    return TargetPlan(
        plan="larger groups",
        group_size=None,
        degeneracy=unknown,
        rollouts_per_group=unknown,
        tokens_per_group=unknown,
        method="forecast",
    )


def _resampled(now: GroupSizeDegeneracy, target: float) -> Estimate:
    """Rollouts to sample for each group of a batch that holds no more than the target of degenerate ones."""
    share = now.degeneracy

    def drawn(share: float) -> float:
        return now.group_size * max((1 - target) / (1 - share), 1.0)

    if share.ends[1] >= 1.0:
        return Estimate.exact(drawn(share.value or 0.0), num_units=share.num_units)
    return share.map(drawn)


def _times(number: Estimate, factor: Estimate) -> Estimate:
    """A number times another whose error is small beside its own."""
    times = factor.value
    if number.value is None or times is None:
        return number if number.value is None else factor
    return number.map(lambda value: value * times)


def _less(share: Estimate, prediction: Estimate) -> Estimate:
    """A forecast gap: the interval is the forecast's, which is by far the wider one."""
    predicted = prediction.value
    return prediction if predicted is None else share.map(lambda value: value - predicted)


def _histogram(table: GroupTable, rates: PassRates) -> tuple[RateBin, ...]:
    """Shares of groups by c/n: exactly 0, as many bins between as the smallest group has rates, exactly 1."""
    passing = np.zeros(len(table.size), dtype=np.int64) if table.num_passing is None else table.num_passing
    pooled = float(np.mean(passing / table.size))
    bins = min(max(int(table.size.min()) - 1, 1), _MOST_INNER_BINS)
    shares = np.zeros((bins + 2, 3))
    for size in np.unique(table.size).tolist():
        rows = table.size == size
        rate = np.arange(size + 1) / size
        inner = 1 + np.minimum((rate * bins).astype(np.int64), bins - 1)
        place = np.where(rate == 0.0, 0, np.where(rate == 1.0, bins + 1, inner))
        seen = np.bincount(passing[rows], minlength=size + 1) / len(table.size)
        weight = float(rows.mean())
        expected = [
            weight * beta_binomial_chances(size, rates.beta),
            weight * binomial_chances(size, pooled),
        ]
        np.add.at(shares, place, np.column_stack([seen, *expected]))
    edges = [(0.0, 0.0), *((k / bins, (k + 1) / bins) for k in range(bins)), (1.0, 1.0)]
    return tuple(
        RateBin(low=low, high=high, observed=float(row[0]), beta_binomial=float(row[1]), binomial=float(row[2]))
        for (low, high), row in zip(edges, shares, strict=True)
    )
