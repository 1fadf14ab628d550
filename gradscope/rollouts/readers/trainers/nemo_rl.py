"""NeMo-RL's training data: every row is a batch of one, so each value is a list of length 1."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gradscope.rollouts.readers.parsing.assemble import assemble, peek
from gradscope.rollouts.readers.parsing.counted import counted, hidden_by
from gradscope.rollouts.readers.parsing.grouping import Record
from gradscope.rollouts.readers.parsing.jsonl import read_jsonl
from gradscope.rollouts.readers.parsing.nested_cells import list_of, number_in_name, usable_reward, whole_number
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.parsing.request import ReadRequest
from gradscope.rollouts.readers.parsing.scalars import ABSENT, digest, text_of
from gradscope.rollouts.readers.parsing.tables import files_like
from gradscope.rollouts.readers.parsing.token_lists import NOT_ALIGNED, Tokens, cut_sequence
from gradscope.rollouts.run import Run

_STEP = re.compile(r"^train_data_step(\d+)\.jsonl")
_BY_IDS = "Rows carry no group id: rollouts of equal prompt tokens at one step are a group, as for NeMo-RL's baseline."
_BY_TEXT = (
    "Rows carry no group id and no tokens (NeMo-RL before 0.4): all messages but the last are taken as the prompt, and "
    "rollouts of equal prompts at one step are a group."
)
_FILTERED = hidden_by("Dynamic sampling was on (filtered_rewards) and removes groups of equal rewards")


def recognizes(request: ReadRequest) -> bool:
    """Whether the path holds NeMo-RL's training data.

    Args:
        request: What to read; its path exists.

    Returns:
        True for files ``train_data_step<N>.jsonl`` with content and rewards.
    """
    files = _files(request.path)
    return bool(files) and any(row.keys() >= {"content", "rewards"} for row in peek(files[0]))


def read(request: ReadRequest) -> Run:
    """Read NeMo-RL's training data.

    Args:
        request: A log folder, one of its ``exp_<N>``, or one file.

    Returns:
        The run.
    """
    files = _files(request.path)
    quarantine = QuarantineLog()
    seen: Counter[str] = Counter()
    return assemble(
        request,
        records=list(_records(files, quarantine, seen)),
        quarantine=quarantine,
        format="nemo-rl",
        recognized=f"NeMo-RL training data, {counted(len(files), 'file')}",
        inferred=[said for said in (_BY_IDS, _BY_TEXT) if seen[said]],
        missing=[said for said in (_FILTERED,) if seen[said]],
        files=files,
    )


def _files(path: Path) -> tuple[Path, ...]:
    return files_like(path, "train_data_step*.jsonl", "exp_*/train_data_step*.jsonl")


def _records(files: tuple[Path, ...], quarantine: QuarantineLog, seen: Counter[str]) -> Iterator[Record]:
    for file in files:
        step = number_in_name(_STEP, file)
        for place, row in read_jsonl(file, quarantine):
            cells = {
                name: value[0] if isinstance(value, list) and len(value) == 1 else value for name, value in row.items()
            }
            tokens = _tokens(cells)
            if step is None:
                quarantine.add("the file's name has no step", place)
            elif isinstance(tokens, str):
                quarantine.add(tokens, place)
            else:
                seen[_BY_TEXT if tokens is None else _BY_IDS] += 1
                seen[_FILTERED] += "filtered_rewards" in cells
                yield _record(cells, step, tokens, place, quarantine)


def _record(
    cells: Mapping[str, Any], step: int, tokens: Tokens | None, place: str, quarantine: QuarantineLog
) -> Record:
    texts = [text_of(text) for text in list_of(cells.get("content"))]
    prompt_id = digest(texts[:-1] if tokens is None else tokens.prompt_ids)
    reward = cells.get("filtered_rewards", cells.get("rewards", ABSENT))
    return Record(
        step=step,
        group=prompt_id,
        prompt_id=prompt_id,
        prompt="\n".join(texts[:-1]),
        completion="".join(texts[-1:]),
        reward=usable_reward(reward, place, quarantine),
        tokens=tokens,
    )


def _tokens(cells: Mapping[str, Any]) -> Tokens | str | None:
    """One row's tokens, without the padding.

    Args:
        cells: The row.

    Returns:
        The tokens; why there are none, for the quarantine; None where the release did not log them.
    """
    if "token_ids" not in cells:
        return None
    length = whole_number(cells.get("input_lengths"))
    lists = {name: cells.get(name) for name in ("token_ids", "token_loss_mask", "generation_logprobs", "advantages")}
    if length is None or not all(values is None or len(list_of(values)) >= length for values in lists.values()):
        return NOT_ALIGNED
    ids, mask, logprobs, advantages = (
        None if values is None else list_of(values)[:length] for values in lists.values()
    )
    cut = cut_sequence(ids, mask, logprobs=logprobs, advantages=advantages)
    if isinstance(cut, Tokens) and cells.get("sample_loss_mask") == 0:
        return dataclasses.replace(cut, mask=(False,) * len(cut.mask))  # the row has a reward, but no part in the loss
    return cut
