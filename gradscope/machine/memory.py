"""Memory that is free and not handed back, and the search for more of it."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def trim_heap() -> None:
    """Hand free memory back to the system: glibc keeps what many small pieces held, more than a gigabyte was seen."""
    if sys.platform == "linux":
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
