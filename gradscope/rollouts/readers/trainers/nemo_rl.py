"""NeMo-RL's training data: every row is a batch of one, so each value is a list of length 1."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from gradscope.rollouts.readers.beside.nemo_rl import with_nemo_rls
from gradscope.rollouts.readers.format import LogColumns, LogRow, Reading, RowFormat, has_keys
from gradscope.rollouts.readers.parsing.assemble import peek
from gradscope.rollouts.readers.parsing.counted import hidden_by
from gradscope.rollouts.readers.parsing.grouping import Record
from gradscope.rollouts.readers.parsing.nested_cells import list_of, number_in_name, whole_number
from gradscope.rollouts.readers.parsing.quarantine import UnusableRowError
from gradscope.rollouts.readers.parsing.scalars import ABSENT, digest, text_of
from gradscope.rollouts.readers.parsing.token_lists import NOT_ALIGNED, cut_sequence
from gradscope.rollouts.readers.trainers.nemo_rl_columns import nemo_rl_columns
from gradscope.rollouts.types import Tokens

_STEP = re.compile(r"^train_data_step([0-9]+)\.jsonl")
_BY_IDS = "Rows carry no group id: rollouts of equal prompt tokens at one step are a group, as for NeMo-RL's baseline."
_BY_TEXT = (
    "Rows carry no group id and no tokens (NeMo-RL before 0.4): all messages but the last are taken as the prompt, and "
    "rollouts of equal prompts at one step are a group."
)
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

    def note(is_filtered: bool) -> None:
        reading.noted.update((_BY_IDS if has_tokens else _BY_TEXT, *((_FILTERED,) if is_filtered else ())))

    return nemo_rl_columns(partial(number_in_name, _STEP), has_tokens=has_tokens, note=note)


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
