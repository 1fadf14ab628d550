"""How many threads linear algebra may take."""

from __future__ import annotations

import os


def one_blas_thread() -> None:
    """Let NumPy's linear algebra run on one thread, unless the environment says otherwise; before NumPy is imported.

    The matrices behind the statistics of a log are small: more threads wait for one another, and cost a third of the
    time of a command on a small log.
    """
    for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
