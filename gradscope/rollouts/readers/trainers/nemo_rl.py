"""NeMo-RL's training data: every row is a batch of one, so each value is a list of length 1."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import UNSET, Raw, UnsetType
from numpy.typing import NDArray

from gradscope.rollouts.readers.beside.nemo_rl import with_nemo_rls
from gradscope.rollouts.readers.format import LogColumns, LogRow, Reading, RowFormat, has_keys
from gradscope.rollouts.readers.parsing.assemble import peek
from gradscope.rollouts.readers.parsing.counted import hidden_by
from gradscope.rollouts.readers.parsing.grouping import Record
from gradscope.rollouts.readers.parsing.nested_cells import list_of, number_in_name, whole_number
from gradscope.rollouts.readers.parsing.quarantine import UnusableRowError
from gradscope.rollouts.readers.parsing.scalars import ABSENT, digest, text_of
from gradscope.rollouts.readers.parsing.token_lists import NOT_ALIGNED, cut_sequence
from gradscope.rollouts.readers.reduction.columns import (
    Columns,
    Keys,
    LineColumns,
    ids_digest,
    numbers_of,
)
from gradscope.rollouts.types import Tokens

_STEP = re.compile(r"^train_data_step([0-9]+)\.jsonl")
_BY_IDS = "Rows carry no group id: rollouts of equal prompt tokens at one step are a group, as for NeMo-RL's baseline."
_BY_TEXT = (
    "Rows carry no group id and no tokens (NeMo-RL before 0.4): all messages but the last are taken as the prompt, and "
    "rollouts of equal prompts at one step are a group."
)
_Score = float | bool
_FLAT = b"[]0123456789,.-+eEnultrfas"
"""Letters of lists of numbers."""
_FILTERED = hidden_by("Dynamic sampling was on (filtered_rewards) and removes groups of equal rewards")


def _records(row: LogRow) -> Iterator[Record]:
    cells = {
        name: value[0] if isinstance(value, list) and len(value) == 1 else value for name, value in row.cells.items()
    }
    step = number_in_name(_STEP, row.file)
    if step is None:
        raise UnusableRowError("the file's name has no step")
    tokens = _tokens(cells)
    row.reading.noted.add(_BY_TEXT if tokens is None else _BY_IDS)
    if "filtered_rewards" in cells:
        row.reading.noted.add(_FILTERED)
    texts = [text_of(text) for text in list_of(cells.get("content"))]
    prompt_id = digest(texts[:-1] if tokens is None else tokens.prompt_ids)
    yield Record(
        step=step,
        group=prompt_id,
        prompt_id=prompt_id,
        prompt="\n".join(texts[:-1]),
        completion="".join(texts[-1:]),
        reward=row.reward(cells.get("filtered_rewards", cells.get("rewards", ABSENT))),
        tokens=tokens,
    )


def _tokens(cells: Mapping[str, Any]) -> Tokens | None:
    """One row's tokens, without the padding; None where the release did not log them."""
    if "token_ids" not in cells:
        return None
    length = whole_number(cells.get("input_lengths"))
    lists = {name: cells.get(name) for name in ("token_ids", "token_loss_mask", "generation_logprobs", "advantages")}
    if length is None or not all(values is None or len(list_of(values)) >= length for values in lists.values()):
        raise UnusableRowError(NOT_ALIGNED)
    ids, mask, logprobs, advantages = (
        None if values is None else list_of(values)[:length] for values in lists.values()
    )
    trainer_logprobs = list_of(cells.get("prev_logprobs"))[:length]
    tokens = cut_sequence(ids, mask, logprobs=logprobs, advantages=advantages, trainer_logprobs=trainer_logprobs)
    if cells.get("sample_loss_mask") == 0:  # the row has a reward, but no part in the loss
        return dataclasses.replace(tokens, mask=(False,) * len(tokens.mask))
    return tokens


def _columns(reading: Reading) -> LogColumns:
    has_tokens = any("token_ids" in row for row in peek(reading.files[0]))
    return LogColumns(lines=_token_columns() if has_tokens else _text_columns())


def _text_columns() -> LineColumns:
    keys = Keys()
    rewards, filtered = keys("rewards", list[_Score] | UnsetType), keys("filtered_rewards", list[_Score] | UnsetType)
    content, tokens = keys("content", list[list[str]]), keys("token_ids", Any | UnsetType)

    def take(rows: Sequence[Any], file: Path) -> Columns:
        texts = [cell[0] if len(cell) == 1 else [] for cell in map(content, rows)]
        ids: dict[tuple[str, ...], str] = {}
        groups = [ids.get(key) or ids.setdefault(key, digest(key)) for key in (tuple(text[:-1]) for text in texts)]
        is_odd = [not text or tokens(row) is not UNSET for text, row in zip(texts, rows, strict=True)]
        return _columns_of(file, rows, groups, rewards, filtered, _BY_TEXT, np.array(is_odd), {})

    return LineColumns(row=keys.struct(), take=take)


def _token_columns() -> LineColumns:
    keys = Keys()
    rewards, filtered = keys("rewards", list[_Score] | UnsetType), keys("filtered_rewards", list[_Score] | UnsetType)
    length, ids, mask = keys("input_lengths", list[int]), keys("token_ids", Raw), keys("token_loss_mask", Raw)
    others = [keys(name, Raw | UnsetType) for name in ("generation_logprobs", "advantages")]

    def take(rows: Sequence[Any], file: Path) -> Columns:
        found = [
            _lengths(
                length(row),
                bytes(ids(row)),
                bytes(mask(row)),
                [bytes(cell) for cell in (other(row) for other in others) if cell is not UNSET],
            )
            for row in rows
        ]
        num_tokens = np.array([number for number, _ in found])
        prompts = [prompt for _, prompt in found]
        known = {text: ids_digest(text) for text in dict.fromkeys(prompts)}
        groups = [known[text] for text in prompts]
        further = {"num_tokens": num_tokens}
        return _columns_of(file, rows, groups, rewards, filtered, _BY_IDS, num_tokens < 0, further)

    return LineColumns(row=keys.struct(), take=take)


def _columns_of(
    file: Path,
    rows: Sequence[Any],
    groups: list[str],
    rewards: Any,
    filtered: Any,
    how: str,
    is_odd: NDArray[np.bool_],
    further: Mapping[str, NDArray[Any]],
) -> Columns:
    kept = list(map(filtered, rows))
    scores = [cell if one is UNSET else one for cell, one in zip(map(rewards, rows), kept, strict=True)]
    is_one = [type(cell) is list and len(cell) == 1 for cell in scores]
    step = number_in_name(_STEP, file)
    return Columns(
        step=np.full(len(rows), -1 if step is None else step),
        group=groups,
        prompts=lambda some: [groups[at] for at in some],
        numbers={
            "reward": numbers_of([cell[0] if one else None for cell, one in zip(scores, is_one, strict=True)]),
            **further,
        },
        is_odd=is_odd,
        noted={
            how: np.ones(len(rows), dtype=np.bool_),
            _FILTERED: np.array([one is not UNSET for one in kept]),
        },
    )


def _lengths(length: Sequence[int], ids: bytes, mask: bytes, others: Sequence[bytes]) -> tuple[int, bytes]:
    """How many tokens the completion of a row has, and the prompt's ids as JSON; -1 where lists are not plain."""
    cells = [text.replace(b" ", b"") for text in (ids, mask, *others)]
    are_one = all(text[:2] == b"[[" and text[-2:] == b"]]" and text.count(b"[") == 2 for text in cells)
    if len(length) != 1 or not are_one or any(text.strip(_FLAT) for text in cells):
        return -1, b"[]"
    ids, mask = cells[:2]
    first = mask.find(b"1") if b"1" in mask else mask.find(b"true")
    start = mask.count(b",", 0, max(first, 0))
    is_plain = (
        first > 0 and not mask[2:first].strip(b"0,.fales") and mask[first + 1 : first + 2] in (b",", b"]", b".", b"r")
    )
    num_cells = [text.count(b",") + 1 for text in cells]
    if not is_plain or min(num_cells) < length[0] or start >= length[0] or ids.strip(b"[]0123456789,"):
        return -1, b"[]"
    prompt = b",".join(ids[2:-2].split(b",", start)[:start])
    return length[0] - start, b"[" + prompt + b"]"


FORMAT = RowFormat(
    name="nemo-rl",
    looks_for="train_data_step*.jsonl with content and rewards (NeMo-RL)",
    title="NeMo-RL training data",
    patterns=("train_data_step*.jsonl", "exp_*/train_data_step*.jsonl"),
    recognizes_file=has_keys("content", "rewards"),
    records=_records,
    columns=_columns,
    inferred=(_BY_IDS, _BY_TEXT),
    missing=(_FILTERED,),
    if_noted=frozenset({_BY_IDS, _BY_TEXT, _FILTERED}),
    completes=with_nemo_rls,
)
