from __future__ import annotations

import numpy as np
import pytest

from gradscope.advantages.online import online_advantage
from gradscope.advantages.online_advantage import Memory
from gradscope.advantages.registry import ALL_FORMULATIONS, compute_advantages, compute_step_advantages
from gradscope.errors import UsageError
from tests.advantages.steps import ragged, step


@pytest.mark.parametrize("name", [name for name, entry in ALL_FORMULATIONS.items() if entry.function is not None])
def test_a_formulation_of_rewards_is_the_same_online(name: str) -> None:
    rewards = [[1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0]]
    online = online_advantage(name)
    advantages = online.advantages(step(rewards))
    np.testing.assert_array_equal(np.concatenate(advantages), compute_advantages(name, rewards).ravel())
    assert (online.name, online.by_token, online.remembers, online.memory) == (name, False, False, Memory())


def test_a_formulation_that_does_not_exist() -> None:
    with pytest.raises(UsageError, match="There is no advantage formulation 'nope'"):
        online_advantage("nope")


def test_per_step_by_hand() -> None:
    online = online_advantage("per_step")
    assert online.by_token
    # returns: 2 1 1 and 1 1, so the mean is 1.5 1 .5; the second group of one has nothing to be compared with
    token_rewards = [[1.0, 0.0, 1.0], [0.0, 1.0], [1.0], [1.0]]
    advantages = online.advantages(step([[1.0, 0.0], [1.0, 1.0]], token_rewards=token_rewards))
    assert [advantage.tolist() for advantage in advantages] == [[0.5, 0.0, 0.5], [-0.5, 0.0], [0.0], [0.0]]


def test_formulations_of_tokens_and_of_the_run_take_groups_of_any_size() -> None:
    rewards = [[1.0], [1.0, 0.0, 0.0]]
    assert np.concatenate(online_advantage("running_mean").advantages(ragged(rewards))).tolist() == [
        0.5,
        0.5,
        -0.5,
        -0.5,
    ]
    token_rewards = [[1.0, 1.0], [2.0], [1.0, 3.0], [0.0]]
    # one alone has nothing to be compared with; returns 2, 4 3, 0 have the means 2 and 1
    found = online_advantage("per_step").advantages(ragged(rewards, token_rewards=token_rewards))
    assert [advantage.tolist() for advantage in found] == [[0.0, 0.0], [0.0], [2.0, 2.0], [-2.0]]
    base = compute_step_advantages("grpo", rewards)
    halved = online_advantage("compensation").advantages(ragged(rewards, logprobs=[np.log([0.5])] * 4))
    np.testing.assert_allclose(np.concatenate(halved), 1.5 * np.concatenate(base))


def test_per_token_by_hand() -> None:
    token_rewards = [[1.0, 0.0, 1.0], [0.0, 1.0]]  # means at each place: 1/2, 1/2, and 1/2 with one that has ended
    advantages = online_advantage("per_token").advantages(step([[1.0, 0.0]], token_rewards=token_rewards))
    assert [advantage.tolist() for advantage in advantages] == [[0.5, -0.5, 0.5], [-0.5, 0.5]]


def test_opo_by_hand() -> None:
    # b = (1 x 1 + 3 x 0) / 4 in the first group; all lengths alike in the second give the mean
    rollouts = ragged([[1.0, 0.0], [1.0, 0.0, 0.0]], logprobs=[[0.0], [0.0] * 3, [0.0], [0.0], [0.0]])
    found = online_advantage("opo").advantages(rollouts)
    np.testing.assert_allclose(np.concatenate(found), [0.75, -0.25, 2 / 3, -1 / 3, -1 / 3])


def test_gdpo_scales_each_function_by_itself() -> None:
    functions = {"right": [1.0, 0.0, 0.0, 0.0], "tidy": [0.0, 0.0, 10.0, 0.0]}
    online = online_advantage("gdpo")
    found = online.advantages(step([[1.0, 0.0], [10.0, 0.0]], function_rewards=functions))
    # each group's own function is scaled to +-.7071, whose std over the step is .8165: ten times the reward is no more
    np.testing.assert_allclose(np.concatenate(found).ravel(), [0.866, -0.866, 0.866, -0.866], atol=2e-4)
    with pytest.raises(ValueError, match="gdpo needs the rewards of each function"):
        online.advantages(step([[1.0, 0.0]]))


def test_per_step_sums_to_zero_where_all_are_as_long() -> None:
    rewards = np.random.default_rng(0).random((4, 5)).tolist()
    advantages = online_advantage("per_step").advantages(step([[0.0] * 4], token_rewards=rewards))
    np.testing.assert_allclose(np.sum(advantages, axis=0), 0.0, atol=1e-12)


def test_per_step_without_step_rewards() -> None:
    with pytest.raises(ValueError, match="per_step needs a reward of every token"):
        online_advantage("per_step").advantages(step([[1.0, 0.0]]))


@pytest.mark.parametrize(("name", "factors"), [("compensation", [1.0, 1.9]), ("compensation_clipped", [1.0, 1.5])])
def test_compensation_by_hand(name: str, factors: list[float]) -> None:
    taken, top = np.log([0.6, 0.05]).tolist(), np.log([0.6, 0.5]).tolist()
    advantages = online_advantage(name).advantages(
        step([[1.0, 0.0]], logprobs=[taken, taken[:1]], max_logprobs=[top, top[:1]])
    )
    plus, minus = compute_advantages("grpo", [1.0, 0.0])
    np.testing.assert_allclose(advantages[0], plus * np.array(factors))
    np.testing.assert_allclose(advantages[1], [minus])


def test_dead_groups_stay_dead_under_compensation() -> None:
    for advantage in online_advantage("compensation").advantages(step([[1.0, 1.0]], logprobs=[[-3.0] * 2] * 2)):
        assert not advantage.any()
