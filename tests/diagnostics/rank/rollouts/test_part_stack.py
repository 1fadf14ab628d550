"""Parts of one size as arrays, against the rows that they stand for."""

from __future__ import annotations

import numpy as np
import pytest

from gradscope.diagnostics.rank.rollouts.part_stack import PartStack
from gradscope.diagnostics.rank.rollouts.sub_groups import sub_groups
from tests.diagnostics.rank.rollouts.test_step_spectra import NUM_PARAMETERS, make_rows

WEIGHTS = np.array([[1.0, -2.0], [0.0, 0.0]])


def stack_of(*, centered: bool = False, is_scalar: bool = True) -> tuple[PartStack, np.ndarray]:
    """A live and a dead pair."""
    rows, scores = make_rows([1, 0, 1, 1], ["a", "a", "b", "b"])
    scores = scores.reshape(2, 2, NUM_PARAMETERS)
    grams = scores @ scores.swapaxes(1, 2)
    stack = PartStack(
        parts=tuple(sub_groups(rows, 2)),
        scores=grams,
        baseline_weights=np.ones((2, 2)),
        gradients=WEIGHTS[:, :, None] * grams * WEIGHTS[:, None, :],
        weights=WEIGHTS,
        rewards=rows.rewards.reshape(2, 2),
        is_scalar=is_scalar,
        num_columns=NUM_PARAMETERS,
        centered=centered,
    )
    return stack, scores


@pytest.mark.parametrize("centered", [False, True])
def test_values_are_those_of_the_rows(centered: bool) -> None:
    stack, scores = stack_of(centered=centered)
    gradient = WEIGHTS[0][:, None] * scores[0]
    expected = np.linalg.svd(gradient - gradient.mean(0) * centered, compute_uv=False)
    np.testing.assert_allclose(stack.values[0], expected, atol=1e-6 * expected[0])
    assert not stack.values[1].any()
    assert stack.is_live.tolist() == [True, False]


def test_nulls_are_of_the_chosen_parts_alone() -> None:
    stack, scores = stack_of()
    values = stack.null_values(np.array([True, False]))
    expected = np.linalg.svd(scores[0], compute_uv=False)
    assert values["unweighted"].shape == (1, 1, 2)
    np.testing.assert_allclose(values["unweighted"][0, 0], expected, rtol=1e-6)
    # a shuffle of two deals (1, -2) or (-2, 1); both occur among the draws
    dealt = [np.linalg.svd(np.array(pair)[:, None] * scores[0], compute_uv=False)[0] for pair in ((1, -2), (-2, 1))]
    assert {round(value, 6) for value in values["shuffled"][:, 0, 0]} == {round(value, 6) for value in dealt}


def test_without_scalars_there_is_no_shuffle() -> None:
    stack, _ = stack_of(is_scalar=False)
    assert set(stack.null_values(np.array([True, False]))) == {"unweighted", "gaussian"}


def test_energy_of_the_sum_and_channels_have_a_row_a_part_and_none_of_a_dead_one() -> None:
    stack, scores = stack_of()
    gradient = WEIGHTS[0][:, None] * scores[0]
    assert stack.summed_energy[0] == pytest.approx(np.sum(gradient.sum(axis=0) ** 2) / np.sum(gradient**2))
    assert stack.channels.shape == (2, 5)
    assert np.isfinite(stack.channels[0]).all()
    assert np.isnan(stack.channels[1]).all()
    assert np.isnan(stack.summed_energy[1])
