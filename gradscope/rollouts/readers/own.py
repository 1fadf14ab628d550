"""Our own run folder: nothing is inferred, everything was recorded."""

from __future__ import annotations

import dataclasses

from gradscope.errors import InputError
from gradscope.results.source import Source
from gradscope.rollouts.readers.request import ReadRequest, read_settings
from gradscope.rollouts.readers.wording import counted
from gradscope.rollouts.run import Run, TrainerSettings, WeightsRef
from gradscope.rollouts.run_folder import (
    TRL_ADVANTAGE,
    RunManifest,
    base_model_path,
    find_weights,
    manifest_path,
    metrics_path,
    read_manifest,
    read_metrics,
    rollouts_path,
)
from gradscope.rollouts.store import read_steps, step_files
from gradscope.rollouts.weights import find_base, find_tokenizer, with_initial


def recognizes(request: ReadRequest) -> bool:
    """Whether the path is a run folder of ours.

    Args:
        request: What to read; its path exists.

    Returns:
        True for a folder with our manifest or our rollouts.
    """
    return request.path.is_dir() and (
        (manifest_path(request.path).is_file() and rollouts_path(request.path).is_dir())
        or bool(step_files(request.path))
    )


def read(request: ReadRequest) -> Run:
    """Read a run folder of ours.

    Args:
        request: What to read.

    Returns:
        The run.

    Raises:
        InputError: It has no rollouts.
    """
    path = request.path
    manifest = read_manifest(path)
    files = step_files(path)
    if not files:
        raise InputError(f"{path} holds no rollouts/step_*.parquet.", hint="The run ended before its first step.")
    groups = read_steps(path)
    given = read_settings(request.run_config)
    weights = _find_weights(request)
    beside = (file for file in (manifest_path(path), metrics_path(path), request.run_config) if file is not None)
    named = f"gradscope run {manifest.run_id}"
    return Run(
        path=path,
        source=Source(
            path=str(path),
            format="gradscope",
            recognized=f"{named}, {counted(len(files), 'step')}, advantage {manifest.advantage}",
            files=tuple(str(file) for file in (*files, *beside) if file.is_file()),
            num_rows=sum(group.size for group in groups),
            missing=() if weights else ("No complete checkpoint is in the folder.",),
        ),
        groups=groups,
        metrics=read_metrics(path),
        settings=TrainerSettings(
            values={**manifest.trainer_arguments, **_formulation(manifest), **given.values},
            origin=given.origin or "the run's manifest",
        ),
        weights=weights,
        tokenizer=find_tokenizer(*(ref.path for ref in weights), base_model_path(path)),
    )


def _formulation(manifest: RunManifest) -> dict[str, str]:
    """How advantages were made; nothing where TRL's own arguments say it."""
    return {} if manifest.advantage == TRL_ADVANTAGE else {"advantage": manifest.advantage}


def _find_weights(request: ReadRequest) -> tuple[WeightsRef, ...]:
    found = find_weights(request.path)
    if request.model is not None:
        found = tuple(dataclasses.replace(ref, base=request.model) if ref.kind == "adapter" else ref for ref in found)
    return with_initial(found, request.initial, lambda adapter: request.model or find_base(adapter, request.path))
