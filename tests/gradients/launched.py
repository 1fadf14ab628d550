"""Several gloo processes on the CPU, as torchrun would start them, without the seconds that it takes itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from torch import distributed

from tests.conftest import REPOSITORY

_STORES: list[distributed.TCPStore] = []


def place_to_meet() -> int:
    """The port of a new store; it outlives the processes, as the launcher's does."""
    store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    _STORES.append(store)
    return int(store.port)


def start_processes(size: int, *arguments: str, cwd: Path | None = None) -> list[subprocess.Popen[str]]:
    """One Python a process; localhost is all the network they use."""
    shared = {
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(place_to_meet()),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "OMP_NUM_THREADS": "1",
    }
    return [
        subprocess.Popen(
            [sys.executable, *arguments],
            cwd=cwd or REPOSITORY,
            env=os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank), "PYTHONPATH": str(REPOSITORY)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]


def finish(processes: list[subprocess.Popen[str]], timeout: float = 240) -> list[tuple[int, str, str]]:
    """Exit code, stdout and stderr of each; none is left behind."""
    try:
        said = [process.communicate(timeout=timeout) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, out, err) for process, (out, err) in zip(processes, said, strict=True)]
