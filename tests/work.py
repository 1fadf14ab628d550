"""How much work a call is, told by a count that is the same on every machine, loaded or not."""

import sys
from collections.abc import Callable
from types import FrameType


def num_calls(work: Callable[[], object]) -> int:
    """Calls of functions, Python's and C's, that some work makes the second time it is done."""
    calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    work()  # whatever is imported or cached once
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return calls
