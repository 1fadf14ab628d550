"""A rank averaged over the groups of a step."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from gradscope.diagnostics.rank.rollouts.step_rows import step_rows
from gradscope.diagnostics.rank.rollouts.step_spectra import step_spectra
from gradscope.metrics.gram.geometry import CHANNELS
from tests.diagnostics.rank.rollouts.test_step_spectra import make_rows
from tests.gradients.models import DAPO, measured_step, naive_rows, tiny_groups, tiny_policy, weight_of
from tests.metrics.gram.test_geometry import channels_of_rows


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
    assert "has a gradient by its advantages" in str(point.effective_rank.undefined)


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
    assert "has a gradient by its advantages" in str(dead.summed_energy.undefined)


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


@pytest.mark.parametrize("centered", [False, True])
def test_channels_are_means_over_the_groups_that_have_them(centered: bool) -> None:
    rewards, groups = [0, 1, 1, 1, 0, 0, 1, 0, 0, 1, 1, 0, 1, 0], list("aaaabbbbccccdd")
    rows, scores = make_rows(rewards, groups)
    scores = scores + 1.0
    rows = dataclasses.replace(rows, gram=scores @ scores.T)
    point = step_spectra(rows, "sign", None, by_group=False, centered=centered)[1][-1]
    gradients = ((2 * rows.rewards - 1)[:, None] * scores)[:12].reshape(3, 4, -1)
    expected = np.mean([channels_of_rows(part) for part in gradients], axis=0)
    assert [getattr(point, name).value for name in CHANNELS] == pytest.approx(expected.tolist())
    assert 0.0 <= point.shared_kept.low < point.shared_kept.value < point.shared_kept.high <= 4.0
    (dead,) = step_spectra(make_rows([1, 1], ["a", "a"])[0], "dr_grpo", None, by_group=False)[1]
    assert all("has a gradient by its advantages" in str(getattr(dead, name).undefined) for name in CHANNELS)


def test_a_channel_that_no_group_has_says_so() -> None:
    rows, _ = make_rows([0, 1, 1, 0], ["a", "a", "b", "b"])
    alike = dataclasses.replace(rows, gram=np.ones((4, 4)))
    (point,) = step_spectra(alike, "sign", None, by_group=False)[1]
    assert point.shared_energy.value == pytest.approx(1.0)
    assert point.shared_kept.value == pytest.approx(0.0, abs=1e-9)
    assert point.residual_kept.undefined == "the rows of every group lie on the directions that they share"
    assert point.shared_sum.undefined == "the gradients of every group cancel altogether"
    (apart,) = step_spectra(dataclasses.replace(rows, gram=np.eye(4)), "sign", None, by_group=False)[1]
    assert apart.shared_kept.undefined == "the rows of no group share a direction"
    assert apart.residual_kept.value == pytest.approx(1.0)


def test_channels_of_a_model_are_those_of_one_plain_backward_pass_a_rollout() -> None:
    policy, groups = tiny_policy("llama_untied_biases"), tiny_groups(3, 4)
    (point,) = step_spectra(step_rows(measured_step(policy, groups, DAPO)), "logged", None, by_group=False)[1]
    advantages = np.array([rollout.advantage for group in groups for rollout in group.rollouts])
    gradients = advantages[:, None] * naive_rows(policy, groups, weight_of(groups))
    expected = np.mean([channels_of_rows(part) for part in gradients.reshape(3, 4, -1)], axis=0)
    assert [getattr(point, name).value for name in CHANNELS] == pytest.approx(expected.tolist(), rel=1e-4)
