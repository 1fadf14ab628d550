"""Which checkpoints of a run are complete, and the files that resuming needs.

A checkpoint counts once our own marker lies in it, written after everything else; a folder that was cut off has none.
The newest complete checkpoint alone has the optimizer's state: resuming needs no other, and it is twice the size
of the weights. Files that the trainer loads on resume it wrote itself, and with ``weights_only``: no pickle runs code.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from gradscope.advantages.online import Memory, OnlineAdvantage
from gradscope.errors import InputError
from gradscope.outside.limits import read_limited
from gradscope.outside.plain_json import read_json
from gradscope.rollouts.run_folder import checkpoint_path, checkpoints_path, metrics_path, step_of
from gradscope.rollouts.store import drop_steps_after
from gradscope.training.processes import shards_model
from gradscope.writing import atomic_write

MARKER = "gradscope_checkpoint.json"
MEMORY = "gradscope_advantage.json"  # an advantage formulation's memory of the steps before: its numbers
MEMORY_ARRAYS = "gradscope_advantage.safetensors"  # the arrays among it, where there are some
_SHARDED_ONLY = ("optimizer.bin", "pytorch_model_fsdp.bin")
"""Files that accelerate writes for a sharded model, both gathered: the optimizer, and the weights once more."""
_RESUME_ONLY = (
    *("optimizer.pt", *_SHARDED_ONLY, "scheduler.pt", "scaler.pt", "rng_state*.pth", "trainer_state.json"),
    *(MEMORY, MEMORY_ARRAYS),
)
_UNUSED = "training_args.bin"  # a pickle that nothing needs: the manifest holds the arguments as JSON


def mark_complete(run: Path, num_updates: int) -> None:
    """Mark a checkpoint complete, and remove from older ones the files that only resuming needs."""
    folder = checkpoint_path(run, num_updates)
    (folder / _UNUSED).unlink(missing_ok=True)
    atomic_write(folder / MARKER, json.dumps({"num_updates": num_updates}) + "\n", force=True)
    remove_resume_files(run)


def remove_resume_files(run: Path) -> None:
    """Remove from older complete checkpoints the files that only resuming needs, also after an interruption."""
    for previous in complete_checkpoints(run)[:-1]:
        for pattern in _RESUME_ONLY:
            for file in checkpoint_path(run, previous).glob(pattern):
                file.unlink()


def write_memory(run: Path, num_updates: int, memory: Memory) -> None:
    """Write an advantage formulation's memory, before the checkpoint is marked complete."""
    folder = checkpoint_path(run, num_updates)
    atomic_write(folder / MEMORY, json.dumps(dict(memory.numbers), indent=0) + "\n", force=True)
    if memory.arrays:
        atomic_write(folder / MEMORY_ARRAYS, save(dict(memory.arrays)), force=True)


def recall_memory(folder: Path, online: OnlineAdvantage) -> None:
    """Restore a fresh advantage formulation's memory from a checkpoint's folder.

    Raises:
        InputError: It is not there, not readable, or not this formulation's; without it the run would go on
            differently and not say so.
    """
    file = folder / MEMORY
    try:
        numbers = {str(name): float(value) for name, value in read_json(file).items()}
        file = folder / MEMORY_ARRAYS
        online.recall(Memory(numbers=numbers, arrays=load_file(file) if file.is_file() else {}))
    except (OSError, ValueError, TypeError, AttributeError, KeyError, OverflowError, SafetensorError) as error:
        raise InputError(
            f"{file} cannot be read, so the run cannot go on as it was.",
            hint=f"Start it again: gradscope train --config {folder.parent.parent / 'manifest.json'} --force",
        ) from error


def complete_checkpoints(run: Path) -> tuple[int, ...]:
    """The checkpoints that can be relied on, by their numbers of updates, ascending."""
    markers = checkpoints_path(run).glob(f"checkpoint-*/{MARKER}")
    return tuple(sorted(int(marker.parent.name.removeprefix("checkpoint-")) for marker in markers))


def resumable(run: Path, num_updates: int, num_processes: int) -> Path:
    """The folder of a checkpoint to go on from, with the optimizer's and each process's random state in it.

    Raises:
        InputError: The state was removed; without it the run would go on differently and not say so.
    """
    folder = checkpoint_path(run, num_updates)
    rng_states = [f"rng_state_{index}.pth" for index in range(num_processes)]
    optimizer = _SHARDED_ONLY if shards_model() else ("optimizer.pt",)
    needed = (*optimizer, "scheduler.pt", *(rng_states if num_processes > 1 else ["rng_state.pth"]))
    missing = [name for name in needed if not (folder / name).is_file()]
    if missing:
        raise InputError(
            f"{folder} lacks {', '.join(missing)}, so the run cannot go on as it was.",
            hint=f"Start it again: gradscope train --config {run / 'manifest.json'} --force",
        )
    return folder


def rewind(run: Path, num_updates: int) -> None:
    """Remove later steps, which will be made again, and incomplete checkpoints."""
    complete = {checkpoint_path(run, number).name for number in complete_checkpoints(run)}
    for folder in checkpoints_path(run).glob("checkpoint-*"):
        if folder.name not in complete:
            shutil.rmtree(folder)
    remove_resume_files(run)
    drop_steps_after(run, num_updates)
    for partial in run.rglob(".*.partial"):
        shutil.rmtree(partial) if partial.is_dir() else partial.unlink()
    file, remaining = metrics_path(run), list[bytes]()
    lines = read_limited(file).splitlines(keepends=True) if file.exists() else []
    steps = [step_of(line) for line in lines]
    for index, (line, step) in enumerate(zip(lines, steps, strict=True)):
        # one that was cut off at the end goes; one that cannot be read stays, for readers to report
        is_last = step is None or step not in steps[index + 1 :]
        if line.endswith(b"\n") and is_last and (step is None or step <= num_updates):
            remaining.append(line)
    atomic_write(file, b"".join(remaining), force=True)
