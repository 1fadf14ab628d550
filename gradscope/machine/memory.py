"""Memory that is free and not handed back."""

from __future__ import annotations

import ctypes
import sys


def trim_heap() -> None:
    """Hand free memory back to the system: glibc keeps what many small pieces held, more than a gigabyte was seen."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:  # musl has none
            trim(0)
