"""slime's dumps of rollouts: exact tokens, rewards and log-probabilities, a file of ``torch.save`` a step.

They are read as plain data: nothing in them is run. The dumps of training beside them hold rewards that are already
normalized within groups, and are not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gradscope.errors import InputError
from gradscope.rollouts.readers.beside.logged_metrics import with_logged_metrics
from gradscope.rollouts.readers.flat.columns import chosen_name
from gradscope.rollouts.readers.parsing.counted import hidden_by
from gradscope.rollouts.readers.parsing.format import LogRow, Reading, RowFormat
from gradscope.rollouts.readers.parsing.grouping import Record
from gradscope.rollouts.readers.parsing.nested_cells import (
    list_of,
    mapping_of,
    numbers_in,
    required_whole,
    whole_number,
)
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog, UnusableRowError
from gradscope.rollouts.readers.parsing.scalars import ABSENT, digest, parse_messages, text_of
from gradscope.rollouts.readers.parsing.tables import Row
from gradscope.rollouts.readers.parsing.token_lists import NOT_IDS, Tokens, cut_sequence, token_ids
from gradscope.rollouts.readers.trainers.torch_archive import is_archive, read_archive
from gradscope.rollouts.types import Status

_STATUS: dict[str, Status] = {"completed": "completed", "truncated": "truncated", "aborted": "error", "failed": "error"}


def _holds_samples(file: Path) -> bool:
    try:
        return isinstance(mapping_of(read_archive(file)).get("samples"), list)
    except InputError:
        return False


def _rows_of(file: Path, quarantine: QuarantineLog) -> Iterator[Row]:
    """The samples of a file, each beside the rollout's number; what is no sample lacks everything a row needs."""
    document = mapping_of(read_archive(file))
    for number, sample in enumerate(list_of(document.get("samples")), start=1):
        yield f"{file}:{number}", {"rollout_id": document.get("rollout_id"), "sample": mapping_of(sample)}


def _survey(rows: Sequence[LogRow], reading: Reading) -> dict[str, str | None]:
    parts = [name for row in rows for name in numbers_in(row.cells["sample"].get("reward"))]
    part = chosen_name(parts, reading.request, "reward", "no reward that is a number") if parts else None
    if part is not None:
        reading.inferred.append(f"Of the rewards of a sample, {part!r} counts.")
    return {"part": part}


def _records(row: LogRow, part: str | None) -> Iterator[Record]:
    sample = row.cells["sample"]
    step = required_whole(row.cells["rollout_id"], "the step")
    group = required_whole(sample.get("group_index"), "group_index")
    tokens = _tokens(sample)
    prompt, reward = sample.get("prompt"), sample.get("reward", ABSENT)
    index = whole_number(sample.get("index"))
    yield Record(
        step=step,
        group=str(group),
        prompt_id=digest(parse_messages(prompt) or text_of(prompt)),
        prompt=text_of(prompt),
        completion=text_of(sample.get("response")),
        messages=parse_messages(prompt),
        reward=row.reward(reward if part is None else mapping_of(reward).get(part, ABSENT)),
        rewards=numbers_in(reward),
        status=_STATUS.get(text_of(sample.get("status")), "unknown"),
        tokens=tokens,
        sample_id=None if index is None else str(index),
        location=row.location,
    )


def _tokens(sample: Mapping[str, Any]) -> Tokens:
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


FORMAT = RowFormat(
    name="slime",
    looks_for="rollout_data/<step>.pt with samples (slime)",
    title="slime rollouts",
    patterns=("rollout_data/[0-9]*.pt", "[0-9]*.pt"),
    keeps_file=is_archive,
    recognizes_file=_holds_samples,
    rows_of=_rows_of,
    survey=_survey,
    records=_records,
    missing=(hidden_by("slime's dynamic sampling (--dynamic-sampling-filter-path) drops groups of equal rewards"),),
    completes=with_logged_metrics,
    takes=frozenset({"reward_column"}),
)
