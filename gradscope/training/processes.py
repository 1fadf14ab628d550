"""Several processes of one run, as `accelerate launch` and `torchrun` start them: who works, who waits, who reports.

Each has a part of a step's rollouts, and the main one alone writes the run. An error that every process meets is
reported once: one process raises it, the others end with the same exit code and without a word. All of them leave the
group of processes first. One that ended inside it would break the connections of the others, and tearing down the rest
of the group at exit may abort a process in place of its exit code.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from gradscope.errors import GradscopeError, UsageError
from gradscope.machine import num_processes, process_index, report_own_error

_PATIENCE = timedelta(days=7)  # how long processes wait for the main one, which samples the held-out prompts alone
_FSDP = {"FSDP_VERSION": "2", "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT"}
"""Environment variables of accelerate for FSDP as a run needs it: FSDP2, and unsharded checkpoints."""
SHARDED_LAUNCH = (
    *("accelerate", "launch", "--use_fsdp", "--fsdp_version", "2", "--fsdp_state_dict_type", "FULL_STATE_DICT"),
    *("--fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP"),
)
"""How a run is started that shards its model, before the number of processes."""
_USAGE = 2  # the exit code of unusable input

Value = TypeVar("Value")


def start_group(*, on_cpu: bool) -> None:
    """Connect the processes of the run; a single one needs no group."""
    if num_processes() > 1:
        from accelerate import PartialState

        PartialState(cpu=on_cpu, timeout=_PATIENCE)


def end_group() -> None:
    """Disconnect this process from the others; without a group nothing happens."""
    if num_processes() > 1:
        from torch import distributed

        if distributed.is_available() and distributed.is_initialized():
            distributed.destroy_process_group()


def refuse_once(message: str, *, hint: str) -> None:
    """Refuse what every process can see without looking at the disk.

    Raises:
        UsageError: In the main process.
        SystemExit: In the others.
    """
    if process_index() == 0:
        raise UsageError(message, hint=hint)
    raise SystemExit(_USAGE)


def shards_model() -> bool:
    """Whether accelerate shards the model (FSDP), so that no process has all of it."""
    return os.environ.get("ACCELERATE_USE_FSDP") == "true"


def check_launch(num_rollouts: int, num_parts: int) -> None:
    """Refuse a launch that shards the model in another way than FSDP2, or does not divide a step's rollouts.

    A step's rollouts go through the model in this many parts.

    Raises:
        UsageError: In the main process; the others end without a word.
    """
    size = num_processes()
    if os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true":
        refuse_once(
            "DeepSpeed keeps weights and optimizer in checkpoints of its own form, which a run does not read.",
            hint=f"Shard the model by FSDP: {shlex.join(SHARDED_LAUNCH)} -m gradscope train ...",
        )
    if shards_model() and any(os.environ.get(name) != value for name, value in _FSDP.items()):
        refuse_once(
            "FSDP is told to shard in its first version, or to save a piece of the model in each process.",
            hint="Set fsdp_version: 2 and fsdp_state_dict_type: FULL_STATE_DICT in accelerate's configuration.",
        )
    if num_rollouts % (num_parts * size):
        parts = f" of {num_parts} parts" if num_parts > 1 else ""
        refuse_once(
            f"{num_rollouts} rollouts a step do not divide among {size} processes{parts}.",
            hint="Choose --num-prompts and --group-size so that the processes divide their product.",
        )


def require_single_process() -> None:
    """Refuse a grid in several processes."""
    size = num_processes()
    if size > 1:
        refuse_once(f"A grid is made by one process, and a launcher started {size}.", hint="Call gradscope itself.")


def run_everywhere(work: Callable[[], Value]) -> Value:
    """Call a function in every process; where it fails, all leave the group and the first that failed reports why.

    Raises:
        GradscopeError: In the first process that it failed in.
        SystemExit: In the others.
    """
    if num_processes() == 1:
        return work()
    try:
        value, error = work(), None
    except GradscopeError as caught:
        value, error = None, caught
    failed = gather([error is not None])
    if not any(failed):
        return value  # type: ignore[return-value]  # there is a value where there was no error
    end_group()
    if error is not None and failed.index(True) == process_index():
        report_own_error()
        raise error
    raise SystemExit(_USAGE)


def run_on_main(work: Callable[[], Value]) -> Value:
    """Call a function in the main process alone, while the others wait; every process gets its return value."""
    if num_processes() == 1:
        return work()
    returned: Any = run_everywhere(work if process_index() == 0 else lambda: None)
    return gather([returned])[0]  # type: ignore[no-any-return]


def gather(values: Sequence[Value]) -> list[Value]:
    """The values of all processes, which can be pickled, in the order of the processes."""
    if num_processes() == 1:
        return list(values)
    from accelerate.utils import gather_object

    return list(gather_object(list(values)))


def own_part(num_rows: int) -> slice:
    """The rows that are this process's, of as many that all processes hold in equal parts."""
    size = num_rows // num_processes()
    return slice(process_index() * size, (process_index() + 1) * size)
