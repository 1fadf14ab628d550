from __future__ import annotations

import numpy as np
import pytest

from gradscope.metrics.uncertainty.prediction import prediction_interval


def test_one_more_value_lies_inside_as_often_as_it_says() -> None:
    """999 of 1,000 for normal samples of six; the Monte Carlo error of the share is 0.0005."""
    draw = np.random.default_rng(0).normal(3.0, 0.2, (20_000, 7))
    inside = 0
    for row in draw:
        low, high = prediction_interval(row[:6].tolist())
        inside += low <= row[6] <= high
    assert inside / len(draw) == pytest.approx(0.999, abs=0.0015)


def test_equal_values_leave_no_room() -> None:
    assert prediction_interval([2.0, 2.0, 2.0]) == (2.0, 2.0)


def test_one_value_is_no_sample() -> None:
    with pytest.raises(ValueError, match="two values"):
        prediction_interval([1.0])
