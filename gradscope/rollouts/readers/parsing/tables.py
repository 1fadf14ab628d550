"""Rows of one or many files, which may be damaged: JSON lines, a JSON document, Parquet or CSV.

Every line is a row or is set aside with its reason. A byte-order mark is skipped; NaN and Infinity are read as numbers,
so that the reward is rejected and not the line. Each row of CSV is bounded: a quote that is not closed costs its row
and not the rest of the file.
"""

from __future__ import annotations

import csv
import fnmatch
import glob
import io
import os
import re
import sys
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import lru_cache, partial
from importlib import import_module
from itertools import islice
from pathlib import Path, PurePath
from typing import IO, Any

import msgspec
import pyarrow as pa

from gradscope.errors import InputError
from gradscope.outside.limits import BUFFER, MAX_ROW, Unpacked, allowed, in_mib, open_file, raise_limits
from gradscope.outside.plain_json import RefusedJsonError, parse_json
from gradscope.results.source import BLANK, CUT_OFF, TWICE, first_duplicate
from gradscope.rollouts.arrays import Counts
from gradscope.rollouts.listing import COMPRESSED, natural, natural_path, when_copied
from gradscope.rollouts.readers.parsing.columnar import read_parquet_rows
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog

_PASSED_AT_ONCE = 1 << 24
"""Bytes of a compressed file that are skipped at once: it has to be decompressed from its start."""
_WHOLE_LINES = 1 << 22
"""Bytes of a buffer that holds even a line of a thousand completions, which costs six times as much in pieces."""
MAX_FLAWED = 1_000_000
"""Consecutive lines without a row after which a file is given up: a few bytes unpack to any number of them."""
BOM = b"\xef\xbb\xbf"  # the byte-order mark of UTF-8


def open_bytes(path: Path, buffer: int = BUFFER) -> io.BufferedReader:
    """A file's bytes, decompressed where its name ends in one of ``COMPRESSED``, up to a limit.

    Where a file is cut off they end early, which :func:`raise_if_cut_off` reports.
    """
    stream = open_file(path, buffer)
    if path.suffix not in COMPRESSED or (path.suffix == ".gz" and stream.read(1) == b"{"):  # not compressed, as RLinf's
        stream.seek(0)
        return stream
    stream.close()
    return io.BufferedReader(Unpacked(_decompressed(path), path), 1 << 20)


def _decompressed(path: Path) -> Any:
    if path.suffix == ".zst":
        return pa.CompressedInputStream(pa.OSFile(str(path)), "zstd")
    module = {".gz": "gzip", ".xz": "lzma", ".bz2": "bz2"}[path.suffix]
    try:
        return import_module(module).open(path)
    except ImportError as error:
        raise InputError(
            f"{path} cannot be read: this Python was built without {module}.", hint="Decompress the file first."
        ) from error


def raise_if_cut_off(stream: IO[bytes]) -> None:
    """Raise the error at which a stream of :func:`open_bytes` ended, if it did not reach the file's end."""
    raw = getattr(stream, "raw", None)
    if isinstance(raw, Unpacked) and raw.failure is not None:
        raise raw.failure


def read_bytes(path: Path) -> Generator[bytes, None, None]:
    """A file's lines with their ends; one longer than a row may have may be cut, to more than that length."""
    return (line for line, _ in _sized_lines(path))


def _sized_lines(path: Path) -> Iterator[tuple[bytes, int]]:
    """A file's lines, each with its number of bytes in the file."""
    size = allowed(MAX_ROW) + 1
    with named_if_unreadable(path), ExitStack() as files:
        stream = files.enter_context(open_bytes(path))
        if b"\n" not in stream.peek():  # unlike in most logs, of which often no more is read than the first rows
            stream = files.enter_context(open_bytes(path, _WHOLE_LINES))
        while line := stream.readline(size):
            rest, passed = line, 0
            while len(rest) == size and not rest.endswith(b"\n"):  # the rest of a long line
                rest = stream.readline(size)
                passed += len(rest)
            yield line, len(line) + passed
        raise_if_cut_off(stream)


def document_bytes(path: Path) -> bytes | None:
    """A file's bytes without a byte-order mark; None for more than a row may have."""
    size = allowed(MAX_ROW)
    with named_if_unreadable(path), open_bytes(path) as stream:
        data = stream.read(size + 1)
        raise_if_cut_off(stream)
    return None if len(data) > size else data.removeprefix(BOM)


def read_span(path: Path, start: int, end: int) -> bytes:
    """The decompressed bytes from ``start`` to ``end``; fewer where the file is shorter."""
    with named_if_unreadable(path), open_bytes(path) as stream:
        if path.suffix not in COMPRESSED:
            stream.seek(start)
        else:
            while start > 0 and (passed := stream.read(min(start, _PASSED_AT_ONCE))):
                start, end = start - len(passed), end - len(passed)
        return stream.read(end - start)


@contextmanager
def named_if_unreadable(path: Path) -> Iterator[None]:
    """Turn the errors of a file that cannot be read into ours."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error}.", hint="Copy the file again.") from error


def read_jsonl(path: Path, quarantine: QuarantineLog) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a file of JSON lines, each with its ``file:line``; for the rest see :func:`located_rows`."""
    return ((f"{path}:{number}", cells) for number, _, _, cells in located_rows(path, quarantine))


def located_rows(path: Path, quarantine: QuarantineLog) -> Iterator[tuple[int, int, int, dict[str, Any]]]:
    """The objects of a file of JSON lines; other lines, and a rest that cannot be read, go to the quarantine.

    Yields:
        The number of its line, from 1; the offsets of its first byte and of the byte after its line, of a compressed
        file in the decompressed data; the object.
    """
    last = end = 0
    packed = path.suffix in COMPRESSED
    try:
        for number, (line, size) in enumerate(_sized_lines(path), start=1):
            start, end = end, end + size
            quarantine.count_read(0 if packed else len(line))
            row = parse_line(line.removeprefix(BOM) if number == 1 else line)
            if not isinstance(row, str):
                last = number
                yield number, start, end, row
            elif number - last <= MAX_FLAWED or number - last <= allowed(MAX_FLAWED):
                quarantine.add(row, f"{path}:{number}")
            else:
                message = f"{path} has no row in {allowed(MAX_FLAWED):,} lines from line {last + 1} on."
                quarantine.add_unreadable(InputError(message, hint=raise_limits(path)))
                return
        if packed:
            quarantine.count_read(path.stat().st_size, 0)
    except InputError as error:
        quarantine.add_unreadable(error)


def parse_line(line: bytes) -> dict[str, Any] | str:
    """The object in a line, or the reason why there is none; only a file's last line may lack its end.

    A comma may follow, as where the elements of a list were cut into lines. A list of objects, as of a group, is one
    with such a list.
    """
    if not line or line.isspace():
        return BLANK
    if len(line) > MAX_ROW and len(line) > allowed(MAX_ROW):  # the first test saves a look at the environment
        return f"the line is longer than {in_mib(allowed(MAX_ROW))}"
    try:
        row = parse_json(line)
    except UnicodeDecodeError:
        return "the line is not UTF-8"
    except RefusedJsonError as error:
        return f"the line {error.why}"
    except ValueError:
        if (cut := line.rstrip()).endswith(b"},"):
            return parse_line(cut[:-1] + b"\n")
        return "the line is not JSON" if line.endswith(b"\n") else CUT_OFF
    if isinstance(row, list) and row and {dict}.issuperset(map(type, row)):
        return {"rollouts": row}
    return row if isinstance(row, dict) else "the line is not a JSON object"


_REASONS = {
    "',' expected after '\"'": "a quote is not closed, or text follows one",
    "unexpected end of data": "a quote is not closed",
    "new-line character seen in unquoted field - do you need to open the file in universal-newline mode?": "a carriage "
    "return stands in it",
}
"""Message of Python's CSV reader -> our own."""


def read_csv(path: Path, quarantine: QuarantineLog) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of a file after its header, each with the ``file:line`` at which it starts.

    All cells are text; lines that are no row go to the quarantine.

    Raises:
        InputError: The file cannot be read, or so many quotes are not closed that the same lines were read too often.
    """
    with closing(read_bytes(path)) as lines:  # CsvRows is a reference cycle, which would hold the file open
        rows = CsvRows(path, lines)
        for number, reason in rows.before_header:
            quarantine.add(reason, f"{path}:{number}")
        yield from _usable_rows(rows, path, quarantine)


def csv_rows_in(path: Path, start: int, end: int, first: int) -> Iterator[Row]:
    """The rows in a stretch of such a file that begins with its line ``first``; nothing is set aside."""
    with closing(read_bytes(path)) as lines:
        rows = CsvRows(path, lines)
    rows.resume(io.BytesIO(read_span(path, start, end)), first - 1)
    yield from _usable_rows(rows, path, QuarantineLog())


def _usable_rows(rows: CsvRows, path: Path, quarantine: QuarantineLog) -> Iterator[Row]:
    while (line := rows.row()) is not None:
        number, row, num_bytes = line
        quarantine.count_read(0 if path.suffix in COMPRESSED else num_bytes)
        if isinstance(row, str):
            quarantine.add(row, f"{path}:{number}")
        else:
            yield f"{path}:{number}", row


class CsvRows:
    """The rows of a file after its header; after a row that fails, reading resumes at the line after its first."""

    def __init__(self, path: Path, lines: Iterator[bytes]) -> None:
        """Reads up to the header, which is the first line that is a row."""
        csv.field_size_limit(sys.maxsize)  # completions outgrow the default of 128 KiB; rows have a limit of their own
        self._path = path
        self._source = lines
        separator = _SEPARATOR.fullmatch(first := next(lines, b""))
        first = next(lines, b"") if separator else first
        self._waiting: deque[bytes] = deque([first] if first else [])
        unquoted = re.sub(rb'"[^"]*"', b"", first)  # quotes
        marks = separator[1].decode() if separator else "\t,;|" if suffix_of(path) == ".tsv" else ",;\t|"
        self.delimiter = next((mark for mark in marks if mark.encode() in unquoted), marks[0])
        self._row_lines: list[bytes] = []
        self.num_lines = int(separator is not None)  # lines of the rows so far
        self._size = 0
        self._max_size = self._left = allowed(MAX_ROW)
        self._reader = partial(csv.reader, strict=True, delimiter=self.delimiter)
        self._rows = self._reader(self._lines())
        self.before_header: list[tuple[int, str]] = []
        """Lines before the header that are no row, each with its number and the reason."""
        self.header: tuple[str, ...] = ()  # the names of the columns
        while (line := self._cells()) is not None:
            number, cells, _ = line
            if not isinstance(cells, str):
                # pandas numbers rows in an unnamed column, spreadsheets end lines with several
                self.header = tuple(name or f"column {index}" for index, name in enumerate(cells, start=1))
                break
            self.before_header.append((number, cells))
        self.twice = first_duplicate(self.header)  # a name that two columns share

    def resume(self, lines: Iterator[bytes], num_lines: int) -> None:
        """Go on with other lines of the file, before which it has so many."""
        self._source, self.num_lines = lines, num_lines
        self._waiting.clear()
        self._forget()
        self._rows = self._reader(self._lines())

    def row(self) -> tuple[int, dict[str, str] | str, int] | None:
        """The next row: the number of its first line, its cells or why it has none, and its bytes; None at the end.

        Raises:
            InputError: So many quotes are not closed that the same lines were read too often.
        """
        line = self._cells()
        return None if line is None else (line[0], self._named_cells(line[1]), line[2])

    def parse_row(self, data: bytes, bounds: Counts, row: int) -> dict[str, str] | str:
        """One of some rows by itself, or why it has no cells; ``bounds`` are where each begins and the last ends."""
        text = data[bounds[row] : bounds[row + 1]].decode("utf-8", "surrogateescape")
        return self._named_cells(next(self._reader([text]), []))

    def _named_cells(self, cells: list[str] | str) -> dict[str, str] | str:
        """Cells by the names of their columns, or why they are no row."""
        if isinstance(cells, str):
            return cells
        if not any(cells):
            return "the line is blank"
        if len(cells) != len(self.header):
            return "the row has more or fewer cells than the header"
        try:
            "".join(cells).encode()
        except UnicodeEncodeError:  # bytes that "surrogateescape" let pass
            return "the line is not UTF-8"
        if self.twice is not None:
            return TWICE.format(self.twice)
        if self.delimiter == ";":
            cells = [re.sub(DECIMAL_COMMA, r"\1.\2", cell) for cell in cells]
        return dict(zip(self.header, cells, strict=True))

    def skip(self, num_lines: int) -> None:
        """Count lines that another reader has taken from the source."""
        self.num_lines += num_lines

    def unconsumed(self) -> bytes:
        """The bytes that were read from the source but belong to no row yet."""
        data = b"".join(self._waiting)
        self._waiting.clear()
        return data

    def _lines(self) -> Iterator[str]:
        while True:
            line = self._waiting.popleft() if self._waiting else next(self._source, None)
            if line is None:
                return
            if not self.num_lines and not self._row_lines:
                line = line.removeprefix(BOM)
            self._row_lines.append(line)
            self._size += len(line)
            if self._size > self._max_size:
                raise csv.Error(f"it is longer than {in_mib(self._max_size)}")
            yield line.decode("utf-8", "surrogateescape")

    def _cells(self) -> tuple[int, list[str] | str, int] | None:
        first = self.num_lines + 1
        try:
            cells = next(self._rows)
        except StopIteration:
            return None
        except csv.Error as error:
            size = len(self._row_lines[0])
            return first, self._skip_broken(str(error)), size
        size = self._size
        self.num_lines += len(self._row_lines)
        self._forget()
        return first, cells, size

    def _skip_broken(self, reason: str) -> str:
        """Resume at the line after the first of the failed row."""
        following = self._row_lines[1:]
        self._left -= sum(map(len, following))
        if self._left < 0:
            raise InputError(
                f"{self._path} has so many quotes that are not closed that its rows cannot be told apart.",
                hint="Write the file again with a CSV library.",
            )
        self._waiting.extendleft(reversed(following))
        self.num_lines += 1
        self._forget()
        self._rows = self._reader(self._lines())
        return f"the row is not CSV: {_REASONS.get(reason, reason)}"

    def _forget(self) -> None:
        self._row_lines.clear()
        self._size = 0


_SEPARATOR = re.compile(rb'(?:\xef\xbb\xbf)?"?sep=([,;\t|])"?\s*')  # a line before the header, for spreadsheets
DECIMAL_COMMA = "^([+-]?[0-9]+),([0-9]+)$"
"""A number with a decimal comma, as written where semicolons separate cells."""

Row = tuple[str, dict[str, Any]]  # ``file:line`` and the row's cells
SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".arrow")


def expand(path: Path) -> tuple[Path, ...]:
    """The files of a path, folder (not below it) or glob, in natural order: ``2.jsonl`` before ``10.jsonl``."""
    if path.is_file():
        return (path,)
    if path.is_dir():
        return _files_of_rows(path, _names_in(path))
    files = sorted((Path(name) for name in glob.glob(str(path)) if Path(name).is_file()), key=natural_path)
    return tuple(sorted(_each_once(files), key=natural))  # those of one name by their folders


def _names_in(folder: Path) -> tuple[str, ...]:
    """Names of the files of a folder, and of links to files."""
    with os.scandir(folder) as entries:  # unlike Path.iterdir, without a stat for each file
        # a link to itself raises where a path is no file
        return tuple(
            entry.name
            for entry in entries
            if entry.is_file(follow_symlinks=False) or (entry.is_symlink() and Path(entry).is_file())
        )


@lru_cache(maxsize=4)  # each format asks for the files of a folder
def _files_of_rows(folder: Path, names: tuple[str, ...]) -> tuple[Path, ...]:
    files = [folder / name for name in names if suffix_of(name) and when_copied(name) != "awaited"]
    saved = [file for file in files if file.suffix == ".arrow"]  # next to descriptions of the dataset
    return tuple(sorted(_each_once(saved or files), key=natural))


def files_like(path: Path, *patterns: str) -> tuple[Path, ...]:
    """A trainer's files in natural order, seen from any of its folders, for each of which there is a pattern.

    Those of the first pattern that matches any, JSON lines also compressed; of a file or a glob, whose names fit.
    """
    if path.is_dir():
        for pattern in patterns:
            wider = pattern + "*" * pattern.endswith(".jsonl")
            if "/" in pattern:
                files = [file for file in path.glob(wider) if file.is_file()]
            else:
                files = [path / name for name in fnmatch.filter(_names_in(path), wider)]
            if fit := [file for file in files if file.match(pattern) or _unpacked(file).match(pattern)]:
                return tuple(sorted(_each_once(fit), key=natural_path))
        return ()
    wanted = {PurePath(pattern).name for pattern in patterns}
    return tuple(
        file for file in expand(path) if any(map(file.match, wanted)) or any(map(_unpacked(file).match, wanted))
    )


def _each_once(files: Iterable[Path]) -> list[Path]:
    """Files without the compressed ones that lie next to the same uncompressed, as ``gzip -k`` leaves them."""
    named = {file: _unpacked(file) for file in files}
    return [file for file, unpacked in named.items() if unpacked is file or unpacked not in named]


def _unpacked(file: Path) -> Path:
    """The path of a compressed file without the suffix that says so; any other as it is."""
    return file.with_suffix("") if file.suffix in COMPRESSED else file


def suffix_of(path: Path | str) -> str | None:
    """The suffix of a file of rows: one of ``SUFFIXES``, also before one of ``COMPRESSED``; None for other files."""
    return next(filter(_unpacked(Path(path)).name.endswith, SUFFIXES), None)


def stem_of(path: Path) -> str:
    """A file's name without that suffix, and with all other dots: ``Qwen2.5`` of ``Qwen2.5.jsonl.gz``."""
    suffix = suffix_of(path)
    return path.stem if suffix is None else path.name[: path.name.rindex(suffix)]


_OF_WANDB = re.compile(r"_([0-9]+)_[0-9a-f]{20}\.table")


def stem_with_step(path: Path) -> str:
    """The same, of a table that W&B keeps with its step and not its hash: ``text_step3`` of ``text_3_HASH.table.json``.

    >>> stem_with_step(Path("iter_000003_12_0123456789abcdef0123.table.json"))
    'iter_000003_step12'
    """
    return _OF_WANDB.sub(r"_step\1", stem_of(path))


def is_untyped(path: Path) -> bool:
    """Whether a file's cells are all text, as in CSV and TSV."""
    return suffix_of(path) in (".csv", ".tsv")


def is_columnar(path: Path) -> bool:
    """Whether a file is read by columns, as Parquet is, and Arrow's, as which Hugging Face's datasets are saved."""
    return suffix_of(path) in (".parquet", ".arrow")


def read_rows(path: Path, quarantine: QuarantineLog, columns: Collection[str] | None = None) -> Iterator[Row]:
    """The rows of a file, by default JSON lines, each with its ``file:line``, counted from 1.

    Of Parquet's, ``columns`` names the cells that are made.
    """
    if is_columnar(path):
        return quarantine.readable(read_parquet_rows(path, quarantine, columns))
    readers = {".csv": read_csv, ".tsv": read_csv, ".json": read_json_rows}
    return quarantine.readable(readers.get(suffix_of(path) or "", read_jsonl)(path, quarantine))


UNDECODED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_LIST = msgspec.json.Decoder(list[msgspec.Raw])  # whose elements are parsed later: of most files the first are enough
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LIST_NAMES = ("rollouts", "rows", "records", "data")  # keys under which a document that is an object has its rows
STEP_NAMES = (
    *("step", "global_step", "training_step", "train_step", "trainer_step", "iteration"),
    *("optimizer_step", "optim_step", "update_step", "rl_step", "grpo_step", "total_step"),
    *("training_iteration", "update", "train/step", "train/global_step", "rollout/step"),
)
"""Usual names of the column of steps, and of the step of all rows in a document."""


def rows_of(document: Any) -> Sequence[Any]:
    """The rows of a document: the elements of a list, or of its one list under such a key, else itself.

    >>> rows_of({"step": 3, "rollouts": [{"reward": 1.0}]})
    [{'step': 3, 'reward': 1.0}]
    """
    if not isinstance(document, dict):
        return document if isinstance(document, list) else [document]
    if (table := table_rows(document)) is not None:
        return table
    lists = [document[name] for name in _LIST_NAMES if isinstance(document.get(name), list)]
    if len(lists) != 1:
        return [document]
    step = {name: document[name] for name in STEP_NAMES if isinstance(document.get(name), (int, float, str))}
    return [step | row if isinstance(row, dict) else row for row in lists[0]] if step else lists[0]


def entry_in(cell: Any, path: str) -> Any:
    """An entry of an object, by its key or by keys of objects within one another, joined by dots; UNSET without one.

    >>> entry_in({"report": {"resolved": True}}, "report.resolved")
    True
    """
    if not isinstance(cell, Mapping):
        return msgspec.UNSET
    head, dot, tail = path.partition(".")
    return cell[path] if path in cell else entry_in(cell.get(head), tail) if dot else msgspec.UNSET


def table_rows(document: Mapping[str, Any]) -> list[Any] | None:
    """The rows of a table, as W&B saves one and pandas writes one, split or not; None where a document is none.

    >>> table_rows({"columns": ["step", "reward"], "data": [[3, 1.0]]})
    [{'step': 3, 'reward': 1.0}]
    """
    names, rows = document.get("columns"), document.get("data")
    if isinstance(names, list) and isinstance(rows, list) and all(isinstance(name, str) for name in names):
        size = len(names)
        return [
            dict(zip(names, row, strict=True)) if isinstance(row, list) and len(row) == size else row for row in rows
        ]
    # else columns, some of text and some of numbers, each an object with the same numbers of rows as keys
    columns = [column for column in document.values() if isinstance(column, dict)]
    kinds = [set(map(type, column.values())) for column in columns]
    are_of_both = {str} in kinds and any(kind <= {int, float, bool} for kind in kinds)
    keys = list(map(str, range(len(columns[0])))) if are_of_both else []
    if not keys or len(columns) < len(document) or any(list(column) != keys for column in columns):
        return None
    return [dict(zip(document, row, strict=True)) for row in zip(*(column.values() for column in columns), strict=True)]


def undecoded_rows(data: bytes) -> Sequence[bytes | msgspec.Raw]:
    """The JSON of each row of :func:`rows_of`, of a document as JSON.

    Raises:
        msgspec.MsgspecError: It is no JSON.
    """
    if not data.startswith(b"{"):
        return _LIST.decode(data)
    document = _OBJECT.decode(data)
    cells = {
        name: bytes(document[name]) for name in (*_LIST_NAMES, *STEP_NAMES) if name in document
    }  # others may be long
    lists = [cells[name] for name in _LIST_NAMES if cells.get(name, b"").startswith(b"[")]
    if len(lists) != 1 or "columns" in document:
        return [data.strip()]
    rows, steps = _LIST.decode(lists[0]), [name for name in STEP_NAMES if cells.get(name, b"[")[:1] not in b"[{n"]
    if not steps:
        return rows
    step = b"".join(b'"%b":%b,' % (name.encode(), cells[name]) for name in steps)
    return [b"{" + step + bytes(row)[1:] for row in rows]  # of a key that is there twice the last counts


def read_json_rows(
    path: Path, quarantine: QuarantineLog, rows_in: Callable[[Any], Sequence[Any]] = rows_of
) -> Iterator[Row]:
    """The rows in a document: its list's elements, or itself; a file that is no document is read as JSON lines."""
    first = list(islice(read_bytes(path), 2))
    if len(first) == 2 and all(isinstance(parse_line(line.removeprefix(BOM)), dict) for line in first):
        # an object a line: it need not fit into memory as one document
        yield from read_jsonl(path, quarantine)
        return
    data = document_bytes(path)
    if data is None:
        raise InputError(f"{path} is a JSON document of more than {in_mib(allowed(MAX_ROW))}.", hint=raise_limits(path))
    elements: Sequence[Any] = ()
    if rows_in is rows_of:
        with suppress(*UNDECODED):
            elements = _LIST.decode(data)
    if not elements:
        try:
            elements = rows_in(parse_json(data))
        except RefusedJsonError as error:
            raise InputError(f"{path} cannot be read: {error}.", hint="Write the document again.") from None
        except ValueError:
            if not (data.startswith(b"[") and b"}," in data):
                yield from read_jsonl(path, quarantine)
                return
            with suppress(ValueError):  # a list that breaks off, and no lines
                elements = rows_in(parse_json(data[: data.rindex(b"},") + 1] + b"]"))
            if len(elements) < 2:
                quarantine.add("the document is not JSON", f"{path}:1")
                return
            broken = InputError(f"{path} breaks off after element {len(elements):,}.", hint="Copy the file again.")
            quarantine.add_unreadable(broken)
    quarantine.count_read(path.stat().st_size, len(elements))
    for number, element in enumerate(elements, start=1):
        is_raw = isinstance(element, msgspec.Raw)
        row = parse_line(bytes(element) + b"\n") if is_raw else element
        if isinstance(row, dict):
            yield f"{path}:{number}", row
        else:
            reason = row.replace("line", "element", 1) if is_raw else "the element is not a JSON object"
            quarantine.add(reason, f"{path}:{number}")
