"""Blocks of a log and the threads that parse them, a few at a time and in order."""

from __future__ import annotations

import os
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import local
from types import MappingProxyType
from typing import Any, TypeVar

from gradscope.errors import InputError
from gradscope.machine.memory import trim_heap
from gradscope.outside.limits import MOST_ROW, in_mib, most, raise_limits
from gradscope.rollouts.readers.parsing.jsonl import BOM, COMPRESSED, open_bytes
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.scan.cut_lines import whole_lines
from gradscope.rollouts.readers.scan.line_columns import LineColumns
from gradscope.rollouts.readers.scan.line_queries import LineQueries
from gradscope.rollouts.readers.scan.table_files import CellColumns

BLOCK = 16 << 20
"""Bytes of JSON lines that are parsed at once: so many that the work outweighs the planning of its query, and so few
that every core has some of a log of a few dozen MB."""

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Some lines of a file."""

    file: int
    """The file's number within the log."""
    path: Path
    """The file."""
    data: bytes
    """Whole lines, without a byte-order mark."""
    is_first: bool
    """Whether the file begins with it."""
    end: int
    """Bytes of the file up to its end, decompressed ones."""

    @property
    def is_open(self) -> bool:
        """Whether its last line has no end: the file may yet go on."""
        return not self.data.endswith(b"\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class LineBlock:
    """Lines of JSON that are read alike, of one file or of several."""

    pieces: tuple[Piece, ...]
    """In order."""
    columns: LineColumns
    """How to read them."""
    end: int
    """Bytes of the log up to its end; of a compressed file up to its start."""

    @property
    def data(self) -> list[bytes]:
        """The pieces' lines."""
        return [piece.data for piece in self.pieces]

    @property
    def file_steps(self) -> list[int | None] | None:
        """The step of each piece's file, where files tell one."""
        step_of = self.columns.file_step
        return None if step_of is None else [step_of(piece.path) for piece in self.pieces]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileBlock:
    """A whole file of another kind."""

    file: int
    """Its number within the log."""
    path: Path
    """The file."""
    columns: CellColumns | None
    """How to read it; None: by the row reader alone."""
    end: int
    """Bytes of the log up to its end."""


Block = LineBlock | FileBlock


def blocks_of(
    files: Sequence[Path],
    declared: Callable[[Path], LineColumns | CellColumns | None],
    ends: Mapping[Path, int] = MappingProxyType({}),
    quarantine: QuarantineLog | None = None,
) -> Iterator[Block]:
    """The blocks of a log; a line without an end is in a block of its own.

    Args:
        files: What it consists of, in order.
        declared: How each is read.
        ends: Bytes of files of JSON lines that were read before.
        quarantine: Takes what is left of a file that cannot be read to its end; None: it was told before.

    Yields:
        The blocks, in order.
    """
    waiting: list[Piece] = []
    of_waiting: LineColumns | None = None
    end = 0

    def block() -> Iterator[LineBlock]:
        if waiting and of_waiting is not None:
            yield LineBlock(pieces=tuple(waiting), columns=of_waiting, end=end)
            waiting.clear()

    for number, file in enumerate(files):
        columns, start, length = declared(file), end, file.stat().st_size
        if columns is not of_waiting:
            yield from block()
        if isinstance(columns, LineColumns):
            of_waiting = columns
            for piece in _pieces(file, number, ends.get(file, 0), quarantine or QuarantineLog()):
                if piece.is_open:
                    yield from block()
                waiting.append(piece)
                end = start + (0 if file.suffix in COMPRESSED else min(piece.end, length))
                if piece.is_open or sum(len(one.data) for one in waiting) >= BLOCK:
                    yield from block()
        end = start + length
        if not isinstance(columns, LineColumns):
            yield FileBlock(file=number, path=file, columns=columns, end=end)
    yield from block()


def _pieces(path: Path, file: int, end: int, quarantine: QuarantineLog) -> Iterator[Piece]:
    """The pieces of a file from some byte on, as far as it can be read."""
    longest = most(MOST_ROW)
    try:
        with open_bytes(path) as stream:
            if end:
                stream.seek(end)
            for data in whole_lines(stream.read, BLOCK, longest):
                is_first, end = end == 0, end + len(data)
                lines = data.removeprefix(BOM) if is_first else data
                yield Piece(file=file, path=path, data=lines, is_first=is_first, end=end)
    except InputError as error:
        quarantine.lose(error)
    except ValueError:  # what follows a line without an end cannot be told from it
        quarantine.lose(InputError(f"{path} has a line of more than {in_mib(longest)}.", hint=raise_limits(path)))
    except (OSError, EOFError, zlib.error) as error:
        quarantine.lose(InputError(f"{path} cannot be read: {error}.", hint="Copy the file again."))


class Workers:
    """A thread a core, each with a connection of its own."""

    def __init__(self) -> None:
        self._num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self._database = _database(os.getpid())
        self._connections: list[Any] = []
        self._pool = ThreadPoolExecutor(self._num_cores)
        self._of_thread = local()

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        for connection in self._connections:
            connection.close()
        trim_heap()  # blocks leave holes that the statistics would not fit

    def map(
        self, blocks: Iterable[Block], work: Callable[[LineQueries, Block], Found]
    ) -> Iterator[tuple[Block, Found]]:
        """Work on blocks.

        Args:
            blocks: Taken when a thread is about to need one, so that few are in memory.
            work: Called with the queries of a connection and a block.

        Yields:
            Each block with what came of it, in their order.
        """
        waiting: deque[tuple[Block, Future[Found]]] = deque()
        for block in blocks:
            waiting.append((block, self._pool.submit(self._with_queries, work, block)))
            if len(waiting) > self._num_cores:
                done, future = waiting.popleft()
                yield done, future.result()
        for done, future in waiting:
            yield done, future.result()

    def _with_queries(self, work: Callable[[LineQueries, Block], Found], block: Block) -> Found:
        if not hasattr(self._of_thread, "queries"):
            connection = self._database.cursor()
            self._connections.append(connection)
            self._of_thread.queries = LineQueries(connection)
        return work(self._of_thread.queries, block)


@cache
def _database(process: int) -> Any:
    """The one database of a process, which is empty: to open one takes longer than to read a small log."""
    import duckdb  # small logs do without it, and start sooner

    # Each thread parses a block of its own, so DuckDB needs none beside them.
    return duckdb.connect(config={"threads": 1, "autoinstall_known_extensions": False})
