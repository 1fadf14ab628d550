"""A logged conversation cut into what the policy was given and what it made of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradscope.rollouts.readers.parsing.scalars import parse_messages, text_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Both parts."""

    prompt: str
    """Contents of the messages before the first of the policy's, joined by newlines."""
    messages: tuple[dict[str, Any], ...] | None
    """Those messages; None where there are none."""
    completion: str
    """Contents of the messages from then on."""


def cut_conversation(value: Any) -> Conversation:
    """Cut a conversation before the policy's first message.

    That is the first one marked ``trainable`` where any is (an example in the prompt may be an assistant's too), else
    the assistant's first.

    Returns:
        Both parts; empty where the cell is no conversation.

    Example:
        >>> cut_conversation([{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]).completion
        '4'
    """
    messages = parse_messages(value) or ()
    start = _start(messages)
    before = tuple({key: cell for key, cell in message.items() if key != "trainable"} for message in messages[:start])
    return Conversation(
        prompt=_contents(before),
        messages=before or None,
        completion=_contents(messages[start:]),
    )


def completion_of(value: Any) -> str:
    """The contents of a conversation's messages from the policy's first on; empty where the cell is none."""
    messages = parse_messages(value) or ()
    return _contents(messages[_start(messages) :])


def _contents(messages: Sequence[Mapping[str, Any]]) -> str:
    return text_of(list(messages)) if messages else ""


def _start(messages: Sequence[Mapping[str, Any]]) -> int:
    trained = [at for at, message in enumerate(messages) if message.get("trainable") is True]
    spoken = [at for at, message in enumerate(messages) if message.get("role") == "assistant"]
    return (trained or spoken or [len(messages)])[0]
