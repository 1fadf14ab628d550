"""The evaluations in a folder: a log each, with its task and its model, never pooled."""

from __future__ import annotations

import contextlib
import glob
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from gradscope.errors import InputError, UsageError
from gradscope.outside.plain_json import read_json
from gradscope.rollouts.listing import natural
from gradscope.rollouts.read_options import ColumnNames, ReadOptions
from gradscope.rollouts.readers import column_roles as roles
from gradscope.rollouts.readers import generic
from gradscope.rollouts.readers.evaluations import harnesses, inspect_ai, samples
from gradscope.rollouts.readers.evaluations.shapes import ROW_IDS, PromptSamples, samples_of
from gradscope.rollouts.readers.format import Format, RowFormat
from gradscope.rollouts.readers.nested import layout_of
from gradscope.rollouts.readers.parsing.cells import is_number, list_of, mapping_of, step_number, text_of
from gradscope.rollouts.readers.parsing.records import ReadRequest, peek
from gradscope.rollouts.readers.parsing.tables import document_bytes, expand, stem_of, suffix_of
from gradscope.rollouts.readers.run_files import HELD_OUT
from gradscope.rollouts.readers.trainers import prime_rl

_NUM_ASKED = 200  # rows in which questions are looked for
_PART = re.compile(rf"(?:.*[-_.])?(?:{samples.CHUNK}|rs[-_.]?[0-9]+)|[0-9]+")
"""Names, without suffixes, of files that are parts of one log of samples."""
_TRIAL_ID = re.compile(
    r"[0-9a-f]{8,}(-[0-9a-f]{4,})*|[0-9]+"
)  # what in names of files is of a trial: a hash, a time, a number
_NO_MODEL = re.compile(
    r"(\w+[-_])?"
    r"(results?|outputs?|summar(y|ies)|data|evals?|evaluations?|raw|logs?|samples|predictions|runs|checkpoints)",
    re.I,
)
"""Names of folders that are none of a model."""
_BENCHMARK = re.compile(
    r"(m?gsm\w*|math|aime|amc|olympiad\w*|minerva|svamp|human_?eval|mbpp|(big|live)codebench|mmlu|gpqa|bbh|arc|hellaswag"
    r"|winogrande|(truthful|simple|strategy|hotpot|trivia|commonsense)_?qa|ifeval)(?![a-z]).*",
    re.IGNORECASE,
)
"""Names of folders that are benchmarks: the files in one, under other names, are those of models."""
_MATH_FILE = re.compile(r"(train|test|dev|val\w*)_.+_seed-?\d+_t[\d.]+_s-?\d+_e-?\d+")
"""Names of files of math-evaluation-harness, also of Qwen2.5-Math: the folder around one is called as the task."""
_FORMATS = (inspect_ai.FORMAT, prime_rl.VERIFIERS, *harnesses.FILE_FORMATS, samples.FORMAT)


class EvaluationLog(Struct, frozen=True, kw_only=True):
    """One evaluation: one run of a model on a task."""

    path: Path  # its file, or the folder of its parts
    format: str | None  # the reader's name; None: it is recognized
    task: str  # the task; the file's name where the log names none
    model: str  # the model; empty where unknown
    scorers: tuple[str | None, ...] | None = None
    """Its scores, names for ``--reward-column`` and None for the scalar; None: every reward of its rollouts."""
    scalar: str = "reward"  # the name of the scalar
    prompt: str = ""  # the prompt, where the log is one sample of it
    has_policy: bool = False  # whether that sample names its policy


Evaluations = tuple[EvaluationLog, ...]


def evaluations_in(path: Path, options: ReadOptions) -> Evaluations:
    """The evaluations of a log, a folder or a glob, by folder and name; of a named reader only its own.

    Where each trial has a folder of its own, named after its task, they are one evaluation, whose path is a glob, but
    for those that a log above them lists, which has trials that ended without one.
    """
    folders = _folders(path) if path.is_dir() else [path]
    logs = {log.path: log for folder in folders for log in _logs_of(folder, options)}
    text_of_file, listed = lru_cache(maxsize=2)(document_bytes), list[Path]()
    by_glob: dict[Path, list[EvaluationLog]] = {}
    for log in [log for log in logs.values() if log.prompt or "*" in log.path.name]:
        parents = [folder for folder in log.path.parents if folder.is_relative_to(path)]
        first = next(iter(expand(log.path)), log.path)
        named_in = {"results.json": first.stem, log.path.name: log.prompt}  # by tau2-bench, by Terminal-Bench
        reports = ((logs.get(folder / file), id) for folder in parents[1:] for file, id in named_in.items() if id)
        named = ((log, id) for log, id in reports if log and not log.prompt)
        if any(id.encode() in (text_of_file(report.path) or b"") for report, id in named):
            listed.append(log.path)
            continue
        task_name = re.compile(rf"([a-z]+[-_])?{re.escape(log.prompt)}([-_.].*)?", re.IGNORECASE)
        task = next((dir for dir in reversed(parents) if log.prompt and task_name.fullmatch(dir.resolve().name)), None)
        if task is not None:
            root = path if task == path else task.parent
            below = log.path.relative_to(root).parts[:-1]
            pattern = Path(glob.escape(str(root)), *["*"] * len(below), glob.escape(log.path.name))
            by_glob.setdefault(pattern, []).append(log)
    logs = {file: log for file, log in logs.items() if file not in listed}
    for pattern, trials in by_glob.items():
        if (pooled := _pooled(trials, pattern)) is not None:
            paths = {log.path for log in trials}
            logs = {file: log for file, log in logs.items() if file not in paths} | {pattern: pooled}
    return tuple(logs.values())


def refuse_several(path: Path, format: str | None, options: ReadOptions) -> Path:
    """Refuse several evaluations, also where no ``format`` was recognized, as each has a folder of its own.

    Returns:
        What to read: the path, but the one evaluation in a folder whose other files are none.

    Raises:
        InputError: There are several: one number over different tasks, models and scorers is meaningless; or none was
            recognized, and there is one in a folder below, which may be that of an evaluation in a run.
    """
    if path.is_file() or (format is not None and format not in _NEVER_POOLED):
        return path
    logs = [log for log in evaluations_in(path, options) if log.format in _NEVER_POOLED]
    if format is None and len(logs) == 1 and (logs[0].path.parent != path or logs[0].path.is_dir()):
        only = logs[0].path
        raise InputError(f"{path} is no log itself, but {only} is.", hint=f"Name it: {shlex.quote(str(only))}")
    first = [row for log in logs if log.format == samples.FORMAT.name for row in peek(log.path, num_rows=1)]
    steps = {step_number(row.get(roles.first_present(row, roles.USUAL["step"]) or "")) for row in first}
    are_steps = None not in steps and len(steps) == len(logs)  # dumps of one training
    are_steps |= format == samples.FORMAT.name and generic.have_steps(path, options.columns)
    if len(logs) > 1 and not are_steps:
        named = ", ".join(f"{log.task} {log.model}".strip() for log in logs[:3])
        rest = f" and {len(logs) - 3} more" if len(logs) > 3 else ""
        # of harnesses with a folder each there is none
        files = [next(iter(expand(log.path)), path) for log in logs if path.is_dir()]
        training = (file for file in files if not HELD_OUT.search(str(file.relative_to(path))))
        file = next(training, path)
        below = file.relative_to(path).parts if path.is_dir() else ()
        patterns = (
            Path(glob.escape(str(path)), *names)
            for names in (
                [*["*"] * len(below[1:]), f"*{file.suffix}"] if below[1:] else (),
                [re.sub("[0-9]+", "[0-9]*", glob.escape(part)) for part in below],
            )
        )
        steps_are = (
            f"; the steps of one training are named so: {shlex.quote(str(pattern))}"
            for pattern in patterns
            if len(expand(pattern)) > 1 and generic.have_steps(pattern, options.columns)
        )
        raise InputError(
            f"{path} holds {len(logs)} evaluations, which are never pooled: {named}{rest}.",
            hint=f"All, a row each: gradscope passk {shlex.quote(str(path))}; or name one log: "
            + shlex.quote(str(logs[0].path))
            + next(steps_are, ""),
        )
    is_of_samples = format in (None, samples.FORMAT.name) and len(logs) == 1 and path.is_dir()
    return logs[0].path if is_of_samples else path


def are_of_one(format: str, files: Sequence[Path]) -> bool:
    """Whether files may be of one log: those of evaluations only if their names say that they are parts."""
    is_evaluation = format in {reader.name for reader in _FORMATS}
    return not is_evaluation or len(files) < 2 or _are_parts(files)


def _are_parts(files: Sequence[Path]) -> bool:
    return len(files) > 1 and all(_PART.fullmatch(stem_of(file)) for file in files)


def _pooled(logs: Sequence[EvaluationLog], files: Path) -> EvaluationLog | None:
    """Logs of a sample each as one, all files of a glob; None where more than prompts, trials and policies differs."""
    prompts, models = [log.prompt for log in logs], {log.model for log in logs}
    named = {log.path: "" if log.prompt.isdecimal() else log.prompt for log in logs}  # a number may be in any id
    remainders = {_TRIAL_ID.sub("", stem_of(file).replace(prompt, "")) for file, prompt in named.items()}
    is_explained = len(set(prompts)) == len(prompts) or len(remainders) == 1 or all(log.has_policy for log in logs)
    if len(logs) < 2 or not all(prompts) or not is_explained or {log.path for log in logs} != set(expand(files)):
        return None
    folder = next(parent for parent in files.parents if "*" not in parent.name).resolve()
    model = models.pop() if len(models) == 1 else folder.parent.name
    return replace(logs[0], path=files, task=folder.name, model=model, prompt="")


def _folders(path: Path, depth: int = 8) -> Iterator[Path]:  # a model's own path may be part, as for Qwen2.5-Math
    yield path
    below = path.iterdir() if depth and not path.resolve().name.endswith(inspect_ai.SHARDS) else ()
    for folder in sorted((entry for entry in below if entry.is_dir()), key=natural):
        if not folder.name.startswith(".") and not folder.name.endswith(inspect_ai.SHARDS):
            yield from _folders(folder, depth - 1)


def _logs_of(folder: Path, options: ReadOptions) -> Iterator[EvaluationLog]:
    """The evaluations of one folder, or of a file or glob."""
    request = ReadRequest(path=folder, options=options)
    for reader in harnesses.TRIAL_FORMATS if folder.is_dir() else ():
        if options.reader in (None, reader.name) and reader.recognizes(request):
            yield _described(reader, folder)
            return
    by_name: dict[str, list[Path]] = {}
    for file, name in inspect_ai.find_logs(folder).items() if options.reader in (None, _INSPECT) else ():
        if file.suffix == inspect_ai.SUFFIX:
            by_name.setdefault(name, []).append(file)
    for name, files in by_name.items():
        header = inspect_ai.header_of(files)
        is_sharded = folder.is_dir() and files[0].parent not in (folder, folder.resolve())
        path = files[0].parent.parent if is_sharded else folder if len(files) > 1 else files[0]
        yield EvaluationLog(path=path, format=_INSPECT, task=header.task or name, model=header.model)
    inspect_files = {file for files in by_name.values() for file in files}
    rows = [file for file in (expand(folder)) if file not in inspect_files and suffix_of(file)]
    # the first of numbered parts is like the others, each of which takes 10 ms
    if _are_parts(rows) and _format_of(rows[0], options) is samples.FORMAT:
        yield _described(samples.FORMAT, folder)
        return
    logs = {file: _described(format, file) for file in rows if (format := _format_of(file, options)) is not None}
    parts = [file for file, log in logs.items() if log.format == samples.FORMAT.name]
    trials = Path(glob.escape(str(folder)), f"*{parts[0].suffix}") if folder.is_dir() and parts else folder
    pooled = _pooled([logs[file] for file in parts], trials)
    if pooled is not None or _are_parts(parts):
        logs = {file: log for file, log in logs.items() if file not in parts}
        is_apart = len(parts) < len(rows) and parts == [*expand(trials)]  # next to a summary, say
        logs[trials] = pooled or replace(_described(samples.FORMAT, folder), path=trials if is_apart else folder)
    yield from logs.values()


def _format_of(file: Path, options: ReadOptions) -> Format | RowFormat | None:
    request = ReadRequest(path=file, options=options)
    with contextlib.suppress(UsageError):  # the file lacks a column that was named
        chosen = (format for format in _FORMATS if options.reader in (None, format.name))
        return next((format for format in chosen if format.recognizes(request)), None)
    return None


def _described(format: Format | RowFormat, file: Path) -> EvaluationLog:
    """The task, the model and the scorers of a log, by its path and its first rows."""
    location, log = file.resolve(), partial(EvaluationLog, path=file, format=format.name)
    stem, above = location.name if location.is_dir() else stem_of(location), location.parent
    match format.name:
        case inspect_ai.FORMAT.name:
            header = inspect_ai.header_of([file])
            return log(task=header.task or stem, model=header.model)
        case harnesses.EVALPLUS.name:
            by_task = {key: cell for row in peek(file) for key, cell in mapping_of(row.get("eval")).items()}
            model = location.stem.removesuffix("eval_results").removeprefix("samples").strip("_.") or above.name
            log = partial(log, task=next(iter(by_task), stem).partition("/")[0], model=model)
            first = next(iter(by_task.values()), None)
            statuses = (mapping_of(sample).get("plus_status") for sample in list_of(first))
            if not mapping_of(first).get("plus") and not any(statuses):  # as of BigCodeBench
                return log(scorers=(None,), scalar="base")
            return log(scorers=("base", None), scalar="base + plus")
        case harnesses.LM_EVAL.name:
            task, when, model = _lm_eval_file(location)
            rows = peek(file)
            filters = dict.fromkeys(text_of(row.get("filter")) for row in rows)
            metrics = dict.fromkeys(text_of(name) for row in rows for name in list_of(row.get("metrics")))
            scores = [name for name in metrics if any(is_number(row.get(name)) for row in rows)]
            named_as_in_tables = tuple(f"{name},{filter}" for filter in filters for name in scores)
            return log(task=task or when, model=model, scorers=named_as_in_tables)
        case harnesses.LIGHTEVAL.name:
            parts = location.parts[:-2]
            model = "/".join(parts[parts.index("details") + 1 :]) if "details" in parts else above.name
            return log(task=location.stem.removeprefix("details_").rpartition("_")[0] or stem, model=model)
        case prime_rl.VERIFIERS.name:
            environment, *names = above.name.split("--")
            return log(task=environment, model="/".join(names[:-2] or names), scorers=(None,))
        case harnesses.EVALSCOPE.name:
            return log(task=stem, model=above.name)
        case harnesses.SKYRL.name:
            step = re.search(r"global_step_([0-9]+)", above.name)
            return log(task=stem, model=f"step {step[1]}" if step else "", scorers=(None,))
        case harnesses.HARBOR.name:
            first = next(iter(peek(Path(glob.escape(str(file)), "*", "result.json"))), {})
            return log(task=stem, model=harnesses.harbor_policy(first.get("agent_info")))
        case harnesses.HELM.name:
            task, _, model = above.name.partition("model=")
            return log(task=task.strip(":,") or stem, model=model.partition(",")[0] or above.name, scorers=(None,))
        case harnesses.SWE_BENCH.name:
            return log(task=above.name, model=stem.replace("__", "/"))
    rows = peek(file)
    models = {next((row[name] for name in roles.POLICIES if isinstance(row.get(name), str)), "") for row in rows}
    task = stem
    if _MATH_FILE.fullmatch(stem):
        task, above = above.name, above.parent.parent if above.parent.name == "math_eval" else above.parent
    if any(row.get(name) == above.name for row in rows for name in ("category", *roles.BENCHMARKS)):
        above = above.parent  # of a folder for each category
    metadata = _document(location.parent / "metadata.json")  # of verifiers, next to ``results.jsonl``
    if "filtered_resps" in roles.columns_in(rows):  # as lm-eval once wrote them, without the name of the filter
        task, _, model = _lm_eval_file(location)
        return log(task=task or stem, model=model, scorers=(None,))
    parents = (above, *above.parents)[:3]
    above = next((folder for folder in parents if not _NO_MODEL.fullmatch(folder.name)), above)
    named, model = next(iter(models)) if len(models) == 1 else "", above.name
    if _BENCHMARK.fullmatch(model) and not _BENCHMARK.fullmatch(task):
        task, model = model, "" if _NO_MODEL.fullmatch(task) else task
    environment = text_of(metadata.get("env_id")) or text_of(metadata.get("env")) if stem == "results" else ""
    return log(
        task=environment or task,
        model=named or text_of(metadata.get("model")) or model,
        scorers=(None,),
        prompt="" if file.is_dir() or len(rows) != 1 else _prompt_of_sample(rows[0]),
        has_policy=any(models),
    )


def _lm_eval_file(file: Path) -> tuple[str, str, str]:
    """The task, the time and the model of a file of lm-eval's samples."""
    task, _, when = file.stem.removeprefix("samples_").rpartition("_")
    model = _document(file.parent / f"results_{when}.json").get("model_name")
    return task, when, model if isinstance(model, str) and model else file.parent.name.replace("__", "/")


def have_different_questions(first: Path, second: Path, prompts: Collection[str]) -> bool:
    """Whether two logs mostly have another question under ids that name prompts of both, by their first rows."""
    questions, repeated = _questions_in(first), _questions_in(second)
    differ = [questions[name] != repeated[name] for name in questions.keys() & repeated.keys() & set(prompts)]
    return sum(differ) > len(differ) / 2


def _questions_in(path: Path) -> dict[str, str]:
    rows = peek(path, num_rows=_NUM_ASKED)
    names = roles.columns_in(rows)
    key = roles.columns_of_rows(rows, ColumnNames()).prompt_id or roles.first_present(names, ROW_IDS)
    question = roles.first_present(names, ("question", "problem"))
    return {text_of(row.get(key)): text_of(row.get(question)) for row in rows} if key and question else {}


def _prompt_of_sample(row: Mapping[str, Any]) -> str:
    """The prompt that the only row of a log names next to one verdict; empty where it may be that of an evaluation."""
    (row,) = roles.with_entries([row])
    columns = roles.columns_of_rows([row], ColumnNames())
    is_verdict = row.get(columns.reward or "", "") in (None, 0, 1)
    is_of_log = columns.prompt_id in ("id", "idx")  # which a whole evaluation has as well
    if not is_verdict or is_of_log or isinstance(samples_of(row, ColumnNames()), PromptSamples):
        return ""
    return "" if layout_of([row], ColumnNames()) else text_of(row.get(roles.key_of(columns) or ""))


def _document(path: Path) -> Mapping[str, Any]:
    """The object in a file; empty where there is none."""
    with contextlib.suppress(InputError, OSError, ValueError):
        return mapping_of(read_json(path))
    return {}


_INSPECT = inspect_ai.FORMAT.name
_NEVER_POOLED = {format.name for format in (*_FORMATS, *harnesses.TRIAL_FORMATS) if format is not harnesses.SKYRL}
"""Formats of which several logs are refused; SkyRL's are those of the steps of one training, a useful series."""
