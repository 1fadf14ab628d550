import gc
import os
import subprocess
import sys
import time
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace

import numpy as np
import pytest

from gradscope import machine
from gradscope.machine import in_threads, limit_spinning, one_blas_thread, trim_heap, without_collection


@pytest.fixture(autouse=True)
def nothing_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_reports", [])
    for name in ("WORLD_SIZE", "RANK"):
        monkeypatch.delenv(name, raising=False)


def test_without_a_launcher_there_is_one_process_and_it_speaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")  # left over from another program
    assert (machine.num_processes(), machine.process_index(), machine.speaks()) == (1, 0, True)


def test_of_several_the_main_one_speaks_until_something_else_is_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "2")
    assert (machine.num_processes(), machine.process_index(), machine.speaks()) == (4, 2, False)
    machine.set_reporting(speaks=True)
    assert machine.speaks()
    machine.set_reporting(speaks=False)
    machine.report_own_error()
    assert not machine.speaks()


def test_who_meets_an_error_alone_tells_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "2")
    machine.report_own_error()
    assert machine.speaks()


def test_results_have_the_order_of_their_items() -> None:
    meet = Barrier(2, timeout=60)

    def work(number: int) -> int:
        meet.wait()
        return number**2

    assert in_threads(work, range(2)) == [0, 1]
    assert in_threads(work, []) == []


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_leaves_what_has_not_begun(error: type[BaseException]) -> None:
    begun = []

    def work(number: int) -> None:
        begun.append(number)
        if number == 0:
            raise error
        time.sleep(0.01)

    with pytest.raises(error):
        in_threads(work, range(1000))
    assert len(begun) < 1000


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_what_is_free_goes_back_to_the_system() -> None:
    pieces = [np.ones(8_000) for _ in range(2_000)]  # of 64 kB, below what the allocator maps by itself
    last, held = pieces[-1], resident()
    del pieces
    trim_heap()
    assert held - resident() > 64_000_000
    assert last.sum() == 8_000


def test_cycles_are_looked_for_again_afterwards_unless_somebody_said_not_to() -> None:
    with without_collection():
        with without_collection():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def unset(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    for name in names:
        monkeypatch.setenv(name, "")  # or the test's own value would stay
        monkeypatch.delenv(name)


def test_linear_algebra_takes_one_thread_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    monkeypatch.setenv("MKL_NUM_THREADS", "4")
    one_blas_thread()
    assert (os.environ["OPENBLAS_NUM_THREADS"], os.environ["MKL_NUM_THREADS"]) == ("1", "4")


@pytest.mark.parametrize(("machine", "threads"), [("x86_64", "1"), ("aarch64", None)])
def test_beside_torch_numpy_has_one_thread(monkeypatch: pytest.MonkeyPatch, machine: str, threads: str | None) -> None:
    unset(monkeypatch, "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    monkeypatch.setattr("os.uname", lambda: SimpleNamespace(machine=machine))
    one_blas_thread(with_torch=True)
    assert (os.environ.get("OPENBLAS_NUM_THREADS"), os.environ.get("MKL_NUM_THREADS")) == (threads, None)


@pytest.mark.slow
def test_idle_modules_are_loaded_only_where_something_looks_into_them() -> None:
    inner = ("numpy.f2py.crackfortran", "numpy.testing._private.utils", "scipy.spatial._qhull")
    uses = (
        "numpy.f2py.get_include()",
        "numpy.testing.assert_equal(1, 1)",
        "scipy.spatial.ConvexHull([[0, 0], [0, 1], [1, 0]])",
    )
    code = (
        "import sys; from gradscope.machine import defer_imports; defer_imports(); defer_imports(); "
        f"import numpy, scipy.optimize; loaded = lambda: print(len({{*{inner}}} & sys.modules.keys())); loaded(); "
        f"{'; loaded(); '.join(uses)}; loaded()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "1", "2", "3"]


@pytest.mark.parametrize("variable", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT"])
def test_threads_sleep_soon_while_they_wait_by_default(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    unset(monkeypatch, "OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    monkeypatch.setenv(variable, "ACTIVE")
    limit_spinning()
    assert os.environ.get("GOMP_SPINCOUNT") == ("ACTIVE" if variable == "GOMP_SPINCOUNT" else None)
    monkeypatch.delenv(variable)
    limit_spinning()
    assert os.environ["GOMP_SPINCOUNT"] == "3000"
