import gc
import sys
from pathlib import Path

import numpy as np
import pytest

from gradscope.machine.memory import trim_heap, without_collection


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_what_is_free_goes_back_to_the_system() -> None:
    pieces = [np.ones(8_000) for _ in range(2_000)]  # of 64 kB, below what the allocator maps by itself
    kept, held = pieces[-1], resident()
    del pieces
    trim_heap()
    assert held - resident() > 64_000_000
    assert kept.sum() == 8_000


def test_cycles_are_looked_for_again_afterwards_unless_somebody_said_not_to() -> None:
    with without_collection():
        with without_collection():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
