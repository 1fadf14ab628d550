from __future__ import annotations

import json

import numpy as np
import pytest

from gradscope.advantages.online import Memory, StepRollouts, online_advantage
from gradscope.advantages.registry import ALL_FORMULATIONS, compute_advantages, compute_step_advantages
from gradscope.errors import UsageError


def step(rewards: list[list[float]], prompt_ids: tuple[str, ...] = (), **tokens: object) -> StepRollouts:
    array = np.array(rewards)
    ids = prompt_ids or tuple(f"p{index}" for index in range(len(array)))
    numbers: dict[str, object] = {name: [[0.0, 0.0]] * array.size for name in ("logprobs", "max_logprobs")}
    return StepRollouts(rewards=list(array), prompt_ids=ids, **(numbers | tokens))  # type: ignore[arg-type]


def ragged(rewards: list[list[float]], **tokens: object) -> StepRollouts:
    groups = [np.array(group) for group in rewards]
    nothing: list[list[float]] = [[0.0]] * sum(map(len, groups))
    numbers: dict[str, object] = {"logprobs": nothing, "max_logprobs": nothing}
    ids = tuple("abcdef"[: len(groups)])
    return StepRollouts(rewards=groups, prompt_ids=ids, **(numbers | tokens))  # type: ignore[arg-type]


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


@pytest.mark.parametrize("rewards", [[[np.nan, 1.0]], [1.0, 0.0]])
def test_rewards_of_a_step_are_finite_and_by_group(rewards: list[list[float]]) -> None:
    with pytest.raises(ValueError, match="the rewards of a step are finite and one row a group"):
        step(rewards, ("p",))


def test_spo_by_hand() -> None:
    online = online_advantage("spo")
    # first visit: the step's mean, 1/2, is the baseline of both
    first = online.advantages(step([[1.0, 1.0], [0.0, 0.0]], ("a", "b")))
    assert np.concatenate(first).tolist() == [0.5, 0.5, -0.5, -0.5]
    assert online.memory.numbers == {"a": 0.75, "b": 0.25}
    # a group of equal rewards still pushes, away from its prompt's past
    second = online.advantages(step([[1.0, 1.0]], ("a",)))
    assert np.concatenate(second).tolist() == [0.25, 0.25]
    assert online.memory.numbers == {"a": 0.875, "b": 0.25}
    assert online.remembers


def test_spo_goes_on_from_its_memory() -> None:
    online = online_advantage("spo")
    online.advantages(step([[1.0, 0.3], [0.1, 0.0]], ("a", "b")))
    again = online_advantage("spo")
    again.recall(Memory(numbers=json.loads(json.dumps(online.memory.numbers))))
    following = step([[0.7, 0.0], [1.0, 0.0]], ("b", "c"))
    np.testing.assert_array_equal(again.advantages(following), online.advantages(following))
    assert again.memory == online.memory


def test_per_step_by_hand() -> None:
    online = online_advantage("per_step")
    assert online.by_token
    # returns: 2 1 1 and 1 1, so the mean is 1.5 1 .5; the second group of one has nothing to be compared with
    token_rewards = [[1.0, 0.0, 1.0], [0.0, 1.0], [1.0], [1.0]]
    advantages = online.advantages(step([[1.0, 0.0], [1.0, 1.0]], token_rewards=token_rewards))
    assert [advantage.tolist() for advantage in advantages] == [[0.5, 0.0, 0.5], [-0.5, 0.0], [0.0], [0.0]]


def test_formulations_of_tokens_and_of_the_run_take_groups_of_any_size() -> None:
    rewards = [[1.0], [1.0, 0.0, 0.0]]
    assert np.concatenate(online_advantage("spo").advantages(ragged(rewards))).tolist() == [0.5, 0.5, -0.5, -0.5]
    token_rewards = [[1.0, 1.0], [2.0], [1.0, 3.0], [0.0]]
    # one alone has nothing to be compared with; returns 2, 4 3, 0 have the means 2 and 1
    found = online_advantage("per_step").advantages(ragged(rewards, token_rewards=token_rewards))
    assert [advantage.tolist() for advantage in found] == [[0.0, 0.0], [0.0], [2.0, 2.0], [-2.0]]
    base = compute_step_advantages("grpo", rewards)
    halved = online_advantage("compensation").advantages(ragged(rewards, logprobs=[np.log([0.5])] * 4))
    np.testing.assert_allclose(np.concatenate(halved), 1.5 * np.concatenate(base))


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
