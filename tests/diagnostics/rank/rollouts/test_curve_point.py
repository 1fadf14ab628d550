"""A rank averaged over the groups of a step."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from gradscope.diagnostics.rank.rollouts.step_spectra import step_spectra
from tests.diagnostics.rank.rollouts.test_step_spectra import make_rows


def test_the_curve_counts_dead_groups_apart() -> None:
    rows, _ = make_rows([0, 1, 1, 1, 0, 0, 1, 0], ["a", "a", "b", "b", "c", "c", "d", "d"])
    (point,) = step_spectra(rows, "dr_grpo", None, by_group=False)[1]
    assert (point.num_groups, point.num_dead) == (4, 2)
    assert point.effective_rank.value == pytest.approx(1.8, abs=0.25)  # two nearly orthogonal rows
    assert point.effective_rank.num_units == 2


def test_a_step_of_dead_groups_has_no_rank() -> None:
    rows, _ = make_rows([1, 1], ["a", "a"])
    (point,) = step_spectra(rows, "dr_grpo", None, by_group=False)[1]
    assert point.effective_rank.value is None
    assert "zero advantage" in str(point.effective_rank.undefined)


def test_sizes_are_not_mixed_in_one_average() -> None:
    rows, _ = make_rows([0, 1, 0, 1, 1], ["a", "a", "b", "b", "b"])
    points = step_spectra(rows, "dr_grpo", None, by_group=False)[1]
    assert [point.group_size for point in points] == [2, 3]


@pytest.mark.parametrize("centered", [False, True])
def test_the_energy_of_the_sum_is_that_of_the_rows_themselves(centered: bool) -> None:
    rewards, groups = [0, 1, 1, 1, 0, 0, 1, 0, 0, 1, 1, 0], [name for name in "abc" for _ in range(4)]
    rows, scores = make_rows(rewards, groups)
    (point,) = step_spectra(rows, "sign", None, by_group=False, centered=centered)[1]
    gradients = ((2 * rows.rewards - 1)[:, None] * scores).reshape(3, 4, -1)
    expected = [np.sum(part.sum(axis=0) ** 2) / np.sum(part**2) for part in gradients]
    assert point.summed_energy.value == pytest.approx(np.mean(expected))
    assert 0.0 <= point.summed_energy.low < point.summed_energy.value < point.summed_energy.high <= 4.0
    (dead,) = step_spectra(make_rows([1, 1], ["a", "a"])[0], "dr_grpo", None, by_group=False)[1]
    assert "zero advantage" in str(dead.summed_energy.undefined)


@pytest.mark.parametrize("advantage", ["reinforce", "positive_only"])
def test_one_score_vector_among_many_has_a_rank_and_no_shuffle(advantage: str) -> None:
    """As where all completions but one were cut off and are masked."""
    size = 64
    rows, scores = make_rows([1.0] + [0.0] * (size - 1), ["a"] * size)
    scores[1:] = 0.0
    ((spectrum, *_), (point,)) = step_spectra(
        dataclasses.replace(rows, gram=scores @ scores.T), advantage, None, by_group=False
    )
    assert spectrum.ranks.effective_rank.value == pytest.approx(1.0)
    assert point.effective_rank.value == pytest.approx(1.0)
    assert point.nulls["unweighted"].effective_rank.value == pytest.approx(1.0)
    assert "without a score vector" in str(point.nulls["shuffled"].effective_rank.undefined)
