"""slime's dumps of rollouts: exact tokens, rewards and log-probabilities, a file of ``torch.save`` a step.

They are read as plain data: nothing in them is run. The dumps of training beside them hold rewards that are already
normalized within groups, and are not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gradscope.errors import InputError
from gradscope.rollouts.readers.flat.columns import chosen_name
from gradscope.rollouts.readers.parsing.assemble import assemble
from gradscope.rollouts.readers.parsing.counted import counted, hidden_by
from gradscope.rollouts.readers.parsing.grouping import Record
from gradscope.rollouts.readers.parsing.nested_cells import list_of, mapping_of, numbers_in, usable_reward, whole_number
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.parsing.request import ReadRequest
from gradscope.rollouts.readers.parsing.scalars import ABSENT, digest, parse_messages, text_of
from gradscope.rollouts.readers.parsing.tables import files_like
from gradscope.rollouts.readers.parsing.token_lists import NOT_IDS, Tokens, cut_sequence, token_ids
from gradscope.rollouts.readers.trainers.torch_archive import is_archive, read_archive
from gradscope.rollouts.run import Run
from gradscope.rollouts.types import Status

_STATUS: dict[str, Status] = {"completed": "completed", "truncated": "truncated", "aborted": "error", "failed": "error"}
_MISSING = (hidden_by("slime's dynamic sampling (--dynamic-sampling-filter-path) drops groups of equal rewards"),)


def recognizes(request: ReadRequest) -> bool:
    """Whether the path holds slime's dumps of rollouts.

    Args:
        request: What to read; its path exists.

    Returns:
        True for archives with samples under the number of a rollout.
    """
    files = _files(request.path)
    try:
        return bool(files) and isinstance(mapping_of(read_archive(files[0])).get("samples"), list)
    except InputError:
        return False


def read(request: ReadRequest) -> Run:
    """Read slime's dumps of rollouts.

    Args:
        request: The ``--dump-details`` folder, its ``rollout_data``, or one file of it.

    Returns:
        The run.
    """
    files = _files(request.path)
    quarantine = QuarantineLog()
    rows = [row for file in files for row in _rows(file)]
    parts = [name for _, _, sample in rows for name in numbers_in(sample.get("reward"))]
    part = chosen_name(parts, request, "reward", "no reward that is a number") if parts else None
    return assemble(
        request,
        records=_records(rows, part, quarantine),
        quarantine=quarantine,
        format="slime",
        recognized=f"slime rollouts, {counted(len(files), 'file')}",
        inferred=[f"Of the rewards of a sample, {part!r} counts."] if part else (),
        missing=_MISSING,
        files=files,
    )


def _files(path: Path) -> tuple[Path, ...]:
    return tuple(file for file in files_like(path, "rollout_data/[0-9]*.pt", "[0-9]*.pt") if is_archive(file))


def _rows(file: Path) -> Iterator[tuple[str, Any, Mapping[str, Any]]]:
    """The samples of a file, each with its place and the rollout's number."""
    document = mapping_of(read_archive(file))
    for number, sample in enumerate(list_of(document.get("samples")), start=1):
        yield f"{file}:{number}", document.get("rollout_id"), mapping_of(sample)


def _records(
    rows: Sequence[tuple[str, Any, Mapping[str, Any]]], part: str | None, quarantine: QuarantineLog
) -> Iterator[Record]:
    for place, rollout_id, sample in rows:
        step, group = whole_number(rollout_id), whole_number(sample.get("group_index"))
        tokens = _tokens(sample)
        if step is None:
            quarantine.add("the step is not a whole number", place)
        elif group is None:
            quarantine.add("group_index is not a whole number", place)
        elif isinstance(tokens, str):
            quarantine.add(tokens, place)
        else:
            prompt = sample.get("prompt")
            reward = sample.get("reward", ABSENT)
            index = whole_number(sample.get("index"))
            yield Record(
                step=step,
                group=str(group),
                prompt_id=digest(parse_messages(prompt) or text_of(prompt)),
                prompt=text_of(prompt),
                completion=text_of(sample.get("response")),
                messages=parse_messages(prompt),
                reward=usable_reward(
                    reward if part is None else mapping_of(reward).get(part, ABSENT), place, quarantine
                ),
                rewards=numbers_in(reward),
                status=_STATUS.get(text_of(sample.get("status")), "unknown"),
                tokens=tokens,
                sample_id=None if index is None else str(index),
                place=place,
            )


def _tokens(sample: Mapping[str, Any]) -> Tokens | str:
    ids, length = token_ids(sample.get("tokens")), whole_number(sample.get("response_length"))
    if ids is None or length is None or not 0 < length <= len(ids):
        return NOT_IDS
    before = [0] * (len(ids) - length)
    mask, logprobs = sample.get("loss_mask"), sample.get("rollout_log_probs")
    return cut_sequence(
        list(ids),
        before + (list_of(mask) if mask is not None else [1] * length),
        logprobs=before + list_of(logprobs) if logprobs is not None else None,
    )
