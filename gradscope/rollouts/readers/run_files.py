"""What a trainer wrote next to its log: its configuration, which ``--run-config`` overrides, metrics and weights."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gradscope.errors import InputError
from gradscope.reason import Reason
from gradscope.rollouts.event_file import event_files, scalars_in
from gradscope.rollouts.readers.parsing.cells import logged_numbers, whole_number
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog, with_set_aside
from gradscope.rollouts.readers.parsing.request import ReadRequest, flattened, read_document, read_trainer_settings
from gradscope.rollouts.readers.parsing.tables import read_jsonl
from gradscope.rollouts.run import Run, TrainerSettings, WeightsRef
from gradscope.rollouts.run_folder import find_base, find_tokenizer, weights_at, with_initial


def trainer_settings(request: ReadRequest, trainer: str, files: Iterable[Path]) -> TrainerSettings:
    """Path -> value of the first readable configuration and of ``--run-config``, and the trainer's name."""
    overrides = read_trainer_settings(request.run_config)
    config = next(filter(None, map(readable, files)), None)
    origins = filter(None, (None if config is None else str(config[0]), overrides.origin))
    values = {} if config is None else flattened(config[1])
    return TrainerSettings(
        values={**values, **flattened(overrides.values), "trainer": trainer}, origin=" and ".join(origins) or None
    )


def readable(file: Path) -> tuple[Path, Mapping[str, Any]] | None:
    """A file and the configuration in it; None where it is missing or holds none."""
    if not file.is_file():
        return None
    try:
        document = read_document(file)
    except (OSError, ValueError):
        return None
    return (file, document) if isinstance(document, Mapping) else None


def in_precision(settings: TrainerSettings, precision: Any, **common: Any) -> TrainerSettings:
    """The settings with what every trainer has in TRL's names: whether it computes in bfloat16, and others."""
    is_reduced = str(precision) not in _FULL_PRECISION
    return replace(settings, values={**settings.values, "bf16": is_reduced, "casts_weights": is_reduced, **common})


_FULL_PRECISION = ("float32", "fp32", "float", "32")
Metrics = dict[int, dict[str, float]]


def metric_lines(files: Iterable[Path], names: Mapping[str, str], quarantine: QuarantineLog) -> Metrics:
    """Step -> common name -> value, of all lines of a step together; lines without a step are left out."""
    lines = QuarantineLog()
    metrics_of: Metrics = {}
    for file in files:
        for _, row in read_jsonl(file, lines):
            step = whole_number(row.get("step"))
            if step is not None:
                metrics_of.setdefault(step, {}).update(_renamed(logged_numbers(row), names))
    quarantine.lose_metrics(lines)
    for values in metrics_of.values():
        values.pop("step", None)
    return metrics_of


def _renamed(metrics: Mapping[str, float], names: Mapping[str, str]) -> dict[str, float]:
    return {names.get(name, name): value for name, value in metrics.items()}


def with_logged_metrics(request: ReadRequest, run: Run) -> Run:
    """The run with the metrics in its folder: TensorBoard's files, or a ``metrics.jsonl`` under the trainer's names.

    Returns:
        The run; without metrics, but with a note, where the files are in several folders, which may be several runs.
    """
    folder = request.path if request.path.is_dir() else request.path.parent
    folder = folder.parent if folder.name == "rollout_data" else folder
    events, lines, quarantine = event_files(folder), folder / "metrics.jsonl", QuarantineLog()
    folders = sorted({str(file.parent) for file in events})
    if len(folders) > 1:
        named = f"{len(folders)} folders ({', '.join(folders[:3])}{', ...' if len(folders) > 3 else ''})"
        sentence = f"TensorBoard's files lie in {named}: which are of this run is not known, and none were read."
        return run.with_missing(sentence)
    if folders:
        with_metrics = _with(run, events, scalar_metrics(events, {}, quarantine))
    elif lines.is_file():
        with_metrics = _with(run, [lines], metric_lines([lines], {}, quarantine))
    else:
        return run
    return replace(with_metrics, source=with_set_aside(with_metrics.source, quarantine))


def _with(run: Run, files: list[Path], metrics: Metrics) -> Run:
    source = replace(run.source, files=(*run.source.files, *map(str, files)))
    return replace(run, source=source, metrics=metrics)


def scalar_metrics(files: Iterable[Path], names: Mapping[str, str], quarantine: QuarantineLog) -> Metrics:
    """Step -> common name -> value, of TensorBoard's files."""
    metrics: Metrics = {}
    for file in files:
        for step, scalars in scalars_in(file, quarantine.of_metrics(file)).items():
            metrics.setdefault(step, {}).update(_renamed(scalars, names))
    return metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointLayout:
    """Where a trainer saves its weights."""

    patterns: Sequence[str]
    """Globs from a folder of the run to the checkpoints, whose names end in their number of updates."""
    inside: Sequence[str]
    """Globs from a checkpoint to the model; the first with complete weights counts, the checkpoint itself last."""
    merge: Callable[[Path], str]  # the sentence that says what to run for a checkpoint that holds no model yet


def saved_weights(request: ReadRequest, layout: CheckpointLayout, roots: Iterable[Path]) -> dict[str, Any]:
    """The fields of a run that its checkpoints, the first of each number, and the weights of ``--initial`` make."""
    weights_of: dict[int, WeightsRef] = {}
    unmerged: dict[int, Reason] = {}
    for root in roots:
        for number, folder in numbered_folders(root, layout.patterns):
            weights = None if number in weights_of else _model_in(folder, number, layout, request)
            if weights is not None:
                weights_of[number] = weights
            elif number not in weights_of:
                text = f"{folder.name} holds no Hugging Face model"
                unmerged.setdefault(number, Reason("weights_unmerged", text, hint=layout.merge(folder)))

    def base_of(adapter: Path) -> str | None:
        return request.model or find_base(adapter, adapter.parent)

    weights_of_all = with_initial((weights_of[number] for number in sorted(weights_of)), request.initial, base_of)
    readable = {weights.num_updates for weights in weights_of_all}
    bases = [Path(weights.base) for weights in weights_of_all if weights.base]
    model = None if request.model is None else Path(request.model)
    return {
        "weights": weights_of_all,
        "unmerged_weights": {number: reason for number, reason in unmerged.items() if number not in readable},
        "tokenizer": find_tokenizer(*(weights.path for weights in weights_of_all), request.initial, *bases, model),
    }


def numbered_folders(root: Path, patterns: Iterable[str]) -> Iterator[tuple[int, Path]]:
    """Number of updates and folder of each checkpoint; a pattern that matches those of several runs yields none."""
    for pattern in patterns:
        folders = [folder for folder in sorted(root.glob(pattern)) if folder.is_dir()]
        if len({folder.parent for folder in folders}) == 1:
            numbered = ((re.search(r"([0-9]+)$", folder.name), folder) for folder in folders)
            yield from ((int(number[1]), folder) for number, folder in numbered if number)


def _model_in(folder: Path, num_updates: int, layout: CheckpointLayout, request: ReadRequest) -> WeightsRef | None:
    for inner in (*(inner for pattern in layout.inside for inner in sorted(folder.glob(pattern))), folder):
        try:
            return weights_at(
                inner, num_updates=num_updates, base_of=lambda adapter: request.model or find_base(adapter, folder)
            )
        except InputError:  # a configuration and a tokenizer alone, or pickles
            continue
    return None
