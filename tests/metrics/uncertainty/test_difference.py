from __future__ import annotations

import math

import numpy as np
import pytest

from gradscope.estimate import Estimate
from gradscope.metrics.outcomes.degeneracy import GroupTable, estimate_degeneracy
from gradscope.metrics.uncertainty.difference import difference_of, ratio_of
from gradscope.metrics.uncertainty.resampling import Resampling


def test_independent_intervals_add_in_squares_on_their_own_sides() -> None:
    first = Estimate(value=1.0, low=0.7, high=1.3, num_units=9)
    last = Estimate(value=3.0, low=2.6, high=3.4, num_units=8)
    difference = difference_of(first, last)
    assert (difference.value, *difference.ends) == pytest.approx((2.0, 1.5, 2.5))
    assert difference.num_units == 8


def test_a_skewed_side_makes_a_skewed_difference() -> None:
    first, last = Estimate(value=0.0, low=-0.3, high=0.1), Estimate(value=1.0, low=0.6, high=1.8)
    # Below: how far last may be lower and first higher, sqrt(0.4^2 + 0.1^2); above: sqrt(0.8^2 + 0.3^2).
    assert difference_of(first, last).ends == pytest.approx((1 - 0.17**0.5, 1 + 0.73**0.5))


def test_a_side_without_an_interval_only_shifts() -> None:
    difference = difference_of(Estimate.exact(0.1), Estimate(value=0.5, low=0.3, high=0.8))
    assert difference.ends == pytest.approx((0.2, 0.7))


def test_two_facts_differ_by_a_fact() -> None:
    assert difference_of(Estimate.exact(1.0), Estimate.exact(3.0)) == Estimate.exact(2.0)


def test_correlation_narrows_a_difference_down_to_nothing() -> None:
    first, last = Estimate(value=0.3, low=0.2, high=0.4), Estimate(value=0.5, low=0.4, high=0.6)
    apart, together = difference_of(first, last), difference_of(first, last, correlation=0.9)
    assert together.high - together.low < 0.5 * (apart.high - apart.low)
    assert difference_of(first, last, correlation=1.0).ends == pytest.approx((0.2, 0.2))


@pytest.mark.parametrize(("first", "last"), [("dead", None), (None, "dead"), ("dead", "later")])
def test_an_undefined_side_leaves_no_difference(first: str | None, last: str | None) -> None:
    sides = [Estimate.exact(1.0) if reason is None else Estimate.undefined_because(reason) for reason in (first, last)]
    assert difference_of(*sides) == Estimate.undefined_because("dead")


def test_a_ratio_is_the_difference_of_logarithms() -> None:
    first, last = (
        Estimate(value=0.2, low=0.1, high=0.3, num_units=9),
        Estimate(value=0.5, low=0.4, high=0.8, num_units=8),
    )
    ratio = ratio_of(first, last, correlation=0.3)
    logs = [Estimate(value=math.log(e.value), low=math.log(e.low), high=math.log(e.high)) for e in (first, last)]
    assert ratio.value == pytest.approx(2.5)
    assert [math.log(end) for end in ratio.ends] == pytest.approx(difference_of(*logs, correlation=0.3).ends)
    assert ratio.num_units == 8


def test_a_ratio_at_zero_keeps_the_ends_that_it_has() -> None:
    first = Estimate(value=0.2, low=0.1, high=0.4)
    assert ratio_of(first, Estimate(value=0.0, low=0.0, high=0.3)).ends == (0.0, pytest.approx(3.0))
    assert ratio_of(first, Estimate(value=0.1, low=0.0, high=0.2)).low == 0.0
    assert ratio_of(Estimate(value=0.1, low=0.0, high=0.2), first).interval is None
    assert ratio_of(Estimate.exact(0.5), Estimate.exact(0.25)) == Estimate.exact(0.5, num_units=1)
    assert ratio_of(Estimate.exact(0.0), first).undefined == "it is relative to zero"
    assert ratio_of(first, Estimate.undefined_because("no rewards")).undefined == "no rewards"


def test_intervals_of_a_relative_gap_hold_their_truth() -> None:
    """100 prompts of Beta(.5, .5), groups of 4: D = 0.547, p = 1/2, so the gap is 3.375 times the prediction."""
    rng = np.random.default_rng(0)
    held = []
    for _ in range(60):
        passed = rng.binomial(4, rng.beta(0.5, 0.5, 100))
        table = GroupTable(
            step=np.ones(100, dtype=np.int64),
            prompt=np.arange(100).astype(str),
            size=np.full(100, 4),
            dead=(passed == 0) | (passed == 4),
            num_passing=passed,
            level_counts=np.column_stack([passed, 4 - passed]),
        )
        relative = estimate_degeneracy(table, resampling=Resampling(num_resamples=200)).relative_gap
        held.append(relative.low <= 2 * 35 / 128 / 0.125 - 1 <= relative.high)
    assert np.mean(held) > 0.85
