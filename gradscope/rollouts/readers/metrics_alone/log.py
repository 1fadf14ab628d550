"""A run of metrics without rollouts: which files of a folder, which steps, and which of several runs."""

from __future__ import annotations

import contextlib
import glob
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from functools import lru_cache, partial
from itertools import chain, compress, islice, product
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from gradscope.errors import InputError, UsageError
from gradscope.rollouts.event_file import event_files
from gradscope.rollouts.listing import COMPRESSED
from gradscope.rollouts.read_options import ColumnNames, ReadOptions
from gradscope.rollouts.readers.column_roles import RUNS, STEP_SUBSTITUTES, USUAL
from gradscope.rollouts.readers.metrics_alone.files import CONSOLE, MetricsLog, opened
from gradscope.rollouts.readers.metrics_alone.naming import (
    MEAN_REWARDS,
    likely_rewards,
    naming_of,
    parse_metric_columns,
    without_impossible_shares,
    without_prefix,
)
from gradscope.rollouts.readers.metrics_alone.published import plain_name, tag_of
from gradscope.rollouts.readers.metrics_alone.runs import (
    EVAL,
    STEPS,
    MetricTable,
    OneRun,
    Piece,
    RunRows,
    by_run,
    hold_rollouts,
    is_step,
    numbers_by_key,
    steps_in,
)
from gradscope.rollouts.readers.parsing.cells import is_list_of_objects, is_number
from gradscope.rollouts.readers.parsing.records import ReadRequest, peek, refuse_turns
from gradscope.rollouts.readers.parsing.settings import read_trainer_settings
from gradscope.rollouts.readers.parsing.tables import suffix_of
from gradscope.rollouts.run import Numbers, Run, StepMetrics
from gradscope.say import counted

NAME = "metrics"

_SLIMES = ("rollout/step", "train/step")  # each row of slime's has one of them
_NAMES = ("Name", "name", "model", "model_name", "method", "algorithm", "algo", "arm", "condition", "variant")
"""Columns that may name the run."""
_LEARNS = {"loss", "grad_norm", "learning_rate"}  # of which an update has one, and an episode that is only played none
_REWARD_LIST = re.compile(r"(^|_)(rewards?|scores?)$")
_MAY_COUNT_STEPS = re.compile(rb"step|iter|epoch|round|episode|update|batch|\0", re.IGNORECASE)  # in a table's header
_LONGEST_HEADER = 1 << 20
_NOT_OFFERED = re.compile(r"^_|^system[/.]|,")  # W&B's own keys, and what the option takes apart
_NO_NUMBER = re.compile(r"time|date|step$", re.IGNORECASE)  # columns that may be texts among numbers
_ID = re.compile(r"(^|_)(id|uid|idx|index|group)$", re.IGNORECASE)
_UNORDERED = 4  # a step of so many that goes back
_NUM_PEEKED = 200
_MAX_NAMED = 6
_MAX_NUMBERED = 8  # files of metrics in a folder whose names differ in numbers alone
_DIGITS = re.compile("[0-9]+")
_ENDINGS = (
    *("jsonl", *(f"jsonl{suffix}" for suffix in COMPRESSED), "json", "csv", "tsv", "db", "wandb", "parquet", "arrow"),
    *("log", "txt", "out", "ipynb"),
)


def holds_metrics(path: Path, options: ReadOptions) -> bool:
    """Whether a path that no reader of rollouts recognizes holds metrics by step, under a common or named key."""
    if options.columns != ColumnNames(step=options.columns.step):
        return False
    return any(True for _ in _metric_files(path, options))


def read_metrics_log(request: ReadRequest) -> Run:
    """Read a log of metrics, for whose path :func:`holds_metrics` is true.

    Raises:
        InputError: It holds no metrics, or several runs of which none was chosen.
        UsageError: It lacks the chosen run, or a metric that was named.
    """
    path, options = request.path, request.options
    groups = list(_metric_files(path, options))
    if not groups:
        raise InputError(f"{path} holds no metrics by step.", hint="Name the column of steps with --step-column.")
    if len(groups) > 1:
        names = [str(log) for log in _logs_of(groups[:_MAX_NAMED])]
        message = f"{path} holds metrics in {len(groups)} places: {', '.join(names)}."
        listed = shlex.quote(str(path)) if path.is_dir() else shlex.join(names)
        raise InputError(message, hint=f"Name one: {names[0]}; side by side: gradscope report {listed}")
    files = groups[0]
    kinds = [kind for kind in map(opened, files) if kind is not None]
    quarantine, rows = MetricsLog(request.progress, files), RunRows(_common_keys)
    keys: tuple[str, ...] = ()
    for kind in kinds:
        _, keys, run_keys = _first_rows(kind.path, options.columns.step)
        for piece in kind.pieces(quarantine):
            quarantine.add_bad_steps(piece, rows.add(piece, keys, run_keys))
        quarantine.file_ended()
    runs = rows.runs()
    named = parse_metric_columns(options.metric_columns)
    chosen = _chosen(runs, path, options.metric_run, named.get("reward"))
    logged = chosen.metrics()
    if are_means := 2 * chosen.num_conflicts > len(logged):
        logged = chosen.metrics(averaged=True)
    naming, refuted = naming_of(logged.columns, named).checked_against(logged)
    metrics, impossible = without_impossible_shares(naming.apply(logged))
    run_lists = [name for name in quarantine.lists if chosen.name == name or chosen.name.startswith(f"{name}/")]
    lists = quarantine.lists if len(quarantine.lists) == 1 else run_lists
    sentences = [f"The rows are those of the document's list {name!r}." for name in lists]
    if keys and plain_name(keys[0]) in STEP_SUBSTITUTES and options.columns.step is None:
        sentences.append(f"No column is called a step: {keys[0]!r} counts as one.")
    if rows.counts_steps:
        sentences.append("Nothing names the steps: a step is the place of its row among all.")
    if are_means:
        sentences.append("Most steps have several rows, as of batches or processes: a metric is their mean.")
    if rows.num_without_step:
        sentences.append(f"Without a step, and left out: {counted(rows.num_without_step, 'row')}.")
    if any(key.startswith(EVAL) for key in logged.columns) and rows.num_held_out:
        sentences.append(f"Of an evaluation: {counted(rows.num_held_out, 'row')}, whose metrics begin with {EVAL}.")
    settings = read_trainer_settings(request.run_config)
    if settings.count_dead_batches:
        sentences.append("By the arguments TRL's frac_reward_zero_std is of whole batches: it is left out.")
    guesses = [] if "reward" in metrics.columns else likely_rewards(metrics.columns)[:_MAX_NAMED]
    unnamed = "None is known as the mean reward: --metric-column reward=NAME takes one"
    # Metrics in folders below a console may be of other runs, or of its own in full.
    is_console = kinds[0].title == CONSOLE and files[0].parent == path
    folders = sorted(inner for inner in path.iterdir() if inner.is_dir()) if is_console else []
    below = _logs_of(chain.from_iterable(_in_folder(folder, options) for folder in folders))
    rest = f" and {len(below) - 1} more" if len(below) > 1 else ""
    one_run = f", run {chosen.name!r} of {len(runs)}" if len(runs) > 1 else ""
    title = files[0].name if files[0].name == "trainer_state.json" else kinds[0].title
    source = request.source(
        NAME,
        f"{title}{one_run}, {counted(len(metrics), 'step')}",
        kind="metrics",
        files=files,
        num_rows=chosen.num_rows,
        inferred=(*naming.sentences, *refuted, *sentences, *chosen.sentences, *impossible),
        missing=(
            *([f"{unnamed}, as {', '.join(guesses)}."] if guesses else ()),
            *_listed_rewards(path),
            *_contradicting(path, files, options),
            *_unread_logs(path, files, options),
            *([f"Not read, in folders below: {below[0].relative_to(path)}{rest}."] if below else ()),
            switch_on(logged.columns),
        ),
        quarantined=quarantine.result(),
    )
    return Run(path=path, source=source, groups=(), metrics=metrics, settings=settings)


def _logs_of(groups: Iterable[tuple[Path, ...]]) -> list[Path]:
    return [files[0] if len(files) == 1 else Path(os.path.commonpath(files)) for files in groups]


def logs_of_runs(folder: Path) -> tuple[Path, ...]:
    """The logs of metrics in a folder that has several, each of a run."""
    logs = tuple(_logs_of(_metric_files(folder, ReadOptions())))
    return logs if len(logs) > 1 and folder not in logs else ()


def _listed_rewards(path: Path) -> Iterator[str]:
    """A sentence on lists of rewards, or of objects with one, in a file's rows, which may be those of rollouts."""
    rows = peek(path) if suffix_of(path) in (".jsonl", ".ndjson", ".json") else []
    if suffix_of(path) == ".json":  # lists in the rows of a document are read where these name a prompt
        named = {*USUAL["prompt"], *USUAL["prompt_id"]}
        tables = [rows] if len(rows) > 1 else list(filter(is_list_of_objects, rows[0].values() if rows else ()))
        tables = [table for table in tables if not named.isdisjoint(table[0])]
        rows = tables[0] if len(tables) == 1 else []
    for name in sorted(rows[0] if rows else (), key=len):  # the plainest name first
        lists = [row[name] for row in rows if isinstance(row.get(name), list)]
        cells = list(chain.from_iterable(lists))
        if len(lists) <= len(rows) / 2 or not cells:
            continue
        key = next((key for key in USUAL["reward"] if isinstance(cells[0], dict) and key in cells[0]), None)
        if key is not None or (_REWARD_LIST.search(name) and all(map(is_number, cells))):
            option = f"--reward-column {shlex.quote(name if key is None else f'{name}.{key}')}"
            yield f"Rows also list {name!r}; if these are of the rollouts of one prompt: {option}."
            return


def _contradicting(path: Path, files: Sequence[Path], options: ReadOptions) -> Iterator[str]:
    """A sentence on the files next to those read that have several rows a step, as a log of several runs has."""
    folder, endings = files[0].parent, _ENDINGS if path.is_dir() and len(files) == 1 else ()
    for ending in endings:
        siblings = [file for file in sorted(folder.glob(f"*.{ending}")) if file.is_file() and file not in files]
        first_looks = zip(siblings, map(partial(_first_look, options=options), siblings), strict=True)
        names = [
            file.name
            for file, (tables, rows, logs) in first_looks
            if _are_contradictory(rows, logs) and not _hold_rollouts(tables)
        ]
        if names:
            rest = f" and {len(names) - 1} more" if len(names) > 1 else ""
            yield f"Not read, as they have several rows a step with different values: {names[0]}{rest}."
        if files[0].name.endswith(f".{ending}"):
            return


def _unread_logs(path: Path, files: Sequence[Path], options: ReadOptions) -> Iterator[str]:
    """A sentence on logs of a later kind next to the one that was read: one may be of its run, several are not."""
    endings = iter(_ENDINGS if path.is_dir() and len(files) == 1 else ())
    if any(files[0].name.endswith(f".{ending}") for ending in endings):  # which takes all up to this one
        for ending in endings:
            siblings = (file for file in sorted(files[0].parent.glob(f"*.{ending}")) if file.is_file())
            if len(logs := list(islice((file.name for file in siblings if _names_in(file, options)), 2))) > 1:
                listed = ", ".join(logs)
                yield f"Not read: {listed}, ... beside {files[0].name}; name one, or several for gradscope report."
                return


def _are_contradictory(rows: RunRows, logs: Sequence[StepMetrics]) -> bool:
    """Whether most steps of the first rows of a file have several with different values, and these are no means."""
    return 2 * rows.num_conflicts > sum(map(len, logs)) and not any(
        MEAN_REWARDS & set(map(without_prefix, log.columns)) for log in logs
    )


def _common_keys(keys: Iterable[str]) -> set[str]:
    """The keys of metrics that have a common name."""
    logged = tuple(keys)
    return {part.formula for part in naming_of(logged, {}).parts.values()}.intersection(logged)


def _hold_rollouts(tables: Iterable[MetricTable]) -> bool:
    return any(hold_rollouts(table.columns) or _are_of_episodes(table) or _are_of_samples(table) for table in tables)


def _are_of_samples(table: MetricTable) -> bool:
    """Whether rows of steps in no order have an id each."""
    columns = [cells for name, cells in table.columns.items() if _ID.search(name) and not isinstance(cells, Numbers)]
    have_ids = any(all(isinstance(cell, str) for cell in ids) and len(set(ids)) == len(ids) for ids in columns)
    num_descents = int(np.count_nonzero(np.diff(steps_in(table, STEPS)) < 0))
    return have_ids and num_descents > len(table.rows) / _UNORDERED


def _are_of_episodes(table: MetricTable) -> bool:
    """Whether rows are the steps of episodes, which begin again with each, and of which nothing learns."""
    steps, begins = steps_in(table, STEPS), np.diff(steps_in(table, ["episode"])) > 0
    are_turns = (steps >= 0).all() and begins.any() and np.array_equal(begins, np.diff(steps) <= 0)
    return bool(are_turns) and _LEARNS.isdisjoint(naming_of(table.columns, {}).parts)


def _metric_files(path: Path, options: ReadOptions) -> Iterator[tuple[Path, ...]]:
    """The files of metrics of a path, grouped by run: those of the first kind that a folder has."""
    if not path.is_dir():
        files = [path] if path.is_file() else map(Path, sorted(glob.glob(str(path))))
        yield from ((file,) for file in files if file.is_file() and _names_in(file, options))
        return
    groups = list(_in_folder(path, options))
    yield from groups
    logs = _first_look(groups[0][0], options)[2] if len(groups) == 1 else []
    is_chosen = options.metric_run is not None or any(sum(have) == 1 for have in _with_reward(logs))
    if groups and (len(logs) < 2 or is_chosen):
        return
    inners = {inner.resolve(): inner for inner in sorted(path.iterdir()) if inner.is_dir()}  # W&B links one
    below = (group for inner in sorted(inners.values()) for group in _in_folder(inner, options))
    logs_below = list(islice(below, 2)) if groups else []  # next to a console of all runs those of each
    yield from chain(logs_below if len(logs_below) > 1 else (), below)


def _in_folder(folder: Path, options: ReadOptions) -> Iterator[tuple[Path, ...]]:
    if (state := _state_in(folder, options)) is not None:
        yield (state,)
        return
    events = tuple(event_files(folder, below=("",)))
    if events and any(_names_in(file, options) for file in events):
        yield events
        return
    saved: dict[str, list[Path]] = {}
    for file in sorted(folder.glob("*-tag-*.*")):
        saved.setdefault(file.name.partition("-tag-")[0], []).append(file)
    inners = sorted(inner for pattern in ("metrics", "*/metrics") for inner in folder.glob(pattern) if inner.is_dir())
    inners = [folder] if folder.name == "metrics" else inners
    mlflow = [sorted(file for file in inner.rglob("*") if file.is_file()) for inner in inners]
    split = [tuple(group) for group in (*saved.values(), *mlflow) if any(_names_in(file, options) for file in group)]
    if split:  # one file for each metric
        yield from split
        return
    for ending in _ENDINGS:
        files = [file for file in sorted(folder.glob(f"*.{ending}")) if file.is_file() and _names_in(file, options)]
        yield from ((file,) for file in files)
        if files:
            return
    for inner in sorted({file.parent for pattern in _LOGGERS for file in folder.glob(pattern)}):
        yield from _in_folder(inner, options)


_LOGGERS = ("runs/*/events.out.tfevents.*", "wandb/run-*/run-*.wandb")
"""Where transformers' trainer and W&B log, below the folder of a run."""


def _state_in(folder: Path, options: ReadOptions) -> Path | None:
    """The metrics of transformers' trainer: its state in a folder, else in the last checkpoint that has some."""
    states = sorted(folder.glob("checkpoint-*/trainer_state.json"), key=lambda file: (len(file.parent.name), file))
    files = (folder / "trainer_state.json", *reversed(states))
    return next((state for state in files if state.is_file() and _names_in(state, options)), None)


def logs_with(name: str, folders: Sequence[Path], rollouts: Sequence[str]) -> list[Path]:
    """The files with the metric of a name: of the first kind in the run's folder, else in each other; or all metrics.

    Of the files that were read for ``rollouts``, which may be all of a folder, one without that metric is none.
    """
    having: list[Path] = []
    metrics: list[Path] = []
    for folder, ending in product(folders, _ENDINGS):
        if having and folder == having[-1].parent:
            continue
        named = [(_DIGITS.sub("", file.name), file) for file in sorted(folder.glob(f"*.{ending}")) if file.is_file()]
        counts = Counter(name for name, _ in named)
        files = (file for name, file in named if counts[name] <= _MAX_NUMBERED)  # the others are of steps
        names_in = {file: _names_in(file, ReadOptions()) for file in files}
        having += [file for file, names in names_in.items() if name in names]
        if having and folder == folders[0]:
            break
        metrics += [file for file, names in names_in.items() if names and str(file) not in rollouts]
    state = None if having else _state_in(folders[0], ReadOptions())
    return having or ([] if state is None else [state]) or metrics


def _names_in(file: Path, options: ReadOptions) -> Set[str]:
    """The metrics that the first rows of a file have, by their common names; none without steps, or of rollouts."""
    if file.suffix in (".csv", ".tsv") and options.columns.step is None:
        with file.open("rb") as table:
            if not _MAY_COUNT_STEPS.search(table.readline(_LONGEST_HEADER)):
                return frozenset()
    tables, rows, logs = _first_look(file, options)
    if not any(map(len, logs)) or _are_contradictory(rows, logs) or _hold_rollouts(tables):
        return frozenset()
    keys = {key for log in logs for key in log.columns}
    named = parse_metric_columns(options.metric_columns)
    return naming_of(keys, {}).parts.keys() | {name for name, key in named.items() if key in keys}


def refuse_metrics(file: Path, options: ReadOptions) -> None:
    """Refuse a file with metrics that lacks a column of steps, or has rows of a step that contradict one another."""
    tables, rows, logs = _first_look(file, options) if file.is_file() else ([], RunRows(), [])
    numbers = {key: None for table in tables for key, _, _ in numbers_by_key(table.columns, table.rows)}
    metrics = [name for name in naming_of(numbers, {}).parts if name != "learning_rate"]
    metrics += [key for key in parse_metric_columns(options.metric_columns).values() if key in numbers]
    if any(map(_are_of_episodes, tables)):
        refuse_turns(file, "step")
    if not metrics:
        _refuse_unnamed(file, options)
    if not metrics or _hold_rollouts(tables):
        return
    named = ", ".join(metrics[:_MAX_NAMED])
    if _are_contradictory(rows, logs):
        raise InputError(
            f"{file} has several rows a step with different values ({named}): neither the metrics of a run, a row a "
            "step, nor rollouts, of which a column says which share a prompt.",
            hint="Of rollouts, name that column and the reward: --group-column NAME --reward-column NAME; of metrics, "
            "keep a row a step, or add a column `run`.",
        )
    if not any(map(len, logs)):
        if sum(len(table.rows) for table in tables) == 1 and not any(map(is_step, tables[0].columns)):
            text = f"{file} has one row of metrics ({named}) and no step: what a run or an evaluation came to."
            raise InputError(text, hint="Give the file with a row a step, or with a row a rollout.")
        first = [table for table in tables[:1] if len(table.rows) > 1]
        ascending = list[str]()
        for key in (key for table in first for key in table.columns if "step" in key.lower()):
            # All rows have a whole number, most of them a higher one than the row before in their run.
            changes = np.concatenate([np.diff(steps_in(part, [key])) for part in by_run(first[0], RUNS)])
            if (steps_in(first[0], [key]) >= 0).all() and 2 * np.count_nonzero(changes > 0) > len(changes):
                ascending.append(key)
        keys = [key for table in first for key in table.columns if not _NO_STEP.search(key)]
        ascending += [key for key in keys if _rises(first, key)]
        named_step = f"Name it: --step-column {shlex.quote(ascending[0])}" if ascending else ""
        raise InputError(
            f"{file} has metrics ({named}) and no column that is known to be the step.",
            hint=named_step
            or "Of metrics, add a column `step`; of rollouts, name what those of a prompt share: --prompt-column NAME.",
        )


_NO_STEP = re.compile(
    r"seed|correct|accura|passed|failed|solved|truncat|(total|num|n)_(sample|problem|task|question|prompt|example)",
    re.IGNORECASE,
)
"""Numbers that may rise from one method, model or task to the next, and are no steps."""


def _refuse_unnamed(path: Path, options: ReadOptions) -> None:
    """Refuse metrics by step under unknown names, with the option that names a reward."""
    for file in (path,) if path.is_file() else (*sorted(path.glob("*.wandb")), *event_files(path, below=("",))):
        tables, rows, logs = _first_look(file, options)
        keys = [key for key in dict.fromkeys(chain(*(log.columns for log in logs))) if not _NOT_OFFERED.search(key)]
        guesses, kind = likely_rewards(keys), opened(file) if logs else None
        is_saved = any(table.columns.keys() == {"step", tag_of(file)} for table in tables)
        is_loggers = is_saved or (kind is not None and kind.is_loggers)
        keys = list(dict.fromkeys(guesses + keys))
        named = keys if is_loggers else [key for key in guesses if _is_series(tables, rows, logs, key)]
        if named and not (naming_of(keys, {}).parts or _are_contradictory(rows, logs) or _hold_rollouts(tables)):
            rest = f" and {len(keys) - _MAX_NAMED} more" if len(keys) > _MAX_NAMED else ""
            raise InputError(
                f"{path} has metrics by step under names of its own: {', '.join(keys[:_MAX_NAMED])}{rest}.",
                hint=f"{'Name' if guesses else 'If one is'} the mean reward, {'as in' if guesses else 'name it:'} "
                f"--metric-column {shlex.quote(f'reward={named[0]}')}",
            )


def _is_series(tables: Sequence[MetricTable], rows: RunRows, logs: Sequence[StepMetrics], key: str) -> bool:
    """Whether each row is a step's, with numbers and no ids, and a key's are no verdicts of one sample."""
    named = [pair for table in tables for pair in table.columns.items() if not _NO_NUMBER.search(pair[0])]
    num_rows = rows.num_without_step + sum(len(table.rows) for table in tables)
    if len(logs) != 1 or not 1 < len(logs[0]) == num_rows or any(_ID.search(name) for name, _ in named):
        return False
    values = logs[0].columns[key].values
    cells = chain.from_iterable(column for _, column in named if not isinstance(column, Numbers))
    return all(cell is None or is_number(cell) for cell in cells) and bool((values != np.floor(values)).any())


def _first_look(file: Path, options: ReadOptions) -> tuple[list[MetricTable], RunRows, list[StepMetrics]]:
    """The tables in the first rows of a file, their rows and the runs among these; nothing of other files."""
    pieces: Sequence[Piece] = ()
    rows = RunRows(_common_keys)
    with contextlib.suppress(InputError):
        kind = opened(file)
        pieces, step_keys, run_keys = ([], (), ()) if kind is None else _first_rows(kind.path, options.columns.step)
        for piece in pieces:
            rows.add(piece, step_keys, run_keys)
    return [table for piece in pieces for table in piece.tables], rows, [run.metrics() for run in rows.runs()]


_FirstRows = tuple[Sequence[Piece], tuple[str, ...], tuple[str, ...]]


def _first_rows(path: Path, column: str | None) -> _FirstRows:
    """The first rows of a file, its columns of steps, and those that name runs, as in W&B's table of runs."""
    stat = path.stat()
    return _first_rows_written(path, stat.st_size, stat.st_mtime_ns, column)


@lru_cache(maxsize=16)  # a document and a console without steps are read whole for them
def _first_rows_written(path: Path, size: int, modified: int, column: str | None) -> _FirstRows:
    file = opened(path)
    pieces = [] if file is None else file.first_pieces(_NUM_PEEKED)
    tables = [table for piece in pieces for table in piece.tables]
    keys = _steps_of(tables) if column is None else (column,)
    return pieces, keys, (*RUNS, *(name for name in _NAMES if _names_runs(tables, name, keys)))


def _steps_of(tables: Sequence[MetricTable]) -> tuple[str, ...]:
    """The columns of steps: the first usual one that changes where another does, as no count before an update."""
    ends: dict[str, list[int]] = {}
    for table in tables:
        for key in table.columns:
            steps = steps_in(table, [key])
            if (steps >= 0).any():
                ends.setdefault(key, []).extend((int(steps[steps >= 0].min()), int(steps.max())))
    named = {plain_name(key): key for key in ends} | {key: key for key in ends}
    usual = [named[name] for name in STEPS if name in named]
    usual += filter(is_step, ends)
    usual = usual or [named[name] for name in STEP_SUBSTITUTES if name in named and _rises(tables, named[name])]
    if usual == [named.get("episode")]:
        keys = {key for table in tables for key in table.columns}
        usual = [] if _LEARNS.isdisjoint(naming_of(keys, {}).parts) else usual
    if not usual:
        return ()
    key = next((key for key in usual if min(ends[key]) < max(ends[key])), usual[0])
    return _SLIMES if key in _SLIMES else (key,)


def _names_runs(tables: Iterable[MetricTable], name: str, keys: Sequence[str]) -> bool:
    """Whether all rows have a text in a column, and not the same throughout, as a checkpoint's but for its step is."""
    texts = set[str]()
    for table in tables:
        cells = table.columns.get(name)
        if cells is None or isinstance(cells, Numbers) or not all(isinstance(cell, str) and cell for cell in cells):
            return False
        texts.update(cell.replace(str(step), "") for cell, step in zip(cells, steps_in(table, keys), strict=True))
    return len(texts) > 1


def _rises(tables: Iterable[MetricTable], key: str) -> bool:
    """Whether the rows with the same keys have a higher whole number each."""
    with_key = (steps_in(table, [key]) for table in tables if key in table.columns)
    return all((np.diff(steps, prepend=-1) > 0).all() for steps in with_key)


def _with_reward(logs: Sequence[StepMetrics], reward: str | None = None) -> tuple[list[bool], list[bool]]:
    """Which runs have a reward, whose key may be named, and which its spread as well."""
    parts = [naming_of(log.columns, {}).parts for log in logs]
    have = [reward in log.columns if reward else "reward" in names for log, names in zip(logs, parts, strict=True)]
    return have, [has and "reward_std" in names for has, names in zip(have, parts, strict=True)]


def _chosen(runs: Sequence[OneRun], path: Path, wanted: str | None, reward: str | None) -> OneRun:
    """The requested run, the only one, or the only one with a reward, whose key the user may have named."""
    if not runs:
        raise InputError(f"{path} has no usable rows of metrics.", hint="A row needs a whole number as its step.")
    names = {run.name: run for run in runs}
    folder = f"{path if path.is_dir() else path.parent}/"
    first = [f"{name!r} (from {run.first.removeprefix(folder)})" for name, run in names.items()]
    listed = ", ".join(first[:_MAX_NAMED])
    listed += f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    if wanted is not None and wanted not in names:
        raise UsageError(f"{path} has no run {wanted!r}.", hint=f"It has {listed}.")
    if wanted is None and len(names) > 1:
        with_reward = have, _ = _with_reward([run.metrics() for run in runs], reward)
        # the others are trainings of another kind, as the fine-tuning before it, or lines of the script next to it
        for chosen, feature in zip(with_reward, ("a reward", "a reward and its spread"), strict=True):
            if sum(chosen) == 1:
                only = next(compress(runs, chosen))
                sentence = f"Of {len(runs)} runs only {only.name!r} has {feature}; --metric-run takes another."
                return replace(only, sentences=(*only.sentences, sentence))
        longest = max(list(compress(runs, have)) or runs, key=lambda run: run.num_rows)
        files = {run.first.rpartition(":")[0] for run in runs}
        holding = shlex.quote(os.path.commonpath([Path(file).parent for file in files]))
        side_by_side = f"; side by side: gradscope report {holding}/*" if len(files) == len(runs) else ""
        raise InputError(
            f"{path} holds {len(names)} runs: {listed}.",
            hint=f"Choose one: --metric-run {shlex.quote(longest.name)}{side_by_side}",
        )
    return runs[0] if wanted is None else names[wanted]


_SWITCHES: tuple[tuple[str, str], ...] = (
    ("env/all/", "the Tinker cookbook writes them as iteration_*/train_rollout_summaries.jsonl: name that folder"),
    ("reward/overall", "EasyR1 logs none: write a row each in its reward function, with step, prompt and reward"),
    ("actor_train/ system/batch_", "with ROLL, set rollout_dump_dir to an absolute path"),
    ("critic/score/mean response_length/clip_ratio", "with verl, set trainer.rollout_data_dir"),
    ("ppo_actor/", "with AReaL, set rollout.dump_to_file=true"),
    ("rollout/raw_reward", "with slime, --save-debug-rollout-data writes them"),
    ("rewards/train/score actor/train/", "with Tunix, AsyncTrajectoryLogger writes them: name its folder"),
    (
        "batch/solve_none reward/all agg/",
        "prime-rl writes them as rollouts/step_*/train/*/traces.jsonl: name that folder",
    ),
    ("batch/total_prompts val/stop", "with open-instruct, --save_traces and --rollouts_save_path write them"),
    ("baseline_reward/pct_mixed", "NeMo-RL writes them as train_data_step*.jsonl in its log folder: name that folder"),
    ("frac_reward_zero completions/", "with TRL, log_completions=True, with ms-swift --log_completions true"),
)
"""Beginnings of keys that identify the trainer, and how that logs rollouts; the first that a log has counts."""


def switch_on(keys: Iterable[str]) -> str:
    """A sentence on how to make the trainer with these keys log its rollouts."""
    logged = list(map(without_prefix, keys))
    words = "log a row a rollout with step, prompt and reward, as JSONL, CSV or Parquet"
    switches = ((tuple(begins.split()), switch) for begins, switch in _SWITCHES)
    words = next((switch for begins, switch in switches if any(key.startswith(begins) for key in logged)), words)
    return f"Metrics alone: rollouts would add intervals, prompts and causes; {words} (docs/howto.md)."
