"""How many threads linear algebra may take, and what threads do while they wait."""

from __future__ import annotations

import os


def one_blas_thread() -> None:
    """Let NumPy's linear algebra run on one thread, unless the environment says otherwise; before NumPy is imported.

    The matrices behind the statistics of a log are small: more threads wait for one another, and cost a third of the
    time of a command on a small log.
    """
    for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")


def patient_threads() -> None:
    """Let torch's threads sleep while they wait, unless the environment says otherwise; before torch is imported.

    As they come they spin until the next product. On a machine that does other work, too, that took seven times the
    processor time of a replay, and six times the time.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
