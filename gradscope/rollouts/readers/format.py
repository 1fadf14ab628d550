"""What a format of logs is, and how files of rows become a run.

A reader declares its format. Most are a :class:`RowFormat`: names of files, the keys of a row, and a function from a
row to its rollouts; recognizing files, walking rows, setting rows aside and assembling the run are done here. A format
that needs more than that (several kinds of files, rows that hold a whole batch) is a :class:`Format` with functions of
its own. A new one takes its declaration and one line in ``detect``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog, WatchedLog
from gradscope.rollouts.readers.parsing.records import ReadRequest, assemble_groups, peek
from gradscope.rollouts.readers.parsing.tables import Row, files_like, read_rows
from gradscope.rollouts.readers.reduction.columns import Cells, Columns, Note
from gradscope.rollouts.readers.reduction.log import ColumnLog, reduced_groups
from gradscope.rollouts.run import Run
from gradscope.say import counted

_NUM_RECOGNIZED = 8  # files that are read to recognize a format: the first ones may be damaged


class Format(Struct, frozen=True, kw_only=True):
    """A format with functions of its own."""

    name: str  # its name in ``--reader`` and ``Source.format``
    recognizes: Callable[[ReadRequest], bool]  # whether an existing path is of this format
    read: Callable[[ReadRequest], Run]
    takes: frozenset[str] = frozenset()
    """Which options of a request it uses: ``columns`` that are named, or the ``reward_column`` alone;
    ``completion_ids`` in a side file."""


class IfNoted(str):
    """A sentence for ``Source.inferred`` or ``Source.missing`` that holds only where a row has noted it."""


class Reading(Struct, frozen=True, kw_only=True):
    """One reading of a log: its request, and what its rows have shown so far."""

    request: ReadRequest
    files: tuple[Path, ...]  # the files that are read
    rows: Callable[[Path, QuarantineLog], Iterator[Row]]  # the rows of each
    quarantine: QuarantineLog = field(default_factory=QuarantineLog)  # rows that were set aside
    noted: set[Note] = set()  # what rows called for, each :class:`IfNoted` among it
    inferred: list[str] = []
    """Further sentences for ``Source.inferred``, after those of the format."""
    missing: list[str] = []
    """Further sentences for ``Source.missing``, after those of the format."""

    def log(self, to_columns: Callable[[Cells], Columns], **fields: Any) -> ColumnLog:
        """How its rows become columns, whose cells mean what ``to_columns`` says; ``how`` are further fields."""
        quarantine, note = self.quarantine, self.noted.add
        return ColumnLog(
            files=self.files, rows=self.rows, quarantine=quarantine, note=note, to_columns=to_columns, **fields
        )


def interpreted_by(to_columns: Callable[[Cells], Columns], **fields: Any) -> Callable[[Reading], ColumnLog]:
    """:meth:`Reading.log` of each reading."""
    return lambda reading: reading.log(to_columns, **fields)


class RowFormat(Struct, frozen=True, kw_only=True):
    """A format whose files hold rows, each row a rollout or several."""

    name: str  # its name in ``--reader`` and ``Source.format``
    title: str  # the kind of log, for ``Source.recognized``: "ART trajectories"
    patterns: tuple[str, ...]
    """Globs from the folder that the trainer writes to down to its files, each as seen from another folder."""
    recognizes_file: Callable[[Path], bool]
    """Whether one of the first of those files is of this format: see :func:`has_keys` and :func:`has_row`."""
    columns: Callable[..., ColumnLog | None]
    """How a :class:`Reading` is done, mostly :func:`interpreted_by`; None: ``survey`` has to look at all rows first."""
    survey: Callable[[Sequence[Row], Reading], Mapping[str, Any]] | None = None
    """Looks at all rows before the first is used, where rows depend on one another; returns further arguments of
    ``columns``."""
    inferred: tuple[str, ...] = ()  # sentences for ``Source.inferred``
    missing: tuple[str, ...] = ()  # sentences for ``Source.missing``
    keeps_file: Callable[[Path], bool] | None = None
    """Whether a file that fits a pattern belongs to the log; None: all do."""
    rows_of: Callable[[Path, QuarantineLog], Iterator[Row]] = read_rows  # a file's rows, each with its ``file:line``
    is_one_file: bool = False  # whether a file is a log of its own, so that only the first of several is read
    needs_reward: bool = True  # whether a row without a reward is unusable; False for formats that have none
    completes: Callable[[ReadRequest, Run], Run] | None = None
    """Adds what the trainer left next to its log: arguments, weights, metrics."""
    takes: frozenset[str] = frozenset()  # as for :class:`Format`

    def recognizes(self, request: ReadRequest) -> bool:
        """Whether an existing path is of this format."""
        first = files_like(request.path, *self.patterns)[:_NUM_RECOGNIZED]
        return any(map(self.recognizes_file, self._belonging(first)))

    def read(self, request: ReadRequest) -> Run:
        """Read all rows of all files into a run; no usable row at all is an :class:`InputError`."""
        files = self._belonging(files_like(request.path, *self.patterns))[: 1 if self.is_one_file else None]
        for survey in (None, self.survey):
            quarantine = WatchedLog(request.progress, files)
            reading = Reading(request=request, files=files, rows=self._rows_in, quarantine=quarantine)
            rows = [row for file in (files if survey else ()) for row in self._rows_in(file, QuarantineLog())]
            log = self.columns(reading, **({} if survey is None else survey(rows, reading)))
            groups = None if log is None else reduced_groups(log, request)
            if groups is not None:
                break
        assert groups is not None
        run = assemble_groups(
            request,
            request.source(
                self.name,
                self.title if self.is_one_file else f"{self.title}, {counted(len(reading.files), 'file')}",
                files=reading.files,
                inferred=(*self._applicable(self.inferred, reading), *reading.inferred),
                missing=(*self._applicable(self.missing, reading), *reading.missing),
            ),
            groups=groups,
            quarantine=reading.quarantine,
            needs_reward=self.needs_reward,
        )
        return run if self.completes is None else self.completes(request, run)

    def _belonging(self, files: tuple[Path, ...]) -> tuple[Path, ...]:
        return files if self.keeps_file is None else tuple(filter(self.keeps_file, files))

    def _applicable(self, sentences: Iterable[str], reading: Reading) -> Iterator[str]:
        return (str(text) for text in sentences if not isinstance(text, IfNoted) or text in reading.noted)

    def _rows_in(self, file: Path, quarantine: QuarantineLog) -> Iterator[Row]:
        return quarantine.readable(self.rows_of(file, quarantine))


def has_keys(*keys: str) -> Callable[[Path], bool]:
    """A test of a file: one of its first rows has all these keys."""
    return has_row(lambda row: row.keys() >= set(keys))


def has_row(fits: Callable[[Mapping[str, Any]], bool]) -> Callable[[Path], bool]:
    """A test of a file: one of its first rows passes a test of rows."""
    return lambda file: any(map(fits, peek(file)))
