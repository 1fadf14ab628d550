"""Token ids, masks, log-probabilities and advantages of verl's dumps: of a row by itself, and counted for many rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import compress
from operator import and_
from typing import Any

import msgspec
from msgspec import UNSET

from gradscope.rollouts.groups import UNKNOWN, Tokens
from gradscope.rollouts.readers.parsing.cells import (
    NOT_ALIGNED,
    NOT_IDS,
    is_number,
    numbers,
    numbers_with_gaps,
    token_ids,
)
from gradscope.rollouts.readers.parsing.quarantine import UnusableRowError
from gradscope.rollouts.readers.reduction.columns import Cells, flat_length, jsons_of, nums_ids

COLUMNS = frozenset(
    {"prompts", "responses", "prompt_ids", "response_ids", "attention_mask", "response_mask", "rollout_log_probs"}
    | {"old_log_probs", "ref_log_prob", "advantages", "entropys"}
)
"""Columns of tokens, which are no rewards."""


def row_tokens(row: Mapping[str, Any]) -> Tokens | None:
    """A row's tokens, None where it has no ids; unusable where lists are none or differ in length."""
    prompt, response = (row.get(f"{name}s", row.get(f"{name}_ids")) for name in ("prompt", "response"))
    if prompt is None or response is None:
        return None
    prompt_ids, response_ids = token_ids(prompt), token_ids(response)
    if prompt_ids is None or response_ids is None:
        raise UnusableRowError(NOT_IDS)
    attended = row.get("attention_mask")
    attended = [1] * (len(prompt_ids) + len(response_ids)) if attended is None else attended
    if not isinstance(attended, list) or len(attended) != len(prompt_ids) + len(response_ids):
        raise UnusableRowError(NOT_ALIGNED)
    is_attended = attended[len(prompt_ids) :]
    completion_ids = tuple(compress(response_ids, is_attended))
    mask = _aligned(row.get("response_mask"), is_attended)
    return Tokens(
        prompt_ids=tuple(compress(prompt_ids, attended)),
        completion_ids=completion_ids,
        mask=(True,) * len(completion_ids) if mask is None else tuple(map(bool, mask)),
        logprobs=_aligned(row.get("rollout_log_probs"), is_attended),
        token_advantages=_aligned(_spread(row.get("advantages"), len(response_ids)), is_attended),
        trainer_logprobs=_where_logged(row.get("old_log_probs"), is_attended),
        entropies=_where_logged(row.get("entropys"), is_attended),
    )


def _spread(value: Any, length: int) -> Any:
    """One advantage a response counts for each of its tokens."""
    return [value] * length if is_number(value) else value


def _aligned(values: Any, is_attended: list[Any]) -> tuple[float, ...] | None:
    if values is None:
        return None
    parsed = numbers(values, len(is_attended))
    if parsed is None:
        raise UnusableRowError(NOT_ALIGNED)
    return tuple(compress(parsed, is_attended))


def _where_logged(values: Any, is_attended: list[Any]) -> tuple[float, ...] | None:
    parsed = numbers_with_gaps(values, len(is_attended))
    return None if parsed is None else tuple(compress(parsed, is_attended))


def tokens_of_row(rows: Cells, at: int) -> Tokens | None:
    """:func:`row_tokens` of the cells of a row."""
    return row_tokens({name: rows.cell(name, at) for name in COLUMNS if rows.column(name)[at] is not UNSET})


Count = tuple[int, float]  # how many tokens a completion has, and the advantage that all sampled ones share, else NaN
NO_COUNT: Count = (UNKNOWN, math.nan)
_FLOATS = msgspec.json.Decoder(list[float])
_NUMBER_STARTS = b"-0123456789"
_FLAGS = bytes.maketrans(b"01", b"\0\1")


def token_counts(rows: Cells) -> list[Count | None]:
    """The counts of rows, None where lists are unusable, [R]."""
    prompts, responses = (jsons_of(_logged_ids(rows, name)) for name in ("prompt", "response"))
    sizes = zip(nums_ids(prompts).tolist(), nums_ids(responses).tolist(), strict=True)
    names = ("attention_mask", "response_mask", "rollout_log_probs", "advantages")
    lists = zip(*(jsons_of(rows.column(name)) for name in names), strict=True)
    counts = [_plain_count(*size, *texts) for size, texts in zip(sizes, lists, strict=True)]
    for row in (row for row, count in enumerate(counts) if count is None):
        with suppress(UnusableRowError):
            tokens = tokens_of_row(rows, row)
            advantage = None if tokens is None else tokens.advantage
            length = UNKNOWN if tokens is None else len(tokens.completion_ids)
            counts[row] = length, math.nan if advantage is None else advantage
    return counts


def _logged_ids(rows: Cells, name: str) -> list[Any]:
    columns = zip(rows.column(f"{name}s"), rows.column(f"{name}_ids"), strict=True)
    return [other if cell is UNSET else cell for cell, other in columns]


def _plain_count(
    num_prompt: int, size: int, attended: bytes, mask: bytes, logprobs: bytes, advantages: bytes
) -> Count | None:
    """The count by the JSON of a row's lists; None where they are not all as verl writes them."""
    is_attended, is_sampled = _flags(attended, num_prompt + size), _flags(mask, size)
    if min(num_prompt, size) < 0 or is_attended is None or is_sampled is None:
        return None
    if advantages[:1] in _NUMBER_STARTS:  # one number counts for each token
        advantages = b"[%b]" % b",".join([advantages] * size)
    of_sampler, of_tokens = _floats(logprobs, size), _floats(advantages, size)
    if of_sampler is None or of_tokens is None:
        return None
    is_attended = is_attended[num_prompt:]
    levels = set(compress(of_tokens, map(and_, is_attended, is_sampled)))
    return sum(is_attended), levels.pop() if len(levels) == 1 else math.nan


def _floats(text: bytes, size: int) -> Sequence[float] | None:
    """A list of so many finite numbers, empty where there is none; None where the text is another one."""
    if text == b"null":
        return ()
    try:
        values = _FLOATS.decode(text)
    except msgspec.MsgspecError:
        return None
    return values if len(values) == size and math.isfinite(sum(values)) else None


def _flags(text: bytes, size: int) -> bytes | None:
    """A list of so many zeros and ones, all ones where there is none; None where the text is another one."""
    if text == b"null":
        return b"\1" * size
    flags = text.translate(_FLAGS, b"[], ")
    return flags if len(flags) == size == flat_length(text, b"01, ") else None
