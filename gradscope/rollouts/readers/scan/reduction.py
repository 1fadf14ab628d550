"""A log of any size reduced to its rewards: block after block of its files, on all cores, in bounded memory.

A plain row is never an object. An odd one goes to the row reader, so that the answers are those of the row reader
whatever the files hold: a bad line costs its line, a Parquet or CSV file with an odd row is read row by row. Where more
than rewards is asked for, the rollouts of a step are read back by the row reader from where they lie.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradscope.errors import InputError
from gradscope.outside.plain_json import parse_json
from gradscope.progress import ProgressCallback, no_progress
from gradscope.rollouts.arrays import to_strings
from gradscope.rollouts.groups import GroupsOfTable, GroupsOnDisk
from gradscope.rollouts.readers.parsing.grouping import Record, build_groups
from gradscope.rollouts.readers.parsing.jsonl import COMPRESSED, parse_line
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.parsing.request import EarlierLooks, ReadRequest
from gradscope.rollouts.readers.parsing.tables import Row
from gradscope.rollouts.readers.scan.cut_lines import Lines
from gradscope.rollouts.readers.scan.line_columns import LineColumns
from gradscope.rollouts.readers.scan.line_queries import LineQueries
from gradscope.rollouts.readers.scan.lines import ScannedLines, lines_of_groups, scan_lines
from gradscope.rollouts.readers.scan.parts import (
    PLACES_A_FILE,
    Part,
    part_of_records,
    repeated_samples,
    replaced_groups,
)
from gradscope.rollouts.readers.scan.prompts import Prompts
from gradscope.rollouts.readers.scan.so_far import ReadSoFar
from gradscope.rollouts.readers.scan.spans import StepSpans
from gradscope.rollouts.readers.scan.table_files import CellColumns, scan_table_file
from gradscope.rollouts.readers.scan.whole import Whole
from gradscope.rollouts.readers.scan.workers import Block, FileBlock, LineBlock, Workers, blocks_of
from gradscope.rollouts.reward_table import RewardTable
from gradscope.rollouts.types import RolloutGroup, group_name

MIN_BYTES = 64 << 20
"""Logs below this are read row by row: it takes a few seconds at most, and keeps the text."""
_EXPANSION = 10
"""What a compressed file is taken to hold, in its sizes on disk: rollouts of one prompt are alike and compress well."""
_ROWS = 1 << 13
"""Rows of the row reader that are objects at once."""
_MEGABYTE = 1 << 20
FileRow = tuple[Path, Row]
"""A row and its file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnLog:
    """A log whose plain rows are read as columns."""

    files: Sequence[Path]
    """Its files, in order."""
    columns: tuple[str, ...]
    """The columns that every part of it has, as :class:`Part` names them."""
    declared: Callable[[Path], LineColumns | CellColumns | None]
    """How a file is read; None: by the row reader alone."""
    rows: Callable[[Path, QuarantineLog], Iterable[Row]]
    """The row reader's rows of a file; what is no row goes to the quarantine."""
    records: Callable[[Path, Iterable[Row], QuarantineLog], Iterable[Record]]
    """The row reader's rollouts of some rows of a file; likewise."""
    together: Callable[[Sequence[FileRow]], Iterable[Record]] | None = None
    """The row reader's rollouts of rows that it reads together, as those of a step, where these may depend on one
    another; None: as ``records`` does."""
    quarantine: QuarantineLog = field(default_factory=QuarantineLog)
    """What is set aside."""
    repeats: Callable[[RewardTable], NDArray[np.bool_]] | None = None
    """In which groups a rollout may be logged twice, [J], where a table tells; None: ``sample`` of its columns does."""


def is_large(files: Iterable[Path]) -> bool:
    """Whether files are worth a reduction: from ``MIN_BYTES`` on."""
    return sum(file.stat().st_size * (_EXPANSION if file.suffix in COMPRESSED else 1) for file in files) >= MIN_BYTES


def reduced_groups(
    log: ColumnLog, request: ReadRequest, judged: Callable[[RewardTable], RewardTable | None] = lambda table: table
) -> GroupsOfTable | None:
    """The groups of a large log: with rewards alone where nothing else is asked for, else on disk.

    Args:
        log: What to read, and how.
        request: What is asked for.
        judged: A last look at the whole; None: the log has to be read row by row after all.

    Returns:
        The groups; None where the log has to be read row by row, or its steps lie so that this is cheaper.
    """
    if request.rewards_only:
        table = judged(reduce_log(log, request.progress, request.so_far))
        if table is None and request.so_far is not None:
            request.so_far.forget()  # the next look would not see again what this one was judged by
        return None if table is None else GroupsOfTable(table)
    if any(log.declared(file) is None for file in log.files):
        return None
    spans = StepSpans()
    table = judged(reduce_log(log, request.progress, spans=spans))
    if table is None or not spans.is_cheap(log.files):
        return None
    return GroupsOnDisk(table, lambda step: _groups_of_step(log, spans, step))


def _groups_of_step(log: ColumnLog, spans: StepSpans, step: int) -> Sequence[RolloutGroup]:
    rows = list(spans.rows_around(step, log.files, log.rows))
    return build_groups((record for record in _together(log, rows) if record.step == step), QuarantineLog())


def _together(log: ColumnLog, rows: Sequence[FileRow]) -> Iterable[Record]:
    """The row reader's rollouts of rows; nothing is set aside, for that was done before."""
    if log.together is not None:
        return log.together(rows)
    nobody = QuarantineLog()
    return (record for file, row in rows for record in log.records(file, [row], nobody))


def reduce_log(
    log: ColumnLog,
    progress: ProgressCallback = no_progress,
    so_far: EarlierLooks | None = None,
    spans: StepSpans | None = None,
) -> RewardTable:
    """Reduce a log to its rewards.

    Args:
        log: What to read, and how.
        so_far: What earlier looks have read of it; takes in what this one reads.
        spans: Takes in where the rows of each step lie; not with ``so_far``.
        progress: Told after each block how many MB are done, of how many, and how many rollouts there were so far.

    Returns:
        Its table; empty where no row can be used.
    """
    with Workers() as workers:
        whole = Whole(log.columns)
        for part in _parts(log, workers, progress, so_far, spans):
            whole.add(part)
        if whole.is_empty:
            return RewardTable.of_groups(())
        table, sample = whole.table()
        if log.repeats is not None:
            repeated = log.repeats(table)
        else:
            repeated = np.zeros(len(table), dtype=np.bool_) if sample is None else repeated_samples(table, sample)
        if not repeated.any():
            return table
        names = frozenset(table.select(repeated).ids())
        rows = list(_rows_of_groups(log, workers, names))
        records = (record for record in _together(log, rows) if group_name(record.step, record.group) in names)
        return replaced_groups(table, repeated, build_groups(records, log.quarantine))


def parts_of(log: ColumnLog) -> Iterator[Part]:
    """The parts of a log, for a :class:`Whole` here or, pickled, in another process.

    Yields:
        Its groups, part by part; a sample that returns counts each time.
    """
    with Workers() as workers:
        yield from _parts(log, workers, no_progress, None, None)


def _parts(
    log: ColumnLog,
    workers: Workers,
    progress: ProgressCallback,
    memory: EarlierLooks | None,
    spans: StepSpans | None,
) -> Iterator[Part]:
    """The parts of a log, in order; its odd rows are read, or set aside, in their order too."""
    log_grows = isinstance(memory, ReadSoFar)
    so_far = memory if isinstance(memory, ReadSoFar) else ReadSoFar()
    so_far.check(log.files, log.columns)
    yield from so_far.parts
    num_bytes = sum(file.stat().st_size for file in log.files)
    num_rows = sum(int(part.size.sum()) for part in so_far.parts)
    places = _Places({number: so_far.files[file].num_lines for number, file in enumerate(so_far.files)})
    ends = {file: known.end for file, known in so_far.files.items()}
    for block, found in workers.map(blocks_of(log.files, log.declared, ends, log.quarantine), _scan):
        if isinstance(block, LineBlock) and isinstance(found, ScannedLines):
            is_open = block.pieces[-1].is_open
            quarantine = log.quarantine if is_open else so_far.set_aside
            at = places.of(block, found.lines)
            parts = list(_parts_of_lines(log, block, found, at, so_far.prompts, quarantine, spans))
            if not is_open and log_grows:
                so_far.keep(block.pieces, found.lines.lines_of_piece, parts)
        elif isinstance(block, FileBlock):
            parts = found if isinstance(found, list) else list(_parts_of_rows(log, block))
            if spans is not None and parts:
                spans.add_file(block.file, np.concatenate([part.step for part in parts]))
        num_rows += sum(int(part.size.sum()) for part in parts)
        yield from parts
        progress(block.end // _MEGABYTE, num_bytes // _MEGABYTE, f"MB read, {num_rows:,} rollouts")
    order = {str(file): number for number, file in enumerate(log.files)}
    log.quarantine.include(so_far.set_aside, order)


class _Places:
    """The numbers of lines within the log; ``lines`` of a file may have been read before."""

    def __init__(self, lines: Mapping[int, int] = MappingProxyType({})) -> None:
        self._next = {file: file * PLACES_A_FILE + count for file, count in lines.items()}

    def of(self, block: LineBlock, lines: Lines) -> NDArray[np.int64]:
        """Those of a block, which is the next one, [lines]."""
        places = []
        for piece, count in zip(block.pieces, lines.lines_of_piece, strict=True):
            first = self._next.get(piece.file, piece.file * PLACES_A_FILE)
            places.append(first + np.arange(count))
            self._next[piece.file] = first + count
        return np.concatenate(places)


def _scan(queries: LineQueries, block: Block) -> ScannedLines | list[Part] | None:
    if isinstance(block, LineBlock):
        return scan_lines(queries, block.data, block.columns, block.file_steps)
    place = block.file * PLACES_A_FILE
    if block.columns is None:
        return None
    return scan_table_file(queries.connection, block.path, block.columns, place=place)


def _parts_of_lines(
    log: ColumnLog,
    block: LineBlock,
    found: ScannedLines,
    places: NDArray[np.int64],
    prompts: Prompts,
    quarantine: QuarantineLog,
    spans: StepSpans | None,
) -> Iterator[Part]:
    if found.part is not None:
        yield _named(found.part, found, block.columns, places, prompts)
    odd = _objects(log, found.lines, found.odd, places, quarantine)
    rows = [(at, record) for at, file, row in odd for record in log.records(file, [row], quarantine)]
    if rows:
        yield part_of_records(rows, log.columns)
    if spans is not None:
        plain = np.delete(np.arange(len(found.lines)), found.odd)
        others = np.searchsorted(places, np.array([at for at, _ in rows], dtype=np.int64))
        steps = np.array([record.step for _, record in rows], dtype=np.int64)
        spans.add_lines(
            block,
            found.lines,
            places % PLACES_A_FILE,
            rows=np.concatenate([plain, others]),
            step=np.concatenate([found.steps, steps]),
        )


def _named(part: Part, found: ScannedLines, columns: LineColumns, places: NDArray[np.int64], prompts: Prompts) -> Part:
    """The part of a block with the ids of its prompts: of one that was not seen before its first row tells."""
    lines = part.place.tolist()
    id_of = columns.prompt_id
    if callable(id_of):
        prompt = prompts.of(found.prompt, lambda at: id_of(_first_row(found.lines[lines[at]])))
    else:
        ids = found.prompt_ids or ()
        prompt = prompts.of(found.prompt, lambda at: ids[at])
    group = to_strings([prompts.ids[at] for at in prompt.tolist()]) if columns.group_is_prompt else part.group
    return replace(part, prompt=prompt, prompts=prompts.ids, group=group, place=places[part.place])


def _first_row(line: bytes) -> Mapping[str, Any]:
    try:
        row: Mapping[str, Any] = parse_json(line)
    except ValueError as error:  # DuckDB reads it; the reader of single rows would not
        raise InputError(
            f"A line of the log cannot be read: {error}.", hint=f"Take it out; it starts with {line[:60]!r}."
        ) from error
    return row


def _objects(
    log: ColumnLog, lines: Lines, chosen: NDArray[np.int64], places: NDArray[np.int64], quarantine: QuarantineLog
) -> Iterator[tuple[int, Path, Row]]:
    """The objects in some lines of a block, each with its number within the log and its file."""
    for at, place in zip(chosen.tolist(), places[chosen].tolist(), strict=True):
        file, number = divmod(place, PLACES_A_FILE)
        location, row = f"{log.files[file]}:{number + 1}", parse_line(lines[at])
        if isinstance(row, str):
            quarantine.add(row, location)
        else:
            yield place, log.files[file], (location, row)


def _parts_of_rows(log: ColumnLog, block: FileBlock) -> Iterator[Part]:
    records = log.records(block.path, log.rows(block.path, log.quarantine), log.quarantine)
    numbered = enumerate(records, start=block.file * PLACES_A_FILE)
    while some := list(islice(numbered, _ROWS)):
        yield part_of_records(some, log.columns)


def _rows_of_groups(log: ColumnLog, workers: Workers, names: frozenset[str]) -> Iterator[FileRow]:
    """The rows of some groups, in order; nothing is set aside, for that was done before."""

    def scan(queries: LineQueries, block: Block) -> ScannedLines | None:
        if isinstance(block, LineBlock):
            return lines_of_groups(queries, block.data, block.columns, names, block.file_steps)
        return None

    places, nobody = _Places(), QuarantineLog()
    for block, found in workers.map(blocks_of(log.files, log.declared), scan):
        if isinstance(block, LineBlock) and found is not None:
            objects = _objects(log, found.lines, found.odd, places.of(block, found.lines), nobody)
            rows: Iterable[FileRow] = ((file, row) for _, file, row in objects)
        elif isinstance(block, FileBlock):
            rows = ((block.path, row) for row in log.rows(block.path, nobody))
        for file, row in rows:
            records = log.records(file, [row], nobody)
            if any(group_name(record.step, record.group) in names for record in records):
                yield file, row
