"""Ranks averaged over groups, beside their nulls."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from gradscope.diagnostics.rank.mean_ranks import MeanRanks, drawn_counts, profile
from gradscope.metrics.gram.spectrum import rank_counts


def mean_of(values: list[list[float]], groups: list[str], *, by_group: bool = False, nulls: float = 1.0) -> MeanRanks:
    counts = rank_counts(np.array(values))
    return MeanRanks(
        counts=counts,
        nulls={"gaussian": counts * nulls},
        group_ids=groups,
        most=np.array(values).shape[1],
        by_group=by_group,
    )


EQUAL, ONE = [1.0, 1.0, 1.0, 1.0], [1.0, 0.0, 0.0, 0.0]


def test_parts_weigh_alike_or_groups_do() -> None:
    parts = [EQUAL, EQUAL, EQUAL, ONE]
    assert mean_of(parts, ["a", "a", "a", "b"]).means()["effective_rank"].value == pytest.approx(3.25)
    assert mean_of(parts, ["a", "a", "a", "b"], by_group=True).means()["effective_rank"].value == pytest.approx(2.5)


def test_energy_of_two_directions_is_a_share_and_of_two_rows_is_one() -> None:
    energy = mean_of([EQUAL, ONE], ["a", "b"]).means()["two_direction_energy"]
    assert energy.value == pytest.approx(0.75)
    both = mean_of([[2.0, 1.0], [1.0, 1.0]], ["a", "b"]).means()["two_direction_energy"]
    assert (both.value, both.interval) == (1.0, None)


def test_a_null_stands_beside_the_rank_as_difference_and_as_ratio() -> None:
    groups = [str(place) for place in range(12)]
    null = mean_of([EQUAL, ONE] * 6, groups, nulls=0.5).null_ranks()["gaussian"]
    assert null.difference.value == pytest.approx(1.25)
    assert null.ratio.value == pytest.approx(2.0)
    assert null.ratio.interval == pytest.approx((2.0, 2.0)) or null.ratio.interval is None


def test_without_a_live_matrix_there_is_no_rank() -> None:
    empty = MeanRanks(counts=np.zeros((0, 4)), nulls={}, group_ids=[], most=4, by_group=False)
    assert "no group of this step has a gradient" in str(empty.means()["effective_rank"].undefined)
    assert empty.null_ranks() == {}


def test_draws_without_a_rank_are_left_out() -> None:
    drawn = np.array([[[1.0, 1.0]], [[0.0, 0.0]]])
    assert drawn_counts(drawn).tolist() == [[2.0, 2.0, 2.0, 1.0]]
    assert profile(drawn[1]) == ()


def test_a_matrix_that_every_draw_leaves_empty_is_left_out_of_that_null_alone() -> None:
    drawn = np.array([[EQUAL, [0.0] * 4, ONE]] * 3)
    found = drawn_counts(drawn)
    assert np.isnan(found).any(axis=1).tolist() == [False, True, False]
    mean = mean_of([EQUAL, ONE, EQUAL], ["a", "b", "c"])
    whole = {"gaussian": mean.counts, "unweighted": mean.counts}
    nulls = dataclasses.replace(mean, nulls={**whole, "shuffled": found}).null_ranks()
    assert nulls["shuffled"].effective_rank.value == pytest.approx(2.5)  # of the first and the third
    assert nulls["shuffled"].difference.value == pytest.approx(1.5)
    assert nulls["gaussian"].effective_rank.value == nulls["unweighted"].effective_rank.value == pytest.approx(3.0)
    nowhere = dataclasses.replace(mean, nulls={**whole, "shuffled": np.full((3, 4), np.nan)}).null_ranks()["shuffled"]
    for estimate in (nowhere.effective_rank, nowhere.difference, nowhere.ratio, nowhere.two_direction_energy):
        assert "to rollouts without a score vector" in str(estimate.undefined)


def test_another_number_is_averaged_over_the_matrices_that_have_it() -> None:
    mean = mean_of([EQUAL, EQUAL, ONE], ["a", "a", "b"])
    assert mean.mean_within(np.array([1.0, 2.0, np.nan]), 0.0, 4.0).value == pytest.approx(1.5)
    assert mean.mean_within(np.array([1.0, np.nan, 3.0]), 0.0, 4.0).num_units == 2
    none = mean.mean_within(np.full(3, np.nan), 0.0, 4.0, none="nobody has it")
    assert (none.undefined, none.num_units) == ("nobody has it", 2)
