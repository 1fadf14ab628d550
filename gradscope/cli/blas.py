"""Resources of numerical libraries at their start: threads of linear algebra, spinning of waiting threads, modules."""

from __future__ import annotations

import os
import sys
from importlib.util import LazyLoader, find_spec, module_from_spec


def one_blas_thread(*, with_torch: bool = False) -> None:
    """Let NumPy's linear algebra run on one thread, unless the environment says otherwise; before NumPy is imported.

    Its matrices are small, and more threads wait for one another: for a third of a command on a small log, and for five
    times the processor time of a singular value decomposition of 576 x 1,536 on two busy cores. PyTorch's own threads
    stay: its builds for x86 compute by MKL; others may share OpenBLAS, and are left alone.
    """
    if not with_torch or (hasattr(os, "uname") and os.uname().machine == "x86_64"):
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if not with_torch:
        os.environ.setdefault("MKL_NUM_THREADS", "1")


def late_modules() -> None:
    """Load modules of NumPy and SciPy that none of our numbers needs only once something looks into them.

    scipy.special copies the names of NumPy, and scipy.optimize has an optimizer that triangulates; a third of what both
    take to import is for these three.
    """
    for parent, name in (("numpy", "f2py"), ("numpy", "testing"), ("scipy", "spatial")):
        full_name = f"{parent}.{name}"
        spec = None if full_name in sys.modules else find_spec(full_name)
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
            module = sys.modules[full_name] = module_from_spec(spec)
            spec.loader.exec_module(module)
            setattr(sys.modules[parent], name, module)


def patient_threads() -> None:
    """Let torch's threads sleep soon while they wait, unless the environment says otherwise; before torch is imported.

    As they come, those of GNU's OpenMP turn around 300,000 times until the next product, which other work on the same
    cores pays for: on two cores with three other busy processes a replay of one step took 16.3 seconds of processor
    time, with 3,000 turns 12.0. On free cores it takes as long as before, within the differences of one run and the
    next.
    """
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
        os.environ["GOMP_SPINCOUNT"] = "3000"
