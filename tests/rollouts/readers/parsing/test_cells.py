import json
import math
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, Raw

from gradscope.rollouts.groups import Tokens
from gradscope.rollouts.readers.parsing import cells
from gradscope.rollouts.readers.parsing.quarantine import UnusableRowError


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, 1.0),
        (0.25, 0.25),
        (True, 1.0),
        (Decimal("0.5"), 0.5),
        (cells.ABSENT, "the reward is missing"),
        (None, "the reward is null"),
        *((value, "the reward is not finite") for value in (float("nan"), float("-inf"), 10**400)),
        ("1.0", "the reward is text"),
        ("", "the reward is text"),
        ({}, "the reward is a dict, not a number"),
    ],
)
def test_a_reward_is_a_finite_number_or_says_why_not(value: Any, expected: float | str) -> None:
    assert cells.parse_reward(value) == expected
    assert cells.finite_or_none(value) == (None if isinstance(expected, str) else expected)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("1", 1.0),
        (" -0.5 ", -0.5),
        ("True", 1.0),
        ("false", 0.0),
        ("", "the reward is null"),
        ("nan", "the reward is not finite"),
        ("ok", "the reward is text"),
    ],
)
def test_where_all_is_text_text_is_read(value: str, expected: float | str) -> None:
    assert cells.parse_reward(value, from_text=True) == expected


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=5))
def test_any_cell_has_a_text_and_a_verdict(value: Any) -> None:
    assert isinstance(cells.text_of(value), str)
    assert isinstance(cells.parse_reward(value), (float, str))
    assert len(cells.digest(value)) == 16


def test_messages_lose_the_keys_that_arrow_added() -> None:
    call = {"id": "1", "index": None}
    cell = [
        {"role": "user", "content": "q", "name": None},
        {"role": "assistant", "tool_calls": [call], "content": None},
    ]
    assert cells.parse_messages(cell) == (
        {"role": "user", "content": "q"},
        {"role": "assistant", "tool_calls": [{"id": "1"}]},
    )
    assert cells.text_of(cell) == "q\n"


@pytest.mark.parametrize("cell", ["text", [], None, [1], [{"content": "no role"}]])
def test_other_cells_are_no_messages(cell: Any) -> None:
    assert cells.parse_messages(cell) is None


def test_the_text_of_content_parts() -> None:
    parts = [{"type": "image"}, {"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert cells.text_of([{"role": "user", "content": parts}]) == "a\nb"


@pytest.mark.parametrize("cell", [None, "text", 3, ("a",), {1, 2}])
def test_other_cells_are_nothing(cell: Any) -> None:
    assert cells.mapping_of(cell) == {}
    assert cells.list_of(cell) == []
    assert cells.numbers_in(cell) == {}


def test_numbers_that_are_not_finite_are_known_to_be_missing() -> None:
    row = {"a": 1, "b": True, "c": float("nan"), "d": float("inf"), "e": "2", "f": None, "g": [1]}
    assert cells.numbers_in(row) == {"a": 1.0, "b": 1.0, "c": None, "d": None}


@pytest.mark.parametrize(
    ("cell", "number"),
    [
        *((cell, 7) for cell in (7, 7.0, "7", " 7.0 ")),
        *(
            (cell, None)
            for cell in (-3, cells.LARGEST_STEP * 2, 7.5, "seven", True, None, [7], float("nan"), float("inf"))
        ),
        (cells.LARGEST_STEP, 1 << 53),
    ],
)
def test_a_whole_number_or_nothing(cell: Any, number: int | None) -> None:
    assert cells.whole_number(cell) == number


def test_the_last_part_of_the_path_that_has_a_number_tells_it() -> None:
    step = re.compile(r"^step_(\d+)$")
    assert cells.number_in_name(step, Path("step_1/old/step_12/rank_0.jsonl")) == 12
    assert cells.number_in_name(step, Path("step_x/rank_0.jsonl")) is None


def test_a_sequence_is_cut_before_the_first_sampled_token_and_keeps_what_lies_between_turns() -> None:
    cut = cells.cut_sequence(
        [1, 2, 3, 4, 5], [0, 0, 1, 0, 1], logprobs=[9, 9, -0.5, 9, -0.25], advantages=[7, 7, 0.5, 7, 0.5]
    )
    assert cut == Tokens(
        prompt_ids=(1, 2),
        completion_ids=(3, 4, 5),
        mask=(True, False, True),
        logprobs=(-0.5, 0.0, -0.25),
        token_advantages=(0.5, 0.0, 0.5),
    )
    assert cut.advantage == 0.5


def test_advantages_that_differ_between_tokens_are_no_one_number() -> None:
    cut = cells.cut_sequence([1, 2], [1, 1], advantages=[0.5, -0.5])
    assert (cut.advantage, cut.token_advantages) == (None, (0.5, -0.5))


def test_a_log_probability_that_is_missing_voids_all_of_them() -> None:
    assert cells.cut_sequence([1, 2], [1, 1], logprobs=[-0.5, None]).logprobs is None


@pytest.mark.parametrize(
    ("ids", "mask", "extra", "reason"),
    [
        ("12", [1, 1], {}, cells.NOT_IDS),
        ([1, 2.5], [1, 1], {}, cells.NOT_IDS),
        ([1, 2], [1], {}, cells.NOT_ALIGNED),
        ([1, 2], None, {}, cells.NOT_ALIGNED),
        ([1, 2], [1, 1], {"logprobs": [0.0]}, cells.NOT_ALIGNED),
        ([1, 2], [1, 1], {"advantages": 0.5}, cells.NOT_ALIGNED),
        ([1, 2], [0, 0], {}, cells.NOTHING_SAMPLED),
    ],
)
def test_lists_that_contradict_each_other_say_why(ids: Any, mask: Any, extra: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnusableRowError, match=f"^{reason}$"):
        cells.cut_sequence(ids, mask, **extra)


def test_the_trainers_numbers_keep_their_gaps_where_tokens_were_sampled() -> None:
    tokens = cells.cut_sequence([1, 2, 3], [0, 1, 0], trainer_logprobs=[None, -0.5, None], entropies=[1, "high", 2])
    assert tokens.trainer_logprobs == (-0.5, 0.0)
    assert tokens.entropies == pytest.approx((math.nan, 0.0), nan_ok=True)


@pytest.mark.parametrize("cell", [None, [], [-0.5], "text", -0.5])
def test_trainers_numbers_of_another_length_cost_no_row(cell: Any) -> None:
    tokens = cells.cut_sequence([1, 2], [0, 1], trainer_logprobs=cell, entropies=cell)
    assert (tokens.trainer_logprobs, tokens.entropies) == (None, None)


def turn(role: str, content: str, **extra: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **extra}


@pytest.mark.parametrize(
    ("before", "after", "prompt", "completion"),
    [
        (
            [turn("system", "be brief"), turn("user", "2+2?")],
            [turn("assistant", "4"), turn("tool", "ok")],
            "be brief\n2+2?",
            "4\nok",
        ),
        ([turn("user", "hello?")], [], "hello?", ""),
        ([], [turn("assistant", "hi")], "", "hi"),
        ([], [], "", ""),
    ],
)
def test_the_cut_is_before_the_first_assistant(
    before: list[Any], after: list[Any], prompt: str, completion: str
) -> None:
    conversation = cells.Conversation(prompt=prompt, messages=tuple(before) or None, completion=completion)
    assert cells.cut_conversation([*before, *after]) == conversation


def test_a_trainable_message_wins_over_an_example_of_the_assistants() -> None:
    messages = [
        turn("assistant", "an example", trainable=False),
        turn("user", "go"),
        turn("user", "on", trainable=True),
    ]
    conversation = cells.cut_conversation(messages)
    assert (conversation.prompt, conversation.completion) == ("an example\ngo", "on")
    assert conversation.messages == (turn("assistant", "an example"), turn("user", "go"))


@pytest.mark.parametrize("cell", [None, "text", [{"content": "no role"}], {"role": "user"}])
def test_what_is_no_conversation_is_empty(cell: Any) -> None:
    assert cells.cut_conversation(cell) == cells.Conversation(prompt="", messages=None, completion="")


def test_a_message_whose_role_is_null_is_nobodys() -> None:
    messages = [{"role": None, "content": "a"}, {"role": "assistant", "content": "b"}]
    assert cells.cut_conversation(messages).completion == "b"
    assert cells.cut_conversation(messages[:1]).completion == ""


TALK = [{"role": "system", "content": "x"}, {"role": "user", "content": 'say "assistant"'}]
ANSWER = {"role": "assistant", "content": "y"}
WITH_ONE_ANSWER = [[ANSWER], [*TALK, ANSWER]]


@pytest.mark.parametrize(
    "messages",
    [
        *WITH_ONE_ANSWER,
        *([*TALK, ANSWER, ANSWER], [*TALK, ANSWER, TALK[1]], TALK, [], "text", [ANSWER, 3], float("nan")),
        *([*TALK, ANSWER | {"content": [ANSWER]}], [*TALK, {"role": "user", "content": [ANSWER]}]),
        [*TALK, {"content": "z", "role": "assistant"}],
    ],
)
def test_answers_of_many_are_cut_as_that_of_one(messages: Any) -> None:
    row = [Raw(json.dumps(messages).encode())] * 2
    cut = cells.before_answers(row)
    assert [type(cell) is Raw for cell in cut] == [messages in WITH_ONE_ANSWER] * 2
    assert repr(list(map(cells.plain_cell, cut))) == repr([cells.before_answer(messages)] * 2)
    assert repr(cells.before_answers([*row, UNSET])) == repr([*map(cells.before_answer, [messages] * 2), None])


@pytest.mark.parametrize("content", ["2+2?", 'é "\n" \u2028 \x7f \U0001f600', "\ud800", "", None, 3, ["x"], {"a": 1}])
@pytest.mark.parametrize("extra", [{}, {"name": "n"}, {"role": None}])
def test_a_prompt_as_json_has_the_id_of_what_it_says(content: Any, extra: dict[str, Any]) -> None:
    question = {"role": "user", "content": content, **extra}
    for prompt in ([question], [question, ANSWER], [], question, content):
        assert cells.prompt_json_id(json.dumps(prompt).encode()) == cells.prompt_text_id(prompt)


def test_ids_of_prompts_are_those_of_their_texts_however_many_came_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "_MAX_KNOWN", 2)
    monkeypatch.setattr(cells, "_known_ids", {})
    texts = ["a", "b", "a", "c", "é\ud800", "b"]
    assert [cells.prompt_text_id(text) for text in texts] == list(map(cells.digest, texts))
    assert len(cells._known_ids) <= 2
