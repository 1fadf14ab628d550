"""Several processes of one run, as `accelerate launch` and `torchrun` start them: who works, who waits, who tells.

Each has a part of a step's rollouts, and the main one alone writes the run. What every process would find wrong in the
same way is told once: one of them raises, the others end with the same exit code and without a word.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from gradscope.errors import GradscopeError, UsageError

_PATIENCE = timedelta(days=7)
"""How long processes wait for the main one, which samples the held-out prompts alone."""
_SHARDING = {"ACCELERATE_USE_FSDP": "FSDP", "ACCELERATE_USE_DEEPSPEED": "DeepSpeed"}
_USAGE = 2
"""The exit code of unusable input."""

Value = TypeVar("Value")


def num_processes() -> int:
    """How many processes the launcher started.

    Returns:
        At least 1.
    """
    return int(os.environ.get("WORLD_SIZE", "1"))


def process_index() -> int:
    """Which of them this one is.

    Returns:
        From 0 on; 0 is the main one.
    """
    return int(os.environ.get("RANK", "0")) if num_processes() > 1 else 0


def refuse(error: GradscopeError) -> None:
    """Raise what every process finds wrong without looking at the disk.

    Args:
        error: What is wrong.

    Raises:
        GradscopeError: In the main process.
        SystemExit: In the others.
    """
    if process_index() == 0:
        raise error
    raise SystemExit(_USAGE)


def check_launch(num_rollouts: int, num_parts: int) -> None:
    """Refuse a launch that a run cannot be made by.

    Args:
        num_rollouts: Rollouts of a step.
        num_parts: Parts in which they go through the model.
    """
    size = num_processes()
    sharding = next((name for variable, name in _SHARDING.items() if os.environ.get(variable) == "true"), None)
    if sharding is not None:
        refuse(
            UsageError(
                f"A run needs the whole model in every process, and {sharding} shards it.",
                hint="Launch plain data parallelism: accelerate launch --multi_gpu -m gradscope train ...",
            )
        )
    if num_rollouts % (num_parts * size):
        parts = f" of {num_parts} parts" if num_parts > 1 else ""
        refuse(
            UsageError(
                f"{num_rollouts} rollouts a step do not divide among {size} processes{parts}.",
                hint="Choose --num-prompts and --group-size so that the processes divide their product.",
            )
        )


def check_alone(what: str) -> None:
    """Refuse several processes.

    Args:
        what: What is made by one, as the subject of a sentence.
    """
    size = num_processes()
    if size > 1:
        refuse(UsageError(f"{what} by one process, and a launcher started {size}.", hint="Call gradscope itself."))


def join(*, on_cpu: bool) -> None:
    """Bring the processes together.

    Args:
        on_cpu: Whether the run stays off the GPU.
    """
    if num_processes() > 1:
        from accelerate import PartialState

        PartialState(cpu=on_cpu, timeout=_PATIENCE)


def leave() -> None:
    """Part again, once all is done."""
    if num_processes() > 1:
        from accelerate import PartialState

        PartialState().destroy_process_group()


def together(work: Callable[[], Value]) -> Value:
    """Do the same in every process; where it fails, one of them tells why.

    Args:
        work: What is to be done.

    Returns:
        What it returned.

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
    if error is not None and failed.index(True) == process_index():
        raise error
    raise SystemExit(_USAGE)


def on_main(work: Callable[[], Value]) -> Value:
    """Do something in the main process alone, while the others wait.

    Args:
        work: What is to be done.

    Returns:
        What it returned there, in every process.
    """
    if num_processes() == 1:
        return work()
    found: Any = together(work if process_index() == 0 else lambda: None)
    return gather([found])[0]  # type: ignore[no-any-return]


def gather(values: Sequence[Value]) -> list[Value]:
    """The values of all processes.

    Args:
        values: Those of this process, plain enough to be copied.

    Returns:
        All of them, in the order of the processes.
    """
    if num_processes() == 1:
        return list(values)
    from accelerate.utils import gather_object

    return list(gather_object(list(values)))


def own_part(num_rows: int) -> slice:
    """This process's part of what was gathered.

    Args:
        num_rows: How many rows all processes have, each as many.

    Returns:
        Its rows.
    """
    size = num_rows // num_processes()
    return slice(process_index() * size, (process_index() + 1) * size)
