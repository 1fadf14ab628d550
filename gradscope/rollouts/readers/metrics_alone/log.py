"""A run of metrics without rollouts: which files of a folder, which steps, and which of several runs.

Rows of one step are one; a later number takes the place of an earlier one. Steps that go back to one that was logged
with other numbers are a run that was resumed, whose later rows count, or, from the first step on, another run.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradscope.errors import InputError, UsageError
from gradscope.outside.numerals import number_from, whole_from
from gradscope.results.source import BLANK, CUT_OFF, Source
from gradscope.rollouts.event_file import event_files
from gradscope.rollouts.read_options import ColumnNames, ReadOptions
from gradscope.rollouts.readers.metrics_alone.files import PLACE, MetricFile, MetricRow, first_rows, opened
from gradscope.rollouts.readers.metrics_alone.names import given_names, impossible_shares, naming_of, switch_on
from gradscope.rollouts.readers.metrics_alone.published import unpivoted
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.run import Run

NAME = "metrics"
LOOKS_FOR = "metrics by step (trainer_state.json, JSONL, CSV, consoles, TensorBoard, trackio)"

_STEPS = (
    *("train/global_step", "global_step", "step", "training_step", "rollout/step", "train/step"),
    *("global_step/max_steps", "current_steps", "training/global_step", "trainer/global_step", "iteration"),
    *("progress/batch", "Step", "_step"),
)
"""Columns of steps: the trainer's own count before that of a logger, which counts its calls. ms-swift's is ``3/30``."""
_SLIMES = ("rollout/step", "train/step")  # of rows of slime's each has one of them
_RUNS = ("run_name", "run_id", "run", "_run", "experiment_name", "experiment", "exp_name")
"""Columns that name the run of a row."""
_OF_ROLLOUTS = frozenset(
    (
        "prompt",
        "prompts",
        "completion",
        "completions",
        "response",
        "responses",
        "output",
        "messages",
        "question",
        "text",
    )
)
"""Columns of which texts are: then a row is a rollout."""
_UNNAMED = ("data", "metrics")  # objects whose keys are metrics by themselves, as verl's logger writes them
_NUM_PEEKED = 200
_LARGEST_STEP = 1 << 53
_MOST_NAMED = 6
_ENDINGS = ("jsonl", "jsonl.gz", "json", "csv", "tsv", "db", "parquet", "log", "txt", "out", "ipynb")


def holds_metrics(path: Path, options: ReadOptions) -> bool:
    """Whether a path that no reader of rollouts knows holds metrics by step, under a name that is known or given."""
    if options.columns != ColumnNames(step=options.columns.step):
        return False
    return any(True for _ in _metric_files(path, options))


def read_metrics_log(path: Path, options: ReadOptions, quarantine: QuarantineLog) -> Run:
    """Read a log of metrics.

    Args:
        path: A file or a folder for which :func:`holds_metrics` is true.
        options: ``columns.step``, ``metric_columns`` and ``metric_run`` count.
        quarantine: Takes what cannot be used.

    Returns:
        A run without groups.

    Raises:
        InputError: It holds no metrics, or several runs of which none was chosen.
        UsageError: The chosen run, or a metric that was named, is not there.
    """
    groups = list(_metric_files(path, options))
    if not groups:
        raise InputError(f"{path} holds no metrics by step.", hint="Name the column of steps with --step-column.")
    if len(groups) > 1:
        names = [str(files[0] if len(files) == 1 else os.path.commonpath(files)) for files in groups[:_MOST_NAMED]]
        places = f"{path} holds metrics in {len(groups)} places: {', '.join(names)}."
        raise InputError(places, hint=f"Name one: {names[0]}")
    files = groups[0]
    kinds = [kind for kind in map(opened, files) if kind is not None]
    reading = _Reading(column=options.columns.step)
    for kind in kinds:
        reading.take(kind, quarantine)
    chosen = reading.chosen(path, options.metric_run)
    keys = dict.fromkeys(key for values in chosen.metrics.values() for key in values)
    naming = naming_of(keys, given_names(options.metric_columns))
    metrics = {step: naming.apply(chosen.metrics.pop(step)) for step in sorted(chosen.metrics)}
    impossible = tuple(impossible_shares(metrics))
    one_run = f", run {chosen.name!r} of {reading.num_runs}" if reading.num_runs > 1 else ""
    source = Source(
        path=str(path),
        format=NAME,
        kind="metrics",
        recognized=f"{_title(files, kinds)}{one_run}, {len(metrics):,} steps",
        files=tuple(map(str, files)),
        num_rows=chosen.num_rows,
        inferred=(*naming.sentences, *reading.sentences, *chosen.sentences, *impossible),
        missing=(switch_on(keys),),
        quarantined=quarantine.result(),
    )
    return Run(path=path, source=source, groups=(), metrics=metrics)


def _title(files: tuple[Path, ...], kinds: list[MetricFile]) -> str:
    return f"{files[0].name}" if files[0].name == "trainer_state.json" else kinds[0].title


def _metric_files(path: Path, options: ReadOptions) -> Iterator[tuple[Path, ...]]:
    """The files of metrics that a path means, those of one run together: of the first kind that a folder has."""
    if path.is_file():
        if _is_metrics(path, options):
            yield (path,)
        return
    if not path.is_dir():
        return
    for folder in (path, *sorted(inner for inner in path.iterdir() if inner.is_dir())):
        found = list(_in_folder(folder, options))
        yield from found
        if found and folder == path:
            return


def _in_folder(folder: Path, options: ReadOptions) -> Iterator[tuple[Path, ...]]:
    states = sorted(folder.glob("checkpoint-*/trainer_state.json"), key=lambda file: (len(file.parent.name), file))
    for state in (folder / "trainer_state.json", *reversed(states)):
        if state.is_file() and _is_metrics(state, options):
            yield (state,)
            return
    events = tuple(event_files(folder, below=("",)))
    if events and any(_is_metrics(file, options) for file in events):
        yield events
        return
    saved: dict[str, list[Path]] = {}
    for file in sorted(folder.glob("*-tag-*.*")):
        saved.setdefault(file.name.partition("-tag-")[0], []).append(file)
    inners = sorted(inner for pattern in ("metrics", "*/metrics") for inner in folder.glob(pattern) if inner.is_dir())
    inners = [folder] if folder.name == "metrics" else inners
    mlflow = [sorted(file for file in inner.rglob("*") if file.is_file()) for inner in inners]
    split = [tuple(one) for one in (*saved.values(), *mlflow) if any(_is_metrics(file, options) for file in one)]
    if split:  # over files of one metric each
        yield from split
        return
    for ending in _ENDINGS:
        files = [file for file in sorted(folder.glob(f"*.{ending}")) if file.is_file() and _is_metrics(file, options)]
        yield from ((file,) for file in files)
        if files:
            return


def _is_metrics(file: Path, options: ReadOptions) -> bool:
    """Whether its first rows have steps and a metric, and are no rollouts."""
    try:
        kind = opened(file)
    except InputError:
        return False
    if kind is None:
        return False
    first = first_rows(kind, _NUM_PEEKED)
    reading, keys = _Reading(column=options.columns.step), _step_keys(first, options.columns.step)
    for row in first:
        reading.add(row, keys)
    texts = sum(isinstance(row.cells.get(key), str | list) for row in first for key in _OF_ROLLOUTS)
    steps = sum(len(one.metrics) for one in reading.runs.values())
    if not steps or texts or reading.num_conflicts > steps:
        return False
    there = {key for one in reading.runs.values() for values in one.metrics.values() for key in values}
    return bool(naming_of(there, {}).parts or there.intersection(given_names(options.metric_columns).values()))


class _LastOf(QuarantineLog):
    """Passes on what is set aside, and remembers it until the next row."""

    def __init__(self, whole: QuarantineLog) -> None:
        super().__init__()
        self._whole = whole
        self.last = ""

    def add(self, reason: str, location: str, num_rows: int = 1) -> None:
        self._whole.add(reason, location, num_rows)
        if reason not in (BLANK, CUT_OFF):
            self.last = f"{location}: {reason}"

    def lose(self, error: InputError) -> None:
        self._whole.lose(error)


@dataclass(slots=True, kw_only=True)
class _OneRun:
    """What was read of one run."""

    name: str
    metrics: dict[int, dict[str, float]] = field(default_factory=dict)
    num_rows: int = 0
    first: str = ""
    last_step: int = -1
    sentences: list[str] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class _Reading:
    """The runs of some files, as far as they were read."""

    column: str | None
    runs: dict[tuple[str, int], _OneRun] = field(default_factory=dict)
    num_conflicts: int = 0
    num_without_step: int = 0
    steps_are_places: bool = False

    @property
    def num_runs(self) -> int:
        """How many runs there are."""
        return len(self.runs)

    @property
    def sentences(self) -> tuple[str, ...]:
        """What was worked out, and what was left out."""
        told = []
        if self.steps_are_places:
            told.append("The console does not name its steps: a step is the place of its dictionary among all.")
        if self.num_without_step:
            told.append(f"{self.num_without_step:,} rows without a step were left out.")
        return tuple(told)

    def take(self, file: MetricFile, quarantine: QuarantineLog) -> None:
        """Read a file."""
        aside = _LastOf(quarantine)
        keys = _step_keys(first_rows(file, _NUM_PEEKED), self.column)
        for row in file.rows(aside):
            aside.last = ""
            self.add(row, keys, aside)
        if aside.last:
            what = f"{aside.last}; it is the file's last row, so the run may go on beyond what was read."
            quarantine.lose(InputError(what, hint="Copy the file again."))

    def add(self, row: MetricRow, keys: tuple[str, ...], quarantine: QuarantineLog | None = None) -> None:
        """Take in a row; one whose step is none is set aside, one without a step is counted."""
        cells = unpivoted(row.cells)
        cell = next((cells[key] for key in keys if cells.get(key) not in (None, "")), None)
        if cell is None:
            self.num_without_step += 1
            return
        step = _step(cell)
        if step is None:
            if quarantine is not None:
                quarantine.add("the step is not a whole number", row.location)
            return
        numbers = dict(_numbers(cells))
        self.steps_are_places |= bool(numbers.pop(PLACE, 0.0))
        for key in (*keys, *_STEPS):
            numbers.pop(key, None)
        label = row.run or next((str(cells[key]) for key in _RUNS if isinstance(cells.get(key), str)), "")
        self._merge(label, step, numbers, row.location)

    def _merge(self, label: str, step: int, numbers: dict[str, float], location: str) -> None:
        number = max((part for name, part in self.runs if name == label), default=0)
        run = self.runs.get((label, number)) or self._new(label, number, location)
        there = run.metrics.get(step, {})
        is_other = any(key in there and not _same(there[key], value) for key, value in numbers.items())
        if is_other and step == run.last_step:
            self.num_conflicts += 1
        elif is_other and step < run.last_step:
            if step <= min(run.metrics):
                run = self._new(label, number + 1, location)
            else:
                for later in [one for one in run.metrics if one >= step]:
                    del run.metrics[later]
                run.sentences.append(
                    f"Resumed at step {step} ({location}): what was logged of later steps before counts no more."
                )
        run.metrics.setdefault(step, {}).update(numbers)
        run.num_rows += 1
        run.last_step = step

    def _new(self, label: str, number: int, location: str) -> _OneRun:
        made = self.runs[label, number] = _OneRun(name=label, first=location)
        return made

    def chosen(self, path: Path, wanted: str | None) -> _OneRun:
        """The run that was asked for, or the only one; each has a name."""
        names = self._names()
        if not names:
            raise InputError(f"{path} has no usable rows of metrics.", hint="A row needs a whole number as its step.")
        listed = ", ".join(f"{name!r} (from {one.first})" for name, one in list(names.items())[:_MOST_NAMED])
        if wanted is not None and wanted not in names:
            raise UsageError(f"{path} has no run {wanted!r}.", hint=f"It has {listed}.")
        if wanted is None and len(names) > 1:
            raise InputError(
                f"{path} holds {len(names)} runs: {listed}.", hint=f"Choose one: --metric-run '{next(iter(names))}'"
            )
        return names[wanted] if wanted is not None else next(iter(names.values()))

    def _names(self) -> dict[str, _OneRun]:
        """Each run by its label; where a label stands for several, or none was given, also by their order."""
        found: dict[str, _OneRun] = {}
        for (label, number), run in self.runs.items():
            several = (label, 1) in self.runs
            run.name = f"{label}/{number + 1}".removeprefix("/") if several or not label else label
            found[run.name] = run
        return found


def _step_keys(first: Iterable[MetricRow], column: str | None) -> tuple[str, ...]:
    """The columns of steps: the one that was named, else the first of the usual ones."""
    if column is not None:
        return (column,)
    there = dict.fromkeys(key for row in first for key, cell in row.cells.items() if _step(cell) is not None)
    key = next((key for key in _STEPS if key in there), None) or next(
        (key for key in there if key.endswith(("/step", "/global_step"))), None
    )
    return _SLIMES if key in _SLIMES else () if key is None else (key,)


def _step(cell: Any) -> int | None:
    """A step; None where a cell is none."""
    try:
        if isinstance(cell, str):
            step, *_ = map(whole_from, cell.split("/", maxsplit=1))
        else:
            step = int(cell) if _is_whole(cell) else -1
    except ValueError:
        return None
    return step if 0 <= step <= _LARGEST_STEP else None


def _is_whole(cell: Any) -> bool:
    if isinstance(cell, bool):
        return False
    return isinstance(cell, int) or (isinstance(cell, float) and math.isfinite(cell) and cell == int(cell))


def _numbers(cells: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """The numbers of a row, those of an object under its key and theirs; NaN and infinity count, as words too."""
    for key, cell in cells.items():
        if isinstance(cell, Mapping):
            yield from _numbers(cell, prefix if key in _UNNAMED else f"{prefix}{key}/")
        elif isinstance(cell, int | float) and not isinstance(cell, bool):
            yield f"{prefix}{key}", _as_float(cell)
        elif isinstance(cell, str) and cell:
            try:
                yield f"{prefix}{key}", number_from(cell)
            except ValueError:
                continue


def _as_float(number: float) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def _same(first: float, second: float) -> bool:
    return first == second or (math.isnan(first) and math.isnan(second))
