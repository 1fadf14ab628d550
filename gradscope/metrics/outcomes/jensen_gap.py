"""The Jensen gap: the share of degenerate groups beyond that of independent coin flips, and its two parts.

Legend: J groups, G group size, n prompts.

The prediction takes its interval from that of p: near p = 1/2 it has no slope, and resamples of it would all lie on one
side. The prediction for groups of unequal size is the mean of p^G + (1-p)^G over the groups' own sizes. Steps weigh by
their number of groups.

No gap is below 0 (Jensen), so value and interval are not either. At few groups the prediction at their mean is too
high, and most of the evidence of a gap is in rare groups that a short log may not have: the interval is corrected for
that bias, and for the skewness of the prompts on the side that it lengthens, and has one more prompt of weight one half
whose groups are as likely to have any number of passes, alike at each visit.
``docs/research/validation_coverage_of_the_gap.csv`` has its coverage.
"""

from __future__ import annotations

from functools import cached_property, lru_cache, partial
from typing import Any, Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from gradscope.estimate import Estimate
from gradscope.metrics.outcomes.groups import iid_prediction
from gradscope.metrics.outcomes.own_rates import OwnRates, own_rates
from gradscope.metrics.uncertainty import intervals
from gradscope.metrics.uncertainty.bootstrap import cluster_numbers, correlation_of_means

Array = NDArray[np.float64]
BasePassRate = float | Literal["step"] | None
"""The p of the prediction: a number, each step's own, or (None) the mean of the groups."""

_ALIKE = 1e-12  # rounding: numbers closer than this are one
_UNSEEN = 0.5
"""Weight of the prompt that represents those that a short log lacks; a weight of 1 is wider and covers no more."""


class Draws(Struct, frozen=True, kw_only=True, dict=True):
    """Groups as they were logged, or of a smaller size drawn from them."""

    step: NDArray[np.int64]  # the trainer's step, [J]
    prompt: NDArray[np.generic]  # the prompt, the unit of resampling: a number or a text, [J]
    size: NDArray[np.int64]  # group size, [J]
    equal: NDArray[Any]  # chance that a group of this size has equal rewards, [J]; whether it has, at the logged size
    rate: Array  # pass rate, [J]

    @cached_property
    def unit(self) -> NDArray[np.int64]:
        """The number of each group's prompt, [J]."""
        return cluster_numbers(self.prompt)

    @cached_property
    def sizes(self) -> tuple[NDArray[np.int64], Array]:
        """The distinct group sizes, ascending, and the share of the groups that has each."""
        distinct, counts = np.unique(self.size, return_counts=True)
        return distinct, np.asarray(counts / counts.sum(), dtype=np.float64)

    @cached_property
    def own_rates(self) -> OwnRates | str:
        """Predictions at each step's own pass rate, or why there are none."""
        return own_rates(self.step, self.unit, self.size, self.rate)


class Gap(Struct, frozen=True, kw_only=True):
    """A prediction and what the groups show beyond it."""

    prediction: Estimate  # p^G + (1-p)^G
    gap: Estimate  # share of equal groups minus prediction; 0 where that is below, unless the prediction's p is given
    relative: Estimate  # the gap over the prediction


def estimate_gap(draws: Draws, degenerate: Estimate, pass_rate: Estimate, base: BasePassRate) -> Gap:
    """The prediction of independent coin flips, and the gap to it.

    The groups come with their share of equal rewards and their mean pass rate; the own p of a single step is that mean.
    Undefined where each step's own p is asked for and there are too few prompts.
    """
    if base == "step" and np.ptp(draws.step) > 0:
        return _gap_by_step(draws, degenerate)
    prediction = _prediction(draws, pass_rate, base)
    if base is not None and base != "step":
        return Gap(
            prediction=prediction,
            gap=intervals.difference_of(prediction, degenerate),
            relative=_relative(prediction, degenerate, 0.0),
        )
    correlation = 0.0
    if prediction.interval:  # of the share with the prediction, which rises with p only above 1/2
        with_p = correlation_of_means((draws.equal, draws.rate), draws.unit)
        correlation = with_p * float(np.sign((pass_rate.value or 0.0) - 0.5))
    # Around p = 1/2 the prediction errs to one side only, so its error and that of the share add up.
    low, high = pass_rate.ends
    relative = _relative(prediction, degenerate, -1.0 if low <= 0.5 <= high else correlation)
    return Gap(prediction=prediction, gap=_gap_at_mean(draws, degenerate, prediction), relative=_from_zero(relative))


def _gap_at_mean(draws: Draws, degenerate: Estimate, prediction: Estimate) -> Estimate:
    """The gap to the prediction at the groups' own mean, with the interval of its linear part in the groups."""
    # To first order a group adds e - f'(p) x to it, e whether it is equal and x its pass rate. The ends lie t and the
    # third cumulant's part (Johnson 1978, J. American Statistical Association 73) from the unbiased value, the upper
    # one not beyond the largest share minus the least prediction, nor below that minus the largest: the interval of the
    # share allows for prompts at the ends that a log has none of.
    plain = (degenerate.value or 0.0) - (prediction.value or 0.0)
    (sizes, of_size), rate = draws.sizes, float(draws.rate.mean())
    slope = float(of_size @ (sizes * (rate ** (sizes - 1) - (1 - rate) ** (sizes - 1))))
    linear = draws.equal - slope * draws.rate
    center, num_units = float(linear.mean()), int(draws.unit.max()) + 1
    scale = num_units / len(linear)
    own = scale * np.bincount(draws.unit, weights=linear - center)
    any_passes = [equal - slope * rates - center for equal, rates in map(_any_passes, sizes.tolist())]
    unseen = [
        _UNSEEN * float(sum(share * (part**power).mean() for share, part in zip(of_size, any_passes, strict=True)))
        for power in (2, 3)
    ]
    variance = (float(own @ own) + unseen[0]) / (num_units + _UNSEEN - 1)
    if variance <= _ALIKE:
        return Estimate.exact(max(plain, 0.0), num_units=num_units)
    skewness = (float(np.sum(own**3)) + unseen[1]) / (num_units + _UNSEEN) / variance**1.5
    error, quantile = (variance / num_units) ** 0.5, intervals.student_quantile(max(num_units - 1, 1))
    shift = skewness * (2 * quantile**2 + 1) / (6 * num_units**0.5)
    order = np.maximum(sizes - 2, 0)  # that of a group of one has no curvature
    curvature = float(of_size @ (sizes * (sizes - 1) * (rate**order + (1 - rate) ** order)))
    of_prompts = np.bincount(draws.unit, weights=draws.rate - rate) / len(draws.rate)
    of_mean = float(of_prompts @ of_prompts) * num_units / max(num_units - 1, 1)  # variance of the mean pass rate
    unbiased = plain + curvature / 2 * of_mean
    low, high = (unbiased + side * error * (quantile + max(side * shift, 0.0)) for side in (-1, 1))
    high = min(max(high, degenerate.ends[1] - prediction.ends[1]), degenerate.ends[1] - prediction.ends[0])
    estimate = Estimate(value=plain, low=min(low, plain), high=max(high, plain), num_units=num_units)
    return estimate.within(0.0, 1.0)


@lru_cache
def _any_passes(size: int) -> tuple[Array, Array]:
    """Whether a group with 0 to G passes has equal rewards, and its pass rate, [G + 1] each."""
    rates = np.arange(size + 1) / size
    return np.asarray((rates == 0.0) | (rates == 1.0), dtype=np.float64), rates


def _from_zero(estimate: Estimate) -> Estimate:
    """Of a number that cannot be below 0."""
    return estimate.map(lambda number: max(number, 0.0))


def _gap_by_step(draws: Draws, degenerate: Estimate) -> Gap:
    rates = draws.own_rates
    if isinstance(rates, str):
        unknown = Estimate.undefined_because(rates, num_units=degenerate.num_units)
        return Gap(prediction=unknown, gap=unknown, relative=unknown)
    prediction = _jackknifed(rates.by_step, low=0.0)
    if prediction.undefined is not None:
        return Gap(prediction=prediction, gap=prediction, relative=prediction)
    unit = draws.unit
    num_left = len(draws.equal) - np.concatenate([[0.0], np.bincount(unit)])
    sums = draws.equal.sum() - np.concatenate([[0.0], np.bincount(unit, weights=draws.equal)])
    gap = _from_zero(_jackknifed(np.asarray(sums / num_left, dtype=np.float64) - rates.by_step))
    return Gap(prediction=prediction, gap=gap, relative=_from_zero(_relative(prediction, degenerate, 0.0)))


def _relative(prediction: Estimate, degenerate: Estimate, correlation: float) -> Estimate:
    return intervals.ratio_of(prediction, degenerate, correlation=correlation).map(lambda ratio: ratio - 1)


def estimate_prediction(draws: Draws, pass_rate: Estimate, base: BasePassRate) -> Estimate:
    """The prediction alone, for groups of a size that was not drawn; undefined as in :func:`estimate_gap`."""
    if base == "step" and np.ptp(draws.step) > 0:
        return _gap_by_step(draws, pass_rate).prediction
    return _prediction(draws, pass_rate, base)


def _prediction(draws: Draws, pass_rate: Estimate, base: BasePassRate) -> Estimate:
    """At a given p, or at the mean of the groups, which is also that of a single step."""
    predicted = partial(_mean_prediction, draws)
    if isinstance(base, float | int):
        return Estimate.exact(predicted(base), num_units=pass_rate.num_units)
    value = predicted(pass_rate.value or 0.0)
    if pass_rate.interval is None:
        return Estimate.exact(value, num_units=pass_rate.num_units)
    low, high = intervals.image_of_interval(predicted, pass_rate.interval, turns_at=0.5)
    return Estimate(value=value, low=min(low, value), high=max(high, value), num_units=pass_rate.num_units)


def estimate_gap_parts(draws: Draws, gap: Estimate, base: BasePassRate) -> tuple[Estimate, Estimate]:
    """The gap split into prompts that differ within a step, and a pass rate that moves between steps.

    Undefined where the log has too few prompts for two blocks of steps, or for one where the base pass rate is given.
    """
    if not gap.is_defined:
        return gap, gap
    if base == "step" or (base is None and np.ptp(draws.step) == 0):
        return gap, Estimate.exact(0.0, num_units=gap.num_units)
    rates = draws.own_rates
    if not isinstance(rates, str) and base is None and rates.num_blocks < 2:
        rates = (
            f"a split over time needs two blocks of steps with {int(draws.size.max()) + 1} different prompts each, so "
            "that p^G is told without bias, and the log is one block"
        )
    if isinstance(rates, str):
        unknown = Estimate.undefined_because(rates, num_units=gap.num_units)
        return unknown, unknown
    over_time = _jackknifed(rates.over_time if base is None else rates.by_step - _mean_prediction(draws, base))
    if not over_time.is_defined:  # parts that add up to the gap are defined together or not at all
        return over_time, over_time
    # What is between prompts is as uncertain as the gap: a short log lacks the same rare groups. Errors may add up.
    between = intervals.difference_of(over_time, gap, correlation=-1.0).within(-1.0, 1.0)
    if base is not None:
        return between, over_time
    # both from 0 on, as the gap is, and still adding up to it
    later = min(max(over_time.value or 0.0, 0.0), gap.value or 0.0)
    return _moved(between, (gap.value or 0.0) - later), _moved(over_time, later)


def _moved(estimate: Estimate, value: float) -> Estimate:
    if estimate.interval is None:
        return replace(estimate, value=value)
    low, high = estimate.ends
    return replace(estimate, value=value, low=min(max(low, 0.0), value), high=max(high, value))


def _mean_prediction(draws: Draws, rate: float) -> float:
    sizes, of_size = draws.sizes
    return float(of_size @ iid_prediction(rate, sizes))


def _jackknifed(values: Array, *, low: float = -1.0) -> Estimate:
    """An estimate from a statistic of all prompts and without each, [1 + n]; no interval where no prompt moves it."""
    if np.ptp(values[1:]) <= _ALIKE:
        return Estimate.exact(float(values[0]), num_units=len(values) - 1)
    return intervals.jackknife(float(values[0]), [values[1:]], low=low, high=1.0)
