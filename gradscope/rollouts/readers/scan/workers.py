"""Blocks of a log and the threads that parse them, a few at a time and in order."""

from __future__ import annotations

import os
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
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

BLOCK = 8 << 20
"""Bytes of JSON lines that are parsed at once: so many that the work outweighs its call, and so few that a file of a
few dozen MB gives every core some."""

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Some lines of a file of JSON lines, or a whole file of another kind."""

    file: int
    """The file's number within the log."""
    path: Path
    """The file."""
    columns: LineColumns | CellColumns | None
    """How to read it."""
    data: bytes = b""
    """Whole lines, without a byte-order mark."""
    is_first: bool = True
    """Whether it is the first block of its file."""
    end: int
    """Bytes of the log up to its end; of a compressed file up to its start."""


def blocks_in(path: Path, file: int, columns: LineColumns, start: int) -> Iterator[Block]:
    """The blocks of a file of JSON lines.

    Args:
        path: The file.
        file: Its number within the log.
        columns: How to read it.
        start: Bytes of the log before it.

    Yields:
        The blocks.

    Raises:
        InputError: It cannot be opened, or its compression is broken.
    """
    try:
        with open_bytes(path) as stream:
            end, is_first = start, True
            for data in whole_lines(stream.read, BLOCK):
                end += 0 if path.suffix in COMPRESSED else len(data)
                lines = data.removeprefix(BOM) if is_first else data
                yield Block(file=file, path=path, columns=columns, data=lines, is_first=is_first, end=end)
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
