import math

import pytest

from gradscope.estimate import Estimate


def test_a_reason_stands_for_a_missing_value() -> None:
    unknown = Estimate.undefined_because("no data", num_units=3)
    assert (unknown.value, unknown.undefined, unknown.num_units, unknown.is_defined) == (None, "no data", 3, False)


def test_exact_has_no_interval() -> None:
    share = Estimate.exact(0.5, num_units=4)
    assert (share.value, share.low, share.high, share.is_defined) == (0.5, None, None, True)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "either a value or the reason"),
        ({"value": 1.0, "undefined": "no data"}, "either a value or the reason"),
        ({"value": 0.5, "low": 0.1}, "an interval needs both ends"),
        ({"undefined": "no data", "low": 0.0, "high": 1.0}, "an undefined Estimate has no interval"),
        *(
            ({"value": 0.5, "low": 0.0, "high": 1.0, field: number}, "an Estimate holds finite numbers")
            for field in ("value", "low")
            for number in (math.nan, math.inf)
        ),
    ],
)
def test_what_is_no_estimate_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Estimate(**fields)


def test_both_ends_make_the_interval_and_a_fact_ends_at_its_value() -> None:
    estimate, fact = Estimate(value=0.5, low=0.4, high=0.7), Estimate.exact(0.5)
    assert estimate.interval == estimate.ends == (0.4, 0.7)
    assert (fact.interval, fact.ends) == (None, (0.5, 0.5))
    assert Estimate.undefined_because("no data").interval is None
    with pytest.raises(ValueError, match="an undefined estimate has no ends: no data"):
        _ = Estimate.undefined_because("no data").ends


@pytest.mark.parametrize(
    ("low", "high", "side"), [(0.1, 0.9, 1), (-0.9, -0.1, -1), (-0.1, 0.9, 0), (0.0, 0.9, 0), (-0.9, 0.0, 0)]
)
def test_an_interval_that_touches_zero_is_on_no_side(low: float, high: float, side: int) -> None:
    assert Estimate(value=(low + high) / 2, low=low, high=high).side_of_zero == side


def test_without_an_interval_no_side_is_certain() -> None:
    assert Estimate.exact(3.0).side_of_zero == Estimate.undefined_because("no data").side_of_zero == 0


def test_a_function_maps_value_and_ends_and_a_falling_one_exchanges_them() -> None:
    estimate = Estimate(value=2.0, low=1.0, high=4.0, num_units=7)
    assert estimate.map(lambda x: x**2) == Estimate(value=4.0, low=1.0, high=16.0, num_units=7)
    assert estimate.map(lambda x: 1 / x) == Estimate(value=0.5, low=0.25, high=1.0, num_units=7)
    unknown = Estimate.undefined_because("no data", num_units=3)
    assert unknown.map(abs) == unknown
    assert Estimate.exact(-2.0, num_units=3).map(abs) == Estimate.exact(2.0, num_units=3)


def test_a_number_is_clamped_with_its_ends() -> None:
    estimate = Estimate(value=1.25, low=-0.5, high=2.0).within(0.0, 1.0)
    assert (estimate.value, estimate.interval) == (1.0, (0.0, 1.0))
