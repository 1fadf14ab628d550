"""The machine that this runs on: which of several processes this one is, several files at a time, memory handed back.

Of several processes, as `torchrun` and `accelerate launch` start them, one prints and writes: the main one. Where a run
ends in an error, the first that met it reports why, and the others end silently with the same exit code.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

_reports: list[bool] = []  # whether this process reports how the run ended; empty until that is settled


def num_processes() -> int:
    """How many processes the launcher started, at least 1."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def process_index() -> int:
    """Which of them this one is, from 0 on; 0 is the main one."""
    return int(os.environ.get("RANK", "0")) if num_processes() > 1 else 0


def num_cores() -> int:
    """How many cores this process may run on, at least 1."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def settle_speaker(*, speaks: bool) -> None:
    """Set whether this process reports how the run ended."""
    _reports[:] = [speaks]


def tell_own_error() -> None:
    """Let this process speak of an error that it alone may have met, unless another's turn was settled."""
    if not _reports:
        settle_speaker(speaks=True)


def speaks() -> bool:
    """Whether this process reports events; by default the main one does."""
    return _reports[0] if _reports else process_index() == 0


Item = TypeVar("Item")
Result = TypeVar("Result")


def in_threads(work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Results of a function on items, in their order.

    Args:
        work: Called in threads; its exception ends calls that have not begun, and so does Ctrl-C.
        items: Its arguments.
    """
    from concurrent.futures import ThreadPoolExecutor  # with ctypes two thirds of the time before Ctrl-C was handled

    pool = ThreadPoolExecutor()
    try:
        return list(pool.map(work, items))
    finally:
        pool.shutdown(cancel_futures=True)


def trim_heap() -> None:
    """Return free memory to the system: glibc keeps that of many small pieces, more than a gigabyte was seen."""
    if sys.platform == "linux":
        import ctypes

        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:  # musl has none
            trim(0)


@contextmanager
def without_collection() -> Iterator[None]:
    """Look for no cycles meanwhile: rows have none, and each pass would look at all of them."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
