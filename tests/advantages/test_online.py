import json
from collections.abc import Sequence

import numpy as np
import pytest
from msgspec.structs import replace

from gradscope.advantages.online import Memory, OnlineAdvantage, StepRollouts, online_advantage
from gradscope.advantages.registry import ALL_FORMULATIONS, compute_advantages, compute_step_advantages
from tests.advantages.steps import step


@pytest.mark.parametrize("name", [name for name, entry in ALL_FORMULATIONS.items() if entry.function is not None])
def test_a_formulation_of_rewards_is_the_same_online(name: str) -> None:
    rewards = [[1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0]]
    online = online_advantage(name)
    advantages = online.advantages(step(rewards))
    np.testing.assert_array_equal(np.concatenate(advantages), compute_advantages(name, rewards).ravel())
    assert (online.name, online.by_token, online.remembers, online.memory) == (name, False, False, Memory())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # returns 2 1 1 and 1 1, so the mean is 1.5 1 .5
        ("per_step", [[0.5, 0.0, 0.5], [-0.5, 0.0]]),
        # means by position 1/2, 1/2, and 1/2 with the one that has ended
        ("per_token", [[0.5, -0.5, 0.5], [-0.5, 0.5]]),
    ],
)
def test_token_rewards_by_hand(name: str, expected: list[list[float]]) -> None:
    online = online_advantage(name)
    assert online.by_token
    advantages = online.advantages(step([[1.0, 0.0]], token_rewards=[[1.0, 0.0, 1.0], [0.0, 1.0]]))
    assert [advantage.tolist() for advantage in advantages] == expected
    with pytest.raises(ValueError, match=f"{name} needs a reward of every token"):
        online.advantages(step([[1.0, 0.0]]))


def test_formulations_of_tokens_and_of_the_run_take_groups_of_any_size() -> None:
    rewards = [[1.0], [1.0, 0.0, 0.0]]
    advantages = online_advantage("running_mean").advantages(step(rewards))
    assert np.concatenate(advantages).tolist() == [0.5, 0.5, -0.5, -0.5]
    token_rewards = [[1.0, 1.0], [2.0], [1.0, 3.0], [0.0]]
    # one alone has nothing to be compared with; returns 2, 4 3, 0 have the means 2 and 1
    advantages = online_advantage("per_step").advantages(step(rewards, token_rewards=token_rewards))
    assert [advantage.tolist() for advantage in advantages] == [[0.0, 0.0], [0.0], [2.0, 2.0], [-2.0]]
    base = compute_step_advantages("grpo", rewards)
    tokens = {"logprobs": [np.log([0.5])] * 4, "max_logprobs": [[0.0]] * 4}
    halved = online_advantage("compensation").advantages(step(rewards, **tokens))
    np.testing.assert_allclose(np.concatenate(halved), 1.5 * np.concatenate(base))


def test_opo_by_hand() -> None:
    # b = (1 x 1 + 3 x 0) / 4 in the first group; all lengths alike in the second give the mean
    rollouts = step([[1.0, 0.0], [1.0, 0.0, 0.0]], logprobs=[[0.0], [0.0] * 3, [0.0], [0.0], [0.0]])
    advantages = online_advantage("opo").advantages(rollouts)
    np.testing.assert_allclose(np.concatenate(advantages), [0.75, -0.25, 2 / 3, -1 / 3, -1 / 3])


def test_gdpo_scales_each_function_by_itself() -> None:
    functions = {"right": [1.0, 0.0, 0.0, 0.0], "tidy": [0.0, 0.0, 10.0, 0.0]}
    online = online_advantage("gdpo")
    advantages = online.advantages(step([[1.0, 0.0], [10.0, 0.0]], function_rewards=functions))
    # each group's own function is scaled to +-.7071, whose std over the step is .8165: ten times the reward is no more
    np.testing.assert_allclose(np.concatenate(advantages).ravel(), [0.866, -0.866, 0.866, -0.866], atol=2e-4)
    with pytest.raises(ValueError, match="gdpo needs the rewards of each function"):
        online.advantages(step([[1.0, 0.0]]))


@pytest.mark.parametrize(("name", "factors"), [("compensation", [1.0, 1.9]), ("compensation_clipped", [1.0, 1.5])])
def test_compensation_by_hand(name: str, factors: list[float]) -> None:
    chosen, top = np.log([0.6, 0.05]).tolist(), np.log([0.6, 0.5]).tolist()
    advantages = online_advantage(name).advantages(
        step([[1.0, 0.0]], logprobs=[chosen, chosen[:1]], max_logprobs=[top, top[:1]])
    )
    plus, minus = compute_advantages("grpo", [1.0, 0.0])
    np.testing.assert_allclose(advantages[0], plus * np.array(factors))
    np.testing.assert_allclose(advantages[1], [minus])
    dead = online_advantage(name).advantages(step([[1.0, 1.0]], logprobs=[[-3.0] * 2] * 2))
    assert not np.any(dead)


def test_running_mean_by_hand() -> None:
    online = online_advantage("running_mean")
    # first visit: the step's mean, 1/2, is the baseline of both
    first = online.advantages(step([[1.0, 1.0], [0.0, 0.0]], ("a", "b")))
    assert np.concatenate(first).tolist() == [0.5, 0.5, -0.5, -0.5]
    assert online.memory.numbers == {"a": 0.75, "b": 0.25}
    # a group of equal rewards still pushes, away from its prompt's past
    assert np.concatenate(online.advantages(step([[1.0, 1.0]], ("a",)))).tolist() == [0.25, 0.25]
    assert online.memory.numbers == {"a": 0.875, "b": 0.25}
    assert online.remembers


def visit(rewards: list[list[float]], prompts: tuple[str, ...], *, moved: float = 0.0) -> StepRollouts:
    """A step whose completions have two tokens of log-probability -1, which the policy has moved away from since."""
    number = sum(map(len, rewards))
    ids = [(index, index + 7) for index in range(number)]

    def rescore(groups: Sequence[int], completions: Sequence[Sequence[int]]) -> list[list[float]]:
        assert len(groups) == len(completions)
        return [[-1.0 - moved, -1.0 + moved] for _ in groups]

    return step(rewards, prompts, logprobs=[[-1.0, -1.0]] * number, completion_ids=ids, rescore=rescore)


def scaled(values: list[float]) -> np.ndarray:
    return (np.array(values) - np.mean(values)) / (np.std(values, ddof=1) + 1e-8)


def test_spo_by_hand() -> None:
    online = online_advantage("spo")
    # first visit: half a pass of one, so the baseline is 1/2, of which .96 stays, as nothing has moved
    first = online.advantages(visit([[1.0, 1.0], [1.0, 0.0]], ("a", "b")))
    np.testing.assert_allclose(np.concatenate(first).ravel(), scaled([0.5, 0.5, 0.5, -0.5]))
    counts = {"passes:a": 2.48, "fails:a": 0.48, "passes:b": 1.48, "fails:b": 1.48}
    assert online.memory.numbers == pytest.approx(counts)
    # where all of a step is as expected nothing is pushed
    assert not np.any(online_advantage("spo").advantages(visit([[1.0, 1.0], [1.0, 1.0]], ("a", "b"))))
    # second visit of a: a baseline of 2.48 / 2.96; the policy moved by .003, so 2^(-.05) = .9659 is cut to .96
    second = online.advantages(visit([[1.0, 0.0]], ("a",), moved=0.003))
    baseline = 2.48 / 2.96
    np.testing.assert_allclose(np.concatenate(second).ravel(), scaled([1 - baseline, -baseline]))
    assert online.memory.numbers["passes:a"] == pytest.approx(0.96 * 2.48 + 1)
    assert online.remembers


@pytest.mark.parametrize(("moved", "remaining"), [(0.0, 0.96), (0.009, 2 ** (-0.15)), (0.06, 0.875), (3.0, 0.875)])
def test_spo_forgets_as_far_as_the_policy_has_moved(moved: float, remaining: float) -> None:
    online = online_advantage("spo")
    online.advantages(visit([[1.0, 0.0]], ("a",)))
    before = online.memory.numbers["passes:a"]
    online.advantages(visit([[0.0, 0.0]], ("a",), moved=moved))
    assert online.memory.numbers["passes:a"] == pytest.approx(remaining * before)


def test_spo_asks_for_the_last_completion_of_each_prompt() -> None:
    online, requests = online_advantage("spo"), []
    online.advantages(visit([[1.0, 0.0], [1.0, 0.0]], ("a", "b")))

    def rescore(groups: Sequence[int], completions: Sequence[Sequence[int]]) -> list[list[float]]:
        requests.append((list(groups), [tuple(ids) for ids in completions]))
        return [[-1.0, -1.0]]

    online.advantages(replace(visit([[1.0], [0.0]], ("c", "b")), rescore=rescore))
    assert requests == [([1], [(2, 9)])]  # the first completion of b, which was the third of its step
    with pytest.raises(ValueError, match="spo needs the policy to score what it sampled before"):
        online.advantages(step([[1.0, 0.0]], ("b",), completion_ids=[(1,), (2,)]))


@pytest.mark.parametrize("name", ["running_mean", "spo"])
def test_what_remembers_goes_on_from_its_memory_through_a_checkpoint(name: str) -> None:
    online = online_advantage(name)
    online.advantages(visit([[1.0, 0.0], [1.0, 0.0]], ("a:1", "b")))
    memory = online.memory
    resumed = online_advantage(name)
    resumed.recall(Memory(numbers=json.loads(json.dumps(memory.numbers)), arrays=dict(memory.arrays)))
    following = visit([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]], ("b", "a:1", "c"), moved=0.01)
    np.testing.assert_array_equal(resumed.advantages(following), online.advantages(following))
    assert resumed.memory.numbers == online.memory.numbers


@pytest.mark.parametrize("numbers", [{"a": 0.5}, {"passes:a": 1.0}])
def test_spo_refuses_the_memory_of_something_else(numbers: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="no count of passes and fails"):
        online_advantage("spo").recall(Memory(numbers=numbers))


@pytest.mark.parametrize("rewards", [[[np.nan, 1.0]], [1.0, 0.0]])
def test_rewards_of_a_step_are_finite_and_by_group(rewards: list[list[float]]) -> None:
    with pytest.raises(ValueError, match="the rewards of a step are finite and one row a group"):
        step(rewards, ("p",))


def test_rewards_alone_are_enough_for_most() -> None:
    online = OnlineAdvantage("dr_grpo")
    advantages = online.advantages(step([[1.0, 0.0], [1.0, 0.0, 0.5, 0.5]]))
    assert np.concatenate(advantages).tolist() == [0.5, -0.5, 0.5, -0.5, 0.0, 0.0]
    assert (online.by_token, online.remembers, online.reads_states, online.metrics) == (False, False, False, {})
    online.recall(Memory())
    assert online.memory == Memory()
