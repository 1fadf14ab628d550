"""Files of metrics as rows: JSON and JSON lines, tables, consoles, notebooks, TensorBoard's events, trackio's database.

Each kind is known by its content. A row that is none is set aside with its place and the reason; a row knows which of
several runs it is of where its file says so.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

from gradscope.errors import InputError
from gradscope.outside.limits import MOST_ROW, in_mib, most
from gradscope.outside.plain_json import parse_json
from gradscope.rollouts.event_file import scalars_in
from gradscope.rollouts.readers.metrics_alone.published import (
    MLFLOW_LINE,
    SAVED_SCALARS,
    PrintedLines,
    Table,
    Text,
    mlflow_name,
    number_or_text,
    outputs_of_notebook,
    rows_of_table,
    scalar_saved,
    scalars_saved,
    tables_of_markdown,
    tables_of_page,
)
from gradscope.rollouts.readers.parsing.jsonl import (
    BOM,
    document_bytes,
    named_if_unreadable,
    open_bytes,
    parse_line,
    read_bytes,
    read_jsonl,
)
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.parsing.tables import Row, read_csv, read_json_rows, read_parquet_rows

Cells = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class MetricRow:
    """A row as it stands in its file."""

    location: str  # ``file:line``, or ``file:entry``
    cells: Cells  # its cells by key
    run: str = ""  # the run that it is of, where its file names one beside the cells


Rows = Iterator[MetricRow]


@dataclass(frozen=True, slots=True)
class MetricFile:
    """A file that may hold metrics."""

    title: str  # what it is, in words
    path: Path  # where it lies
    read: Callable[[Path, QuarantineLog], Iterator[MetricRow | Row]]
    """Its rows; an :class:`InputError` where it cannot be read to its end."""

    def rows(self, aside: QuarantineLog) -> Rows:
        """Its rows; what cannot be read is set aside."""
        try:
            for row in self.read(self.path, aside):
                yield row if isinstance(row, MetricRow) else MetricRow(*row)
        except InputError as error:
            aside.lose(error)


def opened(file: Path) -> MetricFile | None:
    """What kind of file it is, by name and first bytes; None where such files hold no metrics."""
    with named_if_unreadable(file), open_bytes(file) as stream:
        try:
            first = stream.read(64).removeprefix(BOM).lstrip()
        except EOFError:  # a compressed file that is cut off: its rows tell, as far as they can be read
            first = b""
    if ".tfevents." in file.name:
        return MetricFile("TensorBoard's events", file, _events)
    if first.startswith(b"SQLite format 3"):
        return MetricFile("trackio's database", file, _trackio)
    if mlflow_name(file) and MLFLOW_LINE.match(first.partition(b"\n")[0]):
        return MetricFile("MLflow's metrics", file, _mlflow)
    suffixes = [suffix for suffix in file.suffixes if suffix != ".gz"]
    match suffixes[-1].lower() if suffixes else "":
        case _ if first.startswith(b"PAR1"):
            return MetricFile("a table of metrics", file, read_parquet_rows)
        case ".json":
            return MetricFile("metrics in JSON", file, partial(read_json_rows, rows_in=partial(_rows_in, file)))
        case ".jsonl" | ".ndjson":
            return MetricFile("metrics in JSON lines", file, read_jsonl)
        case ".csv" | ".tsv":
            return MetricFile("a table of metrics", file, _table)
        case ".ipynb":
            return MetricFile("a notebook's outputs", file, _notebook)
        case ".html" | ".htm":
            return MetricFile("tables of a page", file, partial(_tables_in, find=tables_of_page))
        case ".md":
            return MetricFile("tables in Markdown", file, partial(_tables_in, find=tables_of_markdown))
        case "" | ".log" | ".txt" | ".out" | ".err" | ".stdout" | ".stderr":
            return MetricFile("a trainer's console", file, _console)
    return None


def _rows_in(file: Path, document: Any) -> Sequence[Any]:
    """The rows of a document: a list, the one list that it has, or columns as pandas and W&B write them."""
    if isinstance(document, list):
        return scalars_saved(document, file)
    if not isinstance(document, dict) or not document:
        return ()
    lists = [document[key] for key in ("log_history", "history", "data", "rows") if isinstance(document.get(key), list)]
    if lists:
        return cast(Sequence[Any], lists[0])
    columns = {key: value for key, value in document.items() if isinstance(value, list | dict)}
    lengths = {len(value) for value in columns.values()}
    if len(columns) < len(document) or len(lengths) != 1:
        return [document] if any(isinstance(value, int | float) for value in document.values()) else ()
    if all(isinstance(value, list) for value in columns.values()):
        return [{key: value[at] for key, value in columns.items()} for at in range(next(iter(lengths)))]
    keys = list(next(iter(columns.values())))
    if not all(isinstance(value, dict) and list(value) == keys for value in columns.values()):
        return ()
    return [{key: value[at] for key, value in columns.items()} for at in keys]


def _table(file: Path, aside: QuarantineLog) -> Rows:
    """A CSV with a head. Columns ``RUN - METRIC`` of W&B's export are of several runs, and ``__MIN`` of none."""
    for location, cells in read_csv(file, aside):
        if tuple(cells) == SAVED_SCALARS:
            yield MetricRow(location, scalar_saved(file, [*map(number_or_text, cells.values())]))
            continue
        shared: dict[str, Any] = {}
        of_run: dict[str, dict[str, Any]] = {}
        for name, cell in cells.items():
            run, _, metric = name.rpartition(" - ")
            if not (run and metric):
                shared[name] = number_or_text(cell)
            elif cell and not metric.endswith(("__MIN", "__MAX")):
                of_run.setdefault(run, {})[metric] = number_or_text(cell)
        is_export = any(run and metric for run, _, metric in (name.rpartition(" - ") for name in cells))
        for run, values in of_run.items() if is_export else [("", {})]:
            yield MetricRow(location, {**shared, **values}, run)


def _events(file: Path, aside: QuarantineLog) -> Rows:
    damaged = aside.of_metrics(file)
    try:
        scalars = scalars_in(file, damaged)
    except (OSError, InputError) as error:
        damaged(str(error).rstrip("."))
        return
    for number, (step, values) in enumerate(sorted(scalars.items()), start=1):
        yield MetricRow(f"{file}:{number}", {**values, "step": step})


_IS_TABLE = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = ? AND sql NOT LIKE '%GENERATED%'"
_MOST_STEPS_OF_SQL = 1 << 31  # virtual instructions of a query: a table that was made to never end does


def _trackio(file: Path, aside: QuarantineLog) -> Rows:
    """Trackio's table of metrics, whose JSON it writes as bytes, and older releases of it as text."""
    for location, (run, step, cell) in trackio_rows(file, "metrics", ("run_name", "step", "metrics"), aside):
        text = cell.encode() if isinstance(cell, str) else cell
        row = parse_line(text + b"\n") if isinstance(text, bytes) else "the metrics are no text"
        if isinstance(row, str):
            aside.add(row, location)
        else:
            yield MetricRow(location, {**row, "step": row.get("step", step)}, str(run))


def trackio_rows(
    file: Path, table: str, columns: Sequence[str], aside: QuarantineLog
) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """A table of trackio's database, read from a copy where a log of writes lies beside it, so that nothing is changed.

    Args:
        file: The database.
        table: One of its tables; one that is not there has no rows.
        columns: Those that are read.
        aside: Takes what cannot be read.

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
                database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, most(MOST_ROW))
                left = iter(range(_MOST_STEPS_OF_SQL >> 20))
                database.set_progress_handler(lambda: next(left, None) is None, 1 << 20)
                if database.execute(_IS_TABLE, (table,)).fetchone()[0]:
                    query = f"SELECT {', '.join(columns)} FROM {table} ORDER BY rowid"
                    for number, row in enumerate(database.execute(query), start=1):
                        yield f"{file}:{number}", row
        except (sqlite3.Error, OSError, OverflowError, UnicodeDecodeError) as error:
            aside.lose(InputError(f"{file} cannot be read to its end: {error}.", hint="Copy the database again."))


def _texts(file: Path, aside: QuarantineLog) -> Iterator[tuple[str, str]]:
    """The lines of a file, each with its location; what is no text is set aside."""
    for number, line in enumerate(read_bytes(file), start=1):
        if len(line) > most(MOST_ROW):
            aside.add(f"the line is longer than {in_mib(most(MOST_ROW))}", f"{file}:{number}")
            continue
        try:
            yield f"{file}:{number}", (line.removeprefix(BOM) if number == 1 else line).decode().rstrip("\r\n")
        except UnicodeDecodeError:
            aside.add("the line is not UTF-8", f"{file}:{number}")


def _console(file: Path, aside: QuarantineLog) -> Rows:
    """What a trainer printed. The step of a dictionary without one is its bar of progress's, else its place."""
    yield from _printed(_texts(file, aside), aside)


def _printed(lines: Iterable[Text], aside: QuarantineLog) -> Rows:
    printed = PrintedLines()
    for location, line in lines:
        values = printed.read(location, line)
        if isinstance(values, str):
            aside.add(values, location)
        elif values is not None:
            yield MetricRow(location, values)
    bars = [bar for _, _, bar in printed.unnumbered]
    is_counted = bool(bars) and bars[0] > 0 and all(first < second for first, second in pairwise(bars))
    for place, (location, values, bar) in enumerate(printed.unnumbered, start=1):
        yield MetricRow(location, {"step": bar if is_counted else place, **values, PLACE: float(not is_counted)})


def _tables_in(file: Path, aside: QuarantineLog, find: Callable[[str], Sequence[Table]]) -> Rows:
    text = "\n".join(line for _, line in _texts(file, aside))
    yield from _tables(file, [(place, table) for place, table in enumerate(find(text), start=1)])


def _tables(file: Path, tables: Sequence[tuple[int, Table]]) -> Rows:
    """The tables whose head names a step; where there are several, each is a run by its place."""
    rows = [(place, of_table) for place, table in tables if (of_table := list(rows_of_table(table)))]
    for place, of_table in rows:
        for number, row in enumerate(of_table, start=1):
            yield MetricRow(f"{file}:{place}:{number}", row, f"table {place}" if len(rows) > 1 else "")


def _notebook(file: Path, aside: QuarantineLog) -> Rows:
    """The tables that a trainer kept in a notebook's outputs; where there are none, what it printed there."""
    data = document_bytes(file)
    try:
        outputs = list(outputs_of_notebook(parse_json(data or b"")))
    except ValueError as error:
        raise InputError(f"{file} is no notebook that can be read: {error}.", hint="Save it again.") from None
    pages = [(cell, table) for cell, kind, text in outputs if kind == "text/html" for table in tables_of_page(text)]
    printed = [(f"{file}:{cell}", text) for cell, kind, text in outputs if kind == "text/plain"]
    rows = list(_tables(file, pages))
    yield from rows or _printed(((place, line) for place, text in printed for line in text.splitlines()), aside)


def _mlflow(file: Path, aside: QuarantineLog) -> Rows:
    """MLflow's file of one metric: a time, a value and a step a line."""
    name = mlflow_name(file)
    for location, line in _texts(file, aside):
        cells = line.split()
        if len(cells) == 3:
            yield MetricRow(location, {name: number_or_text(cells[1]), "step": number_or_text(cells[2])})
        else:
            aside.add("the line is no time, value and step", location)


PLACE = "gradscope/step_is_place"  # key of a row whose step is its place among the rows of a console


def first_rows(file: MetricFile, number: int) -> list[MetricRow]:
    """The first rows of a file; what else it holds is met when it is read."""
    return list(islice(file.rows(QuarantineLog()), number))
