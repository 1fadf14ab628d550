"""Several gloo processes on the CPU, as torchrun would start them, without the seconds that it takes itself."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from torch import distributed

from tests.forked import ForkedPython

_STORES: list[distributed.TCPStore] = []


@contextmanager
def group_of_one() -> Iterator[None]:
    """Let this process be a group of its own for a while, for what needs one and is tested without others."""
    distributed.init_process_group("gloo", rank=0, world_size=1, store=distributed.HashStore())
    try:
        yield
    finally:
        distributed.destroy_process_group()


def place_to_meet() -> int:
    """The port of a new store; it outlives the processes, as the launcher's does."""
    store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    _STORES.append(store)
    return int(store.port)


def start_processes(
    size: int, *arguments: str, cwd: Path | None = None, more: Mapping[str, str] | None = None
) -> list[ForkedPython]:
    """One Python a process, with more in its environment; localhost is all the network they use."""
    shared = dict(more or {}) | {
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(place_to_meet()),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "OMP_NUM_THREADS": "1",
    }
    ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(size)]
    return [ForkedPython(arguments, shared | rank, cwd) for rank in ranks]


def finish(processes: list[ForkedPython]) -> list[tuple[int, str, str]]:
    """Exit code, stdout and stderr of each; none is left behind."""
    try:
        outputs = [process.communicate() for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.wait(), out, err) for process, (out, err) in zip(processes, outputs, strict=True)]


def by_two(folder: Path, *arguments: str) -> tuple[int, str]:
    """The exit code of two processes, of one that failed where one did, and what both said."""
    done = finish(start_processes(2, *arguments, cwd=folder))
    return max((code for code, _, _ in done), key=abs), "".join(out + err for _, out, err in done)
