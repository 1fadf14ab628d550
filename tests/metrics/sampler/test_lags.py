from __future__ import annotations

import pytest

from gradscope.metrics.sampler.lags import first_step, lag_estimates


@pytest.mark.parametrize(
    ("steps", "versions", "first"),
    [
        ([1, 2, 3], [0, 1, 1], 1),
        ([0, 1, 2], [0, 0, 0], 0),
        ([5, 6], [5, 4], 0),
        ([5, 6], [6, 4], None),
        ([], [], 1),
    ],
)
def test_no_weights_come_from_the_future(steps: list[int], versions: list[int], first: int | None) -> None:
    assert first_step(steps, versions) == first


def test_lags_are_counted_by_hand() -> None:
    found = lag_estimates([0] * 10 + [1] * 5 + [3] * 5, [at // 2 for at in range(20)])
    assert found["mean_lag"].value == 1.0
    assert found["frac_above_1"].value == 0.25
    assert (found["max_lag"].value, found["max_lag"].interval) == (3.0, None)
    assert found["mean_lag"].num_units == 10


def test_lags_that_are_all_alike_and_no_lags_at_all() -> None:
    alike = lag_estimates([2.0] * 6, range(6))
    assert (alike["mean_lag"].value, alike["mean_lag"].interval) == (2.0, None)
    assert alike["frac_above_1"].value == 1.0
    assert all(found.undefined for found in lag_estimates([], []).values())
