"""The Jensen gap: the share of degenerate groups beyond that of independent coin flips, and its two parts.

Legend: J groups, S steps, C cells (a cell is a step and a group size), G group size.

The prediction takes its interval from that of p, and the gap combines the intervals of its two terms: near p = 1/2 the
prediction has no slope, and resamples of it would all lie on one side. The prediction for groups of unequal size is the
mean of p^G + (1-p)^G over the groups' own sizes. Steps weigh by their number of groups; only so do the two parts of the
gap add up to it exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradscope.estimate import Estimate
from gradscope.metrics.outcomes.groups import iid_prediction
from gradscope.metrics.uncertainty.bootstrap import (
    bootstrap_statistics,
    correlation_of_means,
)
from gradscope.metrics.uncertainty.closed_form import image_of_interval
from gradscope.metrics.uncertainty.difference import difference_of
from gradscope.metrics.uncertainty.resampling import Resampling
from gradscope.metrics.uncertainty.studentized import merged_units

Array = NDArray[np.float64]
BasePassRate = float | Literal["step"] | None
"""The p of the prediction: a given one, each step's own, or (None) the mean of the groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """Groups as they were logged, or of a smaller size drawn from them."""

    step: NDArray[np.int64]
    """The trainer's step, [J]."""
    prompt: NDArray[np.str_]
    """The prompt, the unit of resampling, [J]."""
    size: NDArray[np.int64]
    """Group size, [J]."""
    equal: Array
    """Chance that a group of this size has equal rewards, [J]; 0 or 1 at the logged size."""
    rate: Array
    """Pass rate, [J]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A prediction and what the groups show beyond it."""

    prediction: Estimate
    """p^G + (1-p)^G."""
    gap: Estimate
    """Share of equal groups minus prediction."""


def estimate_gap(
    draws: Draws, degenerate: Estimate, pass_rate: Estimate, base: BasePassRate, resampling: Resampling
) -> Gap:
    """The prediction of independent coin flips, and the gap to it.

    Args:
        draws: The groups.
        degenerate: Their share with equal rewards.
        pass_rate: Their mean pass rate.
        base: The p of the prediction.
        resampling: How to resample.

    Returns:
        Both estimates.
    """
    if base == "step":
        cells = _Cells.of(draws)
        by_step, gap = cells.bootstrap(
            lambda parts: [parts.by_step, parts.degenerate - parts.by_step], ([0.0, -1.0], 1.0), resampling
        )
        return Gap(prediction=by_step, gap=gap)
    prediction = _prediction(draws.size, pass_rate, base)
    correlation = _correlation(draws, pass_rate) if base is None else 0.0
    return Gap(prediction=prediction, gap=difference_of(prediction, degenerate, correlation=correlation))


def predict_at(
    group_size: int, step: NDArray[np.int64], rate: Array, pass_rate: Estimate, base: BasePassRate
) -> Estimate:
    """The prediction at a group size that was not drawn.

    Args:
        group_size: G.
        step: The step of each group, [J].
        rate: The pass rate of each group, [J].
        pass_rate: Their mean.
        base: The p of the prediction.

    Returns:
        The prediction; without an interval where it is each step's own.
    """
    if base != "step":
        return _prediction(np.array([group_size]), pass_rate, base)
    _, index, counts = np.unique(step, return_inverse=True, return_counts=True)
    at_step = np.bincount(index.reshape(-1), weights=rate) / counts
    value = float(np.sum(counts * iid_prediction(at_step, group_size)) / counts.sum())
    return Estimate.exact(value, num_units=pass_rate.num_units)


def _prediction(sizes: NDArray[np.int64], pass_rate: Estimate, base: float | None) -> Estimate:
    distinct, counts = np.unique(sizes, return_counts=True)

    def predicted(p: float) -> float:
        return float(np.sum(counts * iid_prediction(p, distinct)) / counts.sum())

    value = predicted((pass_rate.value or 0.0) if base is None else base)
    if base is not None or pass_rate.interval is None:
        return Estimate.exact(value, num_units=pass_rate.num_units)
    low, high = image_of_interval(predicted, pass_rate.interval, turns_at=0.5)
    return Estimate(value=value, low=min(low, value), high=max(high, value), num_units=pass_rate.num_units)


def _correlation(draws: Draws, pass_rate: Estimate) -> float:
    """Correlation of the share with the prediction, which rises with p only above 1/2."""
    with_p = correlation_of_means(np.column_stack([draws.equal, draws.rate]), draws.prompt)
    return with_p * float(np.sign((pass_rate.value or 0.0) - 0.5))


def estimate_gap_parts(
    draws: Draws, gap: Estimate, base: BasePassRate, resampling: Resampling
) -> tuple[Estimate, Estimate]:
    """The gap split into prompts that differ within a step, and a pass rate that moves between steps.

    Args:
        draws: The groups.
        base: The p of the prediction.
        resampling: How to resample.

    Returns:
        Between prompts and over time; they add up to the gap.
    """
    none = Estimate.exact(0.0, num_units=gap.num_units)
    if base == "step" or (base is None and np.ptp(draws.step) == 0):
        return gap, none
    cells = _Cells.of(draws)
    between, over_time = cells.bootstrap(
        lambda parts: [
            parts.degenerate - parts.by_step,
            parts.by_step - (parts.pooled if base is None else parts.at(base)),
        ],
        (-1.0, 1.0),
        resampling,
    )
    return between, over_time


@dataclass(frozen=True, slots=True)
class _Parts:
    """What sums over cells say, for one sum or for many resamples at once, [...]."""

    degenerate: Array
    by_step: Array  # mean prediction at each step's own p
    pooled: Array  # mean prediction at the p of all
    count: Array  # groups of each cell, [..., C]
    size: NDArray[np.int64]  # [C]

    def at(self, pass_rate: float) -> Array:
        predicted = np.sum(self.count * iid_prediction(pass_rate, self.size), axis=-1) / self.count.sum(axis=-1)
        return np.asarray(predicted, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class _Cells:
    """Groups sorted into cells, so that sums over cells hold all that the predictions need."""

    units: Array  # [prompts, 3 C]: groups, equal groups, pass rates of each cell
    size: NDArray[np.int64]  # group size of each cell, [C]
    step: Array  # whether a cell belongs to a step, [C, S]
    num_prompts: int  # before prompts were merged

    @classmethod
    def of(cls, draws: Draws) -> _Cells:
        keys, index = np.unique(np.column_stack([draws.step, draws.size]), axis=0, return_inverse=True)
        steps = np.unique(draws.step)
        # Prompts are merged before they are spread over cells: a long log has many of both.
        _, prompt = np.unique(draws.prompt, return_inverse=True)
        num_prompts = int(prompt.max()) + 1
        unit = merged_units(num_prompts)[prompt.reshape(-1)]
        place = unit * len(keys) + index.reshape(-1)
        num_units, num_cells = int(unit.max()) + 1, len(keys)
        sums = [
            np.bincount(place, weights=weights, minlength=num_units * num_cells).reshape(num_units, num_cells)
            for weights in (np.ones(len(draws.rate)), draws.equal, draws.rate)
        ]
        in_step = (keys[:, :1] == steps[None, :]).astype(np.float64)
        return cls(np.concatenate(sums, axis=1), keys[:, 1], in_step, num_prompts)

    def bootstrap(
        self, choose: Callable[[_Parts], list[Array]], within: tuple[ArrayLike, ArrayLike], resampling: Resampling
    ) -> tuple[Estimate, ...]:
        estimates = bootstrap_statistics(
            lambda sums: np.stack(choose(self.parts(sums)), axis=-1),
            self.units,
            within=within,
            resampling=resampling,
        )
        return tuple(replace(estimate, num_units=self.num_prompts) for estimate in estimates)

    def parts(self, sums: Array) -> _Parts:
        count, equal, passed = np.split(sums, 3, axis=-1)
        total = count.sum(axis=-1)
        # A step that a resample leaves empty has weight zero; its p is then of no account.
        at_step = (passed @ self.step) / np.maximum(count @ self.step, 1.0)
        pooled = (passed.sum(axis=-1) / total)[..., None]
        return _Parts(
            degenerate=equal.sum(axis=-1) / total,
            by_step=np.sum(count * iid_prediction(at_step @ self.step.T, self.size), axis=-1) / total,
            pooled=np.sum(count * iid_prediction(pooled, self.size), axis=-1) / total,
            count=count,
            size=self.size,
        )
