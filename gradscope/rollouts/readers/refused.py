"""What a path holds that is no log that gradscope reads, and what to name or to switch on instead.

Checkpoints and models; files of wandb, trackio or TensorBoard; weights, archives and text; logs that exist only as
pickles, since opening one would run its code; and rows whose columns are not known.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

from msgspec import Struct

from gradscope.errors import InputError
from gradscope.outside.plain_json import parse_json
from gradscope.rollouts.read_options import ColumnNames
from gradscope.rollouts.readers import column_roles
from gradscope.rollouts.readers.evaluations.shapes import refuse_lone_list
from gradscope.rollouts.readers.nested import are_counted
from gradscope.rollouts.readers.parsing.cells import is_list_of_objects, is_number, list_of, step_number
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.parsing.records import ReadRequest, are_turns, list_names, peek, refuse_turns
from gradscope.rollouts.readers.parsing.settings import leaves_in
from gradscope.rollouts.readers.parsing.tables import SUFFIXES, document_bytes, expand, files_like, stem_of, suffix_of
from gradscope.say import counted

_NUMBERED = re.compile(r"(checkpoint|global_step|step|iter)[-_][0-9]+")
_WEIGHTS = ("*.safetensors*", "pytorch_model*.bin", "*.distcp", "optimizer.pt")
_PICKLES = ("*.pt", "*.pth", "*.pkl", "*.pickle", "*.dp", "*.bin")
_EVENTS = "events.out.tfevents.*"
_SUMMARIES = tuple(f"{above}wandb-summary.json" for above in ("", "files/", "*/files/", "wandb/*/files/"))
_SUMMARY = "Scenario.*_eval.json"
_START = 65_536  # bytes of a file that are read to recognize text
_LOG_ROLLOUTS = "log_completions=True in TRL, trainer.rollout_data_dir in verl; docs/logs.md has the others"
"""The switches that make the usual trainers log rollouts."""
_MAX_FILES_BELOW = 10_000  # files that are looked at for the sake of an error
_REWARD_WORD = re.compile(
    r"(?<!chosen_)(?<!rejected_)reward|score|correct(?!ion|_(answer|label|letter|option|choice|index|idx))|success|passed|grade"
    r"|accura|rating|solved|verdict|quality|pass_?rate",
    re.IGNORECASE,
)

_NO_REWARD = re.compile(
    r"(^|[._])(id|idx|index)$|^any_|^doc\.|complexity|difficulty|threshold|confidence|delta|ground_?truth|require_"
    r"|(final|best|mean|avg|average|overall)_(\w+_)?accuracy|(mean|avg|average|overall)_score|_(count|std|var)$"
    r"|allow_|tests?_passed$",
    re.IGNORECASE,
)
_PROMPT_WORD = re.compile(
    r"question|problem|prompt|query|instruction|(^|_)(task|puzzle|instance)(_|$)|(^|_)(id|idx|index)$|^(name|i)$",
    re.IGNORECASE,
)
_VERDICT_WORD = re.compile(
    r"exact|match|equivalent|right(?!s)|valid|verified|proved|won|(?<!correct_)label|\bpass$|\bok$|_ok$", re.IGNORECASE
)
_PREDICTION = re.compile(
    r"(^|_)((pred|prediction|output|response)s?|predicted|hypothesis|extracted|executed|final_(answer|result)"
    r"|filtered_resps|model_patch)(_|$)(?!dir|path|file|token|len|cost|time|count|format)",
    re.IGNORECASE,
)
_TOTAL = re.compile(
    r"^metrics\.|(^|[._])((\w+@|(pass|maj|majority|cons|best|avg|mean)_?at)_?(k|\d+)"
    r"|(mean|avg|average|overall)(_\w+)?|(final|best)(_\w*(acc|score|reward|loss|rate|f1)\w*)?"
    r"|em|f1|(accuracy|acc)(_(mean|avg|std|ci)\w*)?)$",
    re.IGNORECASE,
)
_IS_TOTAL = "{!r} is a total, over prompts or samples: give the file with a row for each sample or prompt."
_OUTCOME_WORD = re.compile(rf"{_REWARD_WORD.pattern}|status|result|outcome", re.IGNORECASE)


def _name_rollouts(path: Path) -> str:
    file_or = "file or " if path.is_file() else ""
    return f"Name the trainer's {file_or}folder of rollouts, or log them in the next run: {_LOG_ROLLOUTS}."


class _Kind(Struct, frozen=True, kw_only=True):
    matches: Callable[[Path], bool]  # whether an existing path is of this kind
    description: str  # the predicate of the sentence about it
    hint: Callable[[Path], str] = _name_rollouts  # what to do instead


def refuse_checkpoint(path: Path) -> None:
    """Refuse a checkpoint of TRL, which has a trainer's state as TRL's runs have, and a run's folder of them."""
    if path.resolve().name.startswith("checkpoint-") and is_checkpoint(path):
        _refuse(path, _CHECKPOINT)
    if _is_folder_of_checkpoints(path.resolve()):
        raise InputError(
            f"{path} holds a run's checkpoints: weights, without rollouts.",
            hint=f"Name the run folder above it: {_run_of_checkpoint(path)}",
        )


def refuse_folder_of_runs(path: Path, runs: Sequence[Path]) -> None:
    """Refuse a folder that holds several runs, where there are any, with the commands that read them."""
    if runs:
        names = [str(run.relative_to(path)) for run in runs]
        rest = f" and {len(names) - 5} more" if len(names) > 5 else ""
        first, all_of_them = shlex.quote(str(runs[0])), shlex.quote(str(path))
        raise InputError(
            f"{path} is a folder of {len(runs)} runs: {', '.join(names[:5])}{rest}.",
            hint=f"One: gradscope degeneracy {first}; all, on one page: gradscope report {all_of_them}",
        )


def refuse_unknown(path: Path) -> None:
    """Refuse a path that is recognized as something other than rollouts."""
    for writer, patterns, hint in _PICKLED:
        file = _first_like(path, *patterns)
        if file is not None:
            raise InputError(f"{file} is {writer}: a pickle, which is never opened.", hint=hint)
    for kind in _KINDS:
        if kind.matches(path):
            _refuse(path, kind)


def refuse_unrecognized(request: ReadRequest) -> NoReturn:
    """Say what rows of no known format hold, which of their columns may be the reward, and what else was looked for."""
    _refuse_comments(request.path)
    rows = _usable_rows(request.path)
    lists = [key for row in rows[:1] for key, cell in row.items() if is_list_of_objects(cell)]
    list_name = lists[0] if len(rows) == len(lists) == 1 else None
    rows = rows if list_name is None else rows[0][list_name]
    refuse_lone_list(request.path, rows)
    if any(is_list_of_objects(cell) and are_counted(cell) for row in rows for cell in row.values()):
        refuse_turns(request.path, None)
    if rows and all({"eval_runtime", "train_runtime"}.intersection(row) for row in rows):  # of TRL's all_results.json
        raise InputError(
            f"{request.path} has a trainer's totals, without steps.",
            hint="Name trainer_state.json, which is beside it or in a checkpoint, or the trainer's folder.",
        )
    with_entries = column_roles.with_entries(rows, request.columns)
    entries = column_roles.columns_in(with_entries)
    are_scores = (name for name in _like_rewards(with_entries) if name in entries and "." in name)
    scores = [name for name in are_scores if "reward" in name or "score" in name]
    candidates = scores or [name for name in _like_rewards(rows) if not column_roles.is_of_call(name, entries)]
    if not candidates and len(rows) > 1:
        candidates = _like_rewards([dict(leaves_in(row)) for row in rows])
    if column_roles.resolve_columns(entries, request.columns).reward is not None and are_turns(
        {name: [row.get(name) for row in with_entries] for name in entries}
    ):
        refuse_turns(request.path, None)
    columns = [name for name in entries if "." not in name or name in scores]  # others are many
    files = request.path.rglob("*.*") if not columns and request.path.is_dir() else ()
    logs = (file for file in islice(files, _MAX_FILES_BELOW) if suffix_of(file) or file.match(_EVENTS))
    if below := sorted({file.parent for file in logs if file.is_file()} - {request.path}):
        more_folders = f" and {counted(len(below) - 1, 'more folder')}" if len(below) > 1 else ""
        named = f"such files are in {below[0]}{more_folders}"
        raise InputError(f"{request.path} has no rows itself: {named}.", hint=f"Name the folder: {below[0]}")
    if len(rows) == 1 and list_name is None:
        columns_of = column_roles.columns_of_rows([rows[0]], ColumnNames())
        listed = [name for name in candidates if is_list_of_objects(rows[0].get(name.partition(".")[0]))]
        if column_roles.key_of(columns_of) is None:  # others than those in the only list are totals
            candidates = listed if len({name.partition(".")[0] for name in listed}) == 1 else []
    if len(rows) == 1 and not candidates:
        _refuse_rows_below_keys(request.path, rows[0])
    seen = "Its" if list_name is None else f"The list {list_name!r} in it has objects whose"
    seen = (
        f"{seen} columns are {list_names(columns)}." if columns else f"It has no rows in {', '.join(SUFFIXES)} files."
    )
    reward = column_roles.resolve_columns(entries, request.columns).reward
    are_objects = reward is not None and all(isinstance(row.get(reward), Mapping) for row in rows)
    hint = (
        "Name the columns with --reward-column, --group-column or --prompt-column and --step-column, counts with "
        "--n-column and --c-column, metrics with --metric-column, the reader with --reader: docs/logs.md lists them."
    )
    if reward is not None and len(rows) == 1 and isinstance(rows[0].get(reward), list):
        raise InputError(
            f"{request.path} lists {reward!r} and not all that were asked: of how many these are is not known.",
            hint="Give a file with a verdict for each: SWE-bench's report of the run, or the folder of */report.json.",
        )
    if are_objects and not candidates:
        hint = f"{reward!r} is an object of totals: give the file with a row for each sample or prompt."
    elif reward is not None and not are_objects:
        prompt_like = [shlex.quote(name) for name in _like_prompts(rows) if name != reward] or ["NAME"]
        advice = "" if prompt_like != ["NAME"] else " Where no column does, write the prompt, or its id, into each row."
        action = f"name what rollouts of a group share: --prompt-column {prompt_like[0]}"
        is_answered = column_roles.first_present(entries, (*column_roles.ANSWER_KEYS, *column_roles.TEXT_LISTS))
        is_total = len(rows) == 1 and list_name is None and not is_answered and prompt_like == ["NAME"]
        hint = _IS_TOTAL.format(reward) if is_total else f"The reward is taken to be {reward!r}; {action}.{advice}"
    elif candidates:
        hint = _reward_hint(rows, candidates, list_name)
    else:
        inner = rows[0][lists[0]] if len(rows) == 1 < len(lists) else rows  # under each of several conditions
        hint = _ungraded(inner) or _shares_in_lists(rows) or _totals(rows) or hint
    expected = (
        "Looked for what a trainer writes, and for samples of prompts: task_id with passed, score or n and c (sample "
        "files); rows with a reward, a group or prompt, and a step (any JSONL, Parquet or CSV)."
    )
    raise InputError(f"{request.path} is not a log that gradscope knows. {seen} {expected}", hint=hint)


def _refuse_comments(path: Path) -> None:
    """Refuse a table that begins with a comment, with the command that leaves it out."""
    if path.suffix not in (".csv", ".tsv") or not path.is_file():
        return
    with path.open("rb") as file:
        first, second = file.readline(_START), file.readline(_START)
    is_header = not second.startswith(b"#") and all(first.count(mark) == second.count(mark) for mark in b",;\t")
    if first.startswith(b"#") and not is_header:
        raise InputError(
            f"{path} begins with a comment, where a table has the names of its columns.",
            hint=f"Leave such lines out: grep -v '^#' {shlex.quote(str(path))} > rows.csv",
        )


def _usable_rows(path: Path) -> list[dict[str, Any]]:
    """The first rows of a log; an InputError where it has some, and each was set aside."""
    quarantine = QuarantineLog()
    rows = peek(path, quarantine)
    if not rows:
        quarantine.raise_unreadable()
        for reason in quarantine.result().reasons:
            _refuse_documents(next(iter(expand(path)), path))
            raise InputError(
                f"{path} has no usable rows; the first that was set aside, {reason.first}: {reason.reason}.",
                hint="A row needs a finite number as reward and something to group by.",
            )
    return rows


def _refuse_documents(path: Path) -> None:
    """Refuse a file of JSON that breaks off, or is several documents, or one without its suffix."""
    document, is_named = document_bytes(path) or b"", suffix_of(path) == ".json"
    if not is_named and not document.lstrip().startswith((b"[", b"{")):
        return
    try:
        parse_json(document or b"null")
    except json.JSONDecodeError as error:
        if error.msg == "Extra data" and error.doc[error.pos] in "[{":
            hint = f"Write them so: jq -c . {shlex.quote(str(path))} > rows.jsonl"
            raise InputError(f"{path} has several JSON documents, which are not a line each.", hint=hint) from None
        is_cut = error.msg.startswith("Unterminated") or error.pos > len(error.doc) - _LONGEST_WORD
        fault = "breaks off within its last value" if is_cut else f"is no JSON: {error.msg.lower()}"
        if is_named:
            raise InputError(f"{path} {fault}, at line {error.lineno:,}.", hint="Copy the file again.") from None
    except ValueError:  # no text, or nested too deep, which the reason of its lines says
        pass
    else:
        if not is_named:
            name = shlex.quote(f"{stem_of(path)}.json")
            raise InputError(f"{path} is one JSON document and no lines of rows.", hint=f"Rename it, as in {name}.")


_LONGEST_WORD = 8  # letters of -Infinity less one: what a cut leaves of a number or a word is found at its start


def _refuse_rows_below_keys(path: Path, document: Mapping[str, Any]) -> None:
    """Refuse a document whose rows lie below several keys, with the command that writes them as lines."""
    lists = [key for key, cell in document.items() if is_list_of_objects(cell) and _like_rewards(cell)]
    keys = _keys_of_rows(document)
    keys = keys if len(keys) > 1 or len(lists) < 2 else tuple(lists)
    if len(keys) > 1:
        are_steps = [step_number(key) is not None and not key.isdecimal() for key in keys]
        column = "step: $p[-1]" if are_steps[-1] else 'setting: ($p | join("/"))'
        column = "step: $p[-2], prompt: $p[-1]" if are_steps[-2:] == [True, False] else column
        rows, keyed_by = list_of(document.get(keys[0])) if all(map(str.isdecimal, keys)) else [], "its keys"
        if rows and column_roles.key_of(column_roles.columns_of_rows(rows, ColumnNames())) is None:
            column, keyed_by = "prompt_id: $p[-1]", "the number of its prompt, or as `step` that of its step"
        program = shlex.quote(f"paths(arrays) as $p | getpath($p)[] | objects | {{{column}}} + .")
        file = shlex.quote(str(next(iter(expand(path)), path)))
        raise InputError(
            f"{path} is not a log that gradscope knows. Its rows lie below the keys {list_names(keys)}, and what these "
            "are is not known.",
            hint=f"Write a row a line, with {keyed_by}: jq -c {program} {file} > rows.jsonl",
        )


def _reward_hint(rows: Sequence[Mapping[str, Any]], candidates: Sequence[str], list_name: str | None) -> str:
    """The number to name, and with it a column that tells prompts apart, where none is known."""
    listed = candidates[0].partition(".")[0]
    if list_name is None and len(rows) == 1 and is_list_of_objects(rows[0].get(listed)):
        list_name, rows, candidates = listed, rows[0][listed], [name.partition(".")[2] for name in candidates]
    named, columns = shlex.quote(candidates[0]), column_roles.columns_of_rows(rows, ColumnNames())
    is_deeper = is_list_of_objects(rows[0].get(candidates[0].partition(".")[0]))
    if list_name is not None and not is_deeper and column_roles.key_of(columns) is None:
        prompt = next(iter(_like_prompts(rows)), None)
        column = f"column of {list_name!r}"
        choice = f"NAME, a {column} that" if prompt is None else f"{shlex.quote(prompt)}, if this {column}"
        named += f" --prompt-column {choice} tells prompts apart"
    alternatives = f"; others are {list_names(candidates[1:])}" if candidates[1:] else ""
    return f"Name the number that the trainer used, as in --reward-column {named}{alternatives}."


def _ungraded(rows: Sequence[Mapping[str, Any]]) -> str:
    """What to do with responses that nobody graded: predictions next to right answers, or texts without a number."""
    columns = {name: [row.get(name) for row in rows] for name in column_roles.columns_in(rows)}
    named = [name for name in (("label", "answer") if "answer" in columns else ()) if name in columns]
    gold = next(filter(column_roles.RIGHT_ANSWER.fullmatch, columns), next(iter(named), None))
    answer = next(filter(_PREDICTION.search, columns), "answer" if gold != "answer" and "answer" in columns else None)
    if gold is not None and answer is not None:
        return f"No column is a verdict: grade {answer!r} against {gold!r}, and write it into each row as 'correct'."
    numbers = [name for name, cells in columns.items() if not _PROMPT_WORD.search(name) and any(map(is_number, cells))]
    text = column_roles.first_present(columns, (*column_roles.ANSWER_KEYS, *column_roles.TEXT_LISTS, answer or ""))
    answers = (cells for name, cells in columns.items() if name not in column_roles.USUAL["prompt"])
    is_graded = any(column_roles.are_words(cells) or any(map(is_list_of_objects, cells)) for cells in answers)
    if text is None or numbers or is_graded:
        return ""
    return f"No column is a verdict: run the evaluation on {text!r}, and write its outcome into each row as 'correct'."


def _totals(rows: Sequence[Mapping[str, Any]]) -> str:
    """What to name instead of the totals of evaluations, one of which is named."""
    prompt_names = (name for role in ("prompt", "prompt_id") for name in column_roles.USUAL[role])
    if column_roles.first_present(column_roles.columns_in(rows), tuple(prompt_names)):
        return ""
    totals = (leaf for row in rows for leaf in leaves_in(row) if _TOTAL.search(leaf[0]))
    name = next((name for name, cell in totals if is_number(column_roles.verdict_of(cell))), None)
    return "" if name is None else _IS_TOTAL.format(name)


def _shares_in_lists(rows: Sequence[Mapping[str, Any]]) -> str:
    """Which numbers of objects in lists lie between 0 and 1, as rewards under a name of their own do."""
    cells: dict[str, list[Any]] = {}
    lists = [entry for row in rows for cell in row.values() if is_list_of_objects(cell) for entry in cell]
    for name, cell in (pair for entry in lists for pair in entry.items() if not _NO_REWARD.search(pair[0])):
        cells.setdefault(name, []).append(cell)
    names = [name for name, numbers in cells.items() if all(is_number(cell) and 0 <= cell <= 1 for cell in numbers)]
    if not names:
        return ""
    return f"Name the reward, where it is one of {list_names(names)}: --reward-column {shlex.quote(names[-1])}"


def _like_prompts(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Columns that may tell prompts apart, by a word in their names: texts before ids.

    A number that no two rows of a step have, as SkyRL's table on W&B has, is that of the row.
    """
    step = column_roles.resolve_columns(column_roles.columns_in(rows), ColumnNames()).step
    steps = [str(row.get(step or "")) for row in rows]
    columns = {name: [row.get(name) for row in rows] for name in column_roles.columns_in(rows)}
    differing = {
        name: all(isinstance(cell, str) for cell in cells)
        for name, cells in columns.items()
        if _PROMPT_WORD.search(name)
        and all(isinstance(cell, str | int) for cell in cells)
        and len(set(cells)) > 1
        and (step is None or len(set(zip(steps, cells, strict=True))) < len(rows))
    }
    return sorted(differing, key=lambda name: not differing[name])


def _like_rewards(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Columns and entries of lists that may be the reward: numbers by a word in their names, else verdicts."""
    columns: dict[str, list[Any]] = {}
    for row in rows:
        for name, cell in row.items():
            listed = cell[0].items() if is_list_of_objects(cell) and not column_roles.OFFERED.match(name) else ()
            for inner, value in ((name, cell), *((f"{name}.{key}", value) for key, value in listed)):
                columns.setdefault(inner, []).append(value)
    filled = {name: [cell for cell in cells if cell not in (None, "")] for name, cells in columns.items()}
    columns = {
        name: list(map(column_roles.as_number, cells))
        if column_roles.are_numbers_in_text(cells)
        else cells  # as of CSV
        for name, cells in filled.items()
        if cells and not _NO_REWARD.search(name)
    }
    numbers = [name for name, cells in columns.items() if _REWARD_WORD.search(name) and all(map(is_number, cells))]
    verdicts = [name for name, cells in columns.items() if all(is_number(cell) and cell in (0, 1) for cell in cells)]
    verdicts = [name for name in verdicts if _REWARD_WORD.search(name) or _VERDICT_WORD.search(name)]
    in_words = [name for name, cells in columns.items() if column_roles.are_words(cells) and len(set(cells)) > 1]
    differing = [name for name in verdicts if len(set(columns[name])) > 1]
    return numbers or differing or list(filter(_OUTCOME_WORD.search, in_words)) or verdicts


def _keys_of_rows(node: Mapping[str, Any], depth: int = 4, above: str = "") -> tuple[str, ...]:
    """The keys below which the first list of rows with a reward and a prompt, or a key for it, lies in objects."""
    for key, cell in node.items() if depth else ():
        columns = column_roles.resolve_columns(cell[0], ColumnNames()) if is_list_of_objects(cell) else ColumnNames()
        if columns.reward is not None and (above or column_roles.key_of(columns) is not None):
            return (key,)
        if isinstance(cell, dict) and (below := _keys_of_rows(cell, depth - 1, key)):
            return (key, *below)
    return ()


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


def is_checkpoint(path: Path) -> bool:
    """Whether a folder is a checkpoint, by its name and what it holds."""
    has_state = _has(path, "config.json", "adapter_config.json", "trainer_state.json", "actor") or _has(path, *_WEIGHTS)
    return _NUMBERED.fullmatch(path.resolve().name) is not None and has_state


def _is_folder_of_checkpoints(path: Path) -> bool:
    return path.name == "checkpoints" and _has(path, "checkpoint-*") and (path.parent / "manifest.json").is_file()


def _run_of_checkpoint(path: Path) -> Path:
    """The run that a checkpoint belongs to, whether it has a folder for its checkpoints or not."""
    above = path.parent if path.name else path.resolve().parent
    return above.parent if _is_folder_of_checkpoints(above.resolve()) and above.name else above


def _start(path: Path) -> str:
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return file.read(_START).decode("utf-8-sig", errors="replace")


def _is_text(path: Path) -> bool:
    start = _start(path) if suffix_of(path) is None else ""
    return start.strip() != "" and "\0" not in start and re.match(r"\s*(\{|\[\s*[\[{])", start) is None


_CHECKPOINT = _Kind(
    matches=is_checkpoint,
    description="is a checkpoint: weights and the trainer's state, without rollouts",
    hint=lambda path: f"Name the run folder above it: {_run_of_checkpoint(path)}",
)


def _files_in(path: Path) -> list[Path]:
    return [file for file in path.iterdir() if not file.name.startswith(".")] if path.is_dir() else []


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
    ),
    _Kind(
        matches=lambda path: (
            _is_file(path, "*.wandb", "*.db", _EVENTS)
            or _has(path, "*.wandb", "*.db", _EVENTS, f"*/{_EVENTS}", *_SUMMARIES)
        ),
        description="is what W&B, trackio or TensorBoard keeps of a run, without metrics by step and without rollouts",
    ),
    _Kind(
        matches=lambda path: _has(path, "dataset_dict.json"),
        description="is a dictionary of datasets",
        hint=lambda path: f"Name one: {next(iter(sorted(path.glob('*/state.json'))), path / 'train/-').parent}",
    ),
    _Kind(
        matches=lambda path: _is_file(path, "results_[0-9]*.json"),
        description="holds the totals of an evaluation",
        hint=lambda _: "Give its samples: samples_*.jsonl of lm-eval (log_samples), details_*.parquet of lighteval.",
    ),
    _Kind(
        matches=lambda path: _first_like(path, _SUMMARY) is not None,
        description="holds LiveCodeBench's summary, with tests by the position of a problem",
        hint=lambda path: (  # which LiveCodeBench writes next to its summary
            f"Name the file with the problems: {(_first_like(path, _SUMMARY) or path).with_suffix('')}_all.json"
        ),
    ),
    _Kind(
        matches=lambda path: _has(path, "*/summary_info.json"),
        description="is a folder of BrowserGym's episodes, whose tasks stand in pickles and in the names of folders",
        hint=lambda path: (
            "Write a row an episode: jq -c '{task_id: (input_filename | "
            f"""capture("_on_(?<task>.+?)_[0-9]+(_[0-9a-f]+)?/").task), reward: .cum_reward}}' """
            f"{shlex.quote(str(path))}/*/summary_info.json > rows.jsonl"
        ),
    ),
    _Kind(
        matches=lambda path: _is_file(path, "ic_*.json"),
        description="is of InterCode, with a reward for each turn of an episode",
        hint=lambda path: (
            "Write a row an episode, with the best turn's reward, as InterCode counts: jq -c "
            f"'.[] | {{task_id, prompt: .query, reward: .summary.max_reward}}' {shlex.quote(str(path))} > rows.jsonl"
        ),
    ),
    _Kind(
        matches=lambda path: (
            _is_file(path, "evaluation_results.json", "generations*.json") and not path.match("*.table.json")
        ),
        description="is of bigcode-evaluation-harness, which keeps no verdict on each generation",
        hint=lambda _: "Score the generations again, and write a row each: task_id, completion, passed.",
    ),
    _Kind(
        matches=lambda path: _is_file(path, "*.safetensors", "*.gguf"),
        description="is a file of weights, without rollouts",
    ),
    _Kind(
        matches=lambda path: _is_file(path, "*.zip", "*.tar", "*.tar.gz", "*.tgz"),
        description="is an archive",
        hint=lambda path: (
            f"Unpack it and name what comes out: {'python -m zipfile -e' if path.suffix == '.zip' else 'tar -xf'} "
            f"{shlex.quote(str(path))}{' .' * (path.suffix == '.zip')}"
        ),
    ),
    _Kind(
        matches=lambda path: bool(files := _files_in(path)) and {file.suffix for file in files} == {".zip"},
        description="holds nothing but archives",
        hint=lambda path: (
            "Unpack each and name what comes out: "
            f'(cd {shlex.quote(str(path))} && for zip in *.zip; do python -m zipfile -e "$zip" "${{zip%.zip}}"; done)'
        ),
    ),
    _Kind(
        matches=lambda path: _is_file(path, "*.ipynb"),
        description="is a notebook whose outputs have no table of metrics with a step, nor a trainer's lines",
    ),
    _Kind(
        matches=lambda path: re.search(r"(?m)^\[START\] task=\S+( env=\S+ model=\S+)?\s*$", _start(path)) is not None,
        description="is what an agent in an environment of OpenEnv's printed, a line a turn",
        hint=lambda path: (
            "Write a row an episode: awk -F'[ =]' "
            """'BEGIN {print "task_id,model,correct"} $1 == "[START]" {task = $3 "," $7} """
            """$1 == "[END]" {print task "," tolower($3)}' """
            f"{shlex.quote(str(path))} > rows.csv"
        ),
    ),
    _Kind(matches=_is_text, description=f"is text without rows; rows are read from {', '.join(SUFFIXES)} files"),
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
