"""A log's files scanned in their order: in this process, or, where they are large, a range of bytes a process.

Processes are forked, so that what is declared in functions need not be sent; elsewhere than on Linux there is one.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gradscope.machine.memory import trim_heap
from gradscope.rollouts.readers.parsing.jsonl import COMPRESSED
from gradscope.rollouts.readers.reduction.columns import LineColumns, TableColumns
from gradscope.rollouts.readers.reduction.lines import Scanned, scan_range, scan_small
from gradscope.rollouts.readers.reduction.tables import scan_table

if TYPE_CHECKING:
    from concurrent.futures import Future

RANGE = 32 << 20
"""Bytes that a process reads before it answers."""
MIN_FORKED = 96 << 20
"""Bytes of a log, decompressed ones by a guess, below which a second process takes longer than it saves."""
_SMALL, _TOGETHER = 1 << 20, 4 << 20
"""Bytes of a file that is read together with others, and of these."""
EXPANSION = 10
"""What a compressed file is taken to hold, in its sizes on disk: rollouts of one prompt are alike and compress well."""

Declared = Callable[[Path], LineColumns | TableColumns | None]
Range = tuple[int, int, int | None]
"""A file by its number, and the bytes of it in which lines begin that are read; no end: that of the file."""
Task = int | list[Range]
"""A file for the row reader, or ranges of others."""

_work: tuple[Sequence[Path], Declared, bool] = ((), lambda _: None, False)
"""Files, how each is read, and whether texts of prompts are kept: of this process and those that are forked from it."""


def scan_files(
    files: Sequence[Path], declared: Declared, ends: Mapping[int, int], *, with_texts: bool = False
) -> Iterator[Scanned | int]:
    """What is in some files, in their order.

    Args:
        files: What is scanned, in order.
        declared: How each is read; None: by the row reader alone.
        ends: Number of a file of JSON lines -> bytes of it that were read before.
        with_texts: Whether texts of prompts are kept.

    Yields:
        Blocks of rows; of a file for the row reader its number.
    """
    global _work
    before, collects = _work, gc.isenabled()
    _work = (files, declared, with_texts)
    gc.disable()  # rows have no cycles, and each pass looks at all of them
    try:
        tasks = list(_tasks(files, declared, ends))
        num_bytes = sum(map(expanded_size, files)) - sum(ends.values())
        num_processes = min(_num_cores(), len(tasks))
        if num_processes > 1 and num_bytes >= MIN_FORKED and _can_fork():
            yield from _in_processes(tasks, num_processes)
        else:
            for task in tasks:
                yield from [task] if isinstance(task, int) else _scan(task)
    finally:
        _work = before
        if collects:
            gc.enable()
        trim_heap()  # blocks leave holes that the statistics would not fit


def expanded_size(file: Path) -> int:
    """Bytes of a file, of a compressed one by a guess."""
    return file.stat().st_size * (EXPANSION if file.suffix in COMPRESSED else 1)


def _tasks(files: Sequence[Path], declared: Declared, ends: Mapping[int, int]) -> Iterator[Task]:
    """Ranges of files, small ones together."""
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


def _scan(ranges: Iterable[Range]) -> Iterator[Scanned]:
    files, declared, with_texts = _work
    for some in _with_small_together(ranges):
        number, start, end = some[0]
        columns = declared(files[number])
        if len(some) > 1 and isinstance(columns, LineColumns):
            numbers = [number for number, _, _ in some]
            yield from scan_small([files[number] for number in numbers], numbers, columns, with_texts=with_texts)
        elif isinstance(columns, LineColumns):
            yield from scan_range(files[number], number, columns, start, end, with_texts=with_texts)
        elif columns is not None:
            yield from scan_table(files[number], number, columns, with_texts=with_texts)


def _with_small_together(ranges: Iterable[Range]) -> Iterator[list[Range]]:
    """Each range by itself, but small files of lines that stand side by side and are read alike together."""
    files, declared, _ = _work
    small: list[Range] = []
    known, size = None, 0
    for number, start, end in ranges:
        columns, length = declared(files[number]), files[number].stat().st_size
        is_lines = isinstance(columns, LineColumns) and not columns.looks_at_path
        is_small = is_lines and files[number].suffix not in COMPRESSED and not start and length < _SMALL
        if small and (not is_small or columns is not known or size + length > _TOGETHER):
            yield small
            small, size = [], 0
        if is_small:
            small.append((number, start, end))
            known, size = columns, size + length
        else:
            yield [(number, start, end)]
    if small:
        yield small


def _scan_all(ranges: Iterable[Range]) -> list[Scanned]:
    return list(_scan(ranges))


def _in_processes(tasks: Iterable[Task], num_processes: int) -> Iterator[Scanned | int]:
    from concurrent.futures import ProcessPoolExecutor  # 20 ms that small logs do without
    from multiprocessing import get_context

    pool = ProcessPoolExecutor(num_processes, get_context("fork"), _start)
    waiting: deque[int | Future[list[Scanned]]] = deque()
    try:
        for task in tasks:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads, which here take no lock
                waiting.append(task if isinstance(task, int) else pool.submit(_scan_all, task))
            if len(waiting) > 2 * num_processes:
                yield from _answer(waiting.popleft())
        while waiting:
            yield from _answer(waiting.popleft())
    finally:
        pool.shutdown(cancel_futures=True)


def _answer(one: int | Future[list[Scanned]]) -> list[Scanned] | list[int]:
    return [one] if isinstance(one, int) else one.result()


def _start() -> None:
    """Leave Ctrl-C to the first process, which ends the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _can_fork() -> bool:
    from multiprocessing import current_process

    return sys.platform == "linux" and not current_process().daemon
