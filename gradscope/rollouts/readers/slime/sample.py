"""One sample as slime and its forks write it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradscope.rollouts.readers.flat.columns import chosen_name
from gradscope.rollouts.readers.format import LogRow, Reading
from gradscope.rollouts.readers.parsing.grouping import Record
from gradscope.rollouts.readers.parsing.nested_cells import (
    list_of,
    mapping_of,
    numbers_in,
    required_whole,
    whole_number,
)
from gradscope.rollouts.readers.parsing.quarantine import UnusableRowError
from gradscope.rollouts.readers.parsing.scalars import ABSENT, digest, parse_messages, text_of
from gradscope.rollouts.readers.parsing.token_lists import NOT_IDS, Tokens, cut_sequence, token_ids
from gradscope.rollouts.types import Status

_STATUS: dict[str, Status] = {"completed": "completed", "truncated": "truncated", "aborted": "error", "failed": "error"}


def survey_rewards(rows: Sequence[LogRow], reading: Reading) -> dict[str, str | None]:
    """Which part of rewards that have several counts, for :func:`sample_record`."""
    parts = [name for row in rows for name in numbers_in(mapping_of(row.cells.get("sample")).get("reward"))]
    part = chosen_name(parts, reading.request, "reward", "no reward that is a number") if parts else None
    if part is not None:
        reading.inferred.append(f"Of the rewards of a sample, {part!r} counts.")
    return {"part": part}


def sample_record(row: LogRow, part: str | None, *, tokens: Tokens | None, completion: str, index: Any) -> Record:
    """The rollout of a row with ``rollout_id`` and ``sample``.

    Args:
        part: Which of several rewards counts.
        index: The sample's number within the rollout, whatever its type.

    Returns:
        The rollout.
    """
    sample = row.cells["sample"]
    prompt, reward = sample.get("prompt"), sample.get("reward", ABSENT)
    number = whole_number(index)
    return Record(
        step=required_whole(row.cells.get("rollout_id"), "the step"),
        group=str(required_whole(sample.get("group_index"), "group_index")),
        prompt_id=digest(parse_messages(prompt) or text_of(prompt)),
        prompt=text_of(prompt),
        completion=completion,
        messages=parse_messages(prompt),
        reward=row.reward(reward if part is None else mapping_of(reward).get(part, ABSENT)),
        rewards=numbers_in(reward),
        status=_STATUS.get(text_of(sample.get("status")), "unknown"),
        tokens=tokens,
        sample_id=None if number is None else str(number),
        location=row.location,
    )


def logged_tokens(sample: Mapping[str, Any]) -> Tokens:
    """A sample's tokens, of which the last ``response_length`` are the completion.

    Returns:
        The tokens.

    Raises:
        UnusableRowError: They are missing, or the lists differ in length.
    """
    ids, length = token_ids(sample.get("tokens")), whole_number(sample.get("response_length"))
    if ids is None or length is None or not 0 < length <= len(ids):
        raise UnusableRowError(NOT_IDS)
    before = [0] * (len(ids) - length)
    mask, logprobs = sample.get("loss_mask"), sample.get("rollout_log_probs")
    return cut_sequence(
        list(ids),
        before + (list_of(mask) if mask is not None else [1] * length),
        logprobs=before + list_of(logprobs) if logprobs is not None else None,
    )
