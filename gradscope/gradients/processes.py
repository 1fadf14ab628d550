"""The processes of a launch as one command: the main process's own work, exchange between processes, and their end.

Every process runs the same command on the same inputs, so all of them take the same decisions. Those that depend on one
process, such as on its disk, are taken by the main one and sent to the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import distributed

from gradscope.errors import GradscopeError, LaunchError
from gradscope.machine import num_processes, process_index, set_reporting

_PATIENCE = timedelta(days=7)
"""How long processes wait for each other: the main one may look at the files of a large model for an hour. The launcher
ends the others where one ends."""
_GRACE = 2.0
"""Seconds that a silent process waits before it ends: once one has ended, the launcher ends the one that speaks."""
_SKEW = 60.0  # seconds after the first in which a process may meet an error that all of them meet
_ENDED = "gradscope/ended"  # key of the count of processes that ended early

Value = TypeVar("Value")

_errors: list[bool] = []  # one for each error that all processes met so far: each is counted under a number of its own
_connected: list[bool] = []
"""Whether this command connected its processes: the group of a trainer, which a recorder lives in, is none of ours."""


@contextmanager
def connected_processes() -> Iterator[None]:
    """Do one command with all processes of the launch; a single one needs no group.

    Raises:
        LaunchError: Another process ended.
    """
    if num_processes() == 1:
        yield
        return
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    try:
        distributed.init_process_group(backend, timeout=_PATIENCE)
        _connected[:] = [True]
        yield
    except BaseException as error:
        is_first = _is_first_to_end()
        set_reporting(speaks=is_first)
        if not is_first:
            time.sleep(_GRACE)
        if not (isinstance(error, distributed.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))):
            raise
        raise LaunchError(
            "Another process of this command ended, so none of them can go on.",
            hint="What it said stands above. A process that says nothing was killed, often for lack of memory: use "
            "more processes, or --batch-tokens with a smaller number.",
        ) from error
    else:
        distributed.barrier()
        distributed.destroy_process_group()
    finally:
        _connected.clear()


def num_connected() -> int:
    """How many processes measure together; 1 outside of :func:`connected_processes`."""
    return num_processes() if _connected else 1


def connected_index() -> int:
    """Which of them this one is."""
    return process_index() if _connected else 0


def broadcast_from_main(work: Callable[[], Value]) -> Value:
    """Call a function in the main process alone; every process gets a copy of its return value."""
    if num_connected() == 1:
        return work()
    payload: list[Any] = [work() if connected_index() == 0 else None]
    distributed.broadcast_object_list(payload, src=0, device=torch.device("cpu"))
    return payload[0]  # type: ignore[no-any-return]


def all_gather(value: Value) -> list[Value]:
    """The value of every process, in their order."""
    if num_connected() == 1:
        return [value]
    values: list[Any] = [None] * num_connected()
    distributed.all_gather_object(values, value)
    return values


def true_in_all_processes(condition: bool) -> bool:
    """Whether something is so in every process."""
    return all(all_gather(condition))


@contextmanager
def shared_errors() -> Iterator[None]:
    """Let an error that work may go on from be met by all processes, or by none.

    Raises:
        LaunchError: Only some of the processes met an error inside; the others wait for passes that will not come.
        GradscopeError: All of them met one.
    """
    try:
        yield
    except GradscopeError as error:
        if num_connected() > 1 and not _is_met_by_all():
            raise LaunchError(error.message, hint=error.hint) from error
        raise


def _is_met_by_all() -> bool:
    """Whether every process meets an error at this point, within a time that differing speeds explain."""
    _errors.append(True)
    store, key = distributed.distributed_c10d._get_default_store(), f"gradscope/errors/{len(_errors)}"
    store.add(key, 1)
    deadline = time.monotonic() + _SKEW
    while store.add(key, 0) < num_connected():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def all_reduce_sum(tensor: torch.Tensor) -> torch.Tensor:
    """The sum of a tensor over all processes, the same in each; the tensor itself changes."""
    if num_connected() > 1:
        distributed.all_reduce(tensor)
    return tensor


def _is_first_to_end() -> bool:
    """Whether no other process has ended before this one; where the launcher is gone, the main one counts as first."""
    try:
        store = distributed.distributed_c10d._get_default_store()
        return bool(store.add(_ENDED, 1) == 1)
    except (RuntimeError, ValueError):
        return process_index() == 0
