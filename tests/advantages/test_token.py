import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradscope.advantages.token import compensation, own_rewards, return_to_go

rewards = st.lists(st.lists(st.floats(-2, 2), min_size=1, max_size=6), min_size=1, max_size=5)


@given(rewards)
def test_return_to_go_is_what_is_still_to_come_minus_the_mean_of_the_group(group: list[list[float]]) -> None:
    for row, advantages in zip(group, return_to_go(group), strict=True):
        for at in range(len(row)):
            mean = sum(sum(other[at:]) for other in group) / len(group)  # one that has ended has nothing to come
            assert advantages[at] == pytest.approx(sum(row[at:]) - mean, abs=1e-12)


@given(rewards)
def test_own_rewards_are_credited_where_they_are_earned(group: list[list[float]]) -> None:
    for row, advantages in zip(group, own_rewards(group), strict=True):
        for at, own in enumerate(row):
            mean = sum(other[at] for other in group if len(other) > at) / len(group)
            assert advantages[at] == pytest.approx(own - mean, abs=1e-12)


def test_a_reward_is_not_due_to_tokens_after_it() -> None:
    early, _ = return_to_go([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    assert early.tolist() == [0.5, 0.0, 0.0]


@given(st.lists(st.tuples(st.floats(-20, 0), st.floats(0, 20)), min_size=1, max_size=8), st.floats(1, 2))
def test_compensation_lies_between_one_and_its_limit(tokens: list[tuple[float, float]], limit: float) -> None:
    sampled = np.array([logprob for logprob, _ in tokens])
    top = sampled + np.array([lead for _, lead in tokens])
    factors = compensation(sampled, top, limit=limit)
    assert np.all((factors >= 1.0) & (factors <= limit))
    assert factors == pytest.approx(np.minimum(2.0 - np.exp(sampled) / np.exp(top), limit))


def test_rounding_above_the_most_likely_counts_as_the_most_likely() -> None:
    assert compensation([-0.5], [-0.5 - 1e-9]).tolist() == [1.0]
