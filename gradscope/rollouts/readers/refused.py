"""Recognizes paths without readable rollouts, and refuses them with what to name or switch on instead.

Checkpoints, models and the files of wandb, trackio or TensorBoard; weights, archives and text; and logs that exist only
as pickles, since opening one would run its code.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gradscope.errors import InputError
from gradscope.rollouts.readers.parsing.tables import SUFFIXES, files_like, suffix_of

_NUMBERED = re.compile(r"(checkpoint|global_step|step|iter)[-_][0-9]+")
_WEIGHTS = ("*.safetensors*", "pytorch_model*.bin", "*.distcp", "optimizer.pt")
_PICKLES = ("*.pt", "*.pth", "*.pkl", "*.pickle", "*.dp", "*.bin")
_EVENTS = "events.out.tfevents.*"
_START = 65_536  # bytes of a file that are read to recognize text
_LOG_ROLLOUTS = "log_completions=True in TRL, trainer.rollout_data_dir in verl; docs/logs.md has the others"
"""The switches that make the usual trainers log rollouts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    matches: Callable[[Path], bool]  # whether an existing path is of this kind
    description: str  # the predicate of the sentence about it
    hint: Callable[[Path], str]  # what to do instead


def refuse_checkpoint(path: Path) -> None:
    """Refuse a checkpoint of TRL, which has a trainer's state as TRL's runs have, and a run's folder of them."""
    if path.resolve().name.startswith("checkpoint-") and _is_checkpoint(path):
        _refuse(path, _CHECKPOINT)
    if _is_folder_of_checkpoints(path.resolve()):
        raise InputError(
            f"{path} holds a run's checkpoints: weights, without rollouts.",
            hint=f"Name the run folder above it: {_run_above(path)}",
        )


def refuse_folder_of_runs(path: Path, runs: Sequence[Path]) -> None:
    """Refuse a folder that holds runs, where there are any, with the commands that read them."""
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


def refuse_unknown(path: Path) -> None:
    """Refuse a path that is recognized as something other than rollouts."""
    for writer, patterns, instead in _PICKLED:
        file = _first_like(path, *patterns)
        if file is not None:
            raise InputError(f"{file} is {writer}: a pickle, which is never opened.", hint=instead)
    for kind in _KINDS:
        if kind.matches(path):
            _refuse(path, kind)


def _refuse(path: Path, kind: _Kind) -> None:
    raise InputError(f"{path} {kind.description}.", hint=kind.hint(path))


def _has(path: Path, *patterns: str) -> bool:
    return path.is_dir() and any(next(iter(path.glob(pattern)), None) is not None for pattern in patterns)


def _is_file(path: Path, *patterns: str) -> bool:
    return path.is_file() and any(map(path.match, patterns))


def _first_like(path: Path, *patterns: str) -> Path | None:
    if path.is_dir():
        return next(iter(files_like(path, *patterns)), None)
    return path if any(path.match(pattern.removeprefix("**/")) for pattern in patterns) else None


def _is_checkpoint(path: Path) -> bool:
    has_state = _has(path, "config.json", "adapter_config.json", "trainer_state.json", "actor") or _has(path, *_WEIGHTS)
    return _NUMBERED.fullmatch(path.resolve().name) is not None and has_state


def _is_folder_of_checkpoints(path: Path) -> bool:
    return path.name == "checkpoints" and _has(path, "checkpoint-*") and (path.parent / "manifest.json").is_file()


def _run_above(path: Path) -> Path:
    """The run that a checkpoint belongs to, whether it has a folder for its checkpoints or not."""
    above = path.parent if path.name else path.resolve().parent
    return above.parent if _is_folder_of_checkpoints(above.resolve()) and above.name else above


def _is_wandb(path: Path) -> bool:
    folders = ("", "files/", "*/files/", "wandb/*/files/")
    return _is_file(path, "*.wandb") or _has(path, "*.wandb", *(f"{folder}wandb-summary.json" for folder in folders))


def _is_text(path: Path) -> bool:
    start = ""
    if path.is_file() and suffix_of(path) is None:
        with path.open("rb") as file:
            start = file.read(_START).decode("utf-8-sig", errors="replace")
    return start.strip() != "" and "\0" not in start and re.match(r"\s*(\{|\[\s*[\[{])", start) is None


def _unpacking(path: Path) -> str:
    unpack, into = ("python -m zipfile -e", " .") if path.suffix == ".zip" else ("tar -xf", "")
    return f"Unpack it and name what comes out: {unpack} {shlex.quote(str(path))}{into}"


def _name_rollouts(path: Path) -> str:
    file_or = "file or " if path.is_file() else ""
    return f"Name the trainer's {file_or}folder of rollouts, or log them in the next run: {_LOG_ROLLOUTS}."


_CHECKPOINT = _Kind(
    matches=_is_checkpoint,
    description="is a checkpoint: weights and the trainer's state, without rollouts",
    hint=lambda path: f"Name the run folder above it: {_run_above(path)}",
)
_KINDS = (
    _Kind(
        matches=lambda path: _is_file(path, *_PICKLES),
        description="looks like a pickle, which is never opened",
        hint=lambda _: "Write the rollouts as JSONL, Parquet or CSV with a row a rollout: step, group, reward.",
    ),
    _CHECKPOINT,
    _Kind(
        matches=lambda path: _has(path, "config.json", "adapter_config.json") and _has(path, *_WEIGHTS),
        description="is a model folder: weights, without rollouts",
        hint=lambda _: (
            "Name the folder that the trainer wrote its rollouts to; the model before the first update "
            "is given with --initial, an adapter's base with --model."
        ),
    ),
    _Kind(
        matches=lambda path: _has(path, "global_step_*/actor"),
        description="is a trainer's folder with checkpoints and without rollouts",
        hint=_name_rollouts,
    ),
    _Kind(
        matches=_is_wandb,
        description="is what wandb keeps of a run: metrics, and at most some rollouts as tables",
        hint=lambda _: f"Name the trainer's own folder of rollouts, which wandb does not hold: {_LOG_ROLLOUTS}.",
    ),
    _Kind(
        matches=lambda path: _is_file(path, "*.db") or _has(path, "*.db"),
        description=(
            "is a database as trackio keeps one a project: metrics, and of rollouts only the traces that were picked"
        ),
        hint=lambda _: (
            f"Name the trainer's own folder of rollouts: {_LOG_ROLLOUTS}. Traces that are all of a run's "
            "rollouts can be written with `trackio query` to JSON lines: step, group, reward."
        ),
    ),
    _Kind(
        matches=lambda path: _is_file(path, _EVENTS) or _has(path, _EVENTS, f"*/{_EVENTS}"),
        description="is what TensorBoard reads, without scalars of a training step and without rollouts",
        hint=_name_rollouts,
    ),
    _Kind(
        matches=lambda path: _is_file(path, "*.safetensors", "*.gguf"),
        description="is a file of weights, without rollouts",
        hint=_name_rollouts,
    ),
    _Kind(
        matches=lambda path: _is_file(path, "*.tar", "*.tar.gz", "*.tgz", "*.zip"),
        description="is an archive",
        hint=_unpacking,
    ),
    _Kind(
        matches=lambda path: _is_file(path, "*.ipynb"),
        description="is a notebook whose outputs have no table of metrics with a step, nor a trainer's lines",
        hint=_name_rollouts,
    ),
    _Kind(
        matches=_is_text,
        description=f"is text without rows; rows are read from {', '.join(SUFFIXES)} files",
        hint=_name_rollouts,
    ),
)
_PICKLED = (
    (
        "SkyRL's dump of training batches, which lacks the rewards",
        ("dumped_data/global_step_*_training_input.pkl", "global_step_*_training_input.pkl"),
        "SkyRL writes evaluations as JSONL (dump_eval_results), which are read: give "
        "dumped_evals/global_step_<N>_evals. For training, write a JSONL row a rollout from the environment: step, "
        "group, reward.",
    ),
    (
        "verl's rollout cache",
        ("**/tq_batch.pt", "**/gen_batch.dp"),
        "Set trainer.rollout_data_dir=DIR; verl then writes <step>.jsonl, which is read.",
    ),
    (
        "slime's dump of training, which lacks the rewards as they were given, or a dump in an old form",
        ("rollout_data/*.pt", "train_data/*.pt"),
        "Give the folder of --dump-details: its rollout_data/<rollout_id>.pt are read as plain data, as "
        "are miles' trajectory/<rollout_id>.jsonl.",
    ),
    ("RAGEN's evaluation rollouts", ("val_rollouts*.pkl",), "Set `format: jsonl` under `output` in config/eval.yaml."),
)
"""For each pickle: who writes it and what it is, the patterns of its path, and what to switch on instead."""
