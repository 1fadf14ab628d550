"""What a prime-rl run leaves beside its rollouts: resolved configurations, metrics, and weights by step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from gradscope.rollouts.config_file import flattened
from gradscope.rollouts.readers.beside import CheckpointLayout, metric_lines, readable, saved_weights, trainer_settings
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog, with_set_aside
from gradscope.rollouts.readers.parsing.request import ReadRequest
from gradscope.rollouts.run import Run, TrainerSettings

_NAMES = {"optim/grad_norm": "grad_norm", "reward/all/mean": "reward", "reward/mean": "reward"}
_SUFFIXES = (".json", ".toml")
_DEEPEST = 5
"""Folders from a file of rollouts up to the run's."""


def with_prime_rls(request: ReadRequest, run: Run) -> Run:
    """The run with its arguments, metrics and weights."""
    folder = _run_folder(request.path)
    saved = saved_weights(request, _LAYOUT, (folder,))
    metrics = metric_lines(_metrics_files(folder), _NAMES, quarantine := QuarantineLog())
    return replace(
        run,
        source=with_set_aside(run.source, quarantine),
        metrics=metrics,
        settings=_computing_in_bf16(_settings(request, folder)),
        weights=saved.weights,
        unmerged_weights=saved.unmerged,
        tokenizer=saved.tokenizer or run.tokenizer,
    )


def _run_folder(path: Path) -> Path:
    """The folder of the run, above its rollouts, its export of tokens or its monitors."""
    here = path.resolve()
    above = [here, *here.parents][: _DEEPEST + 1]
    inside = [folder for folder in above if folder.name in ("rollouts", "token_exports", "monitors")]
    return inside[0].parent if inside else here if here.is_dir() else here.parent


def _settings(request: ReadRequest, folder: Path) -> TrainerSettings:
    """The configuration of the whole run, or of its trainer and its orchestrator, written side by side."""
    below = folder / "configs"
    whole = trainer_settings(request, "prime-rl", (below / f"rl{suffix}" for suffix in _SUFFIXES))
    if whole.origin is not None and whole.origin.startswith(str(below)):
        return whole
    parts: dict[str, Any] = {}
    origins = []
    for part in ("trainer", "orchestrator"):
        for file, document in filter(None, (readable(below / f"{part}{suffix}") for suffix in _SUFFIXES)):
            parts |= flattened({part: document})
            origins.append(str(file))
    origins += [whole.origin] if whole.origin is not None else []
    return TrainerSettings(values={**parts, **whole.values}, origin=" and ".join(origins) or None)


def _computing_in_bf16(settings: TrainerSettings) -> TrainerSettings:
    """prime-rl casts weights to bfloat16 for each pass; one that is told otherwise must say ``bf16 = false``."""
    reduced = bool(settings.get("bf16", True))
    return replace(settings, values={**settings.values, "bf16": reduced, "casts_weights": reduced})


def _metrics_files(folder: Path) -> Iterator[Path]:
    places = (folder / "metrics.jsonl", folder / "monitors" / "file" / "metrics.jsonl")
    return (file for file in (*places, *sorted(folder.glob("*/metrics.jsonl"))) if file.is_file())


def _merge(folder: Path) -> str:
    if any(folder.glob("*.safetensors")):
        return f"Copy config.json and the tokenizer of the model that training started from into {folder}."
    return (
        "Keep weights as safetensors in the next run: weight_broadcast.type = filesystem writes broadcasts/step_N, to "
        "which config.json of the first model must be copied."
    )


_LAYOUT = CheckpointLayout(
    patterns=("weights/step_*", "checkpoints/step_*", "broadcasts/step_*", "run_default/broadcasts/step_*"),
    inside=("weight", "weights", "hf"),
    merge=_merge,
)
