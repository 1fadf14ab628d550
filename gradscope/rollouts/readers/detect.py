"""Reads any run: each format in turn is asked whether it recognizes the path, and what none does is refused."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from gradscope.errors import InputError, UsageError
from gradscope.machine import trim_heap, without_collection
from gradscope.outside.limits import open_file, require_regular
from gradscope.progress import Progress, ProgressCallback, no_progress, reporter
from gradscope.rollouts.fetch import as_named_run, fetched
from gradscope.rollouts.groups import reward_table
from gradscope.rollouts.read_options import ColumnNames, ReadOptions
from gradscope.rollouts.readers import generic, own, refused
from gradscope.rollouts.readers.evaluations import harnesses, inspect_ai, samples
from gradscope.rollouts.readers.evaluations.folders import Evaluations, evaluations_in, refuse_several
from gradscope.rollouts.readers.format import Format, RowFormat
from gradscope.rollouts.readers.metrics_alone import log as metrics_log
from gradscope.rollouts.readers.metrics_alone.naming import without_prefix
from gradscope.rollouts.readers.parsing.quarantine import refuse_quarantined
from gradscope.rollouts.readers.parsing.records import Measured, ReadRequest
from gradscope.rollouts.readers.parsing.tables import expand
from gradscope.rollouts.readers.reduction.log import ReadSoFar
from gradscope.rollouts.readers.run_files import HELD_OUT
from gradscope.rollouts.readers.trainers import grouped, prime_rl, simple, slime, token_logs, trl, verl
from gradscope.rollouts.readers.trainers.trl_files import completion_files
from gradscope.rollouts.run import Run, StepMetrics
from gradscope.say import counted, non_finite_word

TRAINERS: tuple[Format | RowFormat, ...] = (
    own.FORMAT,
    own.RUN_FOLDER,
    trl.FORMAT,
    verl.FORMAT,
    token_logs.OPEN_INSTRUCT,
    token_logs.NEMO_RL,
    prime_rl.FORMAT,
    prime_rl.TOKEN_EXPORT,
    trl.MS_SWIFT,
    slime.SLIME,
    slime.MILES,
    slime.RELAX,
    simple.AREAL,
    simple.ROLL_AGENTIC,
    simple.ROLL,
    simple.RLLM,
    simple.ART,
    simple.TINKER,
    simple.RAGEN,
    simple.RLINF,
    grouped.ATROPOS,
    grouped.PIPELINE_RL,
    grouped.RL2,
    grouped.TRINITY,
    simple.TRACKIO,
    simple.TUNIX,
)
"""Logs of trainers, whose files have characteristic names."""

FORMATS: tuple[Format | RowFormat, ...] = (
    *TRAINERS,
    inspect_ai.FORMAT,
    prime_rl.VERIFIERS,
    slime.SLIME_EVALUATION,
    *harnesses.FILE_FORMATS,
    *harnesses.TRIAL_FORMATS,
    harnesses.AIDER,
    harnesses.MULTIPL_E,
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
    choices = f"The formats of logs are {', '.join(names)}."
    if name in ("json", "csv"):  # of the output, as --format means elsewhere
        choices = "--json prints the result as JSON, -o DIR writes it as JSON and CSV."
    raise UsageError(f"There is no format {name!r}.", hint=f"Did you mean {near[0]!r}? {choices}" if near else choices)


_LARGEST_REWARD = 1e60  # absolute: intervals need fourth powers, which overflow for larger rewards


def read_run(
    path: str | Path,
    options: ReadOptions | None = None,
    *,
    rewards_only: bool = False,
    progress: Progress = False,
    so_far: ReadSoFar | None = None,
    metrics_alone: bool = False,
    parts_answer: bool = False,
    measured: Measured = None,
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
        measured: What ``rewards_only`` measures of rollouts, too.

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
        measured=measured,
        progress=progress,
        so_far=so_far,
    )
    _require_input(request.path)
    name = request.options.reader
    if name is None:
        reader, request = _recognize(request)
    else:
        reader = METRICS if name == METRICS.name else format_named(name)
    is_script = name is None and reader in (METRICS, generic.FORMAT)
    rollouts = _rollouts_of_script(request, beside_metrics=reader is METRICS) if is_script else None
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
            reason = trl.without_completions(request.path)
            text, hint = f"{text} {reason.message}", reason.hint or ""
        commands = "gradscope degeneracy, spike, check, compare and report answer from metrics alone."
        raise InputError(text, hint=f"{hint} {commands}")
    _refuse_unused(reader, request)
    request = replace(request, path=refuse_several(request.path, reader.name, request.options))
    with without_collection():
        run = reader.read(request)
        if request.model is not None:  # the user named the base of these weights, and no file
            weights = (replace(ref, is_base_given=ref.base == request.model) for ref in run.weights)
            run = replace(run, weights=tuple(weights))
        run = as_named_run(_naming_non_finite(run))
    if name is None and request.path.is_dir() and reader is not own.FORMAT:
        run = run.with_missing(*_left_out(reader, request))
    run = run.with_missing(rollouts) if isinstance(rollouts, str) else run
    if rewards_only:
        trim_heap()  # merging leaves holes that the arrays of the statistics do not fit
    if request.options.strict:
        refuse_quarantined(run.source.quarantined)
    _require_sums(run)
    return run


_VALIDATION_FOLDER = re.compile(r"(val|valid|validation|eval)([-_]\w+)?", re.IGNORECASE)
"""Folders of a run's validation, as users of verl name them: no run of their own."""
_MAX_FOLDERS = 50  # in which runs are looked for next to a file that is read: each format looks into every one


def _left_out(reader: Format | RowFormat, request: ReadRequest) -> Iterator[str]:
    """A sentence for files and runs of a folder that are not read, as another reader was the first to recognize it."""
    if reader in TRAINERS:
        later = TRAINERS[TRAINERS.index(reader) + 1 :]  # the earlier ones did not recognize the folder
        if formats := [format.name for format in later if format.recognizes(request)]:
            yield f"Files of {' and '.join(formats)} are in the folder, too, and are left out: read them with --reader."
    elif len(_folders(request.path)) <= _MAX_FOLDERS and (runs := _runs_below(request.path)):
        yield f"{counted(len(runs), 'run')} in the folder, too, left out; name one to read it: {runs[0]}"


def _require_sums(run: Run) -> None:
    rewards = reward_table(run.groups).reward if run.groups else np.zeros(0)
    largest = max(np.fmax.reduce(rewards, initial=0.0), -np.fmin.reduce(rewards, initial=0.0))
    if largest > _LARGEST_REWARD:
        raise InputError(
            f"{run.source.path} has a reward of {largest:.3g} in size, and such beyond {_LARGEST_REWARD:g} cannot be "
            "added up.",
            hint="Look where it comes from, and take its row out.",
        )


def _naming_non_finite(run: Run) -> Run:
    """The run, with a sentence for each metric that the trainer logged as NaN or infinity."""
    metrics = StepMetrics.from_mapping(run.metrics)
    reports: dict[tuple[bytes, bytes], tuple[int, str]] = {}  # by its values: a metric may have two names
    for name, series in metrics.columns.items():
        if name in metrics.not_shares or np.isfinite(series.values).all():
            continue
        steps, values = metrics.series(name)
        same = without_prefix(name)
        is_reported = ~np.isfinite(values) & (same == name or ~np.isin(steps, metrics.series(same)[0]))
        if is_reported.any():
            first, num_others = int(steps[is_reported][0]), np.count_nonzero(is_reported) - 1
            word = non_finite_word(float(values[is_reported][0]))
            rest = f" and at {num_others} more as no finite number" if num_others else ""
            sentence = f"The trainer logged {name} as {word} at step {first}{rest}."
            reports.setdefault((steps.tobytes(), values.tobytes()), (first, sentence))
    sentences = tuple(sentence for _, sentence in sorted(reports.values(), key=itemgetter(0)))
    return run.with_missing(*sentences)


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
    elif path.is_file():
        with open_file(path) as stream:
            if stream.read(2) in (b"\xff\xfe", b"\xfe\xff"):  # as PowerShell redirects, and spreadsheets save "Unicode"
                hint = f"Convert it: iconv -f UTF-16 -t UTF-8 {shlex.quote(str(path))}"
                raise InputError(f"The file {path} is UTF-16, and text is read as UTF-8.", hint=hint)


def _refuse_unused(reader: Format | RowFormat, request: ReadRequest) -> None:
    has_run = request.options.metric_run and "metric_run" not in reader.takes
    if reader is not METRICS and (request.options.metric_columns or has_run):
        raise UsageError(
            f"{request.path} is read as {reader.name}, which has rollouts; names of metrics have no use.",
            hint="Leave --metric-column and --metric-run out, or add --reader metrics.",
        )
    only_reward = request.columns == ColumnNames(reward=request.columns.reward)
    takes_columns = "columns" in reader.takes or (only_reward and "reward_column" in reader.takes)
    if request.columns != ColumnNames() and not takes_columns:
        raise UsageError(
            f"{request.path} is read as {reader.name}, whose columns are known; names of columns have no use.",
            hint="Leave them out, or add --reader generic to read the files as they stand.",
        )
    if request.completion_ids is not None and "completion_ids" not in reader.takes:
        raise UsageError(
            f"{request.path} is read as {reader.name}; a side file of completion ids goes with a TRL run only.",
            hint="Leave --completion-ids out.",
        )


def _has_state(path: Path) -> bool:
    """Whether a folder is a checkpoint of TRL or its relatives, which has the metrics up to its step."""
    return (path / "trainer_state.json").is_file() and refused.is_checkpoint(path)


def _recognize(request: ReadRequest) -> tuple[Format | RowFormat, ReadRequest]:
    """The reader, and the request: that of the only run below a folder which is none itself."""
    if _has_state(request.path) and not completion_files(request.path.resolve().parent) and METRICS.recognizes(request):
        return METRICS, request
    refused.refuse_checkpoint(request.path)
    recognized = next((reader for reader in FORMATS if reader.recognizes(request)), None)
    if recognized is trl.FORMAT and not completion_files(request.path) and METRICS.recognizes(request):
        return METRICS, request
    if recognized is not None:
        return recognized, request
    runs = _runs_below(request.path)
    if METRICS.recognizes(request) and not runs:
        return METRICS, request
    rollouts = generic.file_of_rollouts(request, beside_metrics=True)  # or next to what else a script wrote
    if isinstance(rollouts, Path):
        return generic.FORMAT, replace(request, path=rollouts)
    if len(runs) == 1:
        return _recognize(replace(request, path=runs[0]))
    refused.refuse_folder_of_runs(request.path, runs)
    metrics_log.refuse_metrics(request.path, request.options)
    refused.refuse_unknown(request.path)
    only = refuse_several(request.path, None, request.options)
    if only != request.path:
        return _recognize(replace(request, path=only))
    refused.refuse_unrecognized(request)


def _rollouts_of_script(request: ReadRequest, *, beside_metrics: bool) -> Path | str | None:
    """Those in a folder itself, else next to metrics in the only one below that has such and is no evaluation."""
    rollouts = generic.file_of_rollouts(request, beside_metrics=beside_metrics)
    if rollouts is not None or not beside_metrics:
        return rollouts
    folders = (
        path for path in _folders(request.path) if not (refused.is_checkpoint(path) or HELD_OUT.search(path.name))
    )
    below = (generic.file_of_rollouts(replace(request, path=folder), beside_metrics=True) for folder in folders)
    rollouts_below = [rollouts for rollouts in below if rollouts is not None]
    return rollouts_below[0] if len(rollouts_below) == 1 else None


METRICS = Format(
    name=metrics_log.NAME,
    recognizes=lambda request: metrics_log.holds_metrics(request.path, request.options),
    read=metrics_log.read_metrics_log,
    takes=frozenset({"columns"}),
)
"""Asked last, so that rollouts count where a path has both."""


def evaluations_below(path: str | Path, options: ReadOptions, progress: ProgressCallback = no_progress) -> Evaluations:
    """The evaluations in a folder or a glob, where it is no trainer's run, nor read itself as the only one."""
    local = fetched(path, progress)
    request = ReadRequest(path=local, options=options)
    is_run = local.is_file() or _has_state(local) or any(reader.recognizes(request) for reader in TRAINERS)
    if is_run or _runs_below(local):
        return ()
    logs = evaluations_in(local, options)
    is_only = len(logs) == 1 and logs[0].path.exists()
    return () if is_only and any(reader.recognizes(request) for reader in FORMATS) else logs


def runs_below(path: str | Path, progress: ProgressCallback = no_progress) -> tuple[Path, ...]:
    """The trainers' runs one or two folders below, else a script's or logs of metrics; none of a file or a run."""
    local = fetched(path, progress)
    if not local.is_dir() or any(reader.recognizes(ReadRequest(path=local)) for reader in FORMATS):
        return ()
    if runs := _runs_below(local):
        return runs
    scripts = tuple(folder for folder in _folders(local) if generic.is_run(folder))
    return scripts if len(scripts) > 1 else metrics_log.logs_of_runs(local)


def _runs_below(path: Path) -> tuple[Path, ...]:
    all_folders = _folders(path)
    folders = [folder for folder in all_folders if not _VALIDATION_FOLDER.fullmatch(folder.name)] or all_folders
    return tuple(
        run
        for folder in folders
        for run in ([folder] if _is_run(folder) else [inner for inner in _folders(folder) if _is_run(inner)])
    )


def _is_run(folder: Path) -> bool:
    return any(reader.recognizes(ReadRequest(path=folder)) for reader in TRAINERS)


def _folders(path: Path) -> list[Path]:
    return sorted(folder for folder in path.iterdir() if folder.is_dir()) if path.is_dir() else []
