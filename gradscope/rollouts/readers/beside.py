"""A trainer's own configuration, from where it writes it and from ``--run-config``, which wins."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gradscope.errors import InputError
from gradscope.reason import Reason
from gradscope.rollouts.checkpoint_folders import find_base, find_tokenizer, weights_at, with_initial
from gradscope.rollouts.config_file import flattened, read_document
from gradscope.rollouts.event_file import event_files, scalars_in
from gradscope.rollouts.readers.parsing.cells import logged_numbers, whole_number
from gradscope.rollouts.readers.parsing.jsonl import read_jsonl
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog, with_set_aside
from gradscope.rollouts.readers.parsing.request import ReadRequest, read_trainer_settings
from gradscope.rollouts.run import Run, TrainerSettings, WeightsRef


def trainer_settings(request: ReadRequest, trainer: str, files: Iterable[Path]) -> TrainerSettings:
    """Values by their paths in the first configuration that can be read, with those given, and the trainer's name."""
    given = read_trainer_settings(request.run_config)
    found = next(filter(None, map(readable, files)), None)
    origins = [*(() if found is None else (str(found[0]),)), *(() if given.origin is None else (given.origin,))]
    values = {} if found is None else flattened(found[1])
    return TrainerSettings(
        values={**values, **flattened(given.values), "trainer": trainer}, origin=" and ".join(origins) or None
    )


def readable(file: Path) -> tuple[Path, Mapping[str, Any]] | None:
    """A file with the configuration in it; None where it is not there or holds none."""
    if not file.is_file():
        return None
    try:
        document = read_document(file)
    except (OSError, ValueError):
        return None
    return (file, document) if isinstance(document, Mapping) else None


Metrics = dict[int, dict[str, float]]


def metric_lines(files: Iterable[Path], names: Mapping[str, str], quarantine: QuarantineLog) -> Metrics:
    """Step -> common name -> value, by several lines a step; those without a step are left out."""
    lines = QuarantineLog()
    found: Metrics = {}
    for file in files:
        for _, row in read_jsonl(file, lines):
            step = whole_number(row.get("step"))
            if step is not None:
                found.setdefault(step, {}).update(_renamed(logged_numbers(row), names))
    quarantine.lose_metrics(lines)
    for metrics in found.values():
        metrics.pop("step", None)
    return found


def _renamed(metrics: Mapping[str, float], names: Mapping[str, str]) -> dict[str, float]:
    return {names.get(name, name): value for name, value in metrics.items()}


def with_logged_metrics(request: ReadRequest, run: Run) -> Run:
    """The run with the metrics in its folder: TensorBoard's files, or a ``metrics.jsonl`` under the trainer's names.

    Returns:
        The run; without metrics, which is said, where the files are of several folders, which may be several runs.
    """
    folder = request.path if request.path.is_dir() else request.path.parent
    folder = folder.parent if folder.name == "rollout_data" else folder
    events, lines, quarantine = event_files(folder), folder / "metrics.jsonl", QuarantineLog()
    folders = sorted({str(file.parent) for file in events})
    if len(folders) > 1:
        named = f"{len(folders)} folders ({', '.join(folders[:3])}{', ...' if len(folders) > 3 else ''})"
        said = f"TensorBoard's files lie in {named}: which are of this run is not known, and none were read."
        return replace(run, source=replace(run.source, missing=(*run.source.missing, said)))
    if folders:
        found = _with(run, events, scalar_metrics(events, {}, quarantine))
    elif lines.is_file():
        found = _with(run, [lines], metric_lines([lines], {}, quarantine))
    else:
        return run
    return replace(found, source=with_set_aside(found.source, quarantine))


def _with(run: Run, files: list[Path], metrics: Metrics) -> Run:
    source = replace(run.source, files=(*run.source.files, *map(str, files)))
    return replace(run, source=source, metrics=metrics)


def scalar_metrics(files: Iterable[Path], names: Mapping[str, str], quarantine: QuarantineLog) -> Metrics:
    """Step -> common name -> value, of TensorBoard's files."""
    found: Metrics = {}
    for file in files:
        for step, scalars in scalars_in(file, quarantine.of_metrics(file)).items():
            found.setdefault(step, {}).update(_renamed(scalars, names))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointLayout:
    """Where a trainer saves its weights."""

    patterns: Sequence[str]
    """Globs from a folder of the run to the checkpoints, whose names end in their number of updates."""
    inside: Sequence[str]
    """Globs from a checkpoint to the model; the first that holds whole weights counts, the checkpoint itself last."""
    merge: Callable[[Path], str]  # what to run for a checkpoint that holds no model yet, as a sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedWeights:
    """The weights of a run."""

    weights: tuple[WeightsRef, ...] = ()  # those that can be read, by number of updates
    unmerged: dict[int, Reason] = field(default_factory=dict)
    """Number of updates -> what to run before those can be read."""
    tokenizer: Path | None = None  # a folder that holds the tokenizer


def saved_weights(request: ReadRequest, layout: CheckpointLayout, roots: Iterable[Path]) -> SavedWeights:
    """The checkpoints below the folders of a run, of a number the first, with what ``--initial`` gives."""
    found: dict[int, WeightsRef] = {}
    unmerged: dict[int, Reason] = {}
    for root in roots:
        for number, folder in numbered_folders(root, layout.patterns):
            weights = None if number in found else _model_in(folder, number, layout, request)
            if weights is not None:
                found[number] = weights
            elif number not in found:
                text = f"{folder.name} holds no Hugging Face model"
                unmerged.setdefault(number, Reason("weights_unmerged", text, hint=layout.merge(folder)))

    def base_of(adapter: Path) -> str | None:
        return request.model or find_base(adapter, adapter.parent)

    weights_of_all = with_initial((found[number] for number in sorted(found)), request.initial, base_of)
    readable = {weights.num_updates for weights in weights_of_all}
    bases = [Path(weights.base) for weights in weights_of_all if weights.base]
    model = None if request.model is None else Path(request.model)
    return SavedWeights(
        weights=weights_of_all,
        unmerged={number: reason for number, reason in unmerged.items() if number not in readable},
        tokenizer=find_tokenizer(*(weights.path for weights in weights_of_all), request.initial, *bases, model),
    )


def numbered_folders(root: Path, patterns: Iterable[str]) -> Iterator[tuple[int, Path]]:
    """Updates and folder of each checkpoint; where a pattern meets those of several runs, none of them."""
    for pattern in patterns:
        folders = [folder for folder in sorted(root.glob(pattern)) if folder.is_dir()]
        if len({folder.parent for folder in folders}) == 1:
            numbered = ((re.search(r"([0-9]+)$", folder.name), folder) for folder in folders)
            yield from ((int(number[1]), folder) for number, folder in numbered if number)


def _model_in(folder: Path, num_updates: int, layout: CheckpointLayout, request: ReadRequest) -> WeightsRef | None:
    for inner in (*(inner for pattern in layout.inside for inner in sorted(folder.glob(pattern))), folder):
        try:
            return weights_at(
                inner,
                num_updates=num_updates,
                base_of=lambda adapter: request.model or find_base(adapter, folder),
            )
        except InputError:  # a configuration and a tokenizer alone, or pickles
            continue
    return None
