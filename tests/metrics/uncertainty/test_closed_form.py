from __future__ import annotations

import pytest
from scipy import stats

from gradscope.estimate import Estimate
from gradscope.metrics.uncertainty.closed_form import difference_interval, ends_of, image_of_interval, wilson_interval


def test_wilson_agrees_with_scipy() -> None:
    theirs = stats.binomtest(7, 40).proportion_ci(method="wilson")
    assert wilson_interval(7 / 40, 40) == pytest.approx((theirs.low, theirs.high))


def test_wilson_ends_are_exact_at_the_boundaries() -> None:
    assert wilson_interval(0.0, 30)[0] == 0.0
    assert wilson_interval(1.0, 30)[1] == 1.0


def test_difference_from_a_constant_only_shifts() -> None:
    assert difference_interval(0.5, (0.3, 0.8), 0.1, (0.1, 0.1)) == pytest.approx((0.2, 0.7))


def test_correlation_narrows_a_difference() -> None:
    ends = (0.5, (0.4, 0.6), 0.3, (0.2, 0.4))
    apart, together = difference_interval(*ends), difference_interval(*ends, correlation=0.9)
    assert together[1] - together[0] < 0.5 * (apart[1] - apart[0])
    assert difference_interval(*ends, correlation=1.0) == pytest.approx((0.2, 0.2))


@pytest.mark.parametrize(
    ("ends", "image"), [((0.1, 0.2), (0.64, 0.81)), ((1.2, 1.5), (0.04, 0.25)), ((0.5, 1.2), (0.0, 0.25))]
)
def test_image_knows_the_minimum(ends: tuple[float, float], image: tuple[float, float]) -> None:
    assert image_of_interval(lambda x: (x - 1) ** 2, ends, turns_at=1.0) == pytest.approx(image)


def test_undefined_estimate_has_no_ends() -> None:
    with pytest.raises(ValueError, match="an undefined estimate has no ends: no data"):
        ends_of(Estimate.because("no data"))
