"""A log of any size reduced to its rewards, in blocks, on all cores and in bounded memory.

Usual rows never become objects; the others go to the row reader. Where more than rewards is needed, the rollouts of a
step are read back from the stretches of the files in which they lie.
"""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import chain, count, groupby, islice, repeat, starmap
from operator import itemgetter
from pathlib import Path
from typing import cast

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from gradscope.errors import InputError
from gradscope.outside.limits import allowed, raise_limits
from gradscope.progress import ProgressCallback, no_progress
from gradscope.rollouts.arrays import Flags
from gradscope.rollouts.groups import GroupsOfTable, GroupsOnDisk, RewardTable, RolloutGroup, group_name
from gradscope.rollouts.listing import COMPRESSED
from gradscope.rollouts.readers.parsing import tables
from gradscope.rollouts.readers.parsing.columnar import parquet_rows_in
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.parsing.records import ReadRequest, Record, build_groups
from gradscope.rollouts.readers.reduction.columns import (
    Cells,
    Columns,
    LineColumns,
    ListColumns,
    Note,
    TableColumns,
    line_columns,
    records_in,
)
from gradscope.rollouts.readers.reduction.lines import IrregularRow, Scanned, Span
from gradscope.rollouts.readers.reduction.parts import (
    ROWS_A_FILE,
    Part,
    merge_parts,
    part_of_records,
    repeated_samples,
    replaced_groups,
    with_counted_tokens,
)
from gradscope.rollouts.readers.reduction.processes import Declared, expanded_size, scan_files

_MARK = 256  # bytes at the start of a file, and before the end of what was read, by which a grown file is recognized


class FileSoFar(Struct, frozen=True, kw_only=True):
    """How far a file of JSON lines has been read."""

    end: int  # bytes: the end of its last whole line
    num_lines: int  # lines up to that end
    inode: int  # a file that replaces it has another
    mtime_ns: int
    marks: tuple[bytes, bytes]  # its first bytes, and the last that were read


class ReadSoFar:
    """The parts of a growing log, kept between reads; nothing is kept of a log with compressed or other files."""

    def __init__(self) -> None:
        self._keys: tuple[str, ...] = ()
        self.forget()

    def forget(self) -> None:
        """Forget everything."""
        self.files: dict[Path, FileSoFar] = {}
        self.parts: list[Part] = []
        self.set_aside = QuarantineLog()

    def check(self, files: Sequence[Path], keys: tuple[str, ...]) -> None:
        """Forget everything unless the log is the one that was read, at most grown."""
        read = list(self.files)
        if keys != self._keys or read != list(files[: len(read)]) or not all(starmap(_has_grown, self.files.items())):
            self.forget()
        self._keys = keys

    def keep(self, path: Path, end: int, num_lines: int, part: Part | None) -> None:
        """Add the part of a block of whole lines, which ends at byte ``end`` of the file."""
        self.parts += [] if part is None else [part]
        before, stat = self.files.get(path), path.stat()
        self.files[path] = FileSoFar(
            end=end,
            num_lines=num_lines + (0 if before is None else before.num_lines),
            inode=stat.st_ino,
            mtime_ns=stat.st_mtime_ns,
            marks=_marks(path, end),
        )


def _has_grown(path: Path, so_far: FileSoFar) -> bool:
    try:
        stat = path.stat()
        size, mtime_ns = stat.st_size, stat.st_mtime_ns
        is_unchanged = (size, mtime_ns) == (so_far.end, so_far.mtime_ns)
        is_same = path.suffix not in COMPRESSED and stat.st_ino == so_far.inode
        return is_same and (size > so_far.end or is_unchanged) and _marks(path, so_far.end) == so_far.marks
    except OSError:
        return False


def _marks(path: Path, end: int) -> tuple[bytes, bytes]:
    with path.open("rb") as stream:
        first = stream.read(min(_MARK, end))
        stream.seek(max(0, end - _MARK))
        return first, stream.read(min(_MARK, end))


MAX_WITH_TEXTS = 64 << 20
"""Bytes of a log up to which the texts of its prompts are stored with its rewards. In larger logs the texts would take
more memory than all the rest, so prompts have only ids."""
_ROWS = 1 << 13  # rows of the row reader that are held as objects at a time
_MEGABYTE = 1 << 20
FileRow = tuple[Path, tables.Row]  # a row and its file


class ColumnLog(Struct, frozen=True, kw_only=True):
    """A log whose usual rows are read as columns: what a format declares."""

    files: Sequence[Path]  # its files, in order
    rows: Callable[[Path, QuarantineLog], Iterable[tables.Row]]
    """The row reader: the rows of a file; what cannot be read goes to the quarantine."""
    to_columns: Callable[[Cells], Columns]  # interprets the cells of rows
    keys: Sequence[str] = ()
    """The keys that are read, which makes files of usual kinds columns; none: all rows go to the row reader."""
    raw: Sequence[str] = ()  # further keys, whose cells are long and stay undecoded until they are needed
    looks_at_path: bool = False  # whether the meaning of cells depends on the name of the file
    may_be_nan: Sequence[str] = ()  # those of numbers, or objects of numbers, of which NaN says as little as null
    declared: Declared | None = None  # how a file becomes columns, where ``keys`` do not suffice
    read_back: Callable[[Cells], Columns] | None = None
    """Replaces ``to_columns`` where the rollouts of a step are read back; None: ``to_columns``."""
    build_records: Callable[[Sequence[FileRow]], Iterable[Record]] | None = None
    """The rollouts of rows that depend on one another, as those of a step may; None: ``to_columns``."""
    quarantine: QuarantineLog = field(default_factory=QuarantineLog)  # receives what is set aside
    note: Callable[[Note], object] = lambda _: None  # called with each note on the log
    lines_hold_many: bool = False  # whether a line that is set aside counts as many rollouts as the mean line holds
    max_rollouts: float = math.inf  # limit on rollouts: a few digits may declare a million
    repeats: Callable[[RewardTable], Flags] | None = None
    """Which groups may log a rollout twice, [J], judged by the table; None: judged by ``sample``."""
    needs_texts: bool = False  # whether ``validate`` looks at the texts of prompts, which large tables go without
    validate: Callable[[RewardTable], RewardTable | None] = lambda table: table
    """A last check of the table; returns None where the log has to be read in another way."""

    @property
    def columns_of(self) -> Declared:
        """How a file becomes columns."""
        if self.declared is not None:
            return self.declared
        if not (self.keys or self.raw):
            return lambda _: None
        lines = line_columns(
            self.to_columns, self.keys, self.raw, looks_at_path=self.looks_at_path, may_be_nan=self.may_be_nan
        )
        table = TableColumns(names=tuple(self.keys), texts=tuple(self.raw), to_columns=self.to_columns)
        of_list = None if lines is None else ListColumns(lines=lines)
        by_suffix = {".json": of_list, **dict.fromkeys((".parquet", ".arrow", ".csv", ".tsv"), table)}
        return lambda file: by_suffix.get(tables.suffix_of(file) or "", lines)

    def records(
        self, file: Path, rows: Iterable[tables.Row], quarantine: QuarantineLog
    ) -> Iterator[tuple[int, Record]]:
        """The rollouts of some rows of a file, tokens counted but not kept, each with the index of its row."""
        records = records_in(self.to_columns, file, rows, quarantine, self.note)
        return ((number, with_counted_tokens(record)) for number, record in records)

    def limited(self, parts: Iterable[Part]) -> Iterator[Part]:
        """The parts of the log; raises once they have more rollouts than the limit."""
        num_rollouts = 0
        for part in parts:
            num_rollouts += int(part.size.sum())
            if num_rollouts > self.max_rollouts:
                raise too_many_rollouts(self.files[0], int(self.max_rollouts))
            yield part


def too_many_rollouts(path: Path, limit: int) -> InputError:
    """The error for a file whose rows hold, or declare, more rollouts than the limit."""
    message = f"{path} holds more than {limit:,} samples, which its counts declare or its lists have."
    return InputError(message, hint=raise_limits(path))


_MAX_PASSES = 4
"""How many times its size may be read to read all steps of a log one by one. Where steps are interleaved, or share a
compressed file, reading all rows at once costs less."""
_FEW_STEPS = 16  # steps of Parquet for each of which its row group is decoded, a thirtieth of making it objects


class StepSpans:
    """Where the rows of each step lie, so that one step can be read back without the rest.

    A stretch for each step and block, never one for each row: a log that goes from step to step has about as many as it
    has blocks and steps.
    """

    def __init__(self) -> None:
        self._of_step: dict[int, list[tuple[int, Span | None]]] = {}
        """Step -> files and the stretch of each, numbered by lines of the file; None: all of a file without lines."""

    def add(self, file: int, first: int, usual: Iterable[Span], irregular: Iterable[Span]) -> None:
        """Add a block: ``first`` is the number of its first line, ``usual`` has a span a step, ``irregular`` a row."""
        of_step = {span.step: span for span in usual}
        for span in irregular:
            span_of_step = of_step.get(span.step, span)
            of_step[span.step] = Span(
                step=span.step,
                start=min(span_of_step.start, span.start),
                end=max(span_of_step.end, span.end),
                line=min(span_of_step.line, span.line),
            )
        for span in of_step.values():
            in_file = replace(span, line=first + span.line + 1)
            self._of_step.setdefault(span.step, []).append((file, in_file))

    def add_file(self, file: int, steps: Iterable[int]) -> None:
        """Add a file without lines, or some of its rows, by their steps."""
        for number in dict.fromkeys(steps):
            spans = self._of_step.setdefault(number, [])
            if not spans or spans[-1] != (file, None):
                spans.append((file, None))

    def is_cheap(self, files: Sequence[Path], *, decoded: bool = False) -> bool:
        """Whether reading the steps one by one costs about as much as reading the log once.

        ``decoded`` counts the rows of Parquet that become objects, which cost far more than what lies before them.
        """
        lengths = dict.fromkeys(range(len(files)), 0)
        cost = 0
        for file, span in chain.from_iterable(self._of_step.values()):
            start, end = (0, files[file].stat().st_size) if span is None else (span.start, span.end)
            if span is not None and decoded and tables.is_columnar(files[file]):
                start = span.line - 1
            lengths[file] = max(lengths[file], end)
            cost += end - (0 if files[file].suffix in COMPRESSED else start)
        return cost <= _MAX_PASSES * sum(lengths.values())

    def rows_around(
        self, step: int, files: Sequence[Path], rows: Callable[[Path, QuarantineLog], Iterable[tables.Row]]
    ) -> Iterator[tuple[Path, tables.Row]]:
        """The rows in the stretches of a step, those of other steps included, in order, each with its file."""
        for number, span in self._of_step.get(step, ()):
            file = files[number]
            if span is None:
                read = iter(rows(file, QuarantineLog()))
            elif tables.is_columnar(file):
                read = parquet_rows_in(file, span.line - 1, span.end)
            elif tables.is_untyped(file):
                read = tables.csv_rows_in(file, span.start, span.end, span.line)
            else:
                stretch = enumerate(io.BytesIO(tables.read_span(file, span.start, span.end)), start=span.line)
                parsed = ((f"{file}:{number}", tables.parse_line(line)) for number, line in stretch)
                read = ((location, row) for location, row in parsed if not isinstance(row, str))
            yield from ((file, row) for row in read)


def reduced_groups(log: ColumnLog, request: ReadRequest) -> GroupsOfTable | None:
    """The groups of a log, of rewards alone if no more is requested, else on disk; None if ``validate`` says so."""
    if request.rewards_only:
        table = log.validate(reduce_log(log, request.progress, request.so_far))
        if table is None and request.so_far is not None:
            request.so_far.forget()  # a later read has to see all rows again to come to the same judgement
        if table is None:
            return None
        return GroupsOfTable(table if request.measured == "samples" else replace(table, sample=None))
    spans = StepSpans()
    table = log.validate(reduce_log(log, request.progress, spans=spans))
    if table is None:
        return None

    def groups_of(rows: Sequence[FileRow], step: int | None) -> Sequence[RolloutGroup]:
        records = (record for record in _together(log, rows) if step in (None, record.step))
        return build_groups(records, QuarantineLog())

    def rows_again(file: Path, quarantine: QuarantineLog) -> Iterator[tables.Row]:
        yield from log.rows(file, quarantine)
        quarantine.raise_unreadable(log.quarantine)  # a scan of columns needs less memory than their rows

    return groups_on_disk(table, spans, log.files, rows_again, groups_of)


def groups_on_disk(
    table: RewardTable,
    spans: StepSpans,
    files: Sequence[Path],
    rows: Callable[[Path, QuarantineLog], Iterable[tables.Row]],
    groups_of: Callable[[Sequence[FileRow], int | None], Sequence[RolloutGroup]],
) -> GroupsOnDisk:
    """Groups that are read back from the stretches of their step; all at once where steps are interleaved.

    So are those of Parquet with many steps in a row group, but for the first few that are asked for.
    """

    def of_step(step: int) -> Sequence[RolloutGroup]:
        return groups_of(list(spans.rows_around(step, files, rows)), step)

    if spans.is_cheap(files):
        return GroupsOnDisk(table, of_step)
    num_alone = count() if spans.is_cheap(files, decoded=True) else repeat(_FEW_STEPS)

    @cache
    def by_step() -> dict[int, list[RolloutGroup]]:
        all_rows = [(file, row) for file in files for row in rows(file, QuarantineLog())]
        groups_by_step: dict[int, list[RolloutGroup]] = {}
        for group in groups_of(all_rows, None):
            groups_by_step.setdefault(group.step, []).append(group)
        return groups_by_step

    def read(step: int) -> Sequence[RolloutGroup]:
        return of_step(step) if next(num_alone) < _FEW_STEPS else by_step().get(step, [])

    return GroupsOnDisk(table, read, reads_all=True)


def _together(log: ColumnLog, rows: Sequence[FileRow]) -> Iterable[Record]:
    """The rollouts of rows; what is set aside was counted when the log was reduced."""
    if log.build_records is not None:
        return log.build_records(rows)
    to_columns, nobody = log.read_back or log.to_columns, QuarantineLog()
    of_files = ((file, [row for _, row in group]) for file, group in groupby(rows, key=itemgetter(0)))
    return (record for file, group in of_files for _, record in records_in(to_columns, file, group, nobody))


def reduce_log(
    log: ColumnLog,
    progress: ProgressCallback = no_progress,
    so_far: ReadSoFar | None = None,
    spans: StepSpans | None = None,
) -> RewardTable:
    """The table of a log, empty where no row can be used; ``spans`` collects where the rows of each step lie."""
    is_small = sum(map(expanded_size, log.files)) <= MAX_WITH_TEXTS
    with_texts = log.needs_texts or spans is not None or is_small
    table = merge_parts(log.limited(_parts(log, progress, so_far, spans, with_texts=with_texts)))
    if not len(table) or (log.repeats is None and table.sample is None):
        return table
    repeated = repeated_samples(table, np.asarray(table.sample)) if log.repeats is None else log.repeats(table)
    if not repeated.any():
        return table
    # These groups are built again from their rollouts, of which repeated ones are dropped.
    names, nobody = frozenset(table.select(repeated).ids()), QuarantineLog()

    def is_wanted(record: Record) -> bool:
        return group_name(record.step, record.group) in names

    rows: list[FileRow] = []
    for file in log.files:
        all_rows = iter(log.rows(file, nobody))
        while next_rows := list(islice(all_rows, _ROWS)):
            wanted = dict.fromkeys(
                position for position, record in log.records(file, next_rows, nobody) if is_wanted(record)
            )
            rows += [(file, next_rows[position]) for position in wanted]
    return replaced_groups(table, repeated, build_groups(filter(is_wanted, _together(log, rows)), log.quarantine))


def _parts(
    log: ColumnLog, progress: ProgressCallback, memory: ReadSoFar | None, spans: StepSpans | None, *, with_texts: bool
) -> Iterator[Part]:
    """The parts of a log in order, irregular rows included."""
    so_far = ReadSoFar() if memory is None else memory
    so_far.check(log.files, (*log.keys, *log.raw))
    yield from so_far.parts
    sizes = [file.stat().st_size for file in log.files]
    num_rows = sum(int(part.size.sum()) for part in so_far.parts)
    number_of = {file: number for number, file in enumerate(log.files)}
    lines = Counter({number_of[file]: file_so_far.num_lines for file, file_so_far in so_far.files.items()})
    ends = {number_of[file]: file_so_far.end for file, file_so_far in so_far.files.items()}
    *before, num_bytes = np.cumsum([0, *sizes]).tolist()
    flawed = Counter[int]()
    columns_of = log.columns_of
    scan = scan_files(log.files, columns_of, ends, with_texts=with_texts)
    for kind, blocks in groupby(scan, key=type):
        if kind is int:
            for part in _parts_of_rows(log, cast("Iterator[int]", blocks), spans, with_texts=with_texts):
                num_rows += int(part.size.sum())
                yield part
            continue
        for scanned in cast("Iterator[Scanned]", blocks):
            number, path = scanned.file, log.files[scanned.file]
            if flawed[number] > allowed(tables.MAX_FLAWED):
                continue
            quarantine = log.quarantine if scanned.is_open else so_far.set_aside
            of_block = _part_of(log, scanned, lines[number], quarantine, spans, with_texts=with_texts)
            lines[number] += scanned.num_rows
            run, edge = 0, scanned.num_rows  # lines without a row in succession, up to the end of what was read
            for row in reversed(scanned.irregular):
                if isinstance(row.row, dict) or (row.index + row.count < edge and run):
                    break
                run, edge = run + row.count, row.index
            flawed[number] = run + (0 if edge else flawed[number])
            if flawed[number] > allowed(tables.MAX_FLAWED):
                first = lines[number] - flawed[number] + 1
                message = f"{path} has no row in {allowed(tables.MAX_FLAWED):,} lines from line {first} on."
                quarantine.add_unreadable(InputError(message, hint=raise_limits(path)))
            if memory is not None and not scanned.is_open and isinstance(columns_of(path), LineColumns):
                so_far.keep(path, scanned.end, scanned.num_rows, of_block)
            if of_block is not None:
                num_rows += int(of_block.size.sum())
                yield of_block
            if scanned.part is not None or scanned.irregular:
                end = before[number] + (0 if path.suffix in COMPRESSED else scanned.end)
                progress(end // _MEGABYTE, num_bytes // _MEGABYTE, f"MB read, {num_rows:,} rollouts")
    log.quarantine.include(so_far.set_aside, {str(file): number for number, file in enumerate(log.files)})


def _part_of(
    log: ColumnLog,
    scanned: Scanned,
    first: int,
    quarantine: QuarantineLog,
    spans: StepSpans | None,
    *,
    with_texts: bool,
) -> Part | None:
    """The groups of a block, irregular rows included; ``first`` is the number of lines of the file before it."""
    path = log.files[scanned.file]
    if scanned.lost is not None:
        quarantine.add_unreadable(scanned.lost)
    for note in scanned.noted:
        log.note(note)
    records: list[tuple[int, Record]] = []
    irregular_spans: list[Span] = []
    rows: list[tuple[IrregularRow, tables.Row]] = []
    of_lines = quarantine.for_lines() if log.lines_hold_many else quarantine
    num_irregular = sum(row.count for row in scanned.irregular)
    num_rollouts = 0 if scanned.part is None else int(scanned.part.size.sum())
    quarantine.count_rollouts(num_rollouts, scanned.num_rows - num_irregular)
    for row in scanned.irregular:
        location = f"{path}:{first + row.index + 1}"
        if isinstance(row.row, str):
            of_lines.add(row.row, location, row.count)
        else:
            rows.append((row, (location, row.row)))
    for index, record in log.records(path, [row for _, row in rows], quarantine):
        irregular = rows[index][0]
        records.append((irregular.index, record))
        irregular_spans.append(Span(step=record.step, start=irregular.start, end=irregular.end, line=irregular.index))
    part = (
        part_of_records(records, scanned.part, scanned.row_numbers, with_texts=with_texts) if records else scanned.part
    )
    if spans is not None and scanned.is_document:
        spans.add_file(scanned.file, [span.step for span in scanned.spans or ()])
    elif spans is not None and scanned.spans is not None:
        spans.add(scanned.file, first, scanned.spans, irregular_spans)
    elif spans is not None and part is not None:
        spans.add_file(scanned.file, part.step.tolist())
    if scanned.is_of_several:
        return part
    return None if part is None else replace(part, first_row=part.first_row + scanned.file * ROWS_A_FILE + first)


def _parts_of_rows(
    log: ColumnLog, files: Iterable[int], spans: StepSpans | None, *, with_texts: bool
) -> Iterator[Part]:
    """The groups of files for the row reader, by their numbers; small files share a part."""

    def records_of(file: int) -> Iterator[tuple[int, Record]]:
        path, quarantine = log.files[file], log.quarantine
        rows = log.rows(path, quarantine.for_lines() if log.lines_hold_many else quarantine)
        for number, (_, record) in enumerate(log.records(path, rows, quarantine), start=file * ROWS_A_FILE):
            if spans is not None:
                spans.add_file(file, (record.step,))
            yield number, record

    records = chain.from_iterable(map(records_of, files))
    while numbered_records := list(islice(records, _ROWS)):
        yield part_of_records(numbered_records, with_texts=with_texts)
