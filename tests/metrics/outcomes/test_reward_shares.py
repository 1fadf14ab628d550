import numpy as np
import pytest

from gradscope.metrics.outcomes.reward_shares import (
    correlation_within,
    count_incoherent,
    frac_incoherent,
    within_groups,
)
from gradscope.metrics.uncertainty.intervals import wilson_interval

RNG = np.random.default_rng(5)
GROUPS = np.repeat(np.arange(30), 8)
PARTS = RNG.normal(size=(2, 240)) + 10 * GROUPS


def test_correlation_is_pearsons_of_the_deviations() -> None:
    first, two = (within_groups(part, GROUPS) for part in PARTS)
    estimate = correlation_within(PARTS[0], PARTS[1], GROUPS, GROUPS)
    assert estimate.value == pytest.approx(np.corrcoef(first, two)[0, 1])
    assert estimate.low < 0 < estimate.high
    assert "never differs" in str(correlation_within([1.0, 1.0], [0.0, 1.0], ["a", "a"]).undefined)


def test_what_is_not_rewarded_does_not_count() -> None:
    assert count_incoherent([(0.9, True), (0.5, False), (0.499999, False), (0.0, True), (1.0, False)]) == (3, 2)
    assert count_incoherent([]) == (0, 0)
    assert frac_incoherent(0, 0).undefined == "no rollout was rewarded"
    share = frac_incoherent(8, 2)
    assert (share.value, share.num_units) == (0.25, 8)
    assert (share.low, share.high) == wilson_interval(0.25, 8)
