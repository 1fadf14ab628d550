from __future__ import annotations

from typing import Any

import pytest

from gradscope.rollouts.readers.parsing.conversations import Conversation, completion_of, cut_conversation


def said(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def test_the_cut_is_before_the_first_assistant() -> None:
    messages = [said("system", "be brief"), said("user", "2+2?"), said("assistant", "4"), said("tool", "ok")]
    assert cut_conversation(messages) == Conversation(
        prompt="be brief\n2+2?", messages=tuple(messages[:2]), completion="4\nok"
    )


def test_a_trainable_message_wins_over_an_example_of_the_assistants() -> None:
    messages = [
        said("assistant", "an example", trainable=False),
        said("user", "go"),
        said("user", "on", trainable=True),
    ]
    conversation = cut_conversation(messages)
    assert (conversation.prompt, conversation.completion) == ("an example\ngo", "on")
    assert conversation.messages == (said("assistant", "an example"), said("user", "go"))


def test_without_an_answer_all_of_it_is_the_prompt() -> None:
    conversation = cut_conversation([said("user", "hello?")])
    assert (conversation.prompt, conversation.completion) == ("hello?", "")


def test_one_that_begins_with_the_answer_has_no_prompt() -> None:
    assert cut_conversation([said("assistant", "hi")]) == Conversation(prompt="", messages=None, completion="hi")


@pytest.mark.parametrize("cell", [None, "text", [], [{"content": "no role"}], {"role": "user"}])
def test_what_is_no_conversation_is_empty(cell: Any) -> None:
    assert cut_conversation(cell) == Conversation(prompt="", messages=None, completion="")
    assert completion_of(cell) == ""


def test_a_message_whose_role_is_null_is_nobodys() -> None:
    messages = [{"role": None, "content": "a"}, {"role": "assistant", "content": "b"}]
    assert cut_conversation(messages).completion == completion_of(messages) == "b"
    assert cut_conversation(messages[:1]).completion == ""
