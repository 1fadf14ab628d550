from __future__ import annotations

from typing import Any

import pytest

from gradscope.errors import UsageError
from gradscope.rollouts.readers.evaluations.sample_shapes import PromptSamples, prompt_rows, samples_of

LEAF = {"scores": [1.0, 0.0]}


def nested(levels: int) -> Any:
    """Samples that lie so many levels below the document."""
    document: Any = LEAF
    for level in range(levels):
        document = {"deeper": document} if level % 2 else [document]
    return document


@pytest.mark.parametrize("depth", [1, 2, 3, 12])
def test_samples_are_found_as_deep_as_asked_and_no_deeper(depth: int) -> None:
    assert list(prompt_rows(nested(depth), depth=depth)) == [LEAF]
    assert list(prompt_rows(nested(depth + 1), depth=depth)) == []


def test_without_a_depth_twelve_levels_are_looked_into() -> None:
    assert list(prompt_rows(nested(12))) == [LEAF]
    assert list(prompt_rows(nested(13))) == []


def test_the_outermost_mapping_with_a_shape_is_the_prompt() -> None:
    outer = {"scores": [1.0, 0.0], "more": LEAF}
    assert list(prompt_rows({"first": outer, "second": [LEAF, 3, "text"]})) == [outer, LEAF]


def shape(row: dict[str, Any], reward: str | None = None) -> PromptSamples:
    samples = samples_of(row, reward)
    assert isinstance(samples, PromptSamples)
    return samples


def test_lists_keep_rewards_texts_and_every_number() -> None:
    samples = shape({"completion": ["a", "b"], "reward": [[1.0], [0.0]], "length": [3, 4], "tags": ["x", "y"]})
    assert (samples.shape, samples.rewards, samples.texts) == ("lists", (1.0, 0.0), ("a", "b"))
    assert samples.further == {"reward": (1.0, 0.0), "length": (3, 4)}


def test_a_list_of_objects_is_columns() -> None:
    row = {"trials": [{"response": "a", "score": 1}, {"response": "b", "score": 0}]}
    samples = shape(row)
    assert (samples.rewards, samples.texts) == ((1, 0), ("a", "b"))


@pytest.mark.parametrize(("total", "right"), [("n", "c"), ("num_samples", "num_correct"), ("total", "correct")])
def test_counts_are_so_many_passes_and_fails(total: str, right: str) -> None:
    assert shape({total: "3", right: 1.0}).rewards == (1.0, 0.0, 0.0)


@pytest.mark.parametrize("counts", [(0, 0), (2, 3), (2, -1), (2, 0.5), (2, True), (1_000_001, 0), (2, None)])
def test_counts_that_cannot_be_say_so(counts: tuple[Any, Any]) -> None:
    assert samples_of({"n": counts[0], "c": counts[1]}) == "n and c are not counts with 0 <= c <= n and n >= 1"


def test_lists_that_contradict_themselves_say_so() -> None:
    assert samples_of({"passed": []}) == "the list of samples is empty"
    assert samples_of({"passed": [True], "n": 2, "c": 1}) == "n and c contradict the list of samples"
    assert shape({"passed": [True, False], "n": 2, "c": 1}).rewards == (True, False)


def test_one_policy_a_key_is_a_sample_of_each() -> None:
    samples = shape({"id": 1, "big": {"output": "4", "correct": True}, "small": {"output": "5", "correct": False}})
    assert samples.shape == "one sample of each of 2 policies (big, small)"
    assert (samples.policies, samples.rewards, samples.texts) == (("big", "small"), (True, False), ("4", "5"))
    assert samples_of({"id": 1, "big": {"correct": True}}) is None


def test_a_list_that_is_named_and_not_there_is_refused() -> None:
    assert shape({"scores": [1.0], "grades": [0.5]}, "grades").rewards == (0.5,)
    with pytest.raises(UsageError, match="There is no list 'marks' of rewards") as caught:
        samples_of({"scores": [1.0]}, "marks")
    assert caught.value.hint == "The lists are 'scores'."


@pytest.mark.parametrize("row", [{}, {"reward": 1.0}, {"text": ["a"]}, {"score": "high"}])
def test_rows_of_another_shape_are_left_to_others(row: dict[str, Any]) -> None:
    assert samples_of(row) is None
