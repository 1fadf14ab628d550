"""Our own run folder: nothing is inferred, everything was recorded."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gradscope.errors import InputError
from gradscope.results.source import Source
from gradscope.rollouts.groups import RolloutGroup, num_used
from gradscope.rollouts.readers.format import Format
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog, hidden_by
from gradscope.rollouts.readers.parsing.request import ReadRequest, read_trainer_settings, require_arguments
from gradscope.rollouts.run import Run, TrainerSettings, WeightsRef
from gradscope.rollouts.run_folder import (
    TRL_ADVANTAGE,
    RunManifest,
    base_model_path,
    find_base,
    find_tokenizer,
    find_weights,
    manifest_path,
    metrics_path,
    read_manifest,
    read_metrics,
    rollouts_path,
    step_path,
    with_initial,
)
from gradscope.rollouts.store import files_written, read_steps, step_files, steps_in_file
from gradscope.say import counted

_NO_WEIGHTS = "No complete checkpoint is in the folder."


def _recognizes(request: ReadRequest) -> bool:
    """Whether the path is a folder with our manifest or our rollouts."""
    return request.path.is_dir() and (
        (manifest_path(request.path).is_file() and rollouts_path(request.path).is_dir())
        or bool(step_files(request.path))
    )


def _read(request: ReadRequest) -> Run:
    """Read a run folder of ours."""
    path = request.path
    manifest = read_manifest(path)
    require_arguments(manifest.trainer_arguments, str(manifest_path(path)))
    files = step_files(path)
    if not files:
        raise InputError(f"{path} holds no rollouts/step*.parquet.", hint="The run ended before its first step.")
    quarantine = QuarantineLog()
    metrics = read_metrics(path, lines := QuarantineLog())
    quarantine.lose_metrics(lines)
    groups = read_steps(path, quarantine)
    if not groups:
        quarantine.raise_lost()
    for sentence in _contradictions(path, groups, metrics):
        quarantine.lose(InputError(sentence))
    overrides = read_trainer_settings(request.run_config)
    damaged_weights: dict[int, str] = {}
    weights = _find_weights(request, damaged_weights)
    side_files = (file for file in (manifest_path(path), metrics_path(path), request.run_config) if file is not None)
    named = f"gradscope run {manifest.run_id}"
    steps = len({group.step for group in groups})
    return Run(
        path=path,
        source=Source(
            path=str(path),
            format="gradscope",
            recognized=f"{named}, {counted(steps, 'step')}, advantage {manifest.advantage}",
            files=tuple(str(file) for file in (*files, *side_files) if file.is_file()),
            num_rows=num_used(groups),
            quarantined=quarantine.result(),
            missing=(*_sampling_notes(manifest, metrics), *(() if weights else (_NO_WEIGHTS,))),
        ),
        groups=groups,
        metrics=metrics,
        settings=TrainerSettings(
            values={
                **({"trl_version": version} if (version := manifest.versions.get("trl")) is not None else {}),
                **manifest.trainer_arguments,
                **_own_settings(manifest),
                **overrides.values,
            },
            origin=overrides.origin or "the run's manifest",
        ),
        weights=weights,
        damaged_weights=damaged_weights,
        tokenizer=find_tokenizer(*(ref.path for ref in weights), base_model_path(path)),
    )


def _contradictions(
    path: Path, groups: Sequence[RolloutGroup], metrics: Mapping[int, Mapping[str, float]]
) -> Iterator[str]:
    """Sentences on steps whose files contradict the checksums or the metrics."""
    num_groups = Counter(group.step for group in groups)
    files = step_files(path)
    covered = {step: file for file in files for step in steps_in_file(file)}
    logged = {step: values["num_groups"] for step, values in metrics.items() if "num_groups" in values}
    gone = {step: file for file in files_written(path) for step in steps_in_file(file) if step not in covered}
    gone = {step: step_path(path, step) for step, count in logged.items() if count > 0 and step not in covered} | gone
    for file in dict.fromkeys(file for _, file in sorted(gone.items())):
        steps = steps_in_file(file)
        of = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
        yield f"{file} is gone: the run wrote rollouts at {of}."
    for step, count in sorted(logged.items()):
        was_read = step in covered and not num_groups.keys().isdisjoint(steps_in_file(covered[step]))
        if was_read and num_groups[step] != count:
            yield f"{covered[step]} has {num_groups[step]} groups of step {step}, and the metrics tell of {count:g}."


def _own_settings(manifest: RunManifest) -> dict[str, Any]:
    """Settings that shape the rollouts and are no arguments of TRL's."""
    settings = {
        # where it is TRL's, TRL's own arguments say which
        "advantage": None if manifest.advantage == TRL_ADVANTAGE else manifest.advantage,
        "advantage_digest": manifest.advantage_digest,
        "sampling": manifest.config.get("sampling"),
    }
    return {name: value for name, value in settings.items() if value is not None}


def _sampling_notes(manifest: RunManifest, metrics: Mapping[int, Mapping[str, float]]) -> Iterator[str]:
    """Sentences on how the groups were sampled, which the log does not show."""
    sampling = manifest.config.get("sampling")
    sampled, dead = (
        sum(int(values[name]) for values in metrics.values() if math.isfinite(values.get(name, math.nan)))
        for name in ("num_sampled_groups", "num_sampled_degenerate_groups")
    )
    if sampling == "dynamic":
        share = f" (of {sampled} sampled groups {dead} were dead)" if sampled else ""
        yield hidden_by(f"Dynamic sampling replaced dead groups by those of other prompts{share}")
    elif sampling == "reallocated":
        yield (
            "Rollouts were moved from prompts that a probe solved to prompts that it did not: large groups are hard "
            "and small ones easy, so shares of groups and rollouts are not those of groups of one size."
        )


def _find_weights(request: ReadRequest, damaged: dict[int, str]) -> tuple[WeightsRef, ...]:
    weights = find_weights(request.path, damaged)
    if request.model is not None:
        weights = tuple(
            dataclasses.replace(ref, base=request.model) if ref.kind == "adapter" else ref for ref in weights
        )
    return with_initial(weights, request.initial, lambda adapter: request.model or find_base(adapter, request.path))


FORMAT = Format(
    name="gradscope",
    looks_for="manifest.json beside rollouts/step*.parquet (gradscope)",
    recognizes=_recognizes,
    read=_read,
)
