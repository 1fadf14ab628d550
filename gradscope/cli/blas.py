"""What numerical libraries take at their start: threads for linear algebra, turns while they wait, and a compiler."""

from __future__ import annotations

import os
import sys
from importlib.util import LazyLoader, find_spec, module_from_spec


def one_blas_thread() -> None:
    """Let NumPy's linear algebra run on one thread, unless the environment says otherwise; before NumPy is imported.

    The matrices behind the statistics of a log are small: more threads wait for one another, and cost a third of the
    time of a command on a small log.
    """
    for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")


def late_compiler() -> None:
    """Load ``numpy.f2py`` only once something looks into it.

    scipy.special copies the names of NumPy, that one among them, and it takes a fifth of all imports of scipy.special.
    """
    spec = None if "numpy.f2py" in sys.modules else find_spec("numpy.f2py")
    if spec is None or spec.loader is None:
        return
    spec.loader = LazyLoader(spec.loader)
    module = sys.modules["numpy.f2py"] = module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules["numpy"].f2py = module  # type: ignore[attr-defined]


def patient_threads() -> None:
    """Let torch's threads sleep soon while they wait, unless the environment says otherwise; before torch is imported.

    As they come, those of GNU's OpenMP turn around 300,000 times until the next product, which other work on the same
    cores pays for: on two cores beside three busy processes a replay of one step took 16.3 seconds of processor time,
    with 3,000 turns 12.0. On free cores it takes as long as before, within the differences of one run and the next.
    """
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
        os.environ["GOMP_SPINCOUNT"] = "3000"
