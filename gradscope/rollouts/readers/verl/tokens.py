"""Tokens in verl's rollout dumps, where a run was patched to log them: columns named as the trainer names its tensors.

``prompts`` and ``responses`` (also ``prompt_ids``, ``response_ids``) are lists of ids, with padding only where an
``attention_mask`` over both says which of them count. ``response_mask``, ``rollout_log_probs``, ``old_log_probs`` (the
trainer's), ``entropys`` and ``advantages`` are aligned with the response.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradscope.rollouts.readers.parsing.quarantine import UnusableRowError
from gradscope.rollouts.readers.parsing.scalars import is_number
from gradscope.rollouts.readers.parsing.token_lists import (
    NOT_ALIGNED,
    NOT_IDS,
    numbers,
    numbers_with_gaps,
    token_ids,
)
from gradscope.rollouts.types import Tokens

COLUMNS = frozenset(
    {"prompts", "responses", "prompt_ids", "response_ids", "attention_mask", "response_mask", "rollout_log_probs"}
    | {"old_log_probs", "ref_log_prob", "advantages", "entropys"}
)
"""Columns of tokens, which are no rewards."""
NO_REWARDS = COLUMNS | {"input", "output", "gts", "score", "step", "uid", "request_id", "reward"}
"""Columns whose numbers, if they hold any, are not those of a reward function."""


def row_tokens(row: Mapping[str, Any]) -> Tokens | None:
    """A row's tokens.

    Returns:
        The tokens; None where the row has no ids.

    Raises:
        UnusableRowError: Its lists are none, or differ in length.
    """
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
    kept = [at for at, flag in enumerate(attended[len(prompt_ids) :]) if flag]
    mask = _aligned(row.get("response_mask"), len(response_ids), kept)
    return Tokens(
        prompt_ids=tuple(token for token, flag in zip(prompt_ids, attended, strict=False) if flag),
        completion_ids=tuple(response_ids[at] for at in kept),
        mask=(True,) * len(kept) if mask is None else tuple(bool(flag) for flag in mask),
        logprobs=_aligned(row.get("rollout_log_probs"), len(response_ids), kept),
        token_advantages=_aligned(_spread(row.get("advantages"), len(response_ids)), len(response_ids), kept),
        trainer_logprobs=_where_logged(row.get("old_log_probs"), len(response_ids), kept),
        entropies=_where_logged(row.get("entropys"), len(response_ids), kept),
    )


def _spread(value: Any, length: int) -> Any:
    """One advantage a response counts for each of its tokens."""
    return [value] * length if is_number(value) else value


def _aligned(values: Any, length: int, kept: list[int]) -> tuple[float, ...] | None:
    if values is None:
        return None
    parsed = numbers(values, length)
    if parsed is None:
        raise UnusableRowError(NOT_ALIGNED)
    return tuple(parsed[at] for at in kept)


def _where_logged(values: Any, length: int, kept: list[int]) -> tuple[float, ...] | None:
    parsed = numbers_with_gaps(values, length)
    return None if parsed is None else tuple(parsed[at] for at in kept)
