from __future__ import annotations

import math

import pytest

from gradscope.estimate import Estimate


def test_a_reason_stands_for_a_missing_value() -> None:
    unknown = Estimate.because("no data", num_units=3)
    assert (unknown.value, unknown.undefined, unknown.num_units, unknown.is_defined) == (None, "no data", 3, False)


def test_exact_has_no_interval() -> None:
    share = Estimate.exact(0.5, num_units=4)
    assert (share.value, share.low, share.high, share.is_defined) == (0.5, None, None, True)


@pytest.mark.parametrize("fields", [{}, {"value": 1.0, "undefined": "no data"}])
def test_value_or_reason_but_never_both(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="either a value or the reason"):
        Estimate(**fields)


def test_interval_needs_both_ends() -> None:
    with pytest.raises(ValueError, match="an interval needs both ends"):
        Estimate(value=0.5, low=0.1)


def test_undefined_has_no_interval() -> None:
    with pytest.raises(ValueError, match="an undefined Estimate has no interval"):
        Estimate(undefined="no data", low=0.0, high=1.0)


@pytest.mark.parametrize("number", [math.nan, math.inf])
@pytest.mark.parametrize("field", ["value", "low"])
def test_numbers_are_finite(field: str, number: float) -> None:
    with pytest.raises(ValueError, match="an Estimate holds finite numbers"):
        Estimate(**{"value": 0.5, "low": 0.0, "high": 1.0, field: number})
