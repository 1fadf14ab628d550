"""The lines of verl's dump as columns, and the tokens that a run which was patched to log them has in further columns.

``prompts`` and ``responses`` (also ``prompt_ids``, ``response_ids``) are lists of ids, with padding only where an
``attention_mask`` over both says which of them count. ``response_mask``, ``rollout_log_probs``, ``old_log_probs`` (the
trainer's), ``entropys`` and ``advantages`` are aligned with the response.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from msgspec import UNSET, Raw, UnsetType
from numpy.typing import NDArray

from gradscope.rollouts.arrays import bytes_of, cut_strings, to_floats, to_numpy, to_strings, to_texts
from gradscope.rollouts.readers.parsing.nested_cells import in_environment
from gradscope.rollouts.readers.parsing.quarantine import UnusableRowError
from gradscope.rollouts.readers.parsing.scalars import is_number, text_of
from gradscope.rollouts.readers.parsing.token_lists import (
    NOT_ALIGNED,
    NOT_IDS,
    numbers,
    numbers_with_gaps,
    token_ids,
)
from gradscope.rollouts.readers.reduction.columns import (
    REWARD,
    Columns,
    Keys,
    LineColumns,
    Number,
    digests_of,
    json_of,
    jsons_of,
    numbers_of,
    sample_hashes,
    step_numbers,
)
from gradscope.rollouts.reward_table import UNKNOWN
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


Uids = Literal["of outputs", "of groups"] | None
"""What uids name: each output, as ``<group>_<session>_<index>``, or its group; None: rows have none."""
_SOURCE = "data_source"
_TAIL = re.compile(r"_([0-9]+)_([0-9]+)")
_MARK, _NEW_LINE = map(ord, "_\n")
_NO_NUMBER = b'"[{n'
"""How JSON texts begin that are no number or boolean."""


def line_columns(
    first: Iterable[Collection[str]], extra: Sequence[str], uids: Uids, *, has_tokens: bool
) -> LineColumns | None:
    """The columns of a dump.

    Args:
        first: The keys of its first rows; a row with any other is odd, as it may hold a reward.
        extra: Those of numbers beside the score.
        uids: What uids name.
        has_tokens: Whether rows may have columns of tokens; without, a row that has them is odd.

    Returns:
        The columns; None where a key is none that a struct can have.
    """
    keys = Keys()
    step, score = keys("step", int), keys("score", Number)
    uid = keys("uid", str if uids else Raw | UnsetType)
    texts = [keys(name, Raw | UnsetType) for name in ("input", "gts")]
    further = {name: keys(name, Any | UnsetType) for name in extra}
    usual = {*NO_REWARDS, *extra}
    tokens = {name: keys(name, Any | UnsetType) for name in sorted(COLUMNS if has_tokens else ())}
    for name in sorted(NO_REWARDS - COLUMNS):
        if name not in keys:
            keys(name, Raw | UnsetType)
    source = keys(_SOURCE, Any | UnsetType)
    others = [
        keys(name, Raw | UnsetType)
        for name in dict.fromkeys(name for row in first for name in row)
        if name not in {*usual, _SOURCE}
    ]

    def ids_of(rows: Sequence[Any]) -> list[str]:
        pairs = list(zip(*(jsons_of(list(map(text, rows))) for text in texts), strict=True))
        different = list(dict.fromkeys(pairs))
        ids = dict(zip(different, digests_of(different), strict=True))
        return list(map(ids.__getitem__, pairs))

    def prompts_of(rows: Sequence[Any]) -> list[str]:
        return list(map(in_environment, map(source, rows), ids_of(rows)))

    def take(rows: Sequence[Any], _: Path) -> Columns:
        rewards = numbers_of(list(map(score, rows)))
        numbers: dict[str, NDArray[Any]] = {"reward": rewards, REWARD + "score": rewards}
        numbers |= {REWARD + name: numbers_of(list(map(cell, rows))) for name, cell in further.items()}
        is_odd = np.array([cell is not UNSET and not isinstance(cell, str) for cell in map(source, rows)])
        for other in others:
            is_odd |= [cell is not UNSET and bytes(cell)[0] not in _NO_NUMBER for cell in map(other, rows)]
        if has_tokens:
            found = [_tokens({name: cell(row) for name, cell in tokens.items()}) for row in rows]
            is_odd |= [one is None for one in found]
            known = [one if isinstance(one, Tokens) else None for one in found]
            numbers["num_tokens"] = np.array([UNKNOWN if one is None else len(one.completion_ids) for one in known])
            numbers["advantage"] = to_floats(None if one is None else one.advantage for one in known)
        cells = list(map(uid, rows))
        match uids:
            case "of outputs":
                groups, tails = _cut_uids(cells)
                kinds, codes = [_TAIL.fullmatch(tail) for tail in to_texts(tails.dictionary)], to_numpy(tails.indices)
                numbers["sample"] = sample_hashes(kind and kind[1] for kind in kinds)[codes]
                is_odd |= np.array([kind is None for kind in kinds])[codes]
                if (bytes_of(groups)[0] == _NEW_LINE).any():
                    is_odd |= ["\n" in name for name in to_texts(groups)]
            case "of groups":
                groups = cells
            case None:
                is_odd |= [cell is not UNSET for cell in cells]
                groups = ids_of(rows)
        return Columns(
            step=step_numbers(list(map(step, rows))),
            group=groups,
            prompts=lambda some: prompts_of([rows[at] for at in some]),
            texts=lambda some: [text_of(json.loads(json_of(texts[0](rows[at])))) for at in some],
            numbers=numbers,
            is_odd=is_odd,
        )

    return LineColumns(row=keys.struct(is_complete=True), take=take) if keys.are_plain else None


def _cut_uids(cells: list[str]) -> tuple[pa.Array, pa.Array]:
    """The groups that uids of outputs name, and what follows, as a dictionary: ``_<session>_<index>`` where proper."""
    uids = to_strings(cells)
    data, starts = bytes_of(uids)
    marks, cut = np.flatnonzero(data == _MARK), starts[1:].copy()
    behind = np.searchsorted(marks, starts[1:])
    has_two = behind - np.searchsorted(marks, starts[:-1]) >= 2
    cut[has_two] = marks[behind[has_two] - 2]
    groups, tails = cut_strings(uids, cut)
    return groups, tails.dictionary_encode()


def _tokens(cells: dict[str, Any]) -> Tokens | Literal["none"] | None:
    """The tokens of a row, "none" where it has none; None where its lists contradict each other."""
    try:
        return row_tokens({name: cell for name, cell in cells.items() if cell is not UNSET}) or "none"
    except UnusableRowError:
        return None
