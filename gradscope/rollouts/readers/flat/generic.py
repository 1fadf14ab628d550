"""Any log with a row a rollout: JSON lines, JSON, Parquet or CSV with a reward and something to group by."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gradscope.errors import InputError
from gradscope.rollouts.read_options import ColumnNames
from gradscope.rollouts.readers.flat.columns import (
    FlatColumns,
    key_of,
    list_names,
    resolve_columns,
    reward_columns,
    sample_column,
    summed_columns,
)
from gradscope.rollouts.readers.format import Format
from gradscope.rollouts.readers.parsing.cells import ENVIRONMENTS
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog, WatchedLog, counted
from gradscope.rollouts.readers.parsing.records import Record, assemble_groups, peek
from gradscope.rollouts.readers.parsing.request import ReadRequest
from gradscope.rollouts.readers.parsing.tables import Row, expand, is_untyped, read_rows, suffix_of
from gradscope.rollouts.readers.reduction.columns import LineColumns, TableColumns, line_columns, records_in
from gradscope.rollouts.readers.reduction.log import ColumnLog, reduced_groups
from gradscope.rollouts.run import Run

_TIMES = ("generation_seconds", "timing")


def column_log(files: Sequence[Path], columns: FlatColumns, quarantine: QuarantineLog) -> ColumnLog:
    """How the files of a log are read, in their order; what is set aside goes to the quarantine."""
    names = columns.names
    roles = (names.reward, names.step, columns.key, names.prompt_id, names.advantage)
    further = (columns.sample, columns.environment, *columns.rewards, *columns.times)
    wanted = dict.fromkeys(name for name in (*roles, *further) if name is not None and name != names.prompt)
    texts = () if names.prompt is None else (names.prompt,)
    lines = line_columns(columns.take, wanted, texts)
    table = TableColumns(names=(*wanted, *texts), take=columns.take)

    def declared(file: Path) -> LineColumns | TableColumns | None:
        match suffix_of(file):
            case ".json":
                return None
            case ".parquet" | ".csv" | ".tsv":
                return table
            case _:
                return lines

    def records(file: Path, rows: Iterable[Row], quarantine: QuarantineLog) -> Iterator[tuple[int, Record]]:
        return records_in(columns.take, file, rows, quarantine, from_text=is_untyped(file))

    return ColumnLog(
        files=files,
        declared=declared,
        rows=read_rows,
        records=records,
        quarantine=quarantine,
        keys=(*wanted, *texts, *columns.rewards),
    )


def _recognizes(request: ReadRequest) -> bool:
    """Whether the path holds rows with a reward and something to group by, under usual names."""
    columns = resolve_columns(columns_in(peek(request.path)), request.columns)
    return columns.reward is not None and key_of(columns) is not None


def _read(request: ReadRequest) -> Run:
    """Read a log with a row a rollout."""
    return read_flat(request, format="generic", with_steps=True)


def read_flat(request: ReadRequest, *, format: str, with_steps: bool) -> Run:
    """Read rows that are rollouts; without steps, all rows of a prompt are one group."""
    first = peek(request.path)
    names = columns_in(first)
    columns = _require(resolve_columns(names, request.columns), names, request.path)
    columns = columns if with_steps else dataclasses.replace(columns, step=None)
    files = expand(request.path)
    quarantine = WatchedLog(request.progress, files)
    sample = sample_column(first, columns)
    named = reward_columns(names, columns.reward or "")
    total, terms = _terms(first, columns, [*named, *(name for name in names if name not in named)])
    roles = set(dataclasses.astuple(columns))
    environment = next((name for name in ENVIRONMENTS if name in names and name not in roles), None)
    rewards = tuple(dict.fromkeys([*named, *terms]))
    times = tuple(name for name in _TIMES if name in names)
    flat = FlatColumns(names=columns, rewards=rewards, sample=sample, environment=environment, times=times)
    return assemble_groups(
        request,
        groups=reduced_groups(column_log(files, flat, quarantine), request) or (),
        quarantine=quarantine,
        format=format,
        recognized=_describe(files),
        inferred=[*_inferred(columns, request.columns, sample), *_sum_inferred(total, terms)],
    )


def columns_in(rows: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Every key of some rows, in order of first appearance."""
    return tuple({name: None for row in rows for name in row})


def _require(columns: ColumnNames, names: tuple[str, ...], path: Path) -> ColumnNames:
    if columns.reward is None:
        raise InputError(
            f"{path} has no column that is known to be a reward; its columns are {list_names(names)}.",
            hint="Name it: --reward-column NAME.",
        )
    if key_of(columns) is None:
        raise InputError(
            f"{path} has no column to group rollouts by; its columns are {list_names(names)}.",
            hint="Name one: --group-column NAME, or --prompt-column NAME.",
        )
    return columns


def _describe(files: tuple[Path, ...]) -> str:
    kinds = sorted({(suffix_of(file) or ".jsonl").removeprefix(".") for file in files})
    return f"{' and '.join(kinds)} with a row a rollout, {counted(len(files), 'file')}"


def _inferred(columns: ColumnNames, given: ColumnNames, sample: str | None) -> Iterator[str]:
    roles = [("reward", columns.reward, given.reward), ("step", columns.step, given.step)]
    guessed = [f"{role} from {name!r}" for role, name, named in roles if name is not None and named is None]
    key = key_of(columns)
    if key not in {given.group, given.prompt_id, given.prompt}:
        guessed.append(f"groups from {key!r}")
    if guessed:
        yield f"Columns were guessed by their names: {', '.join(guessed)}."
    if sample is not None:
        yield f"Rollouts of a group are told apart by {sample!r}: a row of the same sample again does not count."
    if key == columns.prompt:
        yield "Rollouts were grouped by the prompt's text; two groups of one prompt at one step would merge."


def _terms(
    rows: Sequence[Mapping[str, Any]], columns: ColumnNames, names: Sequence[str]
) -> tuple[str | None, Mapping[str, float]]:
    """A reward that is a weighted sum of columns, and these: the reward, or one of which the reward is a part."""
    usual = resolve_columns(names, ColumnNames()).reward
    if usual not in (None, columns.reward):
        terms = summed_columns(rows, dataclasses.replace(columns, reward=usual), names)
        if columns.reward in terms:
            return usual, terms
    return columns.reward, summed_columns(rows, columns, names)


def _sum_inferred(total: str | None, terms: Mapping[str, float]) -> Iterator[str]:
    if terms:
        text = " + ".join(f"{weight:g} {name}" for name, weight in terms.items()).replace("+ -", "- ")
        yield f"{total!r} is the weighted sum of other columns, its reward functions: {text}."


FORMAT = Format(
    name="generic",
    looks_for="rows with a reward, a group or prompt, and a step (any JSONL, Parquet or CSV)",
    recognizes=_recognizes,
    read=_read,
    takes=frozenset({"columns"}),
)
