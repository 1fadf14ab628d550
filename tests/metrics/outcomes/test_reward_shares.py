from __future__ import annotations

import numpy as np
import pytest

from gradscope.metrics.outcomes.reward_shares import correlation_within, reward_share, within_groups

RNG = np.random.default_rng(5)
GROUPS = np.repeat(np.arange(30), 8)
PARTS = RNG.normal(size=(2, 240)) + 10 * GROUPS


def test_shares_of_parts_add_up_to_one() -> None:
    total = 2.0 * PARTS[0] + PARTS[1]
    first = reward_share(2.0 * PARTS[0], total, GROUPS, GROUPS)
    second = reward_share(PARTS[1], total, GROUPS, GROUPS)
    assert first.value + second.value == pytest.approx(1.0)
    assert 0.7 < first.low < first.value < first.high < 1


def test_what_is_the_same_within_groups_has_no_share() -> None:
    total = PARTS[0] + 100.0 * GROUPS
    assert reward_share(100.0 * GROUPS, total, GROUPS).value == pytest.approx(0.0, abs=1e-9)


def test_without_differences_there_is_no_share() -> None:
    share = reward_share([1.0, 1.0], [1.0, 1.0], ["a", "a"])
    assert share.undefined == "no group has rewards that differ"


def test_correlation_is_pearsons_of_the_deviations() -> None:
    one, two = (within_groups(part, GROUPS) for part in PARTS)
    estimate = correlation_within(PARTS[0], PARTS[1], GROUPS, GROUPS)
    assert estimate.value == pytest.approx(np.corrcoef(one, two)[0, 1])
    assert estimate.low < 0 < estimate.high


def test_a_constant_has_no_correlation() -> None:
    assert "never differs" in str(correlation_within([1.0, 1.0], [0.0, 1.0], ["a", "a"]).undefined)
