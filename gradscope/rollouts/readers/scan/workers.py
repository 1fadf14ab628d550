"""Blocks of a log and the threads that parse them, a few at a time and in order."""

from __future__ import annotations

import os
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import local
from typing import Any, TypeVar

import duckdb

from gradscope.errors import InputError
from gradscope.rollouts.readers.parsing.jsonl import BOM, COMPRESSED, open_bytes
from gradscope.rollouts.readers.scan.lines import LineColumns, whole_lines
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


@dataclass(frozen=True, slots=True, kw_only=True)
class LineBlock:
    """Lines of JSON that are read alike, of one file or of several."""

    pieces: tuple[Piece, ...]
    """In order."""
    columns: LineColumns
    """How to read them."""
    end: int
    """Bytes of the log up to its end; of a compressed file up to its start."""


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


def blocks_of(files: Sequence[Path], declared: Callable[[Path], LineColumns | CellColumns | None]) -> Iterator[Block]:
    """The blocks of a log.

    Args:
        files: What it consists of, in order.
        declared: How each is read.

    Yields:
        The blocks, in order.
    """
    waiting: list[Piece] = []
    of_waiting: LineColumns | None = None
    end = size = 0
    for number, file in enumerate(files):
        columns, length = declared(file), file.stat().st_size
        if waiting and of_waiting is not None and columns is not of_waiting:
            yield LineBlock(pieces=tuple(waiting), columns=of_waiting, end=end)
            waiting, size = [], 0
        if isinstance(columns, LineColumns):
            of_waiting, at = columns, 0
            for piece in _pieces(file, number):
                waiting.append(piece)
                size, at = size + len(piece.data), at + len(piece.data)
                if size >= BLOCK:
                    read = 0 if file.suffix in COMPRESSED else min(at, length)
                    yield LineBlock(pieces=tuple(waiting), columns=columns, end=end + read)
                    waiting, size = [], 0
        end += length
        if not isinstance(columns, LineColumns):
            yield FileBlock(file=number, path=file, columns=columns, end=end)
    if waiting and of_waiting is not None:
        yield LineBlock(pieces=tuple(waiting), columns=of_waiting, end=end)


def _pieces(path: Path, file: int) -> Iterator[Piece]:
    """The pieces of a file; one that cannot be opened, or whose compression is broken, is an :class:`InputError`."""
    try:
        with open_bytes(path) as stream:
            is_first = True
            for data in whole_lines(stream.read, BLOCK):
                lines = data.removeprefix(BOM) if is_first else data
                yield Piece(file=file, path=path, data=lines, is_first=is_first)
                is_first = False
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} cannot be read: {error}.", hint="Copy the file again.") from error


class Workers:
    """A thread a core, each with a connection of its own."""

    def __init__(self) -> None:
        self._num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        # Each parses a block of its own, so DuckDB needs no threads beside them.
        self._duckdb = duckdb.connect(config={"threads": 1, "autoinstall_known_extensions": False})
        self._pool = ThreadPoolExecutor(self._num_cores)
        self._of_thread = local()

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._duckdb.close()

    def map(self, blocks: Iterable[Block], work: Callable[[Any, Block], Found]) -> Iterator[tuple[Block, Found]]:
        """Work on blocks.

        Args:
            blocks: Taken when a thread is about to need one, so that few are in memory.
            work: Called with a connection and a block.

        Yields:
            Each block with what came of it, in their order.
        """
        waiting: deque[tuple[Block, Future[Found]]] = deque()
        for block in blocks:
            waiting.append((block, self._pool.submit(self._with_connection, work, block)))
            if len(waiting) > self._num_cores:
                done, future = waiting.popleft()
                yield done, future.result()
        for done, future in waiting:
            yield done, future.result()

    def _with_connection(self, work: Callable[[Any, Block], Found], block: Block) -> Found:
        if not hasattr(self._of_thread, "connection"):
            self._of_thread.connection = self._duckdb.cursor()
        return work(self._of_thread.connection, block)
