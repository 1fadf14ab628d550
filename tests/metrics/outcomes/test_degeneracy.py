from __future__ import annotations

from math import comb

import numpy as np
import pytest

from gradscope.metrics.outcomes.degeneracy import (
    NO_THRESHOLD,
    GroupTable,
    estimate_at_size,
    estimate_degeneracies,
    estimate_degeneracy,
    split_gap,
)


def table_of(rows: list[tuple[int, str, int, int]]) -> GroupTable:
    """Rows of (step, prompt, size, passing)."""
    step, prompt, size, passing = (np.array(column) for column in zip(*rows, strict=True))
    return GroupTable(
        step=step,
        prompt=prompt,
        size=size,
        dead=(passing == 0) | (passing == size),
        num_passing=passing,
        level_counts=np.array([[int(c), int(n - c)] for n, c in zip(size, passing, strict=True)]),
    )


def test_a_dozen_prompts_over_two_steps_know_no_less_than_the_range() -> None:
    # Three prompts of twelve are mixed: resamples without them have no error, and the studentized ends run away.
    rows = [(1 + at // 6, f"p{at}", 4, {0: 1, 7: 1, 9: 3}.get(at, 4)) for at in range(12)]
    found = estimate_degeneracy(table_of(rows), base_pass_rate="step")
    assert 0.0 <= found.iid_prediction.low < found.iid_prediction.value < found.iid_prediction.high <= 1.0
    parts = split_gap(table_of(rows), estimate_degeneracy(table_of(rows)).jensen_gap)
    for part in (found.jensen_gap, *parts):
        assert 0.0 <= part.low <= part.value < part.high <= 1.0


def test_repeated_prompts_widen_the_interval() -> None:
    rng = np.random.default_rng(0)
    passing = [0 if rng.random() < 0.5 else 2 for _ in range(20)]
    once = [(1, f"p{i}", 4, c) for i, c in enumerate(passing)]
    repeated = table_of([(step, *row[1:]) for step in range(1, 9) for row in once])
    clustered = estimate_degeneracy(repeated).frac_reward_zero_std
    assert clustered.num_units == 20
    single = estimate_degeneracy(table_of(once)).frac_reward_zero_std
    assert (clustered.low, clustered.high) == pytest.approx((single.low, single.high))


def test_smaller_size_is_estimated_without_bias() -> None:
    table = table_of([(1, f"p{i}", 8, i % 9) for i in range(27)])
    found = estimate_at_size(table, 4)
    expected = np.mean([(comb(c, 4) + comb(8 - c, 4)) / comb(8, 4) for c in table.num_passing])
    assert found.degeneracy.value == pytest.approx(expected)
    assert found.iid_prediction.value == pytest.approx(2 * 0.5**4)
    assert found.degeneracy.low < expected < found.degeneracy.high


def test_larger_size_is_not_forecast() -> None:
    found = estimate_at_size(table_of([(1, "a", 4, 0), (1, "b", 8, 0)]), 6)
    reason = "1 of 2 groups have fewer than 6 rollouts (fewest 4)"
    assert found.degeneracy.undefined == found.jensen_gap.undefined == reason


def test_without_a_threshold_only_equality_is_known() -> None:
    table = GroupTable(
        step=np.array([1, 1]),
        prompt=np.array(["a", "b"]),
        size=np.array([2, 2]),
        dead=np.array([True, False]),
        num_passing=None,
        level_counts=np.array([[2, 0], [1, 1]]),
    )
    found = estimate_degeneracy(table)
    assert found.frac_reward_zero_std.value == found.frac_tied.value == 0.5
    for estimate in (
        found.frac_all_pass,
        found.frac_all_fail,
        found.pass_rate,
        found.jensen_gap,
        *split_gap(table, found.jensen_gap),
    ):
        assert estimate.undefined == NO_THRESHOLD
    at_size = estimate_at_size(table, 2)
    assert at_size.degeneracy.value == 0.5
    assert at_size.iid_prediction.undefined == at_size.jensen_gap.undefined == NO_THRESHOLD


def test_steps_together_have_the_estimates_of_each() -> None:
    rows = [(step, f"p{at}", 4, (step * at) % 5) for step in range(1, 6) for at in range(10 + 2 * (step % 2))]
    steps = [table_of([row for row in rows if row[0] == step]) for step in range(1, 6)]
    for table, found in zip(steps, estimate_degeneracies(steps, base_pass_rate="step"), strict=True):
        alone = estimate_degeneracy(table, base_pass_rate="step")
        for name in ("frac_reward_zero_std", "frac_all_fail", "pass_rate", "iid_prediction", "jensen_gap"):
            one, other = getattr(alone, name), getattr(found, name)
            assert other.value == one.value
            assert other.interval == (one.interval and pytest.approx(one.interval, abs=1e-12))


def test_tables_that_are_alike_share_the_estimates_that_each_has_alone() -> None:
    rng = np.random.default_rng(1)
    tables = []
    for step in range(60):
        names = rng.permutation(40)[: 1 + step % 4]
        rows = [(step, f"p{name:02}", 2 + step % 2, int(rng.integers(0, 3))) for name in names]
        tables.append(table_of([*rows, (step, rows[0][1], 2, 1)]))
    found = estimate_degeneracies(tables)
    assert found == [estimate_degeneracy(table) for table in tables]
    assert len({id(one) for one in found}) < len(tables)
    one, other = (table_of([(1, first, 2, 1), (1, "m", 2, 0)]) for first in "az")
    assert estimate_degeneracies([one, other])[0] is not estimate_degeneracies([one, other])[1]
