"""slime's dumps of rollouts, and those of its forks: Relax's lines and miles' trajectories.

slime writes a file of ``torch.save`` for each step or evaluation, read as plain data: no code in it is run. Its dumps
of training next to those of rollouts hold rewards that are already normalized within groups, and are not read. Forks
write the same samples in files of their own, of which miles' trajectories have a row for each sample with a
conversation, and its tokens in a Parquet file. Legend: R rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec import UNSET
from msgspec.structs import replace

from gradscope.errors import InputError
from gradscope.outside.limits import open_file
from gradscope.outside.torch_archive import read_archive
from gradscope.rollouts.arrays import index_names
from gradscope.rollouts.groups import RewardTable, Tokens
from gradscope.rollouts.readers.format import IfNoted, Reading, RowFormat, has_keys
from gradscope.rollouts.readers.parsing import cells as parse
from gradscope.rollouts.readers.parsing.columnar import read_parquet
from gradscope.rollouts.readers.parsing.quarantine import (
    BRANCHED,
    TEXT_ONLY,
    QuarantineLog,
    UnusableRowError,
    filter_caveat,
)
from gradscope.rollouts.readers.parsing.records import chosen_name, status_in
from gradscope.rollouts.readers.parsing.tables import Row, read_jsonl, stem_of
from gradscope.rollouts.readers.reduction.columns import Cells, Columns
from gradscope.rollouts.readers.reduction.log import ColumnLog
from gradscope.rollouts.readers.reduction.numbers import numbers_of, rewards_of
from gradscope.rollouts.readers.run_files import with_run_files


def _is_kind(file: Path, *, evaluation: bool) -> bool:
    """Whether a file is of an evaluation or not, and no bare pickle, as older versions wrote, but a zip."""
    with open_file(file) as stream:  # perhaps cut off
        return (re.search(r"eval_[0-9]+\.pt$", file.name) is not None) == evaluation and stream.read(1) != b"\x80"


def _holds_samples(file: Path) -> bool:
    """Whether a file is one of those that slime writes."""
    with suppress(InputError):
        return isinstance(parse.mapping_of(read_archive(file)).get("samples"), list)
    return False


def _samples_in(file: Path, quarantine: QuarantineLog) -> list[Row]:
    """The samples of a file, a bad one without cells, each with its own ``rollout_id`` as ``cut_from``."""
    document = parse.mapping_of(read_archive(file))
    samples = list(map(parse.mapping_of, parse.list_of(document.get("samples"))))
    quarantine.count_read(file.stat().st_size, len(samples))
    step = {"rollout_id": document.get("rollout_id")}
    return [
        (f"{file}:{number}", {**sample, "cut_from": parse.whole_number(sample.get("rollout_id")), **step})
        for number, sample in enumerate(samples, start=1)
    ]


def _training_rows(file: Path, quarantine: QuarantineLog) -> Iterator[Row]:
    """The samples of a file; of those into which a rollout was cut the last, with the rest as its ``earlier`` ones."""
    # Where such have several rewards, as those of several agents, each counts, and their common index tells nothing.
    rollouts: dict[Any, list[Row]] = {}
    for location, sample in _samples_in(file, quarantine):
        origin: tuple[Any, ...] = (location,)
        if sample["cut_from"] is not None:
            origin = (sample["cut_from"], parse.whole_number(sample.get("group_index")))
        rollouts.setdefault(origin, []).append((location, sample))
    for samples in rollouts.values():
        parts: dict[str, list[Row]] = {}
        for location, sample in samples:
            reward = parse.digest(sample.get("reward")) if len(samples) > 1 else ""
            parts.setdefault(reward, []).append((location, sample))
        for *earlier, (location, sample) in parts.values():
            if len(parts) > 1:
                sample["index"] = None
            sample["earlier"] = [cells for _, cells in earlier]
            yield location, sample


def _evaluation_rows(file: Path, quarantine: QuarantineLog) -> Iterator[Row]:
    """The samples of an evaluation; slime numbers no group, and each data set's samples from 0."""
    groups: dict[tuple[int, str], int] = {}
    dataset, before = 0, -1
    for location, sample in _samples_in(file, quarantine):
        index = parse.whole_number(sample.get("index")) or 0
        dataset, before = dataset + (index < before), index
        sample["group_index"] = groups.setdefault((dataset, parse.digest(sample.get("prompt"))), len(groups))
        yield location, sample


_NUM_PEEKED = 20  # rows of the first file that are read for the names of rewards


def _columns_by(
    to_columns: Callable[..., Columns],
    rows_of: Callable[[Path, QuarantineLog], Iterator[Row]],
    keys: Sequence[str] = (),
    raw: Sequence[str] = (),
) -> Callable[..., ColumnLog | None]:
    """How samples become columns: which part of a reward counts is mostly known from the first rows."""

    def columns(reading: Reading, **surveyed: str | None) -> ColumnLog | None:
        names, by_column = dict[str, None](), partial(reading.log, keys=keys, raw=raw)
        if surveyed:
            return by_column(to_columns=partial(to_columns, **surveyed))
        with suppress(InputError):
            for _, cells in islice(rows_of(reading.files[0], QuarantineLog()), _NUM_PEEKED):
                names |= dict.fromkeys(parse.numbers_in(cells.get("reward")))
        if names and reading.request.columns.reward not in (None, *names):
            return None
        part = chosen_part(names, reading)

        def validate(table: RewardTable) -> RewardTable | None:
            return None if part is None and table.rewards else table  # a reward with parts came late: survey all rows

        return by_column(to_columns=partial(to_columns, part=part), validate=validate)

    return columns


def _survey_rewards(rows: Sequence[Row], reading: Reading) -> dict[str, str | None]:
    return {"part": chosen_part([name for _, cells in rows for name in parse.numbers_in(cells.get("reward"))], reading)}


def chosen_part(names: Collection[str], reading: Reading) -> str | None:
    """The reward among these names that counts, with a note on it; None where samples have one reward each."""
    if not names:
        return None
    part = chosen_name(names, reading.request, "reward", "no reward that is a number")
    reading.inferred.append(f"Of the rewards of a sample, {part!r} counts.")
    return part


_INDEX = "sample_index"


def _sample_columns(
    rows: Cells, *, part: str | None, index: str, details: Callable[[int], Mapping[str, Any]], **fields: Any
) -> Columns:
    """The rollouts of rows with ``rollout_id`` and the cells of a sample; ``index`` is the key of its number."""
    rewards = rows.column("reward")
    cells = [parse.ABSENT if cell is UNSET else cell for cell in rewards]
    parts = cells if part is None else [parse.mapping_of(cell).get(part, parse.ABSENT) for cell in cells]
    return Columns(
        step=rows.steps("rollout_id"),
        group=index_names(rows.steps("group_index")),
        no_group="group_index is not a whole number",
        prompts=lambda chosen: list(map(parse.prompt_text_id, rows.cells("prompt", chosen))),
        texts=lambda chosen: list(map(parse.text_of, rows.cells("prompt", chosen))),
        numbers={**rewards_of(rewards), "reward": numbers_of(parts), "truncated": rows.truncated("status")},
        no_reward=lambda row: str(parse.parse_reward(parts[row])),
        samples=[name or None for name in index_names(rows.steps(index))],
        details=lambda row: {
            "messages": parse.parse_messages(rows.cell("prompt", row)),
            "status": status_in(rows.cell("status", row)),
            **details(row),
        },
        **fields,
    )


def logged_tokens(sample: Mapping[str, Any]) -> Tokens:
    """A sample's tokens, whose last ``response_length`` are the completion; else an UnusableRowError."""
    ids, length = parse.token_ids(sample.get("tokens")), parse.whole_number(sample.get("response_length"))
    if ids is None or length is None or not 0 < length <= len(ids):
        raise UnusableRowError(parse.NOT_IDS)
    before = [0] * (len(ids) - length)
    mask, logprobs = sample.get("loss_mask"), sample.get("rollout_log_probs")
    return parse.cut_sequence(
        list(ids),
        before + (parse.list_of(mask) if mask is not None else [1] * length),
        logprobs=before + parse.list_of(logprobs) if logprobs is not None else None,
    )


def _rows(rows: Cells, *, part: str | None, index: str = "index", has_tokens: bool = True) -> Columns:
    earlier = rows.column("earlier")

    def details(row: int) -> dict[str, Any]:
        completion = {"completion": parse.text_of(rows.cell("response", row))}
        if not has_tokens:
            return completion
        before = tuple(map(logged_tokens, parse.list_of(earlier[row])))
        return {**completion, "tokens": logged_tokens(rows.rows[row]), "earlier": before}

    are_several = np.array([bool(parse.list_of(cell)) for cell in earlier], dtype=np.bool_)
    return _sample_columns(rows, part=part, index=index, details=details, noted={BRANCHED: are_several})


SLIME = RowFormat(
    name="slime",
    title="slime rollouts",
    patterns=("rollout_data/*[0-9].pt", "*[0-9].pt"),
    keeps_file=partial(_is_kind, evaluation=False),
    recognizes_file=_holds_samples,
    rows_of=_training_rows,
    survey=_survey_rewards,
    columns=_columns_by(_rows, _training_rows),
    inferred=(IfNoted(BRANCHED),),
    missing=(filter_caveat("slime's dynamic sampling (--dynamic-sampling-filter-path) drops groups of equal rewards"),),
    completes=with_run_files,
    takes=frozenset({"reward_column"}),
)

SLIME_EVALUATION = replace(
    SLIME,
    name="slime-eval",
    title="slime evaluation",
    keeps_file=partial(_is_kind, evaluation=True),
    rows_of=_evaluation_rows,
    columns=_columns_by(_rows, _evaluation_rows),
    inferred=("Samples of one prompt are a group; those of several data sets, which slime does not name, are pooled.",),
    missing=(),
    completes=None,
)

RELAX = RowFormat(
    name="relax",
    title="Relax rollouts",
    patterns=("rollout_result/train/[0-9]*.jsonl", "train/[0-9]*.jsonl", "[0-9]*.jsonl"),
    recognizes_file=has_keys("rollout_id", "group_index", "sample_index", "response", "reward"),
    survey=_survey_rewards,
    columns=_columns_by(
        partial(_rows, index=_INDEX, has_tokens=False),
        read_jsonl,
        ("rollout_id", "group_index", _INDEX, "reward", "status"),
        ("prompt",),
    ),
    missing=(filter_caveat("Relax's dynamic sampling drops groups of equal rewards"), TEXT_ONLY),
    takes=frozenset({"reward_column"}),
)


def token_rows(file: Path) -> tuple[pa.Table | None, dict[int | None, list[int]]]:
    """The tokens of a file of trajectories, where it has any, [R]; sample index -> its rows, one for each sequence."""
    path = file.resolve().parent.parent / "dashboard_columns" / f"rollout_{stem_of(file)}.parquet"
    rows: dict[int | None, list[int]] = {}
    if not path.is_file():
        return None, rows
    table = read_parquet(path)
    indices = table[_INDEX].to_pylist() if _INDEX in table.column_names else [None] * table.num_rows
    for position, index in enumerate(map(parse.whole_number, indices)):
        rows.setdefault(index, []).append(position)
    return table, rows


_NO_COLUMNS = IfNoted(
    "Some rollouts have no dashboard_columns/rollout_<step>.parquet beside them (pip install miles[dashboard] writes "
    "it), and so no tokens."
)


def _miles_rows(file: Path, quarantine: QuarantineLog) -> Iterator[Row]:
    """The samples of a file, each with the rows of its sequences in the Parquet file."""
    columns, rows_by_sample = token_rows(file)
    samples: dict[Any, list[Row]] = {}
    for location, cells in read_jsonl(file, quarantine):
        index = parse.whole_number(cells.get("sample_index"))
        samples.setdefault(location if index is None else index, []).append((location, cells))
    for index, rows in samples.items():
        shared_by_all = {parse.digest(*map(cells.get, ("group_index", "reward", "status"))) for _, cells in rows}
        are_leaves = len(rows) == 1 or len(shared_by_all) == 1
        shared = {"rollout_id": stem_of(file), "columns": columns, "token_rows": rows_by_sample.get(index, [])}
        num_leaves = len(rows) if are_leaves else 1
        for location, cells in rows[-1:] if are_leaves else rows:
            yield location, {**cells, **shared, "num_leaves": num_leaves}
    for index in rows_by_sample.keys() - samples.keys():
        reason = "the sample kept no conversation, so that neither its group nor its reward is known"
        quarantine.add(reason, f"{file}:{index}")


def _miles_columns(rows: Cells, *, part: str | None) -> Columns:
    sequences = list[tuple[Tokens, ...] | str]()  # none where one is missing; why where one contradicts itself
    for cells in rows.rows:
        columns, numbers = cells["columns"], cells["token_rows"]
        is_whole = columns is not None and len(numbers) >= cells["num_leaves"]
        tables = [columns.slice(row, 1).to_pylist()[0] for row in numbers] if is_whole else []
        try:
            sequences.append(tuple(map(logged_tokens, tables)))
        except UnusableRowError as error:  # the sample stays in its group
            sequences.append(str(error))
    lacks_columns = np.array([cells["columns"] is None for cells in rows.rows])
    usable = [parts if isinstance(parts, tuple) else () for parts in sequences]
    are_branched = [cells["num_leaves"] > 1 or len(parts) > 1 for cells, parts in zip(rows.rows, usable, strict=True)]

    def details(row: int) -> dict[str, Any]:
        tokens = {"tokens": usable[row][-1], "earlier": usable[row][:-1]} if usable[row] else {}
        return {"completion": parse.cut_conversation(rows.cell("messages", row)).completion, **tokens}

    return _sample_columns(
        rows,
        part=part,
        index=_INDEX,
        details=details,
        flaw=lambda row: reason if isinstance(reason := sequences[row], str) else None,
        noted={_NO_COLUMNS: lacks_columns, BRANCHED: np.array(are_branched)},
    )


MILES = RowFormat(
    name="miles",
    title="miles trajectories",
    patterns=("trajectory/[0-9]*.jsonl", "[0-9]*.jsonl"),
    recognizes_file=has_keys("sample_index", "group_index", "reward", "messages"),
    rows_of=_miles_rows,
    survey=_survey_rewards,
    columns=_columns_by(_miles_columns, _miles_rows),
    inferred=(IfNoted(BRANCHED),),
    missing=(
        _NO_COLUMNS,
        filter_caveat("miles' dynamic sampling (--dynamic-sampling-filter-path) drops groups of equal rewards"),
    ),
)
