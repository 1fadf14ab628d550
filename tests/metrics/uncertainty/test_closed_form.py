from __future__ import annotations

import pytest
from scipy import stats

from gradscope.metrics.uncertainty.closed_form import image_of_interval, wilson_interval


def test_wilson_agrees_with_scipy() -> None:
    theirs = stats.binomtest(7, 40).proportion_ci(method="wilson")
    assert wilson_interval(7 / 40, 40) == pytest.approx((theirs.low, theirs.high))


def test_wilson_ends_are_exact_at_the_boundaries() -> None:
    assert wilson_interval(0.0, 30)[0] == 0.0
    assert wilson_interval(1.0, 30)[1] == 1.0


@pytest.mark.parametrize(
    ("ends", "image"), [((0.1, 0.2), (0.64, 0.81)), ((1.2, 1.5), (0.04, 0.25)), ((0.5, 1.2), (0.0, 0.25))]
)
def test_image_knows_the_minimum(ends: tuple[float, float], image: tuple[float, float]) -> None:
    assert image_of_interval(lambda x: (x - 1) ** 2, ends, turns_at=1.0) == pytest.approx(image)
