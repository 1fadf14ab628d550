from __future__ import annotations

import numpy as np
import pytest

from gradscope.metrics.outcomes.reward_shares import correlation_within, within_groups

RNG = np.random.default_rng(5)
GROUPS = np.repeat(np.arange(30), 8)
PARTS = RNG.normal(size=(2, 240)) + 10 * GROUPS


def test_correlation_is_pearsons_of_the_deviations() -> None:
    one, two = (within_groups(part, GROUPS) for part in PARTS)
    estimate = correlation_within(PARTS[0], PARTS[1], GROUPS, GROUPS)
    assert estimate.value == pytest.approx(np.corrcoef(one, two)[0, 1])
    assert estimate.low < 0 < estimate.high


def test_a_constant_has_no_correlation() -> None:
    assert "never differs" in str(correlation_within([1.0, 1.0], [0.0, 1.0], ["a", "a"]).undefined)
