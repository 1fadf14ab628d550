import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from gradscope.cli.blas import one_blas_thread, patient_threads


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
def test_beside_torch_numpy_alone_takes_one_thread(
    monkeypatch: pytest.MonkeyPatch, machine: str, threads: str | None
) -> None:
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
        "import sys; from gradscope.cli.blas import late_modules; late_modules(); late_modules(); "
        f"import numpy, scipy.optimize; loaded = lambda: print(len({{*{inner}}} & sys.modules.keys())); loaded(); "
        f"{'; loaded(); '.join(uses)}; loaded()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "1", "2", "3"]


@pytest.mark.parametrize("variable", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT"])
def test_threads_sleep_soon_while_they_wait_by_default(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    unset(monkeypatch, "OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    monkeypatch.setenv(variable, "ACTIVE")
    patient_threads()
    assert os.environ.get("GOMP_SPINCOUNT") == ("ACTIVE" if variable == "GOMP_SPINCOUNT" else None)
    monkeypatch.delenv(variable)
    patient_threads()
    assert os.environ["GOMP_SPINCOUNT"] == "3000"
