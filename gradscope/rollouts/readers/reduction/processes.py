"""The files of a log, scanned in order: in this process or, where they are large, by one process a range of bytes.

Processes are forked, so that the functions of a declaration need not be pickled; other systems than Linux use one.
"""

from __future__ import annotations

import io
import signal
import sys
import warnings
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
from msgspec import Struct, field
from msgspec.structs import replace

from gradscope.errors import InputError
from gradscope.machine import num_cores, trim_heap
from gradscope.outside.limits import MAX_ROW, allowed
from gradscope.results.source import TWICE
from gradscope.rollouts.arrays import Counts, to_cells, to_indices
from gradscope.rollouts.listing import COMPRESSED
from gradscope.rollouts.readers.parsing import columnar, tables
from gradscope.rollouts.readers.reduction.columns import Cells, FileColumns, LineColumns, ListColumns, TableColumns
from gradscope.rollouts.readers.reduction.lines import (
    IrregularRow,
    Scanned,
    is_text,
    scan_list,
    scan_range,
    scan_small,
    spans_of,
)
from gradscope.rollouts.readers.reduction.parts import part_of_columns

if TYPE_CHECKING:
    from concurrent.futures import Future


BLOCK = 4 << 20  # bytes of a block of CSV
_AT_ONCE = 1 << 13  # rows of the row reader that are held as objects at a time
_END, _RETURN, _QUOTE = map(ord, '\n\r"')


def scan_table(path: Path, file: int, columns: TableColumns, *, with_texts: bool = False) -> Iterator[Scanned]:
    """The rows of a Parquet or CSV file."""
    try:
        if not tables.is_columnar(path):
            yield from _scan_csv(path, file, columns, with_texts)
            return
        narrower = None if columns.narrower is None else columns.narrower(path)
        blocks: Iterable[Scanned] = [] if narrower is None else list(_scan_batches(path, file, narrower, with_texts))
        if not blocks or any(block.irregular for block in blocks):  # the row reader needs all columns
            blocks = _scan_batches(path, file, columns, with_texts)
        yield from blocks
    except InputError as error:
        yield Scanned(file=file, end=path.stat().st_size, num_rows=0, lost=error)


def _scan_batches(path: Path, file: int, columns: TableColumns, with_texts: bool) -> Iterator[Scanned]:
    first = 0  # row of the batch
    for batch, end, first_rows, twice in columnar.parquet_batches(path, columns.names, columns.texts):
        if twice is not None:
            irregular = [IrregularRow(index=0, row=TWICE.format(twice), count=len(batch))]
            yield Scanned(file=file, end=end, num_rows=len(batch), irregular=irregular)
            continue
        cells = Cells.of_batch(batch, path) if columns.names else Cells.of_rows(_rows_of(batch), path)
        of_batch = columns.to_columns(cells)
        part, row_numbers, is_irregular = part_of_columns(of_batch, np.arange(len(batch)), with_texts=with_texts)
        irregular_rows = np.flatnonzero(is_irregular)
        cells_alone = _rows_of(batch.take(to_indices(irregular_rows))) if len(irregular_rows) else []
        irregular = [
            IrregularRow(index=number, row=row, start=first + number, end=first + number + 1)
            for number, row in zip(irregular_rows.tolist(), cells_alone, strict=True)
        ]
        is_used = ~is_irregular[of_batch.row_of]
        spans = spans_of(of_batch.step[is_used], of_batch.row_of[is_used], first + np.arange(len(batch) + 1))
        yield Scanned(
            file=file,
            end=end,
            num_rows=len(batch),
            part=part,
            row_numbers=row_numbers if irregular else None,
            irregular=irregular,
            # what has to be decoded of a row group begins with it
            spans=[replace(span, start=first_rows[bisect_right(first_rows, span.start) - 1]) for span in spans],
            noted=of_batch.called_for(is_irregular),
        )
        first += len(batch)


def _rows_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The rows of a batch; equal values of a dictionary are one object."""
    names = batch.schema.names
    return [dict(zip(names, row, strict=True)) for row in zip(*map(to_cells, batch.columns), strict=True)]


def _scan_csv(path: Path, file: int, columns: TableColumns, with_texts: bool) -> Iterator[Scanned]:
    for block in csv_blocks(path, (*(columns.names or ()), *columns.texts)):
        batch, lines = block.batch, block.lines
        if batch is None:
            yield Scanned(file=file, end=block.end, num_rows=block.num_lines, irregular=block.irregular, spans=[])
            continue
        of_batch, bounds = columns.to_columns(Cells.of_batch(batch, path)), block.bounds
        part, row_numbers, is_irregular = part_of_columns(of_batch, lines, with_texts=with_texts)
        is_used = ~is_irregular[of_batch.row_of]
        irregular = [
            IrregularRow(
                index=int(lines[row]), row=block.parse_row(row), start=int(bounds[row]), end=int(bounds[row + 1])
            )
            for row in np.flatnonzero(is_irregular).tolist()
        ]
        yield Scanned(
            file=file,
            end=block.end,
            num_rows=block.num_lines,
            part=part,
            row_numbers=row_numbers if irregular else None,
            irregular=irregular,
            spans=spans_of(of_batch.step[is_used], of_batch.row_of[is_used], bounds, lines),
            noted=of_batch.called_for(is_irregular),
        )


_NO_LINES = np.zeros(0, dtype=np.int64)


class CsvBlock(Struct, frozen=True, kw_only=True):
    """Lines of a CSV file: a batch of rows, or rows of the row reader."""

    end: int  # bytes read of the file so far; 0 where it is compressed
    num_lines: int
    header: tuple[str, ...]  # the names of its columns
    batch: pa.RecordBatch | None = None  # the chosen columns, as text, null where ``with_null`` and a cell is empty
    lines: Counts = field(default_factory=_NO_LINES.copy)  # the number of the first line of each row within the block
    bounds: Counts = field(default_factory=_NO_LINES.copy)
    """Where each row of the batch begins in the decompressed file, and where the last ends."""
    parse_row: Callable[[int], dict[str, str] | str] = lambda _: ""  # a row of the batch as the row reader sees it
    irregular: list[IrregularRow] = []  # rows without a batch


def csv_blocks(
    path: Path, names: Collection[str] | None, sizes: Iterator[int] | None = None, *, with_null: bool = False
) -> Iterator[CsvBlock]:
    """The lines of a CSV file in blocks, some columns or all; empty cells are null with ``with_null``.

    Raises:
        InputError: It cannot be read, or so many quotes are not closed that its rows cannot be told apart.
    """
    sizes = sizes or repeat(BLOCK)
    with tables.named_if_unreadable(path), tables.open_bytes(path) as stream:
        source = _Source(stream, is_packed=path.suffix in COMPRESSED)
        rows = tables.CsvRows(path, source)
        chosen = [name for name in rows.header if names is None or name in names]
        irregular = [IrregularRow(index=number - 1, row=why) for number, why in rows.before_header]
        yield CsvBlock(end=source.end, num_lines=rows.num_lines, header=rows.header, irregular=irregular)
        source.give_back(rows.unconsumed())
        while data := _whole_rows(source, next(sizes)):
            parsed = None if rows.twice is not None else _csv_batch(data, rows, chosen, with_null=with_null)
            if parsed is None:
                source.give_back(data)
                yield from _by_row(source, rows, len(data))
                continue
            batch, bounds, lines, num_lines = parsed
            rows.skip(num_lines)
            yield CsvBlock(
                end=source.end,
                num_lines=num_lines,
                header=rows.header,
                batch=batch,
                lines=lines,
                bounds=bounds + source.position - len(data),
                parse_row=partial(rows.parse_row, data, bounds),
            )
        tables.raise_if_cut_off(stream)


class _Source:
    """A stream of lines that takes back what was read too far."""

    def __init__(self, stream: IO[bytes], *, is_packed: bool) -> None:
        self._stream = stream
        self._left = io.BytesIO()
        self._step = 0 if is_packed else 1
        self.end = 0  # bytes read of the file; 0 where it is compressed
        self.position = 0  # decompressed bytes read and not given back

    def read(self, size: int) -> bytes:
        data = self._left.read(size)
        if len(data) < size:
            more = self._stream.read(size - len(data))
            self.end += len(more) * self._step
            data += more
        self.position += len(data)
        return data

    def give_back(self, data: bytes) -> None:
        self.position -= len(data)
        if data:
            self._left = io.BytesIO(data + self._left.read())

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        line = self._left.readline()
        if not line.endswith(b"\n"):
            more = self._stream.readline(allowed(MAX_ROW) + 1)
            self.end += len(more) * self._step
            line += more
        if not line:
            raise StopIteration
        self.position += len(line)
        return line


def _by_row(source: _Source, rows: tables.CsvRows, num_bytes: int) -> Iterator[CsvBlock]:
    """The rows that begin within the next ``num_bytes``, by the row reader."""
    start = source.position
    while num_bytes > 0:
        before, irregular = rows.num_lines, list[IrregularRow]()
        while num_bytes > 0 and len(irregular) < _AT_ONCE:
            next_row = rows.row()
            if next_row is None:
                num_bytes = 0
                break
            number, row, size = next_row
            irregular.append(IrregularRow(index=number - 1 - before, row=row, start=start, end=start + size))
            num_bytes, start = num_bytes - size, start + size
        yield CsvBlock(end=source.end, num_lines=rows.num_lines - before, header=rows.header, irregular=irregular)
    source.give_back(rows.unconsumed())


def _whole_rows(source: _Source, size: int) -> bytes:
    """The next whole rows, of which quotes tell the ends; empty at the end of the file."""
    data = source.read(size)
    while data:
        letters = np.frombuffer(data, dtype=np.uint8)
        cut = data.rfind(b"\n") + 1
        if b'"' in data and cut:
            ends = _ends_of_rows(letters, np.flatnonzero(letters == _QUOTE))
            cut = int(ends[-1]) + 1 if len(ends) else 0
        if cut:
            source.give_back(data[cut:])
            return data[:cut]
        more = source.read(max(size, len(data))) if len(data) <= allowed(MAX_ROW) else b""
        if not more:
            break
        data += more
    return data


def _ends_of_rows(letters: np.ndarray, quotes: Counts) -> Counts:
    """Line ends outside quotes."""
    ends = np.flatnonzero(letters == _END)
    return ends[np.searchsorted(quotes, ends) % 2 == 0] if len(quotes) else ends


def _csv_batch(
    data: bytes, rows: tables.CsvRows, names: list[str], *, with_null: bool
) -> tuple[pa.RecordBatch, Counts, Counts, int] | None:
    """A block's rows, their bounds, the line of each, and the number of lines; None: for the row reader."""
    import pyarrow.csv as arrow_csv  # 10 ms that no other log needs

    data = data if data.endswith(b"\n") else data + b"\n"
    letters = np.frombuffer(data, dtype=np.uint8)
    returns = np.flatnonzero(letters == _RETURN) if b"\r" in data else np.zeros(0, dtype=np.int64)
    is_plain = bool((letters[returns + 1] == _END).all()) and not data.startswith(tables.BOM) and is_text(data)
    quotes = np.flatnonzero(letters == _QUOTE) if b'"' in data else np.zeros(0, dtype=np.int64)
    if not is_plain or not _are_cells(letters, quotes, ord(rows.delimiter)):
        return None
    ends = _ends_of_rows(letters, quotes)
    try:
        table = arrow_csv.read_csv(
            pa.BufferReader(data),
            read_options=arrow_csv.ReadOptions(
                use_threads=False, column_names=list(rows.header), block_size=len(data) + 1
            ),
            parse_options=arrow_csv.ParseOptions(
                delimiter=rows.delimiter, newlines_in_values=len(quotes) > 0, ignore_empty_lines=False
            ),
            convert_options=arrow_csv.ConvertOptions(
                include_columns=names,
                column_types=dict.fromkeys(rows.header, pa.string()),
                null_values=[""],
                strings_can_be_null=with_null,
            ),
        )
    except (pa.ArrowInvalid, UnicodeEncodeError):  # the latter of a head that is not UTF-8
        return None
    if len(table) != len(ends):
        return None
    if rows.delimiter == ";":
        import pyarrow.compute as pc  # 20 ms that no other log needs

        points = {
            name: pc.replace_substring_regex(table[name], tables.DECIMAL_COMMA, r"\1.\2") for name in table.schema.names
        }
        table = pa.table(points)
    bounds = np.concatenate([[0], ends + 1])
    lines = np.flatnonzero(letters == _END) if len(quotes) else ends
    batch = table.combine_chunks().to_batches()[0]
    return batch, bounds, np.searchsorted(lines, bounds[:-1]), len(lines)


def _are_cells(letters: np.ndarray, quotes: Counts, delimiter: int) -> bool:
    """Whether each quote opens or closes a cell, or is half of an escaped quote."""
    if not len(quotes):
        return True
    if len(quotes) % 2:
        return False
    before = letters[quotes[::2] - 1]
    before[quotes[::2] == 0] = _END
    after = letters[quotes[1::2] + 1]
    return bool(
        np.isin(before, (delimiter, _END, _QUOTE)).all() and np.isin(after, (delimiter, _END, _RETURN, _QUOTE)).all()
    )


RANGE = 32 << 20  # bytes of a task of one process
MIN_FORKED = 96 << 20
"""Bytes of a log, decompressed by a guess, below which a second process costs more than it saves."""
_SMALL, _TOGETHER = 1 << 20, 4 << 20  # most bytes of a file that is read together with others, and of all of these
EXPANSION = 10
"""Guessed ratio of a compressed file: rollouts of one prompt are alike and compress well."""

Declared = Callable[[Path], FileColumns]
Range = tuple[int, int, int | None]
"""A file by its number, and the range of bytes in which its lines begin; without an end, to that of the file."""
Task = int | list[Range]  # a file for the row reader, or ranges of others
_Task = TypeVar("_Task")
_Result = TypeVar("_Result")

_work: Callable[[Any], Any] = id  # what is done with a task; forked processes inherit it


def scan_files(
    files: Sequence[Path], declared: Declared, ends: Mapping[int, int], *, with_texts: bool = False
) -> Iterator[Scanned | int]:
    """Blocks of rows in the order of files, from byte ``ends[file]`` on; a file for the row reader is its number."""
    tasks = list(_tasks(files, declared, ends))
    num_bytes = sum(map(expanded_size, files)) - sum(ends.values())
    scan = partial(_scan, files, declared, with_texts)
    try:
        if num_bytes >= MIN_FORKED:
            yield from chain.from_iterable(in_processes(lambda task: list(scan(task)), tasks))
        else:
            yield from chain.from_iterable(map(scan, tasks))
    finally:
        trim_heap()  # freed blocks leave holes that the arrays of the statistics do not fit


def expanded_size(file: Path) -> int:
    """Bytes of a file, decompressed by a guess."""
    return file.stat().st_size * (EXPANSION if file.suffix in COMPRESSED else 1)


def _tasks(files: Sequence[Path], declared: Declared, ends: Mapping[int, int]) -> Iterator[Task]:
    waiting: list[Range] = []
    size = 0
    for number, file in enumerate(files):
        columns, first, length = declared(file), ends.get(number, 0), file.stat().st_size
        starts = [first]
        if isinstance(columns, LineColumns) and file.suffix not in COMPRESSED:
            starts = list(range(first, max(length, first + 1), RANGE))
        for start, end in zip(starts, [*starts[1:], None], strict=True):
            if columns is not None:
                waiting.append((number, start, end))
                size += (length if end is None else end) - start
            if waiting and (columns is None or size >= RANGE):
                yield waiting
                waiting, size = [], 0
        if columns is None:
            yield number
    if waiting:
        yield waiting


def _scan(files: Sequence[Path], declared: Declared, with_texts: bool, task: Task) -> Iterator[Scanned | int]:
    if isinstance(task, int):
        yield task
        return
    for ranges_together in _with_small_together(files, declared, task):
        number, start, end = ranges_together[0]
        columns = declared(files[number])
        lines = columns.lines if isinstance(columns, ListColumns) else columns
        if len(ranges_together) > 1 and isinstance(lines, LineColumns):
            numbers = [number for number, _, _ in ranges_together]
            yield from scan_small([files[number] for number in numbers], numbers, lines, with_texts=with_texts)
        elif isinstance(columns, LineColumns):
            yield from scan_range(files[number], number, columns, start, end, with_texts=with_texts)
        elif isinstance(columns, ListColumns):
            of_list = scan_list(files[number], number, columns, with_texts=with_texts)
            yield from [number] if of_list is None else of_list
        elif columns is not None:
            yield from scan_table(files[number], number, columns, with_texts=with_texts)


def _with_small_together(files: Sequence[Path], declared: Declared, ranges: Iterable[Range]) -> Iterator[list[Range]]:
    """Each range by itself, but adjacent small files of the same kind of lines, or documents of them, together."""
    small: list[Range] = []
    last_kind, size = None, 0
    for number, start, end in ranges:
        columns, length = declared(files[number]), files[number].stat().st_size
        lines = columns.lines if isinstance(columns, ListColumns) else columns
        is_lines = isinstance(lines, LineColumns) and not lines.looks_at_path
        is_small = is_lines and files[number].suffix not in COMPRESSED and not start and length < _SMALL
        kind = type(columns), id(lines)
        if small and (not is_small or kind != last_kind or size + length > _TOGETHER):
            yield small
            small, size = [], 0
        if is_small:
            small.append((number, start, end))
            last_kind, size = kind, size + length
        else:
            yield [(number, start, end)]
    if small:
        yield small


def _in_process(task: Any) -> Any:
    return _work(task)


def in_processes(work: Callable[[_Task], _Result], tasks: Sequence[_Task]) -> Iterator[_Result]:
    """The results of tasks, in their order, from as many forked processes as there are cores; elsewhere from this one.

    Tasks and results are pickled; ``work``, and what it refers to, is inherited.
    """
    num_processes = min(num_cores(), len(tasks))
    if num_processes < 2 or not _can_fork():
        yield from map(work, tasks)
        return
    from concurrent.futures import ProcessPoolExecutor  # takes 20 ms, which small logs need not pay
    from multiprocessing import get_context

    global _work
    before, _work = _work, work
    # the first process handles Ctrl-C and ends the others
    pool = ProcessPoolExecutor(num_processes, get_context("fork"), signal.signal, (signal.SIGINT, signal.SIG_IGN))
    waiting: deque[Future[_Result]] = deque()
    try:
        for task in tasks:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads, which here take no lock
                waiting.append(pool.submit(_in_process, task))
            if len(waiting) > 2 * num_processes:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
        _work = before


def _can_fork() -> bool:
    from multiprocessing import current_process

    return sys.platform == "linux" and not current_process().daemon
