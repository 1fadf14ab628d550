"""JSON lines as columns: usual lines are decoded a block at a time, an irregular line alone, by the row reader.

msgspec validates all of a line, including keys that it skips, with three exceptions: bytes that are not UTF-8, deep
nesting, and numbers of thousands of digits. Lines that may contain one of these are found beforehand and left to the
row reader, which refuses them.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from itertools import chain, compress, groupby, pairwise, repeat
from operator import attrgetter
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from gradscope.errors import InputError
from gradscope.outside.limits import MAX_ROW, allowed
from gradscope.outside.plain_json import MAX_DEPTH
from gradscope.rollouts.arrays import WORD, Counts, Flags, counts_by_word, positions_of
from gradscope.rollouts.readers.parsing import tables
from gradscope.rollouts.readers.reduction.columns import LineColumns, ListColumns, Note
from gradscope.rollouts.readers.reduction.parts import ROWS_A_FILE, Part, part_of_columns

BLOCK = 4 << 20
"""Bytes of a block: so many that its overhead is small, and so few that a processor's cache holds most of them."""
_OPEN, _CLOSE, _RETURN, _QUOTE, _MINUS, _SPACE, _COLON, _COMMA, _BACKSLASH = map(ord, '{}\r"- :,\\')
_BRACKET = ord("{")
"""``{``, which ``[`` becomes where bit 0x20 is set."""
_STRIDE = (
    2100  # any number that Python refuses to convert has digits at two positions so far apart, and all between them
)
_ELEMENTS = 1 << 13  # of a list, that are objects at once


class IrregularRow(Struct, frozen=True, kw_only=True):
    """A row for the row reader, or adjacent lines that are no rows for the same reason."""

    index: int  # its number within the block
    row: dict[str, Any] | str  # its cells, or why it is no row
    start: int = 0  # its first byte in the file of lines
    end: int = 0  # the byte behind its last
    count: int = 1  # number of lines


class Span(Struct, frozen=True, kw_only=True):
    """A stretch of a block with all rows of one step, possibly with others in between."""

    step: int  # the step
    start: int
    """Its first byte in the file; of a compressed file, decompressed; of Parquet, the first row of its row group."""
    end: int  # the byte behind its last; of Parquet, the row
    line: int  # the number of its first line within the block


class Scanned(Struct, frozen=True, kw_only=True):
    """The rows of a block of a file, reduced."""

    file: int  # the file's number within the log
    end: int  # the byte behind its last; of a compressed file, decompressed
    num_rows: int  # number of lines or rows, irregular ones included
    part: Part | None = None
    """The groups of its usual rows, numbered within the block; None where it has no usual row."""
    row_numbers: Counts | None = None
    """The numbers of these rows, group after group; None where no irregular row lies between them."""
    irregular: list[IrregularRow] = []  # the remaining rows, in order
    spans: list[Span] | None = None
    """Where the usual rows of each step lie; None: the file is read as a whole or not at all."""
    is_document: bool = False  # whether ``spans`` only name the steps, as the file has no lines
    is_open: bool = False  # whether its last line has no line end, and may still be being written
    noted: tuple[Note, ...] = ()  # notes on the log that its rows give rise to
    lost: InputError | None = None  # why the rest of the file cannot be read
    is_of_several: bool = False
    """Whether ``part`` also has the groups of earlier files, with rows numbered within the log."""


class LineBlock(Struct, frozen=True, kw_only=True):
    """Whole lines of a file."""

    data: bytes  # the lines
    offset: int  # their first byte in the file; of a compressed file, decompressed
    end: int  # the byte behind the last that was read
    is_open: bool = False  # whether it is the last line of its file, without a line end
    lost: InputError | None = None  # why the rest of the file cannot be read; such a block has no lines

    def decoded(
        self, decoder: msgspec.json.Decoder[Any], may_be_nan: Sequence[str] = ()
    ) -> tuple[list[Any], Counts, Counts]:
        """The rows that decode, the numbers of their lines, and the bounds of all lines; NaN as None in some fields."""
        data = self.data + b"\n" if self.is_open else self.data
        letters = np.frombuffer(data, dtype=np.uint8)
        bounds = np.append(0, np.cumsum(np.fromiter(map(len, io.BytesIO(data)), dtype=np.int64)))
        rows, line_numbers = _decoded(decoder, data, bounds, _doubtful(data, letters, bounds), may_be_nan)
        return rows, line_numbers, bounds

    def irregular_rows(self, bounds: Counts, numbers: list[int]) -> list[IrregularRow]:
        """Lines as the row reader sees them; adjacent ones that are no rows for the same reason are one entry."""
        irregular: list[IrregularRow] = []
        num_flawed = 0
        for number in numbers:
            start, end = int(bounds[number]), int(bounds[number + 1])
            row = tables.parse_line(self.data[start:end])
            is_next = bool(irregular) and irregular[-1].index + irregular[-1].count == number
            num_flawed = 0 if isinstance(row, dict) else num_flawed + 1 if is_next else 1
            if is_next and isinstance(row, str) and irregular[-1].row == row:
                irregular[-1] = replace(irregular[-1], count=irregular[-1].count + 1, end=self.offset + end)
            else:
                irregular.append(IrregularRow(index=number, row=row, start=self.offset + start, end=self.offset + end))
            if num_flawed > allowed(tables.MAX_FLAWED):
                break
        return irregular


def blocks_in(
    path: Path, start: int = 0, end: int | None = None, sizes: Iterator[int] | None = None
) -> Iterator[LineBlock]:
    """The lines that begin within a range of bytes of a file, in blocks of about the given sizes."""
    position, sizes = start, sizes or repeat(BLOCK)
    try:
        with tables.named_if_unreadable(path), tables.open_bytes(path) as stream:
            if start:  # the first line that begins there or later, but not beyond the end
                stream.seek(start - 1)
                position = start - 1
                while end is None or position < end:
                    passed = stream.readline(BLOCK)
                    position += len(passed)
                    if not passed or passed.endswith(b"\n"):
                        break
            while end is None or position < end:
                size = next(sizes)
                data, skipped = _whole_lines(stream, size if end is None else min(size, end - position))
                if not data:
                    break
                offset = position
                position += len(data) + skipped
                if not offset and data.startswith(tables.BOM):
                    data, offset = data[len(tables.BOM) :], len(tables.BOM)
                cut = data.rfind(b"\n") + 1
                if cut:
                    yield LineBlock(data=data[:cut] if data[cut:] else data, offset=offset, end=offset + cut)
                if data[cut:]:  # a line without an end is the last of its file, or too long
                    yield LineBlock(data=data[cut:], offset=offset + cut, end=position, is_open=True)
            tables.raise_if_cut_off(stream)
    except InputError as error:
        yield LineBlock(data=b"", offset=position, end=position, lost=error)


def scan_range(
    path: Path, file: int, columns: LineColumns, start: int, end: int | None, *, with_texts: bool = False
) -> Iterator[Scanned]:
    """The lines that begin within a range of bytes of a file, block by block; ``file`` is its number in the log."""
    for block in blocks_in(path, start, end):
        yield _scan(path, file, columns, block, with_texts)


def scan_small(
    paths: Sequence[Path], files: Sequence[int], columns: LineColumns, *, with_texts: bool = False
) -> Iterator[Scanned | int]:
    """Many small files at the cost of one; the part of adjacent plain files comes with the last of them.

    A document that is none of usual rows is its number, as it is for the row reader.
    """
    small = [_SmallFile(path, file) for path, file in zip(paths, files, strict=True)]
    if plain_files := [file for file in small if file.is_plain]:
        _decode_together(plain_files, columns)
    for is_plain, adjacent in groupby(small, key=attrgetter("is_plain")):
        if is_plain:
            yield from _scan_together(list(adjacent), columns, with_texts)
        else:
            yield from chain.from_iterable(file.scan(columns, with_texts) for file in adjacent)


def scan_list(path: Path, file: int, columns: ListColumns, *, with_texts: bool = False) -> list[Scanned] | None:
    """A document that is one list of usual rows, or such a row; None for any other document."""
    scanned: list[Scanned] = []
    for block in _document_blocks(path):
        of_lines = _scan(path, file, columns.lines, block, with_texts)
        if of_lines.irregular:
            return None
        scanned.append(replace(of_lines, is_document=True))
    return scanned or None


def _document_blocks(path: Path) -> Iterator[LineBlock]:
    """A document's rows as lines; none where only the row reader knows what its rows are."""
    elements: Sequence[msgspec.Raw | bytes]
    try:
        data = tables.document_bytes(path)
        if data is None or not is_text(data):
            return
        elements = tables.undecoded_rows(data)
    except (InputError, *tables.UNDECODED):
        return
    for start in range(0, len(elements), _ELEMENTS):
        # an end of line within an element is white space
        lines = (bytes(element).replace(b"\n", b" ") + b"\n" for element in elements[start : start + _ELEMENTS])
        yield LineBlock(data=b"".join(lines), offset=0, end=len(data))


class _SmallFile:
    """A file that is read in one piece."""

    def __init__(self, path: Path, number: int) -> None:
        self.path, self.number = path, number  # the file, and its number in the log
        self.is_document = tables.suffix_of(path) == ".json"  # whether its rows are made lines, which it has not
        self.blocks = list(_document_blocks(path) if self.is_document else blocks_in(path))
        self.is_plain = len(self.blocks) == 1 and self.blocks[0].lost is None and not self.blocks[0].is_open
        self.rows: list[Any] = []  # of a plain file all, once it is decoded
        self.bounds: Counts = np.zeros(1, dtype=np.int64)

    def scan(self, columns: LineColumns, with_texts: bool) -> Iterator[Scanned | int]:
        """Its rows by themselves."""
        scanned = [_scan(self.path, self.number, columns, block, with_texts) for block in self.blocks]
        if self.is_document and (not scanned or any(block.irregular for block in scanned)):
            yield self.number
            return
        yield from (replace(block, is_document=self.is_document) for block in scanned)


def _decode_together(files: Sequence[_SmallFile], columns: LineColumns) -> None:
    """Decode files of one block at the cost of one; those with a line that does not decode are not plain."""
    data = b"".join(file.blocks[0].data for file in files)
    block = LineBlock(data=data, offset=0, end=len(data))
    rows, line_numbers, bounds = block.decoded(columns.decoder, columns.may_be_nan)
    edges = np.append(0, np.cumsum([file.blocks[0].data.count(b"\n") for file in files]))
    pairs = zip(pairwise(edges.tolist()), pairwise(np.searchsorted(line_numbers, edges).tolist()), strict=True)
    for file, ((start, end), (first, last)) in zip(files, pairs, strict=True):
        file.is_plain = last - first == end - start
        file.rows = rows[first:last]
        file.bounds = bounds[start : end + 1] - bounds[start] + file.blocks[0].offset


def _scan_together(files: Sequence[_SmallFile], columns: LineColumns, with_texts: bool) -> Iterator[Scanned | int]:
    of_all = columns.to_columns([row for file in files for row in file.rows], files[0].path)
    numbers = np.concatenate([np.arange(len(file.rows)) + file.number * ROWS_A_FILE for file in files])
    part, _, is_irregular = part_of_columns(of_all, numbers, with_texts=with_texts)
    if is_irregular.any():
        yield from chain.from_iterable(file.scan(columns, with_texts) for file in files)
        return
    noted = of_all.called_for(is_irregular)
    edges = np.append(0, np.cumsum([len(file.rows) for file in files]))
    for file, rollouts in zip(files, pairwise(np.searchsorted(of_all.row_of, edges).tolist()), strict=True):
        of_file, is_last = slice(*rollouts), file is files[-1]
        line_numbers = numbers[of_all.row_of[of_file]] % ROWS_A_FILE
        yield Scanned(
            file=file.number,
            end=file.blocks[0].end,
            num_rows=len(file.rows),
            part=part if is_last else None,
            spans=spans_of(of_all.step[of_file], line_numbers, file.bounds),
            noted=noted if is_last else (),
            is_of_several=is_last,
            is_document=file.is_document,
        )


def _whole_lines(stream: IO[bytes], size: int) -> tuple[bytes, int]:
    """The next whole lines, and how many bytes of an overlong last line were skipped."""
    longest, skipped = allowed(MAX_ROW) + 1, 0
    if stream.seekable():  # the end of the last line is looked for first: adding it to the rest would copy all of it
        start = stream.tell()
        stream.seek(start + size - 1)
        rest = stream.readline(longest)
        stream.seek(start)
        data = stream.read(size - 1 + len(rest))
    else:
        data = stream.read(size)
        rest = stream.readline(longest) if data and not data.endswith(b"\n") else b""
        data += rest
    while len(rest) == longest and not rest.endswith(b"\n"):
        rest = stream.readline(longest)
        skipped += len(rest)
    return data, skipped


def _scan(path: Path, file: int, columns: LineColumns, block: LineBlock, with_texts: bool) -> Scanned:
    if block.lost is not None:
        return Scanned(file=file, end=block.end, num_rows=0, lost=block.lost)
    rows, line_numbers, bounds = block.decoded(columns.decoder, columns.may_be_nan)
    num_lines = len(bounds) - 1
    part, numbers, spans = None, line_numbers, list[Span]()
    noted: tuple[Note, ...] = ()
    is_usual = np.zeros(num_lines, dtype=np.bool_)
    if rows:
        of_rows = columns.to_columns(rows, path)
        part, numbers, is_irregular = part_of_columns(of_rows, line_numbers, with_texts=with_texts)
        is_usual[line_numbers[~is_irregular]] = True
        is_used = ~is_irregular[of_rows.row_of]
        noted = of_rows.called_for(is_irregular)
        spans = spans_of(of_rows.step[is_used], line_numbers[of_rows.row_of[is_used]], bounds + block.offset)
    irregular = block.irregular_rows(bounds, np.flatnonzero(~is_usual).tolist())
    has_between = part is not None and any(isinstance(row.row, dict) for row in irregular)
    return Scanned(
        file=file,
        end=block.end,
        num_rows=num_lines,
        part=part,
        row_numbers=numbers if has_between else None,
        irregular=irregular,
        spans=spans,
        is_open=block.is_open,
        noted=noted,
    )


def _decoded(
    decoder: msgspec.json.Decoder[Any], data: bytes, bounds: Counts, doubtful: Counts, may_be_nan: Sequence[str]
) -> tuple[list[Any], Counts]:
    """The rows that decode, and the numbers of their lines; where decoding fails, lines are bisected."""
    decode, view = decoder.decode_lines, memoryview(data)
    edges = [-1, *doubtful.tolist(), len(bounds) - 1]
    waiting = [(low + 1, high) for low, high in pairwise(edges) if low + 1 < high][::-1]
    rows: list[Any] = []
    line_numbers: list[Counts] = [np.zeros(0, dtype=np.int64)]
    is_patched: Flags | None = None
    while waiting:
        low, high = waiting.pop()
        try:
            decoded = decode(view[bounds[low] : bounds[high]])
        except tables.UNDECODED:
            decoded = []
        if len(decoded) == high - low:
            rows += decoded
            line_numbers.append(np.arange(low, high))
        elif is_patched is None:
            patched, is_patched = _without_nan(data, bounds)
            view = memoryview(patched)
            waiting.append((low, high))
        elif high - low > 1:
            middle = (low + high) // 2
            waiting += [(middle, high), (low, middle)]
    numbers = np.concatenate(line_numbers)
    if is_patched is None or not is_patched.any():
        return rows, numbers
    of_patched = list(compress(rows, is_patched[numbers].tolist()))
    for row in of_patched:
        for name in may_be_nan:
            setattr(row, name, _none_if_patched(getattr(row, name)))
    is_usual = ~is_patched[numbers]
    is_usual[~is_usual] = [_PATCH not in msgspec.json.encode(row) for row in of_patched]
    return list(compress(rows, is_usual.tolist())), numbers[is_usual]


def _none_if_patched(cell: Any) -> Any:
    """A number, or an object of numbers, with None for each NaN."""
    if type(cell) is not dict:
        return cell
    return {name: _none_if_patched(value) for name, value in cell.items()} or None


_PATCH = b"{}"


def _without_nan(data: bytes, bounds: Counts) -> tuple[bytes, Flags]:
    """Lines with an empty object for each NaN and infinity outside of texts, and which lines have one."""
    letters = np.frombuffer(data, dtype=np.uint8)
    quotes = _quotes(letters)
    patched, is_patched = letters.copy(), np.zeros(len(bounds) - 1, dtype=np.bool_)
    for word in (b"NaN", b"Infinity"):
        starts = positions_of(letters, word[0])
        starts = starts[starts <= len(letters) - len(word)]
        for offset, letter in enumerate(word):  # few begin with its first letter alone
            starts = starts[letters[starts + offset] == letter]
        starts = starts[_are_outside(starts, quotes, bounds)]
        is_patched[np.searchsorted(bounds, starts, side="right") - 1] = True
        patched[starts[:, None] + np.arange(len(word))] = np.frombuffer(_PATCH.ljust(len(word)), dtype=np.uint8)
        signed = starts[letters[starts - 1] == _MINUS] if word == b"Infinity" else starts[:0]
        patched[signed[:, None] + np.arange(-1, 2)] = np.frombuffer(_PATCH.ljust(3), dtype=np.uint8)
    return patched.tobytes(), is_patched


def _doubtful(data: bytes, letters: NDArray[np.uint8], bounds: Counts) -> Counts:
    """The lines that do not look like an object, or may contain what only the row reader refuses."""
    starts, lasts = bounds[:-1], bounds[1:] - 2
    last = letters[lasts]
    returned = last == _RETURN
    if returned.any():
        last = np.where(returned, letters[lasts - 1], last)
    is_doubtful = (letters[starts] != _OPEN) | (last != _CLOSE) | (np.diff(bounds) > allowed(MAX_ROW))
    num_before = np.append(0, np.cumsum(counts_by_word(letters, _BRACKET, bits=0x20), dtype=np.int64))
    # of a line and of its ends
    num_brackets = num_before[-(-bounds[1:] // WORD)] - num_before[bounds[:-1] // WORD]
    if (~is_doubtful & (num_brackets > MAX_DEPTH)).any():
        brackets = positions_of(letters, _BRACKET, bits=0x20)
        # Only the first on its level counts, by the letters before it: neither among words nor a next element.
        positions = brackets - 1
        positions -= letters[positions] == _SPACE
        before = letters[positions]
        is_first = (before == _COLON) | (before | 0x20 == _BRACKET) | (before <= _SPACE)
        brackets = brackets[is_first | ((before == _COMMA) & (letters[positions - 1] | 0x20 != _CLOSE))]
        may_be_deep = ~is_doubtful & (np.diff(np.searchsorted(brackets, bounds)) > MAX_DEPTH)
        if may_be_deep.any():
            is_doubtful[may_be_deep] = _are_deep(data, bounds, np.flatnonzero(may_be_deep))
    samples = letters[::_STRIDE]
    is_digit = (samples >= ord("0")) & (samples <= ord("9"))
    for position in (np.flatnonzero(is_digit[:-1] & is_digit[1:]) * _STRIDE).tolist():
        if data[position : position + _STRIDE].isdigit():  # within thousands of digits
            is_doubtful[np.searchsorted(bounds, position, side="right") - 1] = True
    if not is_text(data):
        for number in np.flatnonzero(~is_doubtful).tolist():
            is_doubtful[number] = not is_text(data[bounds[number] : bounds[number + 1]])
    return np.flatnonzero(is_doubtful)


def _are_deep(data: bytes, bounds: Counts, numbers: Counts) -> Flags:
    """Which of some lines nest objects and lists on too many levels; what is no JSON, the decoder finds out."""
    view = memoryview(data)
    lines = b"".join(view[bounds[number] : bounds[number + 1]] for number in numbers.tolist())
    letters = np.frombuffer(lines, dtype=np.uint8)
    bounds = np.append(0, np.cumsum(np.diff(bounds)[numbers]))
    quotes = _quotes(letters)
    opening, closing = (positions_of(letters, bracket, bits=0x20) for bracket in (_BRACKET, _CLOSE))
    opening, closing = (positions[_are_outside(positions, quotes, bounds)] for positions in (opening, closing))
    line = np.searchsorted(bounds, opening, side="right") - 1
    before = np.searchsorted(opening, bounds) - np.searchsorted(closing, bounds)
    level = np.arange(1, len(opening) + 1) - np.searchsorted(closing, opening) - before[line]
    is_deep = np.zeros(len(numbers), dtype=np.bool_)
    is_deep[line[level > MAX_DEPTH]] = True
    return is_deep


def _quotes(letters: NDArray[np.uint8]) -> Counts:
    """Where quotes open or close a text, which those behind an odd number of backslashes do not."""
    quotes = positions_of(letters, _QUOTE)
    behind = np.flatnonzero(letters[quotes - 1] == _BACKSLASH)
    if not len(behind):
        return quotes
    slashes = positions_of(letters, _BACKSLASH)
    starts = np.maximum.accumulate(np.where(np.diff(slashes, prepend=-2) != 1, slashes, 0))  # of the run of each
    run = np.searchsorted(slashes, quotes[behind]) - 1
    return np.delete(quotes, behind[(quotes[behind] - starts[run]) % 2 == 1])


def _are_outside(positions: Counts, quotes: Counts, bounds: Counts) -> Flags:
    """Which positions are outside of texts, by the quotes since the start of the line of each."""
    starts = bounds[np.searchsorted(bounds, positions, side="right") - 1]
    return np.asarray((np.searchsorted(quotes, positions) - np.searchsorted(quotes, starts)) % 2 == 0)


def is_text(data: bytes) -> bool:
    """Whether bytes are UTF-8."""
    if data.isascii():
        return True
    ends = np.array([0, len(data)], dtype=np.int64)
    text = pa.LargeStringArray.from_buffers(1, pa.py_buffer(ends), pa.py_buffer(data))
    try:
        text.validate(full=True)  # a quarter of the time of data.decode()
    except pa.ArrowInvalid:
        return False
    return True


def spans_of(step: Counts, numbers: Counts, bounds: Counts, lines: Counts | None = None) -> list[Span]:
    """The stretches in which the rows of each step lie.

    Args:
        step: Step of each usual row.
        numbers: Its number among all rows of the block.
        bounds: Where each row of the block begins in the file, and the last ends.
        lines: The number of the first line of each row of the block; None: one line a row.
    """
    if not len(step):
        return []
    lines = np.arange(len(bounds)) if lines is None else lines
    if (step == step[0]).all():
        top, bottom = numbers[0], numbers[-1]
        return [Span(step=int(step[0]), start=int(bounds[top]), end=int(bounds[bottom + 1]), line=int(lines[top]))]
    steps, first = np.unique(step, return_index=True)
    last = len(step) - 1 - np.unique(step[::-1], return_index=True)[1]
    return [
        Span(step=number, start=int(bounds[top]), end=int(bounds[bottom + 1]), line=int(lines[top]))
        for number, top, bottom in zip(steps.tolist(), numbers[first].tolist(), numbers[last].tolist(), strict=True)
    ]
