"""TRL's files of completions and its trainer's log: which files hold training rollouts, and of which updates.

The trainer writes its buffer whenever it logs. So an evaluation overwrites the file of its step, a batch that serves
several updates is written again at each of them, and a file after several unlogged steps holds the last batch only.
Shapes: N rows of a file.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from gradscope.errors import InputError
from gradscope.outside.plain_json import read_json
from gradscope.reason import Reason
from gradscope.rollouts.arrays import Counts, Flags, Floats, dictionary_codes, to_filled, to_numpy
from gradscope.rollouts.groups import UNKNOWN, completion_columns
from gradscope.rollouts.listing import natural
from gradscope.rollouts.readers.parsing import cells as parse
from gradscope.rollouts.readers.parsing.columnar import open_parquet, read_parquet, table_in
from gradscope.rollouts.readers.parsing.tables import table_rows
from gradscope.rollouts.readers.reduction.numbers import arrow_numbers
from gradscope.rollouts.run import TrainerSettings

_REQUIRED = ("step", "prompt", "completion", "advantage")
_IDS = "completion_ids"
_COMPLETIONS, _SAVED = "completions_*.parquet", "completions_*.table.json"  # the latter in W&B's folder of a run
TOKEN_COLUMNS = frozenset({_IDS, "old_per_token_logps"})  # columns for which rollouts are read back, one by one
_EVAL_PREFIX = "eval_"
_FUNCTION_MEAN = re.compile("rewards/(.*)/mean")


class RowPrompts(Struct, frozen=True, kw_only=True):
    """The prompts of rows, each distinct one once."""

    ids: tuple[str, ...]
    texts: tuple[str, ...]
    index: Counts  # the index of each row's prompt in ``ids``, [N]

    @classmethod
    def from_distinct(cls, different: Sequence[Any], index: Counts, id_of: Callable[[Any], str]) -> RowPrompts:
        """From different prompts, several of which may have the same id, and the index of each row's prompt, [N]."""
        ids = list(map(id_of, different))
        if len(set(ids)) == len(ids):
            return cls(ids=tuple(ids), texts=tuple(map(parse.text_of, different)), index=index)
        texts = {name: parse.text_of(prompt) for name, prompt in zip(reversed(ids), reversed(different), strict=True)}
        numbers = {name: number for number, name in enumerate(dict.fromkeys(ids))}
        indices = np.array([numbers[name] for name in ids], dtype=np.int64)
        return cls(ids=tuple(numbers), texts=tuple(texts[name] for name in numbers), index=indices[index])

    def __len__(self) -> int:
        return len(self.index)


class StepFile(Struct, frozen=True, kw_only=True):
    """One file of training rollouts, without its completions."""

    path: Path  # the file
    step: int  # the step it was first written at
    columns: tuple[str, ...]  # column names in order
    doubles: tuple[str, ...]  # names of the columns of type double, in order
    prompts: RowPrompts  # the prompts of its rows, text or messages
    numbers: Mapping[str, Floats]
    """The numbers of the advantage, of doubles and of reward functions; NaN where a cell has no finite number, [N]
    each."""
    lacking: frozenset[str]  # the columns among them with an empty cell
    is_broken: Flags  # where the advantage is a number but not a finite one, [N]
    num_tokens: Counts  # tokens of each completion, -1 where its ids were not logged, [N]
    repeated_at: tuple[int, ...] = ()  # later steps at which the same batch was written again
    completions: Mapping[str, Counts] = {}  # what was measured of their texts, [N] each

    @property
    def size(self) -> int:
        """The number of rows, N."""
        return len(self.num_tokens)

    def numbers_of(self, column: str) -> Floats:
        """A column of ``numbers``; all NaN where the file lacks it, [N]."""
        return self.numbers[column] if column in self.numbers else np.full(self.size, math.nan)

    def lacks(self, column: str) -> bool:
        """Whether a column is missing or has an empty cell."""
        return column not in self.numbers or column in self.lacking


def read_step_file(path: Path, functions: Sequence[str] = (), *, in_full: bool = False) -> StepFile:
    """Read a file of completions, whose texts are measured ``in_full``.

    Raises:
        InputError: It is damaged, lacks a column, is empty, or holds several steps.
    """
    saved = _saved_table(path) if path.suffix == ".json" else None
    if saved is None:
        with open_parquet(path) as file:
            schema = file.schema_arrow
    else:
        schema = saved.schema
    types = dict(zip(schema.names, schema.types, strict=True))
    absent = [name for name in _REQUIRED if name not in types]
    if absent:
        raise InputError(
            f"{path} lacks the column{'s' * (len(absent) > 1)} {', '.join(absent)} that TRL writes.",
            hint="Nothing to do: it is of DistillationTrainer, which has no rewards."
            if types.keys() == {"step", "prompt", "completion"}
            else "Use --reader generic and name the columns.",
        )
    doubles = tuple(name for name, kind in types.items() if pa.types.is_floating(kind))
    numeric = [name for name in types if name in ("advantage", *functions, *doubles)]
    is_measured = in_full and TOKEN_COLUMNS.isdisjoint(types)
    read = {"step", "prompt", _IDS, *numeric, *(["completion"] if is_measured else [])}
    is_text = pa.types.is_string(types["prompt"]) or pa.types.is_large_string(types["prompt"])
    if saved is None:
        with open_parquet(path, read_dictionary=["prompt"] if is_text else None) as file:
            cells = table_in(path, file, excluded=types.keys() - read)
    else:
        cells = saved.select([name for name in types if name in read])
    if not len(cells):
        hint = "Look at its dataset: prompts that are fewer than those of a step are left out."
        raise InputError(f"{path} holds no rollouts: the training ended before its first step.", hint=hint)
    steps = cells["step"].unique().to_pylist() if pa.types.is_integer(types["step"]) else []
    if len(steps) != 1 or steps[0] is None:
        raise InputError(f"{path} does not hold one step, as TRL writes it.", hint="Use --reader generic.")
    numbers = {name: arrow_numbers(cells[name].combine_chunks()) for name in numeric}
    texts = list(map(parse.text_of, cells["completion"].to_pylist())) if is_measured else []
    is_broken = np.isnan(numbers["advantage"])
    if is_broken.any():
        is_broken = np.array(list(map(parse.is_not_finite, cells["advantage"].to_pylist())), dtype=np.bool_)
    return StepFile(
        path=path,
        step=steps[0],
        columns=tuple(types),
        doubles=doubles,
        prompts=_prompts(cells["prompt"].combine_chunks()),
        numbers=numbers,
        lacking=frozenset(name for name in numeric if cells[name].null_count),
        is_broken=is_broken,
        num_tokens=_num_tokens(cells[_IDS]) if _IDS in types else np.full(len(cells), UNKNOWN),
        completions=completion_columns(texts) if is_measured else {},
    )


def _saved_table(path: Path) -> pa.Table:
    """The table of completions that TRL logs to W&B, with steps as numbers; of a broken row nothing but null."""
    rows: Sequence[Any] = ()
    with suppress(ValueError):
        rows = table_rows(parse.mapping_of(read_json(path))) or ()
    names = next((tuple(row) for row in rows if isinstance(row, dict)), ())
    if not names:
        hint = "Copy the file again, or use --reader generic."
        raise InputError(f"{path} is no table of completions, as TRL logs it to W&B.", hint=hint)
    columns = {name: [parse.mapping_of(row).get(name) for row in rows] for name in names}
    return pa.table({_as_utf8(name): _saved_cells(name, cells) for name, cells in columns.items()})


def _saved_cells(name: str, cells: Sequence[Any]) -> pa.Array:
    if name == "step":
        steps = list(map(parse.step_number, cells))
        first = next((step for step in steps if step is not None), None)  # a file has one, also of a row without
        return pa.array([first if step is None else step for step in steps], pa.int64())
    numbers = list(map(parse.logged_number, cells)) if name not in _REQUIRED or name == "advantage" else []
    if any(number is not None for number in numbers):
        return pa.array(numbers, pa.float64())
    return pa.array([_as_utf8(parse.text_of(cell)) for cell in cells], pa.string())


def _as_utf8(text: str) -> str:
    """Text without half a surrogate pair, which Arrow cannot hold."""
    return text.encode(errors="replace").decode()


def rows_in(path: Path, *, excluded: Container[str] = ()) -> list[dict[str, Any]]:
    """The rows of a file of completions, but for some columns."""
    table = read_parquet(path, excluded=excluded) if path.suffix == ".parquet" else _saved_table(path)
    rows: list[dict[str, Any]] = table.select([name for name in table.column_names if name not in excluded]).to_pylist()
    return rows


def _num_tokens(column: pa.ChunkedArray) -> Counts:
    if pa.types.is_list(column.type) and pa.types.is_integer(column.type.value_type):
        lists = column.combine_chunks()
        if not lists.flatten().null_count:
            return to_filled(lists.value_lengths(), UNKNOWN).astype(np.int64)
    ids = map(parse.token_ids, column.to_pylist())
    return np.array([UNKNOWN if ids_of_row is None else len(ids_of_row) for ids_of_row in ids], dtype=np.int64)


def _prompts(column: pa.Array) -> RowPrompts:
    if pa.types.is_dictionary(column.type):
        codes = dictionary_codes(column)
        if not np.bincount(codes + 1, minlength=len(column.dictionary) + 1)[1:].all() or codes.min() < 0:
            column = column.cast(column.type.value_type).dictionary_encode(null_encoding="encode")
            codes = to_numpy(column.indices)
        return RowPrompts.from_distinct(column.dictionary.to_pylist(), codes, parse.prompt_text_id)
    return RowPrompts.from_distinct(column.to_pylist(), np.arange(len(column)), parse.prompt_text_id)


def completion_files(path: Path) -> tuple[Path, ...]:
    """The files of completions, by step, of an ``output_dir``, its ``completions`` folder, or one file."""
    if path.is_file():
        return (path,) if any(map(path.match, (_COMPLETIONS, _SAVED))) else ()
    files = [*path.glob(f"completions/{_COMPLETIONS}"), *path.glob(_COMPLETIONS)]
    wandb_files = (path.glob(below + _SAVED) for below in ("", "media/table/", "files/media/table/"))
    files = files or list(chain.from_iterable(wandb_files))
    return tuple(sorted(files, key=natural))


def run_of(path: Path) -> Path:
    """The ``output_dir`` of a path that :func:`completion_files` accepts."""
    folder = path.parent if path.is_file() else path
    return folder.parent if folder.name == "completions" else folder


class TrlState(Struct, frozen=True, kw_only=True):
    """The trainer's log."""

    path: Path | None = None  # the file; None where the run has none
    last_step: int = 0  # the log ends at this step
    metrics: Mapping[int, Mapping[str, float]] = {}  # step -> metrics of training
    eval_steps: frozenset[int] = frozenset()
    """Steps at which an evaluation was logged: it overwrites the step's file of completions."""
    damaged: tuple[Path, ...] = ()  # unreadable state files that may have reached further than this one

    @property
    def reward_names(self) -> tuple[str, ...]:
        """Names of the reward functions, as the trainer logged their means."""
        keys = dict.fromkeys(key for metrics in self.metrics.values() for key in metrics)
        return tuple(mean[1] for mean in map(_FUNCTION_MEAN.fullmatch, keys) if mean)

    def with_scalars(self, scalars: Mapping[int, Mapping[str, float]]) -> TrlState:
        """The state with what the trainer wrote for TensorBoard or trackio, step -> tag -> value."""
        by_mode: dict[str, dict[int, dict[str, float]]] = {}
        for step, tags in scalars.items():
            for tag, value in tags.items():
                mode, _, name = tag.partition("/")
                by_mode.setdefault(mode, {}).setdefault(step, {})[name] = value
        return replace(self, metrics=by_mode.get("train", {}), eval_steps=frozenset(by_mode.get("eval", ())))

    def window(self, step: int) -> int:
        """Over how many steps the trainer averaged the metrics of a step; 0 where it logged none."""
        if step not in self.metrics:
            return 0
        return step - max((logged for logged in self.metrics if logged < step), default=0)


def state_files(run: Path) -> list[Path]:
    """The states that a trainer left in a folder, and in its checkpoints."""
    return sorted([*run.glob("trainer_state.json"), *run.glob("checkpoint-*/trainer_state.json")])


def read_state(run: Path) -> TrlState:
    """The state that reaches furthest, of the root and the checkpoints of TRL's ``output_dir``."""
    states: list[tuple[int, Path, dict[str, Any]]] = []
    damaged: list[Path] = []
    for path in state_files(run):
        try:
            document = read_json(path)
            _metrics_of(document)
            states.append((_step_of(document, "global_step"), path, document))
        except (InputError, OSError, ValueError, KeyError, TypeError, AttributeError):
            damaged.append(path)
    if not states:
        return TrlState(damaged=tuple(damaged))
    last_step, path, document = max(states, key=lambda entry: entry[0])
    steps = {path: parse.whole_number(path.parent.name.removeprefix("checkpoint-")) for path in damaged}
    damaged = [path for path, step in steps.items() if step is None or step > last_step]
    return TrlState(
        path=path,
        last_step=last_step,
        metrics=_metrics_of(document),
        eval_steps=frozenset(_step_of(entry, "step") for entry in document["log_history"] if _is_eval(entry)),
        damaged=tuple(damaged),
    )


def _metrics_of(document: Mapping[str, Any]) -> dict[int, dict[str, float]]:
    metrics: dict[int, dict[str, float]] = {}
    for entry in document["log_history"]:
        if _is_eval(entry):
            continue
        step, logged = _step_of(entry, "step"), parse.logged_numbers(entry)
        logged.pop("step", None)
        # null where the function scored no rollout
        logged |= {name: math.nan for name, cell in entry.items() if cell is None and _FUNCTION_MEAN.fullmatch(name)}
        metrics[step] = {**logged, **metrics.get(step, {})}
    for entry in filter(_is_eval, document["log_history"]):  # next to what was logged of training, whose steps count
        metrics.get(_step_of(entry, "step"), {}).update(
            (name, value) for name, value in parse.logged_numbers(entry).items() if name.startswith(_EVAL_PREFIX)
        )
    return metrics


def _step_of(entry: Mapping[str, Any], key: str) -> int:
    step = entry[key]
    if type(step) is not int or parse.whole_number(step) is None:
        raise ValueError(f"{key} is {str(step)[:40]!r}, which is no step")
    return step


def _is_eval(entry: Mapping[str, Any]) -> bool:
    return any(name.startswith(_EVAL_PREFIX) for name in entry)


def split_training(
    files: Sequence[StepFile], state: TrlState, settings: TrainerSettings
) -> tuple[list[StepFile], list[StepFile]]:
    """Separate training rollouts from evaluation.

    A repeat has the same rows and, in the trainer's log, no reward: rewards are logged when a batch is sampled. Where
    the trainer evaluated since, files have the evaluation's rows, but the previous batch still served their steps. The
    reward of several steps does not tell when; the batch may then be as old as the arguments let it be.

    Returns:
        The files of training rollouts, repeats merged into the first, and the files of evaluation rows.
    """
    training: list[StepFile] = []
    evaluation: list[StepFile] = []
    sampled_at = sorted(step for step, logged in state.metrics.items() if "reward" in logged)
    eval_steps = sorted(state.eval_steps)
    for file in files:
        is_reuse = bool(training) and "reward" not in state.metrics.get(file.step, {})
        last = bisect_right(sampled_at, file.step) - 1 if file.step in state.metrics else -1
        sampled_since = sampled_at[last] if last >= 0 else file.step
        if sampled_since == file.step in state.metrics:
            sampled_since -= min(state.window(sampled_since), settings.updates_per_batch) - 1
        is_evaluation = file.step in state.eval_steps
        if is_evaluation or bisect_left(eval_steps, sampled_since) < bisect_left(eval_steps, file.step):
            evaluation.append(file)
            is_next = is_reuse and file.step == max((training[-1].step, *training[-1].repeated_at)) + 1
            repeats_last = is_next and file.step in state.metrics
        elif not (repeats_last := is_reuse and _same_rows(training[-1], file)):
            training.append(file)
        if repeats_last:
            training[-1] = replace(training[-1], repeated_at=(*training[-1].repeated_at, file.step))
    return sorted(training, key=lambda file: file.step), evaluation


def _same_rows(first: StepFile, second: StepFile) -> bool:
    """Whether two files hold the same rows; texts are compared only where all numbers are the same."""
    if first.columns != second.columns or first.prompts.ids != second.prompts.ids or first.size != second.size:
        return False
    are_same = (np.array_equal(first.numbers_of(key), second.numbers_of(key), equal_nan=True) for key in first.numbers)
    if not all(are_same):
        return False
    rows = (map(repr, rows_in(file.path, excluded={"step"})) for file in (first, second))
    return len(set(map(tuple, rows))) == 1


def _micro_batches(settings: TrainerSettings) -> tuple[int, int] | None:
    """Micro-batches of a generation batch and of an update; None where the arguments lack these."""
    generation, update = settings.get("steps_per_generation"), settings.get("gradient_accumulation_steps")
    return (generation, update) if isinstance(generation, int) and isinstance(update, int) and update >= 1 else None


def step_notes(
    training: Sequence[StepFile], evaluation: Sequence[StepFile], state: TrlState, settings: TrainerSettings
) -> dict[int, Reason]:
    """Step -> why a file's rollouts are not, or may not be, those of its update; steps without doubt are absent."""
    batches = _micro_batches(settings)
    note, (generation, update) = None, batches or (0, 0)
    if generation > update:
        text = (
            f"One generation serves {generation} micro-batches and an update takes {update}: the update of this step "
            "saw a part of these rollouts, and the log does not say which"
        )
        note = Reason("batch_split", text)
    elif generation < update:
        text = (
            f"An update takes {update} micro-batches and one generation serves {generation}: the file holds the last "
            "generation of this step only"
        )
        note = Reason("rollouts_missing", text)
    notes = {file.step: _guess(file, state) if batches is None else note for file in training}
    served = {step for file in training for step in file.repeated_at}
    notes |= {file.step: _OVERWRITTEN for file in evaluation if file.step in state.metrics and file.step not in served}
    return {step: note for step, note in notes.items() if note is not None}


LOG_ELSEWHERE = "Log at steps without an evaluation: with eval_steps above logging_steps there are some."
_OVERWRITTEN = Reason(
    "rollouts_missing", "an evaluation wrote its own rows over the rollouts of this step", hint=LOG_ELSEWHERE
)


def windows(files: Sequence[StepFile], state: TrlState) -> dict[int, int]:
    """Step -> over how many steps its metrics are means, where that is more than one."""
    widths = {step: state.window(step) for file in files for step in (file.step, *file.repeated_at)}
    return {step: width for step, width in widths.items() if width > 1}


def repeats(files: Sequence[StepFile], settings: TrainerSettings) -> dict[int, int]:
    """Step -> the step whose batch its update used again, all of it, where the arguments say so."""
    batches = _micro_batches(settings)
    if batches is None or len(set(batches)) > 1:
        return {}
    return {step: file.step for file in files for step in file.repeated_at}


def _guess(file: StepFile, state: TrlState) -> Reason | None:
    """Without arguments, a note where a batch seems to have served several updates, split, repeated, or both."""
    unknown = "without steps_per_generation it is not known whether each update saw all of it or a part"
    if file.step in state.metrics and "reward" not in state.metrics[file.step]:
        sampled = "The trainer logged no reward at this step: the batch was sampled for an earlier update;"
        return Reason("settings_unknown", f"{sampled} {unknown}")
    if file.repeated_at:
        steps = ", ".join(map(str, file.repeated_at))
        return Reason("settings_unknown", f"The batch also served step {steps}; {unknown}")
    return None
