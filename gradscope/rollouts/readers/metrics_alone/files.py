"""Files of metrics as rows: JSON and JSON lines, tables, consoles, notebooks, what loggers keep.

Each kind is recognized by its content. Bad rows are set aside with location and reason; a row carries the name of its
run where the file has one.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import lru_cache, partial
from itertools import chain, count, groupby, pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Struct

from gradscope.errors import InputError
from gradscope.outside.limits import MAX_ROW, allowed, in_mib, raise_limits
from gradscope.outside.plain_json import parse_json
from gradscope.progress import ProgressCallback, no_progress
from gradscope.results.source import BLANK, CUT_OFF
from gradscope.rollouts.arrays import Counts, to_filled, to_numpy
from gradscope.rollouts.event_file import WANDB_START, history_in, scalars_in
from gradscope.rollouts.listing import COMPRESSED, when_copied
from gradscope.rollouts.readers.column_roles import USUAL
from gradscope.rollouts.readers.metrics_alone import console, published
from gradscope.rollouts.readers.metrics_alone.runs import (
    STEP_IS_POSITION,
    Column,
    MetricTable,
    Piece,
    as_tables,
    hold_rollouts,
    is_step,
)
from gradscope.rollouts.readers.nested import are_turns_of_one
from gradscope.rollouts.readers.parsing.cells import is_list_of_objects, is_number, mapping_of, step_number
from gradscope.rollouts.readers.parsing.columnar import read_parquet_rows
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog, WatchedLog
from gradscope.rollouts.readers.parsing.tables import (
    BOM,
    MAX_FLAWED,
    Row,
    document_bytes,
    named_if_unreadable,
    open_bytes,
    parse_line,
    read_bytes,
    read_json_rows,
    table_rows,
)
from gradscope.rollouts.readers.reduction.lines import IrregularRow, blocks_in
from gradscope.rollouts.readers.reduction.processes import csv_blocks
from gradscope.rollouts.run import Numbers, StepMetrics

Cells = Mapping[str, Any]

MetricRow = tuple[str, Cells, str]  # ``file:line`` or ``file:entry``, cells by key, and the run or ""


class MetricsLog(WatchedLog):
    """The quarantine of a reading of metrics, which also notes whether a file ends in a bad row."""

    _last = ""

    def __init__(self, progress: ProgressCallback, files: Sequence[Path]) -> None:
        """As the base; also notes the ``lists`` of documents that are read though no usual name says that they are."""
        super().__init__(progress, files)
        self.lists: set[str] = set()

    def add(self, reason: str, location: str, num_rows: int = 1) -> None:
        """Set rows aside, and remember the last until the next row."""
        super().add(reason, location, num_rows)
        if reason not in (BLANK, CUT_OFF):
            self._last = f"{location}: {reason}"

    def row_read(self) -> None:
        """Forget the last bad row: a good one was read after it."""
        self._last = ""

    def add_bad_steps(self, piece: Piece, bad: Counts) -> None:
        """Set aside the rows of a piece whose step is no step."""
        if not len(bad):
            return
        reason, last = "the step is not a whole number", self._last
        self.add(reason, piece.location(bad[0]), len(bad))
        ends_bad = bad[-1] == len(piece.numbers) - 1
        self._last = last or (f"{piece.location(bad[-1])}: {reason}" if ends_bad else "")

    def file_ended(self) -> None:
        """Report a bad row that was the last one of its file."""
        if self._last:
            message = f"{self._last}; it is the file's last row, so the run may go on beyond what was read."
            self.add_unreadable(InputError(message, hint="Copy the file again."))
        self._last = ""


CONSOLE = "a trainer's console"
_MAX_DEPTH = 3  # objects around the rows of a document
_SERIES = re.compile(r"mean|avg|average|history|curve|_trace$|grad_?norm|^lr|learning_?rate", re.IGNORECASE)
"""Names of lists with an element a step, and not one for each rollout of a batch."""
_TRACE = re.compile(r"_(history|curve|trace)$", re.IGNORECASE)  # such are, whatever else the document has
_EPISODES = re.compile(r"episode|rollout|traj|turn|game|sample|scaling|budget", re.IGNORECASE)
"""Names of objects whose steps are turns, or budgets of inference."""
Rows = Iterator[MetricRow | Row | Piece]
_FIRST_ROWS, _MAX_ROWS = 1 << 8, 1 << 14  # rows in a piece, at first and later
_FIRST_BYTES, _MAX_BYTES = 1 << 16, 8 << 20  # the same in bytes


class MetricFile(Struct, frozen=True):
    """A file that may hold metrics."""

    title: str  # its kind, for messages
    path: Path
    read: Callable[[Path, MetricsLog], Rows]
    """Its rows; an :class:`InputError` where it cannot be read to its end."""
    is_loggers: bool = False  # whether a logger wrote it, which has nothing but metrics

    def pieces(self, quarantine: MetricsLog) -> Iterator[Piece]:
        """Its rows in pieces; a rest that cannot be read is set aside."""
        waiting: list[MetricRow] = []
        size = _FIRST_ROWS
        for row in quarantine.readable(self.read(self.path, quarantine)):
            if not isinstance(row, Piece):
                quarantine.row_read()
                waiting.append(row if len(row) == 3 else (*row, ""))
            if isinstance(row, Piece) or len(waiting) == size:
                yield from _pieces(waiting)
                size, waiting = min(2 * size, _MAX_ROWS), []
            if isinstance(row, Piece):
                yield row
        yield from _pieces(waiting)

    def first_pieces(self, number: int) -> list[Piece]:
        """The first pieces, with at least so many rows unless these are large; nothing is set aside yet."""
        pieces, reading = list[Piece](), MetricsLog(no_progress, ())
        with closing(self.pieces(reading)) as rest:  # type: ignore[type-var]
            while number > 0 and reading.num_read < _MAX_BYTES and (piece := next(rest, None)) is not None:
                pieces.append(piece)
                number -= len(piece.numbers)
        return pieces


def _pieces(rows: Sequence[MetricRow]) -> Iterator[Piece]:
    locations = [location.rpartition(":") for location, *_ in rows]
    for file, indices in groupby(range(len(rows)), key=lambda index: locations[index][0]):
        chosen = list(indices)
        yield Piece(
            source=file,
            numbers=np.array([int(locations[index][2]) for index in chosen], dtype=np.int64),
            tables=as_tables([rows[index][1] for index in chosen], [rows[index][2] for index in chosen]),
        )


def opened(file: Path) -> MetricFile | None:
    """The kind of a file, by name and first bytes; None where such files hold no metrics, as a tokenizer's."""
    if when_copied(file.name) == "awaited":
        return None
    with named_if_unreadable(file), open_bytes(file) as stream:
        first = stream.read(64).removeprefix(BOM).lstrip()
    if ".tfevents." in file.name:
        return MetricFile("TensorBoard's events", file, _events, is_loggers=True)
    if first.startswith(WANDB_START):
        return MetricFile("W&B's own file", file, _wandb, is_loggers=True)
    if first.startswith(b"SQLite format 3"):
        return MetricFile("trackio's database", file, _trackio, is_loggers=True)
    if published.mlflow_name(file) and published.MLFLOW_LINE.match(first.partition(b"\n")[0]):
        return MetricFile("MLflow's metrics", file, _mlflow)
    suffixes = [suffix for suffix in file.suffixes if suffix not in COMPRESSED]
    match suffixes[-1].lower() if suffixes else "":
        case _ if first.startswith(b"PAR1") or file.suffix == ".arrow":
            return MetricFile("a table of metrics", file, read_parquet_rows)
        case ".json":
            read = partial(_rows_in, file)
            return MetricFile("metrics in JSON", file, lambda path, log: read_json_rows(path, log, partial(read, log)))
        case ".jsonl" | ".ndjson":
            return MetricFile("metrics in JSON lines", file, _json_lines)
        case ".csv" | ".tsv":
            return MetricFile("a table of metrics", file, _table)
        case ".ipynb":
            return MetricFile("a notebook's outputs", file, _notebook)
        case ".html" | ".htm":
            return MetricFile("tables of a page", file, partial(_tables_in, find=published.tables_of_page))
        case ".md":
            return MetricFile("tables in Markdown", file, partial(_tables_in, find=published.tables_of_markdown))
        case "" | ".log" | ".txt" | ".out" | ".err" | ".stdout" | ".stderr":
            return MetricFile(CONSOLE, file, lambda *path: _printed(_texts(*path), path[1]))
    return None


def _rows_in(file: Path, quarantine: MetricsLog, document: Any, depth: int = _MAX_DEPTH) -> Sequence[Any]:
    """The rows of a document: a list, lists of rows, columns of pandas or W&B, or parts with a step, each a run."""
    if isinstance(document, list) and any(map(_is_run, document[:_FIRST_ROWS])):
        document = {f"run {number}": run for number, run in enumerate(document, start=1)}
    if isinstance(document, list):
        return published.scalars_saved(document, file)
    if not isinstance(document, dict) or not document:
        return ()
    if (table := table_rows(document)) is not None:
        return table
    usual = [name for name in ("log_history", "history", "data", "rows") if isinstance(document.get(name), list)]
    if len(usual) == 1:
        listed: list[Any] = document[usual[0]]
        return listed
    lists = {name: cell for name, cell in document.items() if is_list_of_objects(cell)}
    run_lists = {name: cell for name, cell in lists.items() if depth and any(map(_is_run, cell[:_FIRST_ROWS]))}
    by_key: dict[str, list[Any]] = {
        key: cell for key, cell in document.items() if isinstance(cell, list) and key not in lists
    }
    is_history = any(map(_SERIES.search, by_key))
    ends = ("step", "steps") if is_history or any("loss" in key for key in by_key) else ("step",)  # turns are steps too
    step = next((key for key in by_key if key.lower().endswith(ends)), None)
    num_rows = 0 if step is None else len(by_key[step])
    are_history = is_history and all(is_number(cell) for cells in by_key.values() for cell in cells)
    are_whole = len(by_key) == len(document) or (
        are_history and (any("loss" in key for key in by_key) or (not lists and all(map(_TRACE.search, by_key))))
    )
    if step is None and are_whole and len({len(cell) for cell in by_key.values()}) == 1:
        num_rows = len(next(iter(by_key.values())))
        if are_history:
            by_key |= {"step": list(range(1, 1 + num_rows)), STEP_IS_POSITION: [1.0] * num_rows}
    if num_rows:  # lists of another length are of other rows, as those of evaluations
        names = [key for key, cell in by_key.items() if len(cell) == num_rows]
        renamed = [singular if key == step and is_step(singular := key.removesuffix("s")) else key for key in names]
        return [dict(zip(renamed, row, strict=True)) for row in zip(*map(by_key.__getitem__, names), strict=True)]
    if not document.keys().isdisjoint((*USUAL["prompt"], *USUAL["prompt_id"])):  # an episode, unless something learns
        learns = {name for name, cell in lists.items() if any("loss" in key for key in cell[0])}
        lists = {name: cell for name, cell in lists.items() if name in learns or not are_turns_of_one(name, cell)}
    for name, cells in lists.items():
        by_name = {key: [row.get(key) for row in cells[:_FIRST_ROWS]] for key in cells[0]}
        if not hold_rollouts(by_name) and any(map(is_number, chain.from_iterable(by_name.values()))):
            quarantine.lists.add(name)
    if lists and not run_lists:
        return [{"run": name, **row} for name in lists if name in quarantine.lists for row in lists[name]]
    rows = {key: value for key, value in document.items() if isinstance(value, dict)}
    steps = [number for number in map(step_number, rows) if number is not None]
    by_step = len(steps) == len(document)
    if by_step and None in map(step_number, chain.from_iterable(rows.values())):
        is_sorted = steps == sorted(set(steps)) or list(rows) == sorted(rows)
        return [{"step": key, **row} for key, row in rows.items()] if is_sorted else ()  # else by prompt, say
    inner = run_lists or {name: row for name, row in rows.items() if depth and not _EPISODES.search(name)}
    parts = {name: _rows_in(file, quarantine, row, depth - 1) for name, row in inner.items()}
    parts = {name: part for name, part in parts.items() if is_list_of_objects(part) and any(map(is_step, part[0]))}
    if parts:
        located = [(name, row) for name, part in parts.items() for row in part]
        return [{**row, "run": f"{name}/{row['run']}" if row.get("run") else name} for name, row in located]
    columns = {key: value for key, value in document.items() if isinstance(value, list | dict)}
    lengths = {len(value) for value in columns.values()}
    if len(columns) < len(document) or len(lengths) != 1:
        return [document] if any(isinstance(value, int | float) for value in document.values()) else ()
    keys = list(next(iter(columns.values())))
    if not all(isinstance(value, dict) and list(value) == keys for value in columns.values()):
        return ()
    return [{name: value[key] for name, value in columns.items()} for key in keys]


def _is_run(row: Any) -> bool:
    """Whether an object without a step lists rows with a step and a loss, or numbers by step; no episode's turns."""
    cells = mapping_of(row)
    lists = filter(is_list_of_objects, cells.values())
    learns = any(any(map(is_step, rows[0])) and any("loss" in key for key in rows[0]) for rows in lists)
    learns |= any(isinstance(cells[key], list) for key in filter(_TRACE.search, cells))
    return learns and not any(map(is_step, row))


def _sizes() -> Iterator[int]:
    return (min(_FIRST_BYTES << doubled, _MAX_BYTES) for doubled in count())


def _json_lines(file: Path, quarantine: MetricsLog) -> Rows:
    """Lines of JSON; a line that the decoder refuses is read by itself."""
    decoder = msgspec.json.Decoder(dict[str, Any])
    packed = file.suffix in COMPRESSED
    num_lines = last = 0
    for block in blocks_in(file, sizes=_sizes()):
        if block.lost is not None:
            raise block.lost
        rows, indices, bounds = block.decoded(decoder)
        irregular_rows = block.irregular_rows(bounds, np.setdiff1d(np.arange(len(bounds) - 1), indices).tolist())
        parsed = [(flawed.index, flawed.row) for flawed in irregular_rows if isinstance(flawed.row, dict)]
        if parsed:
            numbered = sorted([*zip(indices.tolist(), rows, strict=True), *parsed], key=itemgetter(0))
            rows, indices = [row for _, row in numbered], np.array([number for number, _ in numbered])
        end = int(indices[-1]) if rows else -1
        _set_aside(file, quarantine, irregular_rows, num_lines, end)
        quarantine.count_read(0 if packed else len(block.data), len(rows))
        if rows:
            last = num_lines + end + 1
            yield Piece(source=str(file), numbers=indices + num_lines + 1, tables=as_tables(rows))
        num_lines += len(bounds) - 1
        if num_lines - last > allowed(MAX_FLAWED):
            message = f"{file} has no row in {allowed(MAX_FLAWED):,} lines from line {last + 1} on."
            raise InputError(message, hint=raise_limits(file))
    if packed:
        quarantine.count_read(file.stat().st_size, 0)


def _set_aside(
    file: Path, quarantine: MetricsLog, irregular_rows: Iterable[IrregularRow], num_lines: int, end: int
) -> None:
    """Set aside the lines of a block without a row; ``end`` is the index of its last row."""
    flawed = [row for row in irregular_rows if isinstance(row.row, str)]
    for is_behind in (False, True):
        for row in (row for row in flawed if (row.index > end) == is_behind):
            first = num_lines + row.index + 1
            for number, num_rows in ((first, row.count - 1), (first + row.count - 1, 1)):
                if num_rows:
                    quarantine.add(str(row.row), f"{file}:{number}", num_rows)
        if not is_behind and end >= 0:
            quarantine.row_read()


def _table(file: Path, quarantine: MetricsLog) -> Rows:
    num_lines = read_to = 0
    for block in csv_blocks(file, None, _sizes(), with_null=True):
        rows = [(flawed.index, flawed.row) for flawed in block.irregular if isinstance(flawed.row, dict)]
        lines, columns = block.lines, dict[str, Column]()
        if block.batch is not None:
            columns = {name: _cells(block.batch.column(name)) for name in block.batch.schema.names}
        elif rows:
            lines = np.array([index for index, _ in rows])
            columns = {name: [published.number_or_text(row[name]) for _, row in rows] for name in rows[0][1]}
        _set_aside(file, quarantine, block.irregular, num_lines, int(lines[-1]) if len(lines) else -1)
        if len(lines):
            yield _table_piece(file, columns, lines + num_lines + 1)
        num_lines += block.num_lines
        quarantine.count_read(block.end - read_to, len(lines))
        read_to = block.end
    if file.suffix in COMPRESSED:
        quarantine.count_read(file.stat().st_size, 0)


def _cells(cells: pa.Array) -> Column:
    """The numbers of a column of text, where null means empty; a list of texts and numbers where it has any text."""
    try:
        numbers = cells.cast(pa.float64())
    except pa.ArrowInvalid:
        return [published.number_or_text(cell or "") for cell in cells.to_pylist()]
    values = to_filled(numbers, math.nan)
    if not numbers.null_count:
        return Numbers(None, values)
    rows = np.flatnonzero(to_numpy(numbers.is_valid().cast(pa.int8())))
    return Numbers(rows, values[rows])


def _table_piece(file: Path, columns: Mapping[str, Column], numbers: Counts) -> Piece:
    """Rows of a table. W&B exports columns ``RUN - METRIC`` of several runs; ``__MIN`` and ``__MAX`` are ignored."""
    all_rows, source = np.arange(len(numbers)), str(file)
    if tuple(columns) == published.SAVED_SCALARS:
        _, step, value = columns.values()
        columns = {"step": step, published.tag_of(file): value}
    parts = {name: name.rpartition(" - ") for name in columns}
    shared = {name: columns[name] for name, (run, _, metric) in parts.items() if not (run and metric)}
    shared_table = MetricTable(rows=all_rows, columns=shared)
    if len(shared) == len(columns):
        return Piece(source=source, numbers=numbers, tables=[shared_table])
    by_run: dict[str, dict[str, Column]] = {}
    for name, (run, _, metric) in parts.items():
        if name not in shared and not metric.endswith(("__MIN", "__MAX")):
            by_run.setdefault(run, {})[metric] = columns[name]
    tables = []
    for run, cells in by_run.items():
        indices = [np.zeros(0, dtype=np.int64)]  # of cells that are not empty
        for column in cells.values():
            texts = [] if isinstance(column, Numbers) else column
            rows = column.rows if isinstance(column, Numbers) else np.flatnonzero([cell != "" for cell in texts])
            indices.append(all_rows if rows is None else rows)
        filled = np.unique(np.concatenate(indices))
        if len(filled):
            tables.append(MetricTable(rows=all_rows, columns={**shared, **cells}, run=run).take(filled))
    return Piece(source=source, numbers=numbers, tables=tables)


def _events(file: Path, quarantine: MetricsLog) -> Rows:
    damaged, stat = quarantine.damage_reporter(file), file.stat()
    try:
        scalars, damage = _scalars(file, stat.st_size, stat.st_mtime_ns)
    except (OSError, InputError) as error:
        damaged(str(error).rstrip("."))
        return
    for message in damage:
        damaged(message)
    quarantine.count_read(stat.st_size, len(scalars))
    rows = np.arange(len(scalars))
    columns = {**scalars.columns, "step": Numbers(None, scalars.steps.astype(np.float64))}
    yield Piece(source=str(file), numbers=rows + 1, tables=[MetricTable(rows=rows, columns=columns)])


@lru_cache(maxsize=1)  # since its first rows are read before all of them
def _scalars(file: Path, size: int, modified: int) -> tuple[StepMetrics, tuple[str, ...]]:
    damage: list[str] = []
    return scalars_in(file, damage.append), tuple(damage)


def _wandb(file: Path, quarantine: MetricsLog) -> Rows:
    for number, line in enumerate(history_in(file, quarantine.damage_reporter(file)), start=1):
        row = parse_line(line)
        quarantine.count_read(len(line))
        if isinstance(row, str):
            quarantine.add(row, f"{file}:{number}")
        else:
            yield f"{file}:{number}", row


_IS_TABLE = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = ? AND sql NOT LIKE '%GENERATED%'"
_MAX_SQL_INSTRUCTIONS = 1 << 31  # virtual instructions of a query: ends a view that was made to be endless


def _trackio(file: Path, quarantine: MetricsLog) -> Rows:
    """Trackio's table of metrics, whose JSON is bytes, and text in older releases."""
    for location, (run, step, cell) in trackio_rows(file, "metrics", ("run_name", "step", "metrics"), quarantine):
        text = cell.encode() if isinstance(cell, str) else cell
        quarantine.count_read(len(text) if isinstance(text, bytes) else 0)
        row = parse_line(text + b"\n") if isinstance(text, bytes) else "the metrics are no text"
        if isinstance(row, str):
            quarantine.add(row, location)
        else:
            yield location, {**row, "step": row.get("step", step)}, str(run)


def trackio_rows(
    file: Path, table: str, columns: Sequence[str], quarantine: QuarantineLog
) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """A table of trackio's database, read from a copy where it has a write-ahead log, so that nothing is changed.

    Yields:
        ``file:number`` and the cells, in the order in which they were written.
    """
    log = file.with_name(f"{file.name}-wal")
    with tempfile.TemporaryDirectory() as folder:
        copy = file
        if log.is_file() and log.stat().st_size:
            copy = Path(folder, "copy.db")
            shutil.copyfile(file, copy)
            shutil.copyfile(log, f"{copy}-wal")
        options = "mode=ro&immutable=1" if copy is file else "mode=rw"
        try:
            with closing(sqlite3.connect(f"file:{quote(os.fsencode(copy.resolve()))}?{options}", uri=True)) as database:
                database.execute("PRAGMA trusted_schema = OFF")
                database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, allowed(MAX_ROW))
                left = iter(range(_MAX_SQL_INSTRUCTIONS >> 20))
                database.set_progress_handler(lambda: next(left, None) is None, 1 << 20)
                if database.execute(_IS_TABLE, (table,)).fetchone()[0]:
                    query = f"SELECT {', '.join(columns)} FROM {table} ORDER BY rowid"
                    for number, row in enumerate(database.execute(query), start=1):
                        yield f"{file}:{number}", row
        except (sqlite3.Error, OSError, OverflowError, UnicodeDecodeError) as error:
            quarantine.add_unreadable(
                InputError(f"{file} cannot be read to its end: {error}.", hint="Copy the database again.")
            )


def _texts(file: Path, quarantine: MetricsLog) -> Iterator[tuple[str, str]]:
    """The lines of a file, each with its location; lines that are not text are set aside."""
    is_packed, longest = file.suffix in COMPRESSED, allowed(MAX_ROW)
    for number, line in enumerate(read_bytes(file), start=1):
        quarantine.count_read(0 if is_packed else len(line))
        if len(line) > longest:
            quarantine.add(f"the line is longer than {in_mib(longest)}", f"{file}:{number}")
            continue
        try:
            text = (line.removeprefix(BOM) if number == 1 else line).decode().rstrip("\r\n")
            parts = text.split("\r") if console.has_bar(text) else (text,)  # a bar is drawn over itself
            yield from ((f"{file}:{number}", part) for part in parts)
        except UnicodeDecodeError:
            quarantine.add("the line is not UTF-8", f"{file}:{number}")


def _printed(lines: Iterable[console.Text], quarantine: MetricsLog) -> Rows:
    """A trainer's output. A dictionary without a step takes the count of its progress bar, else its position."""
    # Positions are no steps of the lines that name theirs: the dictionaries are a run of their own, or set aside where
    # the lines are as many and have as much in them. Bars of which only the end was printed take their position if
    # nothing else was read, and are set aside otherwise.
    printed = console.PrintedLines()
    num_lines = widest = 0
    for location, line in console.blocks_joined(console.lines_joined(console.dashes_joined(lines))):
        values = printed.read(location, line)
        if isinstance(values, str):
            quarantine.add(values, location)
        elif values is not None:
            num_lines, widest = num_lines + 1, max(widest, len(values))
            yield location, values
    for position, (location, values) in enumerate(printed.ended, start=1):
        if not num_lines and not printed.unnumbered:
            yield location, {**values, "step": position, STEP_IS_POSITION: 1.0}
        else:
            quarantine.add("the bar of progress is at its end, which is no step", location)
            quarantine.row_read()
    dictionaries = printed.unnumbered
    counts = [(0, 0), *((bar, position) for _, _, bar, position in dictionaries)]
    is_counted = all(before < bar or (bar and position == 1) for (before, _), (bar, position) in pairwise(counts))
    keys = [key for _, values, *_ in dictionaries for key in values]
    are_totals = len(dictionaries) > 1 and len(keys) == len(set(keys))  # of other things each, as of an evaluation
    if are_totals or (
        not is_counted
        and num_lines >= len(dictionaries)
        and widest > max(len(values) for _, values, *_ in dictionaries)
    ):
        why = "and no other has its metrics" if are_totals else "which other lines name"
        for location, *_ in dictionaries:
            quarantine.add(f"the dictionary has no step, {why}", location)
        quarantine.row_read()  # no sign that the file was cut off
        return
    run = "dictionaries" if num_lines and not is_counted else ""
    period = 0 if is_counted else _bar_period(counts[1:])
    for location, values, bar, position in dictionaries:
        step = period * position or (bar if is_counted else position)
        yield location, {"step": step, **values, STEP_IS_POSITION: float(not (is_counted or period))}, run


def _bar_period(counts: Sequence[tuple[int, int]]) -> int:
    """Steps from a dictionary to the next, where they were written behind bars of as many at once; else 0."""
    # A buffer that is full is written before the dictionary that no longer fits, whose bar is there already.
    last, num = counts[-1] if counts else (0, 1)
    ends = [count for count, after in pairwise(counts) if count[0] != after[0]]
    period = last // num
    is_even = last - period * num < period and all(0 <= bar - period * position < 2 * period for bar, position in ends)
    return period if is_even else 0


def _tables_in(file: Path, quarantine: MetricsLog, find: Callable[[str], Sequence[published.Table]]) -> Rows:
    text = "\n".join(line for _, line in _texts(file, quarantine))
    yield from _tables(file, [(number, table) for number, table in enumerate(find(text), start=1)])


def _tables(file: Path, tables: Sequence[tuple[int, published.Table]]) -> Iterator[MetricRow]:
    """The tables whose header names a step; where there are several, each is a run, named by its number."""
    rows = [(number, members) for number, table in tables if (members := list(published.rows_of_table(table)))]
    for table_number, members in rows:
        for number, row in enumerate(members, start=1):
            yield f"{file}:{table_number}:{number}", row, f"table {table_number}" if len(rows) > 1 else ""


def _notebook(file: Path, quarantine: MetricsLog) -> Rows:
    """The tables in a notebook's outputs, and what the trainer printed, where no table has a reward and that has."""
    data = document_bytes(file)
    try:
        outputs = list(published.outputs_of_notebook(parse_json(data or b"")))
    except ValueError as error:
        raise InputError(f"{file} is no notebook that can be read: {error}.", hint="Save it again.") from None
    pages = [
        (cell, table) for cell, kind, text in outputs if kind == "text/html" for table in published.tables_of_page(text)
    ]
    tables = list(_tables(file, pages))
    texts = [(f"{file}:{cell}", text) for cell, kind, text in outputs if kind == "text/plain"]
    if not tables or (not _have_rewards(tables) and any("reward" in text for _, text in texts)):
        printed = list(
            _printed(((location, line) for location, text in texts for line in text.splitlines()), quarantine)
        )
        if not tables or _have_rewards(printed):
            yield from printed
            tables = [(location, row, run or "table") for location, row, run in tables]
    yield from tables


def _have_rewards(rows: Iterable[MetricRow | Row | Piece]) -> bool:
    return any("reward" in key for row in rows if not isinstance(row, Piece) for key in row[1])


def _mlflow(file: Path, quarantine: MetricsLog) -> Rows:
    """MLflow's file of a metric: time, value and step in each line."""
    name = published.mlflow_name(file)
    for location, line in _texts(file, quarantine):
        cells = line.split()
        if len(cells) == 3:
            yield location, {name: published.number_or_text(cells[1]), "step": published.number_or_text(cells[2])}
        else:
            quarantine.add("the line is no time, value and step", location)
