"""Reads any run: each format in turn is asked whether it recognizes the path, and what none does is refused.

A refusal says what to name or switch on instead: of checkpoints, models and the files of wandb, trackio or TensorBoard;
of weights, archives and text; and of logs that exist only as pickles, since opening one would run its code.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from gradscope.errors import InputError, UsageError
from gradscope.machine import trim_heap, without_collection
from gradscope.outside.limits import require_regular
from gradscope.progress import Progress, ProgressCallback, no_progress, reporter
from gradscope.rollouts.fetch import as_named_run, fetched
from gradscope.rollouts.groups import reward_table
from gradscope.rollouts.read_options import ColumnNames, ReadOptions
from gradscope.rollouts.readers import column_roles, generic, own
from gradscope.rollouts.readers.evaluations import harnesses, inspect_ai, samples
from gradscope.rollouts.readers.evaluations.folders import Evaluations, evaluations_in, refuse_several
from gradscope.rollouts.readers.evaluations.shapes import refuse_lone_list
from gradscope.rollouts.readers.format import Format, RowFormat
from gradscope.rollouts.readers.metrics_alone import log as metrics_log
from gradscope.rollouts.readers.metrics_alone.naming import bare
from gradscope.rollouts.readers.parsing.cells import is_list_of_objects, is_number, step_number
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog, refuse_quarantined
from gradscope.rollouts.readers.parsing.records import EarlierLooks, ReadRequest, list_names, peek
from gradscope.rollouts.readers.parsing.tables import SUFFIXES, expand, files_like, suffix_of
from gradscope.rollouts.readers.trainers import episodes, nemo_rl, prime_rl, simple, slime, trl, verl
from gradscope.rollouts.readers.trainers.trl_files import completion_files
from gradscope.rollouts.run import Run, StepMetrics
from gradscope.say import counted, non_finite_word

TRAINERS: tuple[Format | RowFormat, ...] = (
    own.FORMAT,
    own.RUN_FOLDER,
    trl.FORMAT,
    verl.FORMAT,
    simple.OPEN_INSTRUCT,
    nemo_rl.FORMAT,
    prime_rl.FORMAT,
    prime_rl.TOKEN_EXPORT,
    trl.MS_SWIFT,
    slime.FORMAT,
    slime.MILES,
    slime.RELAX,
    simple.AREAL,
    simple.ROLL,
    episodes.RLLM,
    simple.ART,
    simple.TINKER,
    simple.RAGEN,
    simple.RLINF,
    simple.TRACKIO,
    episodes.TUNIX,
)
"""Logs of trainers, whose files have characteristic names."""

FORMATS: tuple[Format | RowFormat, ...] = (
    *TRAINERS,
    harnesses.EVALPLUS,
    harnesses.LM_EVAL,
    harnesses.LIGHTEVAL,
    inspect_ai.FORMAT,
    harnesses.VERIFIERS,
    harnesses.SKYRL,
    samples.FORMAT,
    generic.FORMAT,
)
"""All formats; the generic one comes last."""


def format_named(name: str) -> Format | RowFormat:
    """A format by its name in ``--reader``; a UsageError where there is none."""
    names = [format.name for format in FORMATS]
    if name in names:
        return FORMATS[names.index(name)]
    near = difflib.get_close_matches(name, names, n=1)
    choices = f"The formats are {', '.join(names)}."
    raise UsageError(f"There is no format {name!r}.", hint=f"Did you mean {near[0]!r}? {choices}" if near else choices)


_LARGEST_REWARD = 1e60  # absolute: intervals need fourth powers, which overflow for larger rewards


def read_run(
    path: str | Path,
    options: ReadOptions | None = None,
    *,
    rewards_only: bool = False,
    progress: Progress = False,
    so_far: EarlierLooks | None = None,
    metrics_alone: bool = False,
    parts_answer: bool = False,
    samples: bool = False,
) -> Run:
    """Read a run, whatever wrote it.

    Args:
        path: A run folder, a file, a folder of files or a glob; as text also the URL of one, which is copied first.
        options: How to read it; None: recognize everything.
        rewards_only: The caller uses nothing but rewards, and rollouts are not stored; else they are read back from
            the log a step at a time, on demand.
        progress: True for a line on stderr, or a callback that follows a long reading.
        so_far: State of earlier readings of a log that is still being written; updated by this one.
        metrics_alone: Whether a log of metrics without rollouts is accepted; else it is an error.
        parts_answer: Whether parts of a log that was reduced to its rewards are accepted, as ``rewards_only`` does.
        samples: Whether ``rewards_only`` keeps what distinguishes the rollouts of a group, for a part of a log.

    Returns:
        The run, with what was recognized, inferred, missing and set aside in ``source``; ``source.missing`` also names
        metrics that the trainer logged as NaN or infinity.

    Raises:
        InputError: The path does not exist, no reader recognizes it or can read it, or a reward is beyond 1e60.
    """
    progress = reporter(progress)
    request = ReadRequest(
        path=fetched(path, progress),
        options=(options or ReadOptions()).for_run(path),
        rewards_only=rewards_only,
        parts_answer=rewards_only or parts_answer,
        samples=samples,
        progress=progress,
        so_far=so_far,
    )
    _require_input(request.path)
    name = request.options.reader
    reader = _recognize(request) if name is None else METRICS if name == METRICS.name else format_named(name)
    of_script = name is None and reader in (METRICS, generic.FORMAT)
    rollouts = _rollouts_of_script(request, beside_metrics=reader is METRICS) if of_script else None
    if isinstance(rollouts, Path):
        request = replace(request, path=rollouts)
        reader = format_named("generic" if generic.FORMAT.recognizes(request) else "samples")
        reader = replace(reader, name="generic")
    elif rollouts is not None and reader is generic.FORMAT:
        files = shlex.quote(f"{request.path}/*{expand(request.path)[0].suffix}")
        raise InputError(f"{request.path}: {rollouts}", hint=f"If all are of one run, name them so: {files}")
    if reader is METRICS and not metrics_alone:
        text, hint = f"{request.path} holds metrics and no rollouts.", "Name the file of rollouts, where there is one."
        if name is None and request.path.is_dir() and trl.FORMAT.recognizes(request):
            why = trl.without_completions(request.path)
            text, hint = f"{text} {why.message}", why.hint or ""
        alone = "gradscope degeneracy, spike, check, compare and report answer from metrics alone."
        raise InputError(text, hint=f"{hint} {alone}")
    _refuse_unused(reader, request)
    refuse_several(request.path, reader.name, request.options)
    with without_collection():
        run = reader.read(request)
        if request.model is not None:  # the user named the base of these weights, and no file
            weights = (replace(ref, is_base_given=ref.base == request.model) for ref in run.weights)
            run = replace(run, weights=tuple(weights))
        run = as_named_run(_naming_non_finite(run))
    run = _naming_other_logs(run, reader, request)
    run = run.with_missing(rollouts) if isinstance(rollouts, str) else run
    if rewards_only:
        trim_heap()  # merging leaves holes that the arrays of the statistics do not fit
    if request.options.strict:
        refuse_quarantined(run.source.quarantined)
    _require_sums(run)
    return run


def _require_sums(run: Run) -> None:
    if not run.groups:
        return
    rewards = reward_table(run.groups).reward
    largest = max(np.fmax.reduce(rewards, initial=0.0), -np.fmin.reduce(rewards, initial=0.0))
    if largest > _LARGEST_REWARD:
        raise InputError(
            f"{run.source.path} has a reward of {largest:.3g} in size, and such beyond {_LARGEST_REWARD:g} cannot be "
            "added up.",
            hint="Look where it comes from, and take its row out.",
        )


def _naming_other_logs(run: Run, reader: Format | RowFormat, request: ReadRequest) -> Run:
    """The run, with a sentence on files of other trainers in its folder that were left out without being asked for."""
    is_chosen = request.options.reader is not None or reader is own.FORMAT or reader not in TRAINERS
    if is_chosen or not request.path.is_dir():
        return run
    later = TRAINERS[TRAINERS.index(reader) + 1 :]  # the earlier ones did not recognize the folder
    further = [other.name for other in later if other.recognizes(request)]
    if not further:
        return run
    sentence = f"Files of {' and '.join(further)} are in the folder, too, and are left out: read them with --reader."
    return run.with_missing(sentence)


def _naming_non_finite(run: Run) -> Run:
    """The run, with a sentence for each metric that the trainer logged as NaN or infinity."""
    metrics = StepMetrics.of(run.metrics)
    reports: dict[tuple[bytes, bytes], tuple[int, str]] = {}  # by its values: a metric may have two names
    for name, series in metrics.columns.items():
        if name in metrics.not_shares or np.isfinite(series.values).all():
            continue
        steps, values = metrics.course(name)
        same = bare(name)
        is_reported = ~np.isfinite(values) & (same == name or ~np.isin(steps, metrics.course(same)[0]))
        if is_reported.any():
            first, more = int(steps[is_reported][0]), np.count_nonzero(is_reported) - 1
            word = non_finite_word(float(values[is_reported][0]))
            rest = f" and at {more} more as no finite number" if more else ""
            sentence = f"The trainer logged {name} as {word} at step {first}{rest}."
            reports.setdefault((steps.tobytes(), values.tobytes()), (first, sentence))
    sentences = tuple(sentence for _, sentence in sorted(reports.values(), key=itemgetter(0)))
    return run.with_missing(*sentences) if sentences else run


def _require_input(path: Path) -> None:
    require_regular(path)
    if path.is_dir():
        if not any(path.iterdir()):
            raise InputError(f"The folder {path} is empty.", hint="Name the folder that the trainer wrote its logs to.")
    elif not path.exists() and not expand(path):
        is_glob = any(letter in str(path) for letter in "*?[")
        raise InputError(
            f"No file matches {path}." if is_glob else f"There is no file or folder {path}.",
            hint="Give a URL as text: a Path drops one of its slashes."
            if path.parts[0].endswith(":") and not path.is_absolute()
            else "Check the path; relative paths start where you are.",
        )
    elif path.is_file() and path.stat().st_size == 0:
        raise InputError(f"The file {path} is empty.", hint="Name a file with at least one row.")


def _refuse_unused(reader: Format | RowFormat, request: ReadRequest) -> None:
    has_run = request.options.metric_run and "metric_run" not in reader.takes
    if reader is not METRICS and (request.options.metric_columns or has_run):
        raise UsageError(
            f"{request.path} is read as {reader.name}, which has rollouts; names of metrics have no use.",
            hint="Leave --metric-column and --metric-run out, or add --reader metrics.",
        )
    only_reward = request.columns == ColumnNames(reward=request.columns.reward)
    has_use = "columns" in reader.takes or (only_reward and "reward_column" in reader.takes)
    if request.columns != ColumnNames() and not has_use:
        raise UsageError(
            f"{request.path} is read as {reader.name}, whose columns are known; names of columns have no use.",
            hint="Leave them out, or add --reader generic to read the files as they stand.",
        )
    if request.completion_ids is not None and "completion_ids" not in reader.takes:
        raise UsageError(
            f"{request.path} is read as {reader.name}; a side file of completion ids goes with a TRL run only.",
            hint="Leave --completion-ids out.",
        )


def _recognize(request: ReadRequest) -> Format | RowFormat:
    refuse_checkpoint(request.path)
    recognized = next((reader for reader in FORMATS if reader.recognizes(request)), None)
    if recognized is trl.FORMAT and not completion_files(request.path) and METRICS.recognizes(request):
        return METRICS
    if recognized is not None:
        return recognized
    if METRICS.recognizes(request) and not _runs_below(request.path):
        return METRICS
    refuse_folder_of_runs(request.path, _runs_below(request.path))
    metrics_log.refuse_metrics(request.path, request.options)
    refuse_unknown(request.path)
    quarantine = QuarantineLog()
    rows = peek(request.path, quarantine)
    if not rows:
        quarantine.raise_unreadable()
        for reason in quarantine.result().reasons:
            raise InputError(
                f"{request.path} has no usable rows; the first that was set aside, {reason.first}: {reason.reason}.",
                hint="A row needs a finite number as reward and something to group by.",
            )
    lists = [key for row in rows[:1] for key, cell in row.items() if is_list_of_objects(cell)]
    list_name = lists[0] if len(rows) == len(lists) == 1 else None
    rows = rows if list_name is None else rows[0][list_name]
    refuse_lone_list(request.path, rows)
    with_entries = column_roles.with_entries(rows)
    entries = column_roles.columns_in(with_entries)
    are_scores = (name for name in _like_rewards(with_entries) if name in entries and "." in name)
    scores = [name for name in are_scores if "reward" in name or "score" in name]
    candidates = scores or [name for name in _like_rewards(rows) if not column_roles.is_of_call(name, entries)]
    columns = [name for name in entries if "." not in name or name in scores]  # others are many
    of = "Its" if list_name is None else f"The list {list_name!r} in it has objects whose"
    seen = f"{of} columns are {list_names(columns)}." if columns else f"It has no rows in {', '.join(SUFFIXES)} files."
    if not columns and (below := _folders_with_rows(request.path)):
        more_folders = f" and {counted(len(below) - 1, 'more folder')}" if len(below) > 1 else ""
        named = f"such files are in {below[0]}{more_folders}"
        raise InputError(f"{request.path} has no rows itself: {named}.", hint=f"Name the folder: {below[0]}")
    named = shlex.quote("".join(candidates[:1]))
    listed, _, entry = named.partition(".")
    if len(rows) == len({of.partition(".")[0] for of in candidates}) == 1 and is_list_of_objects(rows[0].get(listed)):
        named = f"{entry} --prompt-column NAME, a column of {listed!r} that tells prompts apart"
    keys = _keys_of_rows(rows[0]) if len(rows) == 1 and not candidates else ()
    if len(keys) > 1:
        is_step = step_number(keys[-1]) is not None and not keys[-1].isdecimal()
        column = "step: $p[-1]" if is_step else 'setting: ($p | join("/"))'
        program = shlex.quote(f"paths(arrays) as $p | getpath($p)[] | objects | {{{column}}} + .")
        raise InputError(
            f"{request.path} is not a log that gradscope knows. Its rows lie below the keys {list_names(keys)}, and "
            "what these are is not known.",
            hint=f"Write a row a line, with its keys: jq -c {program} {shlex.quote(str(request.path))} > rows.jsonl",
        )
    alternatives = f"; others are {list_names(candidates[1:])}" if candidates[1:] else ""
    looked = "; ".join(reader.looks_for for reader in FORMATS[-2:])
    raise InputError(
        f"{request.path} is not a log that gradscope knows. {seen} Looked for what a trainer writes, and for {looked}.",
        hint=f"Name the number that the trainer used, as in --reward-column {named}{alternatives}."
        if candidates and column_roles.resolve_columns(entries, request.columns).reward is None
        else "Name the columns with --reward-column, --group-column or --prompt-column and --step-column, counts with "
        "--n-column and --c-column, metrics with --metric-column, the reader with --reader: docs/logs.md lists them.",
    )


def _rollouts_of_script(request: ReadRequest, *, beside_metrics: bool) -> Path | str | None:
    """Those in a folder itself, else beside metrics in the only one below that has such and is no evaluation."""
    rollouts = generic.file_of_rollouts(request, beside_metrics=beside_metrics)
    if rollouts is not None or not beside_metrics:
        return rollouts
    folders = [of for of in _folders(request.path) if not (_is_checkpoint(of) or generic.HELD_OUT.search(of.name))]
    below = (generic.file_of_rollouts(replace(request, path=of), beside_metrics=True) for of in folders)
    rollouts_below = [of for of in below if of is not None]
    return rollouts_below[0] if len(rollouts_below) == 1 else None


def _like_rewards(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Columns of numbers, and entries of objects in lists, that may be the reward by a word in their names."""
    columns: dict[str, list[Any]] = {}
    for row in rows:
        for name, cell in row.items():
            listed = cell[0].items() if is_list_of_objects(cell) else ()
            for inner, value in ((name, cell), *((f"{name}.{key}", value) for key, value in listed)):
                columns.setdefault(inner, []).append(value)
    return [name for name, cells in columns.items() if _REWARD_WORD.search(name) and all(map(is_number, cells))]


_REWARD_WORD = re.compile(
    r"(?<!chosen_)(?<!rejected_)reward|score|correct(?!_(answer|label|letter|option|choice|index|idx))|success|passed|grade"
    r"|accura|rating|solved|verdict|quality",
    re.IGNORECASE,
)


def _keys_of_rows(node: Mapping[str, Any], depth: int = 4) -> tuple[str, ...]:
    """The keys below which the first list of rows with a reward and a prompt lies in objects; none without one."""
    for key, cell in node.items() if depth else ():
        columns = column_roles.resolve_columns(cell[0], ColumnNames()) if is_list_of_objects(cell) else ColumnNames()
        if None not in (columns.reward, column_roles.key_of(columns)):
            return (key,)
        if isinstance(cell, dict) and (below := _keys_of_rows(cell, depth - 1)):
            return (key, *below)
    return ()


def _folders_with_rows(path: Path) -> list[Path]:
    """Folders below one that hold files of rows, by name."""
    files = path.rglob("*.*") if path.is_dir() else ()
    files_of_rows = (file for file in islice(files, _MAX_FILES_BELOW) if suffix_of(file) and file.is_file())
    return sorted({file.parent for file in files_of_rows} - {path})


_MAX_FILES_BELOW = 10_000  # files that are looked at for the sake of an error
METRICS = Format(
    name=metrics_log.NAME,
    looks_for=metrics_log.LOOKS_FOR,
    recognizes=lambda request: metrics_log.holds_metrics(request.path, request.options),
    read=metrics_log.read_metrics_log,
    takes=frozenset({"columns"}),
)
"""Asked last, so that rollouts count where a path has both."""


def evaluations_below(path: str | Path, options: ReadOptions, progress: ProgressCallback = no_progress) -> Evaluations:
    """The evaluations in a folder or a glob, where there are several and it is no trainer's run."""
    local = fetched(path, progress)
    request = ReadRequest(path=local, options=options)
    if local.is_file() or any(reader.recognizes(request) for reader in TRAINERS) or _runs_below(local):
        return ()
    logs = evaluations_in(local, options)
    return logs if len(logs) > 1 or any(not log.path.exists() for log in logs) else ()


def runs_below(path: str | Path, progress: ProgressCallback = no_progress) -> tuple[Path, ...]:
    """The trainers' runs one or two folders below, by name; empty where the path is a file or itself a run."""
    local = fetched(path, progress)
    if not local.is_dir() or any(reader.recognizes(ReadRequest(path=local)) for reader in FORMATS):
        return ()
    return _runs_below(local)


def _runs_below(path: Path) -> tuple[Path, ...]:
    return tuple(
        run
        for folder in _folders(path)
        for run in ([folder] if _is_run(folder) else [inner for inner in _folders(folder) if _is_run(inner)])
    )


def _is_run(folder: Path) -> bool:
    return any(reader.recognizes(ReadRequest(path=folder)) for reader in TRAINERS)


def _folders(path: Path) -> list[Path]:
    return sorted(folder for folder in path.iterdir() if folder.is_dir()) if path.is_dir() else []


_NUMBERED = re.compile(r"(checkpoint|global_step|step|iter)[-_][0-9]+")
_WEIGHTS = ("*.safetensors*", "pytorch_model*.bin", "*.distcp", "optimizer.pt")
_PICKLES = ("*.pt", "*.pth", "*.pkl", "*.pickle", "*.dp", "*.bin")
_EVENTS = "events.out.tfevents.*"
_START = 65_536  # bytes of a file that are read to recognize text
_LOG_ROLLOUTS = "log_completions=True in TRL, trainer.rollout_data_dir in verl; docs/logs.md has the others"
"""The switches that make the usual trainers log rollouts."""


class _Kind(Struct, frozen=True, kw_only=True):
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


def _is_loggers(path: Path) -> bool:
    folders = ("", "files/", "*/files/", "wandb/*/files/")
    own = ("*.wandb", "*.db", _EVENTS)
    return _is_file(path, *own) or _has(path, *own, f"*/{_EVENTS}", *(f"{name}wandb-summary.json" for name in folders))


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
        matches=_is_loggers,
        description="is what W&B, trackio or TensorBoard keeps of a run, without metrics by step and without rollouts",
        hint=_name_rollouts,
    ),
    _Kind(
        matches=lambda path: _is_file(path, "results_[0-9]*.json"),
        description="holds the totals of an evaluation",
        hint=lambda _: "Give its samples: samples_*.jsonl of lm-eval (log_samples), details_*.parquet of lighteval.",
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
