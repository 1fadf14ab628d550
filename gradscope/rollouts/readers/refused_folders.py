"""Folders that trainers leave beside their logs are recognized, and refused with what to name instead."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gradscope.errors import InputError

_NUMBERED = re.compile(r"(checkpoint|global_step|step|iter)[-_][0-9]+")
_WEIGHTS = ("*.safetensors*", "pytorch_model*.bin", "*.distcp", "optimizer.pt")
LOG_ROLLOUTS = "log_completions=True in TRL, trainer.rollout_data_dir in verl; docs/logs.md has the others"
"""The switches that make the usual trainers log rollouts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    is_it: Callable[[Path], bool]
    """Whether an existing path is one."""
    what: str
    """What it is, after its name."""
    instead: Callable[[Path], str]
    """What to do."""


def refuse_checkpoint(path: Path) -> None:
    """Refuse one of TRL's checkpoints, which has a trainer's state as TRL's runs have, and a run's folder of them.

    Raises:
        InputError: It is one.
    """
    if path.resolve().name.startswith("checkpoint-") and _is_checkpoint(path):
        _refuse(path, _CHECKPOINT)
    if _is_folder_of_checkpoints(path.resolve()):
        raise InputError(
            f"{path} holds a run's checkpoints: weights, without rollouts.",
            hint=f"Name the run folder above it: {_run_above(path)}",
        )


def refuse_folder_of_runs(path: Path, runs: Sequence[Path]) -> None:
    """Refuse a folder that holds runs, with the commands that take them.

    Args:
        runs: Those that were found below it.

    Raises:
        InputError: There are any.
    """
    if len(runs) == 1:
        raise InputError(f"{path} is not a run itself, but {runs[0]} is.", hint=f"Name it: {runs[0]}")
    if runs:
        names = [str(run.relative_to(path)) for run in runs]
        more = f" and {len(names) - 5} more" if len(names) > 5 else ""
        first, all_of_them = shlex.quote(str(runs[0])), shlex.quote(str(path))
        raise InputError(
            f"{path} is a folder of {len(runs)} runs: {', '.join(names[:5])}{more}.",
            hint=f"One: gradscope degeneracy {first}; all, on one page: gradscope report {all_of_them}",
        )


def refuse_folders(path: Path) -> None:
    """Refuse a path that no reader knows and that is known to hold something else than rollouts.

    Raises:
        InputError: It is a checkpoint, a model, or what wandb, trackio or TensorBoard keep.
    """
    for kind in _KNOWN:
        if kind.is_it(path):
            _refuse(path, kind)


def _refuse(path: Path, kind: _Kind) -> None:
    raise InputError(f"{path} is {kind.what}.", hint=kind.instead(path))


def _has(path: Path, *patterns: str) -> bool:
    return path.is_dir() and any(next(iter(path.glob(pattern)), None) is not None for pattern in patterns)


def _is_file_like(path: Path, pattern: str) -> bool:
    return path.is_file() and path.match(pattern)


def _is_model(path: Path) -> bool:
    return _has(path, "config.json", "adapter_config.json") and _has(path, *_WEIGHTS)


def _is_checkpoint(path: Path) -> bool:
    has_state = _has(path, "config.json", "adapter_config.json", "trainer_state.json", "actor") or _has(path, *_WEIGHTS)
    return _NUMBERED.fullmatch(path.resolve().name) is not None and has_state


def _is_folder_of_checkpoints(path: Path) -> bool:
    return path.name == "checkpoints" and _has(path, "checkpoint-*") and (path.parent / "manifest.json").is_file()


def _run_above(path: Path) -> Path:
    """The run that a checkpoint belongs to, whether it keeps them in a folder of their own or not."""
    above = path.parent if path.name else path.resolve().parent
    return above.parent if _is_folder_of_checkpoints(above.resolve()) and above.name else above


def _is_wandb(path: Path) -> bool:
    folders = ("", "files/", "*/files/", "wandb/*/files/")
    return _is_file_like(path, "*.wandb") or _has(path, "*.wandb", *(f"{one}wandb-summary.json" for one in folders))


_CHECKPOINT = _Kind(
    is_it=_is_checkpoint,
    what="a checkpoint: weights and the trainer's state, without rollouts",
    instead=lambda path: f"Name the run folder above it: {_run_above(path)}",
)
_KNOWN = (
    _CHECKPOINT,
    _Kind(
        is_it=_is_model,
        what="a model folder: weights, without rollouts",
        instead=lambda path: (
            "Name the folder that the trainer wrote its rollouts to; the model before the first update "
            "is given with --initial, an adapter's base with --model."
        ),
    ),
    _Kind(
        is_it=lambda path: _has(path, "global_step_*/actor"),
        what="a trainer's folder with checkpoints and without rollouts",
        instead=lambda path: f"Name the folder of rollouts, or log them in the next run: {LOG_ROLLOUTS}.",
    ),
    _Kind(
        is_it=_is_wandb,
        what="what wandb keeps of a run: metrics, and at most some rollouts as tables",
        instead=lambda path: f"Name the trainer's own folder of rollouts, which wandb does not hold: {LOG_ROLLOUTS}.",
    ),
    _Kind(
        is_it=lambda path: _is_file_like(path, "*.db") or _has(path, "*.db"),
        what="a database as trackio keeps one a project: metrics, and of rollouts only the traces that were picked",
        instead=lambda path: (
            f"Name the trainer's own folder of rollouts: {LOG_ROLLOUTS}. Traces that are all of a run's "
            "rollouts can be written with `trackio query` to JSON lines: step, group, reward."
        ),
    ),
    _Kind(
        is_it=lambda path: (
            _is_file_like(path, "events.out.tfevents.*")
            or _has(path, "events.out.tfevents.*", "*/events.out.tfevents.*")
        ),
        what="what TensorBoard reads: metrics, without rollouts",
        instead=lambda path: f"Name the folder of rollouts, or log them in the next run: {LOG_ROLLOUTS}.",
    ),
)
