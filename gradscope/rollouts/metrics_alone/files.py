"""Files of metrics as rows: JSON and JSON lines, tables, consoles, TensorBoard's events, trackio's database.

Each kind is known by its content. A row that is none is set aside with its place and the reason; a row knows which of
several runs it is of where its file says so.
"""

from __future__ import annotations

import csv
import gzip
import io
import os
import re
import shutil
import sqlite3
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import IO, Any, cast
from urllib.parse import quote

import pyarrow as pa

from gradscope.errors import InputError
from gradscope.outside.limits import MOST_ROW, Unpacked, in_mib, most, open_file, read_whole
from gradscope.outside.numerals import number_from
from gradscope.outside.plain_json import RefusedJsonError, parse_json
from gradscope.results.source import BLANK, CUT_OFF, TWICE, twice_in
from gradscope.rollouts.event_file import scalars_in
from gradscope.rollouts.run_folder import SetAside

Cells = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class MetricRow:
    """A row as it stands in its file."""

    location: str
    """``file:line``, or ``file:entry``."""
    cells: Cells
    """Its cells by key."""
    run: str = ""
    """The run that it is of, where its file names one beside the cells."""


Rows = Iterator[MetricRow]


@dataclass(frozen=True, slots=True)
class MetricFile:
    """A file that may hold metrics."""

    title: str
    """What it is, in words."""
    rows: Callable[[SetAside], Rows]
    """Its rows; what cannot be read is set aside."""


def opened(file: Path) -> MetricFile | None:
    """What kind of file it is, by name and first bytes; None where such files hold no metrics."""
    try:
        with _lines_of(file) as stream:
            first = stream.read(64).removeprefix(_BOM).lstrip()
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{file} cannot be read: {error}.", hint="Copy the file again.") from error
    if ".tfevents." in file.name:
        return MetricFile("TensorBoard's events", lambda aside: _events(file, aside))
    if first.startswith(b"SQLite format 3"):
        return MetricFile("trackio's database", lambda aside: _trackio(file, aside))
    suffixes = [suffix for suffix in file.suffixes if suffix != ".gz"]
    suffix = suffixes[-1].lower() if suffixes else ""
    if first.startswith(b"PAR1"):
        return MetricFile("a table of metrics", lambda aside: _parquet(file, aside))
    if suffix == ".json":
        return MetricFile("metrics in JSON", lambda aside: _json(file, aside))
    if suffix in (".jsonl", ".ndjson"):
        return MetricFile("metrics in JSON lines", lambda aside: _json_lines(file, aside))
    if suffix in (".csv", ".tsv"):
        return MetricFile("a table of metrics", lambda aside: _table(file, aside, "\t" if suffix == ".tsv" else ","))
    if suffix in _TEXTS:
        return MetricFile("a trainer's console", lambda aside: _console(file, aside))
    return None


_BOM = b"\xef\xbb\xbf"
_TEXTS = ("", ".log", ".txt", ".out", ".err", ".stdout", ".stderr")
_PEEKED = 4096
_MOST_BAD = 100_000
"""Lines without a row, one after the other, after which a file is given up."""


@contextmanager
def _lines_of(file: Path) -> Iterator[IO[bytes]]:
    """A file's bytes, decompressed where its name ends in ``.gz``, up to a limit."""
    if file.suffix == ".gz":
        with open_file(file):
            pass
        with closing(io.BufferedReader(Unpacked(cast(IO[bytes], gzip.GzipFile(file)), file))) as unpacked:
            yield cast(IO[bytes], unpacked)
        return
    with open_file(file) as stream:
        yield stream


def _texts(file: Path, aside: SetAside) -> Iterator[tuple[str, str, bool]]:
    """The lines of a file: location, text without its end, and whether it has one; what is no text is set aside."""
    size = most(MOST_ROW) + 1
    try:
        with _lines_of(file) as stream:
            for number, line in enumerate(iter(lambda: stream.readline(size), b""), start=1):
                location = f"{file}:{number}"
                if len(line) == size:
                    aside.lose(InputError(f"{location} is longer than {in_mib(size - 1)}.", hint="Split the line."))
                    return
                try:
                    text = (line.removeprefix(_BOM) if number == 1 else line).decode("utf-8")
                except UnicodeDecodeError:
                    aside.add("the line is not UTF-8", location)
                    continue
                yield location, text.rstrip("\r\n"), line.endswith(b"\n")
    except (OSError, EOFError, zlib.error) as error:
        aside.lose(InputError(f"{file} cannot be read to its end: {error}.", hint="Copy the file again."))
    except InputError as error:
        aside.lose(error)


def _json_lines(file: Path, aside: SetAside) -> Rows:
    bad = 0
    for location, text, is_whole in _texts(file, aside):
        row = _parsed(text, is_whole=is_whole)
        if not isinstance(row, str):
            bad = 0
            yield MetricRow(location, row)
            continue
        bad += 1
        if bad > _MOST_BAD:
            aside.lose(InputError(f"{file} has no row in {_MOST_BAD:,} lines before {location}.", hint="Look at it."))
            return
        aside.add(row, location)


def _parsed(text: bytes | str, *, is_whole: bool) -> dict[str, Any] | str:
    if not text.strip():
        return BLANK
    try:
        row = parse_json(text)
    except RefusedJsonError as error:
        return f"the line {error.why}"
    except ValueError:
        return "the line is not JSON" if is_whole else CUT_OFF
    return row if isinstance(row, dict) else "the line is not a JSON object"


def _json(file: Path, aside: SetAside) -> Rows:
    """A document, or JSON lines under the name of one."""
    try:
        with _lines_of(file) as stream:
            data = stream.read(most(MOST_ROW) + 1) if file.suffix == ".gz" else read_whole(file)
        document = parse_json(data.removeprefix(_BOM))
    except RefusedJsonError as error:
        aside.lose(InputError(f"{file} {error.why}.", hint="Write it again."))
        return
    except ValueError:
        yield from _json_lines(file, aside)
        return
    except (OSError, EOFError, zlib.error) as error:
        aside.lose(InputError(f"{file} cannot be read: {error}.", hint="Copy the file again."))
        return
    except InputError as error:
        aside.lose(error)
        return
    rows = _rows_in(document)
    if rows is None:
        return
    for number, row in enumerate(rows, start=1):
        location = f"{file}:{number}"
        if isinstance(row, dict):
            yield MetricRow(location, row)
        else:
            aside.add("the entry is not an object", location)


def _rows_in(document: Any) -> Sequence[Any] | None:
    """The rows of a document: a list, the one list that it has, or columns as pandas and W&B write them."""
    if isinstance(document, list):
        return document
    if not isinstance(document, dict) or not document:
        return None
    lists = [document[key] for key in ("log_history", "history", "data", "rows") if isinstance(document.get(key), list)]
    if lists:
        return cast(Sequence[Any], lists[0])
    columns = {key: value for key, value in document.items() if isinstance(value, list | dict)}
    lengths = {len(value) for value in columns.values()}
    if len(columns) < len(document) or len(lengths) != 1:
        return [document] if any(isinstance(value, int | float) for value in document.values()) else None
    if all(isinstance(value, list) for value in columns.values()):
        return [{key: value[at] for key, value in columns.items()} for at in range(next(iter(lengths)))]
    keys = list(next(iter(columns.values())))
    if not all(isinstance(value, dict) and list(value) == keys for value in columns.values()):
        return None
    return [{key: value[at] for key, value in columns.items()} for at in keys]


def _table(file: Path, aside: SetAside, delimiter: str) -> Rows:
    """A CSV with a head. Columns ``RUN - METRIC`` of W&B's export are of several runs, and ``__MIN`` of none."""
    lines = _texts(file, aside)
    head: list[str] = []
    for location, text, _ in lines:
        if not text.strip():
            continue
        cells = _split(text, delimiter)
        if isinstance(cells, str):
            aside.add(cells, location)
        elif not head:
            head = cells
            named = {at: name.rpartition(" - ") for at, name in enumerate(head)}
            is_export = any(run and metric for run, _, metric in named.values())
            if _named_twice(file, head, aside):
                return
        elif len(cells) != len(head):
            aside.add(f"it has {len(cells)} cells, and the head names {len(head)}", location)
        elif not is_export:
            yield MetricRow(location, dict(zip(head, map(_number_or_text, cells), strict=True)))
        else:
            shared = {name: _number_or_text(cells[at]) for at, (run, _, name) in named.items() if not run}
            of_run: dict[str, dict[str, Any]] = {}
            for at, (run, _, metric) in named.items():
                if run and cells[at] and not metric.endswith(("__MIN", "__MAX")):
                    of_run.setdefault(run, {})[metric] = _number_or_text(cells[at])
            for run, values in of_run.items():
                yield MetricRow(location, {**shared, **values}, run)


def _named_twice(file: Path, names: Sequence[str], aside: SetAside) -> bool:
    """Whether two columns have one name, so that neither is known; the file is then given up."""
    twice = twice_in(names)
    if twice is not None:
        aside.lose(InputError(f"{file}: {TWICE.format(twice)}.", hint="Rename one of them."))
    return twice is not None


def _split(text: str, delimiter: str) -> list[str] | str:
    try:
        rows = list(csv.reader([text], delimiter=delimiter, strict=True))
    except csv.Error as error:
        return f"the line is not CSV ({error})"
    return rows[0] if rows else BLANK


def _number_or_text(cell: str) -> float | str:
    try:
        return number_from(cell)
    except ValueError:
        return cell


def _parquet(file: Path, aside: SetAside) -> Rows:
    import pyarrow.parquet as pq  # 30 ms that no other log needs

    number = 0
    try:
        with pq.ParquetFile(file) as table:
            if _named_twice(file, table.schema_arrow.names, aside):
                return
            for batch in table.iter_batches(batch_size=_PEEKED):
                for row in batch.to_pylist():
                    number += 1
                    yield MetricRow(f"{file}:{number}", row)
    except (OSError, pa.ArrowException, UnicodeDecodeError, ValueError) as error:
        aside.lose(InputError(f"{file} cannot be read to its end: {error}.", hint="Copy the file again."))


def _events(file: Path, aside: SetAside) -> Rows:
    def damaged(what: str) -> None:
        aside.lose(InputError(f"{file}: {what}.", hint="Copy the file again."))

    try:
        scalars = scalars_in(file, damaged)
    except (OSError, InputError) as error:
        damaged(str(error).rstrip("."))
        return
    for number, (step, values) in enumerate(sorted(scalars.items()), start=1):
        yield MetricRow(f"{file}:{number}", {**values, "step": step})


_IS_TABLE = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = ? AND sql NOT LIKE '%GENERATED%'"
_MOST_STEPS_OF_SQL = 1 << 31
"""Virtual instructions of a query: a table that was made to never end does."""


def _trackio(file: Path, aside: SetAside) -> Rows:
    """Trackio's table of metrics, whose JSON it writes as bytes, and older releases of it as text."""
    for location, (run, step, cell) in trackio_rows(file, "metrics", ("run_name", "step", "metrics"), aside):
        row = _parsed(cell, is_whole=True) if isinstance(cell, (bytes, str)) else "the metrics are no text"
        if isinstance(row, str):
            aside.add(row, location)
        else:
            yield MetricRow(location, {**row, "step": row.get("step", step)}, str(run))


def trackio_rows(
    file: Path, table: str, columns: Sequence[str], aside: SetAside
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


_PAIR = re.compile(
    r"""['"](?P<key>[^'"]{1,200})['"]\s*:\s*(?:np\.\w+\()?['"]?"""
    r"""(?P<value>[+-]?(?:nan|inf(?:inity)?|[0-9.][0-9.]*(?:e[+-]?[0-9]+)?))['"]?\)?(?=\s*[,}])""",
    re.IGNORECASE,
)
_COLONED = re.compile(
    r"(?:^|\s)(?P<key>[\w/@.-]{1,200}):(?:np\.\w+\()?(?P<value>[+-]?(?:nan|inf|[0-9.][0-9.e+-]*))\)?(?=\s|$)"
)
_STEP_FIRST = re.compile(r"\bstep:(?P<step>[0-9]{1,15}) - |^Step (?P<number>[0-9]{1,15}) \| ")
_SLIME = re.compile(r"\b(?P<kind>rollout|step|perf|eval) (?P<step>[0-9]{1,15}): \{")
_PROGRESS = re.compile(r"\b(?P<done>[0-9]{1,12})/(?P<all>[0-9]{1,12}) \[")
_LONGEST_LINE = 1 << 20
_MARKS = ("'loss'", "'reward'", "'grad_norm'", "'train/", "'rollout/", '"loss"', '"reward"')


def _console(file: Path, aside: SetAside) -> Rows:
    """What a trainer printed: dictionaries of TRL's and its relatives, slime's, lines that begin with their step.

    verl writes ``step:N - name:value - name:value``, torchtune ``Step N | name:value name:value``.

    TRL's dictionaries do not name their step: where a bar of progress stands before each, its count is the step, else
    the place of the dictionary among all.

    Yields:
        A row a dictionary.
    """
    bars: list[int] = []
    rows: list[tuple[str, dict[str, Any]]] = []
    last_bar = 0
    for location, line, _ in _texts(file, aside):
        for bar in _PROGRESS.finditer(line[:_LONGEST_LINE]):
            last_bar = int(bar["done"])
        text = line[-_LONGEST_LINE:]
        first = _STEP_FIRST.search(text)
        slime = _SLIME.search(text)
        if first is not None:
            values = {one["key"]: _number_or_text(one["value"]) for one in _COLONED.finditer(text[first.end() - 1 :])}
            yield MetricRow(location, {**values, "step": int(first["step"] or first["number"])})
        elif slime is not None:
            values = {one["key"]: _number_or_text(one["value"]) for one in _PAIR.finditer(text[slime.start() :])}
            yield MetricRow(location, {**values, "step": int(slime["step"])})
        elif "{" in text and any(mark in text for mark in _MARKS):
            values = {one["key"]: _number_or_text(one["value"]) for one in _PAIR.finditer(text[text.index("{") :])}
            if "}" not in text or len(values) < 2:
                aside.add("the dictionary of metrics is cut off", location)
            elif "train_runtime" not in values:
                rows.append((location, values))
                bars.append(last_bar)
    is_counted = bool(bars) and bars[0] > 0 and all(first < second for first, second in pairwise(bars))
    for place, (location, values) in enumerate(rows):
        step = bars[place] if is_counted else place + 1
        yield MetricRow(location, {"step": step, **values, PLACE: float(not is_counted)})


PLACE = "gradscope/step_is_place"
"""Key of a row whose step is its place among the rows of a console."""


class _Nobody:
    """Takes what is met in rows that are looked at before they are read."""

    def add(self, reason: str, location: str) -> None:
        """Nothing."""

    def lose(self, error: InputError) -> None:
        """Nothing."""


def first_rows(file: MetricFile, number: int) -> list[MetricRow]:
    """The first rows of a file; what else it holds is met when it is read."""
    return list(islice(file.rows(_Nobody()), number))
