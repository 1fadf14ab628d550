"""JSON lines from a file that may be damaged: every line is a row or is set aside with its reason.

A byte-order mark is skipped; NaN and Infinity are read as numbers, so that the reward is rejected and not the line.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import pyarrow as pa

from gradscope.errors import InputError
from gradscope.outside.limits import MOST_ROW, Unpacked, in_mib, most, open_file, raise_limits, require_regular
from gradscope.outside.plain_json import RefusedJsonError, parse_json
from gradscope.results.source import BLANK, CUT_OFF
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog

COMPRESSED = (".gz", ".zst")  # last suffixes of the files that are decompressed on the way
_PASSED_AT_ONCE = 1 << 24
"""Bytes of a compressed file that are skipped at once: it has to be decompressed from its start."""
MOST_FLAWED = 1_000_000
"""Consecutive lines without a row after which a file is given up: a few bytes unpack to any number of them."""
BOM = b"\xef\xbb\xbf"  # the byte-order mark of UTF-8


def open_bytes(path: Path) -> IO[bytes]:
    """A file's bytes, decompressed where its name ends in ``.gz`` or ``.zst``, up to a limit."""
    if path.suffix not in COMPRESSED or _is_plain(path):
        return open_file(path)
    require_regular(path)
    if path.suffix == ".gz":
        packed = cast(IO[bytes], gzip.GzipFile(path))
    else:
        packed = cast(IO[bytes], pa.CompressedInputStream(pa.OSFile(str(path)), "zstd"))
    return io.BufferedReader(Unpacked(packed, path), 1 << 20)


def _is_plain(path: Path) -> bool:
    """Whether a file holds uncompressed JSON though its name ends in ``.gz``, as RLinf's does."""
    if path.suffix != ".gz":
        return False
    with open_file(path) as stream:
        return stream.read(1) == b"{"


def read_bytes(path: Path) -> Generator[bytes, None, None]:
    """A file's lines with their ends; one longer than a row may have may be cut, to more than that length."""
    return (line for line, _ in _sized_lines(path))


def _sized_lines(path: Path) -> Iterator[tuple[bytes, int]]:
    """A file's lines, each with its number of bytes in the file."""
    size = most(MOST_ROW) + 1
    with named_if_unreadable(path), open_bytes(path) as stream:
        while line := stream.readline(size):
            rest, passed = line, 0
            while len(rest) == size and not rest.endswith(b"\n"):  # the rest of a long line
                rest = stream.readline(size)
                passed += len(rest)
            yield line, len(line) + passed


def document_bytes(path: Path) -> bytes | None:
    """A file's bytes without a byte-order mark; None for more than a row may have."""
    size = most(MOST_ROW)
    with named_if_unreadable(path), open_bytes(path) as stream:
        data = stream.read(size + 1)
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
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} cannot be read: {error}.", hint="Copy the file again.") from error


@dataclass(frozen=True, slots=True)
class LocatedRow:
    """An object of a file of JSON lines, and its location."""

    number: int  # the number of its line, from 1
    start: int  # offset of its first byte; of a compressed file, in the decompressed data
    end: int  # offset of the byte after its line
    cells: dict[str, Any]


def read_jsonl(path: Path, quarantine: QuarantineLog) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a file of JSON lines, each with its ``file:line``; for the rest see :func:`located_rows`."""
    return ((f"{path}:{row.number}", row.cells) for row in located_rows(path, quarantine))


def located_rows(path: Path, quarantine: QuarantineLog) -> Iterator[LocatedRow]:
    """The objects of a file of JSON lines; other lines, and a rest that cannot be read, go to the quarantine."""
    last = end = 0
    packed = path.suffix in COMPRESSED
    try:
        for number, (line, size) in enumerate(_sized_lines(path), start=1):
            start, end = end, end + size
            quarantine.passed(0 if packed else len(line))
            row = parse_line(line.removeprefix(BOM) if number == 1 else line)
            if not isinstance(row, str):
                last = number
                yield LocatedRow(number, start, end, row)
            elif number - last <= MOST_FLAWED or number - last <= most(MOST_FLAWED):
                quarantine.add(row, f"{path}:{number}")
            else:
                message = f"{path} has no row in {most(MOST_FLAWED):,} lines from line {last + 1} on."
                quarantine.lose(InputError(message, hint=raise_limits(path)))
                return
        if packed:
            quarantine.passed(path.stat().st_size, 0)
    except InputError as error:
        quarantine.lose(error)


def parse_line(line: bytes) -> dict[str, Any] | str:
    """The object in a line, or the reason why there is none; only a file's last line may lack its end."""
    if not line.strip():
        return BLANK
    if len(line) > MOST_ROW and len(line) > most(MOST_ROW):  # the first test saves a look at the environment
        return f"the line is longer than {in_mib(most(MOST_ROW))}"
    try:
        row = parse_json(line)
    except UnicodeDecodeError:
        return "the line is not UTF-8"
    except RefusedJsonError as error:
        return f"the line {error.why}"
    except ValueError:
        return "the line is not JSON" if line.endswith(b"\n") else CUT_OFF
    return row if isinstance(row, dict) else "the line is not a JSON object"
