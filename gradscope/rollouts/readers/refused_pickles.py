"""Logs that exist only as pickles are refused, with what to switch on instead: opening one would run its code."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gradscope.errors import InputError
from gradscope.rollouts.readers.parsing.tables import files_like

_SUFFIXES = (".pt", ".pth", ".pkl", ".pickle", ".dp", ".bin")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pickled:
    writer: str
    """Who writes it, and what it is."""
    patterns: tuple[str, ...]
    """Where it lies."""
    instead: str
    """What to switch on."""


_KNOWN = (
    _Pickled(
        writer="SkyRL's dump of training batches, which lacks the rewards",
        patterns=("dumped_data/global_step_*_training_input.pkl", "global_step_*_training_input.pkl"),
        instead="SkyRL writes evaluations as JSONL (dump_eval_results), which are read: give "
        "dumped_evals/global_step_<N>_evals. For training, write a JSONL row a rollout from the environment: step, "
        "group, reward.",
    ),
    _Pickled(
        writer="verl's rollout cache",
        patterns=("**/tq_batch.pt", "**/gen_batch.dp"),
        instead="Set trainer.rollout_data_dir=DIR; verl then writes <step>.jsonl, which is read.",
    ),
    _Pickled(
        writer="slime's dump of training, which lacks the rewards as they were given, or a dump in an old form",
        patterns=("rollout_data/*.pt", "train_data/*.pt"),
        instead="Give the folder of --dump-details: its rollout_data/<rollout_id>.pt are read as plain data, as "
        "are miles' trajectory/<rollout_id>.jsonl.",
    ),
    _Pickled(
        writer="RAGEN's evaluation rollouts",
        patterns=("val_rollouts*.pkl",),
        instead="Set `format: jsonl` under `output` in config/eval.yaml.",
    ),
)
_GENERAL = "Write the rollouts as JSONL, Parquet or CSV with a row a rollout: step, group, reward."


def refuse_pickles(path: Path) -> None:
    """Refuse a path that no reader knows and that holds pickles.

    Raises:
        InputError: It is one, or a folder of those that a trainer is known to write.
    """
    for kind in _KNOWN:
        file = _pickled(path, kind)
        if file is not None:
            raise InputError(f"{file} is {kind.writer}: a pickle, which is never opened.", hint=kind.instead)
    if path.is_file() and path.suffix in _SUFFIXES:
        raise InputError(f"{path} looks like a pickle, which is never opened.", hint=_GENERAL)


def _pickled(path: Path, kind: _Pickled) -> Path | None:
    if path.is_dir():
        return next(iter(files_like(path, *kind.patterns)), None)
    return path if any(path.match(pattern.removeprefix("**/")) for pattern in kind.patterns) else None
