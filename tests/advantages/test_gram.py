from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gradscope.advantages.gram import optimal_advantages
from gradscope.metrics.gram.reward_baselines import second_moment

numbers = st.lists(st.floats(0.1, 5.0), min_size=4, max_size=4)


def test_by_hand() -> None:
    # b = (1 x 1 + 2 x 0 + 5 x 1) / 8 = 3/4, and where the first has all the norm, its own reward
    advantages = optimal_advantages(
        np.array([[1.0, 0.0, 1.0], [0.5, 0.0, 1.0]]), np.array([[1.0, 2.0, 5.0], [4.0, 0, 0]])
    )
    np.testing.assert_allclose(advantages, [[0.25, -0.75, 0.25], [0.0, -0.5, 0.5]])


def test_lengths_weigh_as_norms_do() -> None:
    # opo: b = (10 x 1 + 30 x 0) / 40
    assert optimal_advantages(np.array([[1.0, 0.0]]), np.array([[10.0, 30.0]])).tolist() == [[0.75, -0.25]]


def test_groups_of_equal_rewards_and_of_one_rollout_are_exactly_zero() -> None:
    assert not optimal_advantages(np.full((2, 3), 0.1), np.array([[0.3, 0.7, 0.11]] * 2)).any()
    assert optimal_advantages(np.array([[0.7]]), np.array([[3.0]])).tolist() == [[0.0]]


def test_without_score_vectors_it_is_the_mean() -> None:
    assert optimal_advantages(np.array([[1.0, 0.0]]), np.zeros((1, 2))).tolist() == [[0.5, -0.5]]


@settings(deadline=None)
@given(numbers, numbers, st.floats(-1.0, 1.0))
def test_no_other_constant_is_less_noisy(rewards: list[float], norms: list[float], shift: float) -> None:
    values, weights = np.array([rewards]), np.array([norms])
    best = values - optimal_advantages(values, weights) if np.ptp(values) > 1e-8 else values
    moments = [second_moment(values, weights, baseline) for baseline in (best, best + shift)]
    assert moments[0] <= moments[1] + 1e-9
    np.testing.assert_allclose((weights * (values - best)).sum(), 0.0, atol=1e-9)
