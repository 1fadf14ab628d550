"""What a format of logs is, and how files of rows become a run.

A reader declares its format. Most are a :class:`RowFormat`: names of files, the keys of a row, and a function from a
row to its rollouts; recognizing files, walking rows, setting rows aside and assembling the run are done here. A format
that needs more than that (several kinds of files, rows that hold a whole batch) is a :class:`Format` with functions of
its own. A new one takes its declaration and one line in ``detect``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from gradscope.errors import InputError
from gradscope.rollouts.groups import GroupsOfTable, RewardTable
from gradscope.rollouts.readers.parsing.cells import usable_reward
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog, UnusableRowError, WatchedLog
from gradscope.rollouts.readers.parsing.records import ReadRequest, Record, assemble_groups, peek
from gradscope.rollouts.readers.parsing.tables import Row, files_like, read_rows
from gradscope.rollouts.readers.reduction.columns import Cells, Columns, LineColumns, records_in
from gradscope.rollouts.readers.reduction.log import ColumnLog, FileRow, reduced_groups
from gradscope.rollouts.readers.reduction.parts import with_counted_tokens
from gradscope.rollouts.run import Run
from gradscope.say import counted

_NUM_RECOGNIZED = 8  # files that are read to recognize a format: the first ones may be damaged


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A format with functions of its own."""

    name: str  # its name in ``--reader`` and ``Source.format``
    looks_for: str  # what it is recognized by, for messages
    recognizes: Callable[[ReadRequest], bool]  # whether an existing path is of this format
    read: Callable[[ReadRequest], Run]
    takes: frozenset[str] = frozenset()
    """Which options of a request it uses: ``columns`` that are named, or the ``reward_column`` alone;
    ``completion_ids`` in a side file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One reading of a log: its request, and what its rows have shown so far."""

    request: ReadRequest
    files: tuple[Path, ...]  # the files that are read
    quarantine: QuarantineLog = field(default_factory=QuarantineLog)  # rows that were set aside
    noted: set[str] = field(default_factory=set)  # sentences of ``RowFormat.if_noted`` that a row called for
    inferred: list[str] = field(default_factory=list)
    """Further sentences for ``Source.inferred``, after those of the format."""
    missing: list[str] = field(default_factory=list)
    """Further sentences for ``Source.missing``, after those of the format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRow:
    """One row of a log."""

    file: Path
    location: str  # ``file:line``, for the quarantine
    cells: Mapping[str, Any]  # its cells by key
    reading: Reading  # the reading that it is part of

    def reward(self, cell: Any) -> float | None:
        """The number in a cell of this row; without it the row is set aside, but stays in its group as incomplete."""
        return usable_reward(cell, self.location, self.reading.quarantine)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogColumns:
    """How a log is read in one pass, without a ``survey`` of all rows."""

    lines: LineColumns | None = None
    """How its lines become columns; None: ``records`` reads every row by itself."""
    shared: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of ``records``, in place of those that ``survey`` returns."""
    read_back: Callable[[Cells], Columns] | None = None  # reads rows back, where not as ``lines`` does
    lines_hold_many: bool = False  # as for :class:`ColumnLog`
    judged: Callable[[RewardTable], RewardTable | None] = lambda table: table
    """A last check of the table, where it has groups; None from it: survey the log after all, and read it again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFormat:
    """A format whose files hold rows, each row a rollout or several."""

    name: str  # its name in ``--reader`` and ``Source.format``
    looks_for: str  # what it is recognized by, for messages
    title: str  # the kind of log, for ``Source.recognized``: "ART trajectories"
    patterns: tuple[str, ...]
    """Globs from the folder that the trainer writes to down to its files, each as seen from another folder."""
    recognizes_file: Callable[[Path], bool]
    """Whether one of the first of those files is of this format: see :func:`has_keys` and :func:`has_row`."""
    records: Callable[..., Iterable[Record]] | None = None
    """A :class:`LogRow`'s rollouts; raises :class:`UnusableRowError` where the row holds none. None: ``columns`` reads
    the rows."""
    survey: Callable[[Sequence[LogRow], Reading], Mapping[str, Any]] | None = None
    """Looks at all rows before the first is used, where rows depend on one another; returns further arguments of
    ``records``, or of ``columns``."""
    inferred: tuple[str, ...] = ()  # sentences for ``Source.inferred``
    missing: tuple[str, ...] = ()  # sentences for ``Source.missing``
    if_noted: frozenset[str] = frozenset()
    """Those among ``inferred`` and ``missing`` that hold only where a row has noted them."""
    keeps_file: Callable[[Path], bool] | None = None
    """Whether a file that fits a pattern belongs to the log; None: all do."""
    rows_of: Callable[[Path, QuarantineLog], Iterator[Row]] = read_rows  # a file's rows, each with its ``file:line``
    is_one_file: bool = False  # whether a file is a log of its own, so that only the first of several is read
    needs_reward: bool = True  # whether a row without a reward is unusable; False for formats that have none
    completes: Callable[[ReadRequest, Run], Run] | None = None
    """Adds what the trainer left next to its log: arguments, weights, metrics."""
    takes: frozenset[str] = frozenset()  # as for :class:`Format`
    columns: Callable[..., LogColumns | None] | None = None
    """How logs are read in one pass, with the notes that ``survey`` would have made; None: a survey comes first, if
    there is one, and each row is read by itself."""

    def recognizes(self, request: ReadRequest) -> bool:
        """Whether an existing path is of this format."""
        files = self._files(request.path)
        return any(map(self.recognizes_file, files[:_NUM_RECOGNIZED]))

    def read(self, request: ReadRequest) -> Run:
        """Read all rows of all files into a run; no usable row at all is an :class:`InputError`."""
        files = self._files(request.path)[: 1 if self.is_one_file else None]
        reading = Reading(request=request, files=files, quarantine=WatchedLog(request.progress, files))
        columns = LogColumns() if self.survey is None else None
        if self.columns is not None:
            columns = self.columns(reading)
        groups = None if columns is None else self._reduced(reading, columns)
        if groups is None:
            reading = Reading(request=request, files=files, quarantine=WatchedLog(request.progress, files))
            silent = replace(reading, quarantine=QuarantineLog())
            rows = [
                LogRow(file=file, location=location, cells=cells, reading=silent)
                for file in (files if self.survey is not None else ())
                for location, cells in self._rows_in(file, silent.quarantine)
            ]
            shared = {} if self.survey is None else self.survey(rows, reading)
            columns = LogColumns(shared=shared)
            if self.columns is not None and self.records is None:
                columns = self.columns(reading, **shared)
            assert columns is not None  # a reading after a survey is not judged
            groups = self._reduced(reading, columns)
        assert groups is not None
        run = assemble_groups(
            request,
            groups=groups,
            quarantine=reading.quarantine,
            format=self.name,
            recognized=self.title if self.is_one_file else f"{self.title}, {counted(len(reading.files), 'file')}",
            inferred=(*self._applicable(self.inferred, reading), *reading.inferred),
            missing=(*self._applicable(self.missing, reading), *reading.missing),
            files=reading.files,
            needs_reward=self.needs_reward,
        )
        return run if self.completes is None else self.completes(request, run)

    def _files(self, path: Path) -> tuple[Path, ...]:
        files = files_like(path, *self.patterns)
        return files if self.keeps_file is None else tuple(filter(self.keeps_file, files))

    def _applicable(self, sentences: Iterable[str], reading: Reading) -> Iterator[str]:
        return (sentence for sentence in sentences if sentence not in self.if_noted or sentence in reading.noted)

    def _reduced(self, reading: Reading, columns: LogColumns) -> GroupsOfTable | None:
        """The groups of a log; None: it has to be surveyed first."""
        take = None if columns.lines is None or self.records is not None else columns.lines.of_cells

        def records(file: Path, rows: Iterable[Row], quarantine: QuarantineLog) -> Iterator[tuple[int, Record]]:
            if take is not None:
                return records_in(take, file, rows, quarantine, reading.noted.add)
            of_rows = replace(reading, quarantine=quarantine)
            numbered = self._records(((file, row) for row in rows), of_rows, columns.shared)
            return ((row_number, with_counted_tokens(record)) for row_number, record in numbered)

        def together(rows: Iterable[FileRow]) -> Iterator[Record]:
            discarded, take = QuarantineLog(), columns.read_back
            if take is None:
                of_rows = replace(reading, quarantine=discarded)
                return (record for _, record in self._records(rows, of_rows, columns.shared))
            of_files = ((file, [row for _, row in group]) for file, group in groupby(rows, key=itemgetter(0)))
            return (record for file, group in of_files for _, record in records_in(take, file, group, discarded))

        log = ColumnLog(
            files=reading.files,
            declared=lambda _: columns.lines,
            rows=self._rows_in,
            records=records,
            together=together if take is None or columns.read_back is not None else None,
            quarantine=reading.quarantine,
            note=reading.noted.add,
            lines_hold_many=columns.lines_hold_many,
            keys=() if columns.lines is None else columns.lines.row.__struct_encode_fields__,
        )
        return reduced_groups(log, reading.request, lambda table: columns.judged(table) if len(table) else table)

    def _records(
        self, rows: Iterable[FileRow], reading: Reading, shared: Mapping[str, Any]
    ) -> Iterator[tuple[int, Record]]:
        """The rollouts of rows, each read by itself, with the numbers of their rows."""
        assert self.records is not None
        for row_number, (file, (location, cells)) in enumerate(rows):
            row = LogRow(file=file, location=location, cells=cells, reading=reading)
            try:
                yield from ((row_number, record) for record in self.records(row, **shared))
            except UnusableRowError as error:
                reading.quarantine.add(str(error), location)

    def _rows_in(self, file: Path, quarantine: QuarantineLog) -> Iterator[Row]:
        """The rows of a file; one that cannot be read to its end is set aside from there on."""
        try:
            yield from self.rows_of(file, quarantine)
        except InputError as error:
            quarantine.lose(error)


def has_keys(*keys: str) -> Callable[[Path], bool]:
    """A test of a file: one of its first rows has all these keys."""
    return has_row(lambda row: row.keys() >= set(keys))


def has_row(fits: Callable[[Mapping[str, Any]], bool]) -> Callable[[Path], bool]:
    """A test of a file: one of its first rows passes a test of rows."""
    return lambda file: any(map(fits, peek(file)))
