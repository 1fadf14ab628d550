"""The machine that this runs on: the index of this process among several, work in threads, memory that is returned.

Also how numerical libraries start: threads of linear algebra, spinning of idle threads, lazy modules.

Of several processes, as `torchrun` and `accelerate launch` start them, one prints and writes: the main one. Where a run
ends in an error, the first that met it reports why, and the others end silently with the same exit code.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.util import LazyLoader, find_spec, module_from_spec
from typing import TypeVar

_reports: list[bool] = []  # whether this process reports how the run ended; empty until that is settled


def num_processes() -> int:
    """Number of processes that the launcher started, at least 1."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def process_index() -> int:
    """Index of this process, from 0 on; 0 is the main one."""
    return int(os.environ.get("RANK", "0")) if num_processes() > 1 else 0


def num_cores() -> int:
    """Number of cores that this process may run on, at least 1."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def set_reporting(*, speaks: bool) -> None:
    """Set whether this process reports how the run ended."""
    _reports[:] = [speaks]


def report_own_error() -> None:
    """Let this process report an error that it alone may have met, unless it was settled which one reports."""
    if not _reports:
        set_reporting(speaks=True)


def speaks() -> bool:
    """Whether this process reports events; by default the main one does."""
    return _reports[0] if _reports else process_index() == 0


Item = TypeVar("Item")
Result = TypeVar("Result")


def in_threads(work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Results of a function on items, in order.

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
    """Return free memory to the system: glibc keeps that of many small pieces, more than a gigabyte was seen.

    Arrow's pool keeps 40 bytes of each group of a long log.
    """
    if (arrow := sys.modules.get("pyarrow")) is not None:
        arrow.default_memory_pool().release_unused()
    if sys.platform == "linux":
        import ctypes

        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:  # musl has none
            trim(0)


@contextmanager
def without_collection() -> Iterator[None]:
    """Disable garbage collection: rows have no cycles, and each collection would visit all of them."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def one_blas_thread(*, with_torch: bool = False) -> None:
    """Run NumPy's linear algebra on one thread unless the environment says otherwise; call before NumPy is imported.

    Our matrices are small, and more threads wait for one another: a third of a command on a small log, and five times
    the processor time of a singular value decomposition of 576 x 1,536 on two busy cores. PyTorch keeps its threads:
    its builds for x86 use MKL, others may share OpenBLAS and are left alone.
    """
    if not with_torch or (hasattr(os, "uname") and os.uname().machine == "x86_64"):
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if not with_torch:
        os.environ.setdefault("MKL_NUM_THREADS", "1")


def defer_imports() -> None:
    """Make modules of NumPy and SciPy lazy that are imported with others but never used here.

    scipy.special copies the names of NumPy, and scipy.optimize has an optimizer that triangulates: these three modules
    are a third of what both take to import.
    """
    for parent, name in (("numpy", "f2py"), ("numpy", "testing"), ("scipy", "spatial")):
        full_name = f"{parent}.{name}"
        spec = None if full_name in sys.modules else find_spec(full_name)
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
            module = sys.modules[full_name] = module_from_spec(spec)
            spec.loader.exec_module(module)
            setattr(sys.modules[parent], name, module)


def limit_spinning() -> None:
    """Let idle threads of torch sleep soon unless the environment says otherwise; call before torch is imported.

    By default GNU's OpenMP spins 300,000 times before a thread sleeps, which slows other work on the same cores: on two
    cores with three other busy processes a replay of a step took 16.3 seconds of processor time, with 3,000 spins 12.0.
    On free cores it takes as long as before, within the differences between runs.
    """
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
        os.environ["GOMP_SPINCOUNT"] = "3000"
