"""Advantages with a memory, by hand over several steps, and after a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from gradscope.advantages.online import online_advantage
from gradscope.advantages.online_advantage import Memory, StepRollouts
from tests.advantages.steps import step


def test_running_mean_by_hand() -> None:
    online = online_advantage("running_mean")
    # first visit: the step's mean, 1/2, is the baseline of both
    first = online.advantages(step([[1.0, 1.0], [0.0, 0.0]], ("a", "b")))
    assert np.concatenate(first).tolist() == [0.5, 0.5, -0.5, -0.5]
    assert online.memory.numbers == {"a": 0.75, "b": 0.25}
    # a group of equal rewards still pushes, away from its prompt's past
    second = online.advantages(step([[1.0, 1.0]], ("a",)))
    assert np.concatenate(second).tolist() == [0.25, 0.25]
    assert online.memory.numbers == {"a": 0.875, "b": 0.25}
    assert online.remembers


def test_running_mean_goes_on_from_its_memory() -> None:
    online = online_advantage("running_mean")
    online.advantages(step([[1.0, 0.3], [0.1, 0.0]], ("a", "b")))
    again = online_advantage("running_mean")
    again.recall(Memory(numbers=json.loads(json.dumps(online.memory.numbers))))
    following = step([[0.7, 0.0], [1.0, 0.0]], ("b", "c"))
    np.testing.assert_array_equal(again.advantages(following), online.advantages(following))
    assert again.memory == online.memory


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
    # first visit: half a pass of one, so the baseline is 1/2; what is kept of it is .96, as nothing has moved
    first = online.advantages(visit([[1.0, 1.0], [1.0, 0.0]], ("a", "b")))
    np.testing.assert_allclose(np.concatenate(first).ravel(), scaled([0.5, 0.5, 0.5, -0.5]))
    assert online.memory.numbers == pytest.approx(
        {"passes:a": 2.48, "fails:a": 0.48, "passes:b": 1.48, "fails:b": 1.48}
    )
    # second visit of a: a baseline of 2.48 / 2.96; the policy moved by .003, so 2^(-.05) = .9659 is cut to .96
    second = online.advantages(visit([[1.0, 0.0]], ("a",), moved=0.003))
    baseline = 2.48 / 2.96
    np.testing.assert_allclose(np.concatenate(second).ravel(), scaled([1 - baseline, -baseline]))
    assert online.memory.numbers["passes:a"] == pytest.approx(0.96 * 2.48 + 1)
    assert online.remembers


@pytest.mark.parametrize(("moved", "kept"), [(0.0, 0.96), (0.009, 2 ** (-0.15)), (0.06, 0.875), (3.0, 0.875)])
def test_spo_forgets_as_far_as_the_policy_has_moved(moved: float, kept: float) -> None:
    online = online_advantage("spo")
    online.advantages(visit([[1.0, 0.0]], ("a",)))
    before = online.memory.numbers["passes:a"]
    online.advantages(visit([[0.0, 0.0]], ("a",), moved=moved))
    assert online.memory.numbers["passes:a"] == pytest.approx(kept * before)


def test_spo_pushes_nothing_where_all_of_a_step_is_as_expected() -> None:
    assert not np.any(online_advantage("spo").advantages(visit([[1.0, 1.0], [1.0, 1.0]], ("a", "b"))))


def test_spo_asks_for_what_each_prompt_said_last() -> None:
    online, asked = online_advantage("spo"), []
    online.advantages(visit([[1.0, 0.0], [1.0, 0.0]], ("a", "b")))

    def rescore(groups: Sequence[int], completions: Sequence[Sequence[int]]) -> list[list[float]]:
        asked.append((list(groups), [tuple(ids) for ids in completions]))
        return [[-1.0, -1.0]]

    online.advantages(replace(visit([[1.0], [0.0]], ("c", "b")), rescore=rescore))
    assert asked == [([1], [(2, 9)])]  # the first completion of b, which was the third of its step


def test_spo_goes_on_from_its_memory_through_a_checkpoint() -> None:
    online = online_advantage("spo")
    online.advantages(visit([[1.0, 0.0], [1.0, 0.0]], ("a:1", "b")))
    memory = online.memory
    again = online_advantage("spo")
    again.recall(Memory(numbers=json.loads(json.dumps(memory.numbers)), arrays=dict(memory.arrays)))
    following = visit([[1.0, 0.0], [0.0, 0.0]], ("b", "a:1"), moved=0.01)
    np.testing.assert_array_equal(again.advantages(following), online.advantages(following))
    assert again.memory.numbers == online.memory.numbers


@pytest.mark.parametrize("numbers", [{"a": 0.5}, {"passes:a": 1.0}])
def test_spo_refuses_the_memory_of_something_else(numbers: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="no count of passes and fails"):
        online_advantage("spo").recall(Memory(numbers=numbers))


def test_spo_needs_the_policy() -> None:
    online, seen = online_advantage("spo"), step([[1.0, 0.0]], ("a",), completion_ids=[(1,), (2,)])
    online.advantages(seen)
    with pytest.raises(ValueError, match="spo needs the policy to score what it sampled before"):
        online.advantages(seen)
