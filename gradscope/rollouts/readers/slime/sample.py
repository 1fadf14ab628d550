"""One sample as slime and its forks write it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
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
from gradscope.rollouts.readers.parsing.token_lists import (
    NOT_ALIGNED,
    NOT_IDS,
    NOTHING_SAMPLED,
    cut_sequence,
    token_ids,
)
from gradscope.rollouts.types import Status, Tokens

_STATUS: dict[str, Status] = {"completed": "completed", "truncated": "truncated", "aborted": "error", "failed": "error"}


def survey_rewards(rows: Sequence[LogRow], reading: Reading) -> dict[str, str | None]:
    """Which part of rewards that have several counts, for :func:`sample_record`."""
    names = [name for row in rows for name in numbers_in(mapping_of(row.cells.get("sample")).get("reward"))]
    return {"part": chosen_part(names, reading)}


def chosen_part(names: Collection[str], reading: Reading) -> str | None:
    """Which of the rewards with these names counts, which is noted; None where samples have one reward each."""
    if not names:
        return None
    part = chosen_name(names, reading.request, "reward", "no reward that is a number")
    reading.inferred.append(f"Of the rewards of a sample, {part!r} counts.")
    return part


def part_of_reward(reward: Any, part: str | None) -> Any:
    """The cell of a reward that counts."""
    return reward if part is None else mapping_of(reward).get(part, ABSENT)


def sample_record(
    row: LogRow,
    part: str | None,
    *,
    tokens: Tokens | None,
    completion: str,
    index: Any,
    earlier: tuple[Tokens, ...] = (),
) -> Record:
    """The rollout of a row with ``rollout_id`` and ``sample``.

    Args:
        part: Which of several rewards counts.
        index: The sample's number within the rollout, whatever its type.
        earlier: The tokens of its other sequences.

    Returns:
        The rollout.
    """
    sample = row.cells["sample"]
    prompt, reward = sample.get("prompt"), sample.get("reward", ABSENT)
    number = whole_number(index)
    return Record(
        step=required_whole(row.cells.get("rollout_id"), "the step"),
        group=str(required_whole(sample.get("group_index"), "group_index")),
        prompt_id=prompt_digest(prompt),
        prompt=text_of(prompt),
        completion=completion,
        messages=parse_messages(prompt),
        reward=row.reward(part_of_reward(reward, part)),
        rewards=numbers_in(reward),
        status=_STATUS.get(text_of(sample.get("status")), "unknown"),
        tokens=tokens,
        earlier=earlier,
        sample_id=None if number is None else str(number),
        location=row.location,
    )


def prompt_digest(prompt: Any) -> str:
    """The id of a prompt, text or messages."""
    return digest(parse_messages(prompt) or text_of(prompt))


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


def num_logged_tokens(sample: Mapping[str, Any]) -> int:
    """How many tokens a sample's completion has, without a copy of its lists.

    Returns:
        The length of the completion of :func:`logged_tokens`.

    Raises:
        UnusableRowError: Likewise.
    """
    ids, length = sample.get("tokens"), whole_number(sample.get("response_length"))
    are_ids = isinstance(ids, list) and {int}.issuperset(map(type, ids))
    if not are_ids or length is None or not 0 < length <= len(list_of(ids)):
        raise UnusableRowError(NOT_IDS)
    mask, logprobs = sample.get("loss_mask"), sample.get("rollout_log_probs")
    if any(values is not None and len(list_of(values)) != length for values in (mask, logprobs)):
        raise UnusableRowError(NOT_ALIGNED)
    sampled = [0] if mask is None else (at for at, flag in enumerate(mask) if flag)
    first = next(iter(sampled), None)
    if first is None:
        raise UnusableRowError(NOTHING_SAMPLED)
    return length - first
