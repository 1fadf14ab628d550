"""Work on several files at a time, where most of it is done outside the interpreter's lock."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Found = TypeVar("Found")


def in_threads(work: Callable[[Item], Found], items: Iterable[Item]) -> list[Found]:
    """What comes of items, in their order.

    Args:
        work: Called in threads; what it raises ends the others that have not begun, and so does Ctrl-C.
        items: What it is called with.
    """
    pool = ThreadPoolExecutor()
    try:
        return list(pool.map(work, items))
    finally:
        pool.shutdown(cancel_futures=True)
