from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gradscope.errors import InputError, UsageError
from gradscope.rollouts.read_options import ColumnNames
from gradscope.rollouts.readers.evaluations.sample_shapes import (
    PromptSamples,
    prompt_rows,
    refuse_lone_list,
    samples_of,
)

LEAF = {"scores": [1.0, 0.0], "responses": ["a", "b"]}


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
    outer = {**LEAF, "more": LEAF}
    assert list(prompt_rows({"first": outer, "second": [LEAF, 3, "text"]})) == [outer, LEAF]


def shape(row: dict[str, Any], reward: str | None = None) -> PromptSamples:
    samples = samples_of(row, ColumnNames(reward=reward))
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


@pytest.mark.parametrize(
    ("total", "right"),
    [
        ("n", "c"),
        ("num_samples", "num_correct"),
        ("total", "correct"),
        ("n", "correct"),
        ("n", "num_correct"),
        ("n", "passed"),
    ],
)
def test_counts_are_so_many_passes_and_fails(total: str, right: str) -> None:
    assert shape({total: "3", right: 1.0}).rewards == (1.0, 0.0, 0.0)


@pytest.mark.parametrize("counts", [(0, 0), (2, 3), (2, -1), (2, 0.5), (2, True), (1_000_001, 0), (2, None)])
def test_counts_that_cannot_be_say_so(counts: tuple[Any, Any]) -> None:
    assert samples_of({"n": counts[0], "c": counts[1]}) == "n and c are not counts with 0 <= c <= n and n >= 1"


def test_lists_that_contradict_themselves_say_so() -> None:
    assert samples_of({"passed": [], "responses": []}) == "the list of samples is empty"
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
        samples_of({"scores": [1.0]}, ColumnNames(reward="marks"))
    assert caught.value.hint == "The lists are 'scores'."


@pytest.mark.parametrize("row", [{}, {"reward": 1.0}, {"text": ["a"]}, {"score": "high"}])
def test_rows_of_another_shape_are_left_to_others(row: dict[str, Any]) -> None:
    assert samples_of(row) is None


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "q", "response": "a", "reward": 1.0, "scores": [0.1, 0.9, 0.5]},  # criteria of one response
        {"prompt": "q", "response": "a", "passed": [True, True, False]},  # tests of one response
        {"prompt": "q", "responses": ["a", "b"], "scores": [0.1, 0.9, 0.5]},
        {"prompt": "q", "criteria": ["clear", "right"], "scores": [0.1, 0.9]},
        {"prompt": "q", "rubric": [{"criterion": "clear", "score": 1}, {"criterion": "right", "score": 0}]},
        {"prompt": "q", "response": "a b", "rewards": [0.0, 1.0]},  # tokens of one response
        {"prompt": "q", "n": 3, "correct": True},
        {"prompt": "q", "n": 3, "passed": [True, False]},
    ],
)
def test_a_list_without_as_many_responses_is_no_list_of_samples(row: dict[str, Any]) -> None:
    assert samples_of(row) is None


def test_of_several_lists_the_one_with_responses_holds_the_samples() -> None:
    row = {"scores": [0.1, 0.9, 0.5], "rewards": [1, 0], "responses": ["a", "b"]}
    assert (shape(row).rewards, shape(row).texts) == ((1, 0), ("a", "b"))


def test_a_lone_list_is_refused_where_most_rows_have_it() -> None:
    refuse_lone_list(Path("log"), [{"score": 0.1, "responses": ["a"]}, {"scores": [1]}])
    with pytest.raises(InputError, match="log has a list 'scores' in a row, and no list of as many responses"):
        refuse_lone_list(Path("log"), [{"scores": [0.1]}])


def test_a_list_that_is_named_needs_no_responses() -> None:
    assert shape({"passed": [True, False]}, "passed").rewards == (True, False)
    assert shape({"rubric": [{"score": 1}, {"score": 0}]}, "score").rewards == (1, 0)


def test_counts_are_found_under_the_names_that_are_given() -> None:
    columns = ColumnNames(num_samples="tries", num_correct="hits")
    samples = samples_of({"tries": 3, "hits": 2, "n": 9, "c": 9}, columns)
    assert isinstance(samples, PromptSamples)
    assert samples.rewards == (1.0, 1.0, 0.0)
    assert (
        samples_of({"tries": 3, "hits": 4}, columns)
        == "tries and hits are not counts with 0 <= hits <= tries and tries >= 1"
    )
    assert samples_of({"n": 3, "hits": 2}, ColumnNames(num_correct="hits")) == shape({"n": 3, "c": 2})


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": ["p", "q"], "responses": ["a", "b"], "scores": [1, 0]},
        {"task_id": [1, 2], "passed": [True, False]},
        {"prompt": [[{"role": "user", "content": text}] for text in "pq"], "response": ["a", "b"], "reward": [1, 0]},
    ],
)
def test_a_batch_of_several_prompts_is_no_list_of_samples(row: dict[str, Any]) -> None:
    assert samples_of(row) is None
    assert samples_of(row, ColumnNames(reward=next(name for name in row if name != "prompt"))) is None
    with pytest.raises(InputError, match="a list of several prompts each"):
        refuse_lone_list(Path("log"), [row])


@pytest.mark.parametrize(
    "prompt", ["p", ["p", "p"], [{"role": "system"}, {"role": "user"}], ["p", "q", "r"], [{"type": "text"}] * 2]
)
def test_the_samples_of_one_prompt_may_repeat_it(prompt: Any) -> None:
    assert shape({"prompt": prompt, "responses": ["a", "b"], "scores": [1, 0]}).rewards == (1, 0)


@pytest.mark.parametrize("name", ["response", "completion", "output", "output_response"])
def test_a_list_beside_one_response_is_none_of_samples_even_if_it_is_named(name: str) -> None:
    row = {"prompt": "q", name: "a b", "score": [0.0, 1.0]}
    assert samples_of(row) is None
    assert samples_of(row, ColumnNames(reward="score")) == (
        "the list of rewards stands beside one response, whose parts or tokens it then holds"
    )
    assert shape({**row, "responses": ["a", "b"]}, "score").rewards == (0.0, 1.0)
