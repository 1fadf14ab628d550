"""TRL's ``output_dir`` with ``log_completions=True``, and ms-swift's ``completions.jsonl``.

TRL's file of step N holds rollouts that the weights after N - 1 updates sampled. Nothing is read from
``training_args.bin``: it is a pickle. Prompts and completions are text; their ids are in a side file or a column, if
anywhere.

A line of ms-swift's is a log call, every value a list with an element for each rollout. Like TRL's files, it holds the
trainer's buffer: rollouts of a prompt are adjacent, and a batch that serves several updates is written again at each.
Rewards of all lines are held as arrays; texts are read back.

Legend: N rollouts of a step in a line, G group size.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import compress, count
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from gradscope.errors import InputError
from gradscope.results.source import BROKEN_ADVANTAGE
from gradscope.rollouts.event_file import event_files
from gradscope.rollouts.groups import (
    GroupsOfTable,
    GroupsOnDisk,
    RewardTable,
    RolloutGroup,
    completion_columns,
    num_used,
)
from gradscope.rollouts.readers.format import Format, has_row
from gradscope.rollouts.readers.parsing import cells as parse
from gradscope.rollouts.readers.parsing.quarantine import (
    TEXT_ONLY,
    QuarantineLog,
    WatchedLog,
    filter_caveat,
    refuse_quarantined,
)
from gradscope.rollouts.readers.parsing.records import ReadRequest, assemble_groups, list_names
from gradscope.rollouts.readers.parsing.settings import read_trainer_settings
from gradscope.rollouts.readers.parsing.tables import files_like, located_rows, read_jsonl, read_rows
from gradscope.rollouts.readers.reduction.lines import Span
from gradscope.rollouts.readers.reduction.log import FileRow, StepSpans, groups_on_disk
from gradscope.rollouts.readers.reduction.numbers import numbers_of, step_numbers
from gradscope.rollouts.readers.run_files import scalar_metrics, several_sources, table_metrics, tables_of_metrics
from gradscope.rollouts.readers.trainers import trl_files, trl_groups
from gradscope.rollouts.readers.trainers.trl_files import repeats
from gradscope.rollouts.run import Run, TrainerSettings, WeightsRef
from gradscope.rollouts.run_folder import find_checkpoints, find_tokenizer, with_initial
from gradscope.say import counted

NO_REWARD = "no reward function gave a finite number"
SHARED_NAME = "reward functions share a name, so that their sum is not known"
_TRAINER = re.compile(r"^This model was trained with ([A-Za-z0-9 +-]{1,40}?)[,.]", re.MULTILINE)
_TAGS = re.compile(r"^tags:\n((?:- .{1,40}\n)+)", re.MULTILINE)
_VERSION = re.compile(r"^- TRL: (\S+)$", re.MULTILINE)
VERSION = "trl_version"  # the setting with TRL's version
TRAINER = "trl_trainer"  # the setting with the name of the trainer, such as ``GRPO``
SideIds = Mapping[tuple[int, int], tuple[int, ...]]


def without_completions(path: Path) -> InputError:
    """Why a folder of TRL's has no table of completions, with what to do in the next run."""
    trainer, text = trainer_of(trl_files.run_of(path)), f"{path} holds no completions/completions_*.parquet"
    if trainer in (None, "GRPO"):
        return InputError(f"{text}.", hint="Train with GRPOConfig(log_completions=True), TRL 0.28 or newer.")
    return InputError(
        f"{text}, which GRPOTrainer writes: it was trained with {trainer}, as its README.md says.",
        hint="Log rollouts as JSON lines from a reward function in the next run; see the docs on logs.",
    )


def _read(request: ReadRequest) -> Run:
    run = trl_files.run_of(request.path)
    paths = trl_files.completion_files(request.path)
    if not paths:
        raise without_completions(request.path)
    quarantine = QuarantineLog()
    state, state_files, conflict = _logged(run, quarantine)
    settings = with_card(read_trainer_settings(request.run_config), run)
    files, errors = list[trl_files.StepFile](), list[InputError]()
    for path in paths:  # one after the other: threads wait for each other, and took longer on two cores
        try:
            files.append(trl_files.read_step_file(path, state.reward_names, in_full=request.measures_completions))
        except InputError as error:  # a damaged one does not affect other steps
            errors.append(error)
            quarantine.add_unreadable(error)
    if not files:
        raise errors[0]
    training, evaluation = trl_files.split_training(files, state, settings)
    if not training:
        text = f"Every file of completions in {request.path} holds evaluation rows."
        raise InputError(text, hint=trl_files.LOG_ELSEWHERE)
    functions = trl_groups.reward_weights(training, state, settings)
    side_ids = _side_ids(request, training)
    training, blocks = _whole_blocks(training, functions.weights, state, side_ids, settings, quarantine)
    sizes, cut = trl_groups.group_sizes(blocks, settings)
    table = trl_groups.table_of_blocks(blocks, sizes)
    # Rows without a reward, and others without a finite advantage, are counted and stay in their groups.
    reason = SHARED_NAME if any(map(math.isnan, functions.weights.values())) else NO_REWARD
    for file, block in zip(training, blocks, strict=True):
        lacks = ~np.isfinite(block.rewards)
        for row in np.flatnonzero(lacks | file.is_broken).tolist():
            quarantine.add(reason if lacks[row] else BROKEN_ADVANTAGE, f"{file.path}:{row + 1}")

    def read_step(step: int) -> list[RolloutGroup]:
        rows = [row for file in training if file.step == step for row in trl_files.rows_in(file.path)]
        ids = {row: ids for (side_step, row), ids in side_ids.items() if side_step == step}
        return trl_groups.groups_with_rows(table, step, rows, ids)

    groups = GroupsOfTable(table) if request.rewards_only else GroupsOnDisk(table, read_step)
    weights = _saved_weights(request, run)
    layout = "tables on W&B" if paths[0].suffix == ".json" else "output_dir"
    read_files = (*paths, *state_files, request.run_config, request.completion_ids)
    source = request.source(
        "trl",
        f"TRL {layout}, {counted(len(paths), 'file')} of completions",
        files=filter(None, read_files),
        num_rows=num_used(groups),
        inferred=(*functions.inferred, *cut, *_left_out(training, evaluation)),
        missing=(
            *functions.missing,
            *filter(None, (conflict,)),
            *_missing(state, settings.origin, table, weights["weights"]),
        ),
        quarantined=quarantine.result(),
    )
    return Run(
        path=request.path,
        source=source,
        groups=groups,
        metrics=state.metrics,
        unread_metrics=conflict,
        settings=settings,
        **weights,
        notes=trl_files.step_notes(training, evaluation, state, settings),
        windows=trl_files.windows(training, state),
        repeats=repeats(training, settings),
    )


def _saved_weights(request: ReadRequest, run: Path) -> dict[str, Any]:
    """The fields of a run that its checkpoints and the weights of ``--initial`` make."""
    damaged, base_of = dict[int, str](), request.base_of(run)
    weights = with_initial(find_checkpoints(run, base_of, damaged), request.initial, base_of)
    trained = (ref.path for ref in weights if ref.num_updates > 0)  # the trainer saves its tokenizer with each
    tokenizer = find_tokenizer(*trained, run, request.initial, *(ref.base for ref in weights), request.model)
    return {"weights": weights, "damaged_weights": damaged, "tokenizer": tokenizer}


def _logged(run: Path, quarantine: QuarantineLog) -> tuple[trl_files.TrlState, Sequence[Path | None], str]:
    """What was logged at each step, the files that say so, and why others, of which there are several, are not read."""
    state = trl_files.read_state(run)
    events = event_files(run) if state.path is None else []
    tables = tables_of_metrics(run) if state.path is None and not events else []
    tracked, conflict = tables[0] if len(tables) == 1 else None, several_sources("Metrics", "file", tables)
    if events:
        state = state.with_scalars(scalar_metrics(events, {}, quarantine))
    elif tracked is not None:
        state = state.with_scalars(table_metrics(tracked, quarantine))
    for file in state.damaged:
        quarantine.add_unreadable(InputError(f"{file} is damaged: what it logged is not known.", hint="Copy it again."))
    return state, (*events, tracked, state.path), conflict


def _whole_blocks(
    files: Sequence[trl_files.StepFile],
    weights: Mapping[str, float],
    state: trl_files.TrlState,
    side_ids: SideIds,
    settings: TrainerSettings,
    quarantine: QuarantineLog,
) -> tuple[list[trl_files.StepFile], list[trl_groups.Block]]:
    """The files whose rows come in groups of one prompt, and their blocks; the others are set aside."""
    blocks = [_block(file, weights, state, side_ids) for file in files]
    uncut = set(trl_groups.uncut(blocks, settings))
    for index in sorted(uncut):
        quarantine.add_unreadable(
            InputError(
                f"{files[index].path} is left out: its rows do not come in groups of one prompt, so that some were "
                "lost, doubled or exchanged.",
                hint="Copy it again.",
            )
        )
    pairs = [pair for index, pair in enumerate(zip(files, blocks, strict=True)) if index not in uncut]
    return [file for file, _ in pairs], [block for _, block in pairs]


def _block(
    file: trl_files.StepFile, weights: Mapping[str, float], state: trl_files.TrlState, side_ids: SideIds
) -> trl_groups.Block:
    share = state.metrics.get(file.step, {}).get("frac_reward_zero_std")
    functions = {name: file.numbers_of(name) for name in weights}
    lengths = [len(side_ids.get((file.step, index), ())) for index in range(file.size)] if side_ids else 0
    return trl_groups.Block(
        location=str(file.path),
        step=file.step,
        prompts=file.prompts,
        rewards=trl_groups.scalar_rewards(functions, weights),
        functions=functions,
        advantages=file.numbers["advantage"],
        logged_share=parse.finite_or_none(share) if state.window(file.step) == 1 else None,
        num_tokens=np.where(lengths, lengths, file.num_tokens),
        completions=file.completions,
    )


def _side_ids(request: ReadRequest, files: Sequence[trl_files.StepFile]) -> SideIds:
    """(step, row) -> token ids, from the side file with columns ``step``, ``row`` and ``completion_ids``."""
    path, quarantine = request.completion_ids, QuarantineLog()
    if path is None:
        return {}
    if not path.is_file():
        raise InputError(f"There is no file {path}.", hint="--completion-ids takes a Parquet or JSONL file.")
    side_ids: dict[tuple[int, int], tuple[int, ...]] = {}
    for location, row in read_rows(path, quarantine):
        step, number = parse.whole_number(row.get("step")), parse.whole_number(row.get("row"))
        ids = parse.token_ids(row.get("completion_ids"))
        if step is None or number is None or ids is None:
            raise InputError(
                f"{location} does not hold step, row and completion_ids.",
                hint="Each row names a step, a row within the step counted from 0, and a list of token ids.",
            )
        if (step, number) in side_ids:
            quarantine.add("step and row were there before", location)
        side_ids[step, number] = ids
    refuse_quarantined(quarantine.result())
    sizes = {file.step: file.size for file in files}
    if side_ids and not any(row < sizes.get(step, 0) for step, row in side_ids):
        raise InputError(
            f"No row of {path} belongs to {request.path}.",
            hint="Its step and row (from 0, in the order of the log) must be those of the run.",
        )
    return side_ids


def _left_out(training: Sequence[trl_files.StepFile], evaluation: Sequence[trl_files.StepFile]) -> Iterator[str]:
    if evaluation:
        steps = ", ".join(str(file.step) for file in evaluation)
        yield f"Files with evaluation rows, because the trainer evaluated at their step, are left out: {steps}."
    pairs = ", ".join(f"{repeat} repeats {file.step}" for file in training for repeat in file.repeated_at)
    if pairs:
        yield f"A batch that serves several updates is logged at each of them; it counts once (step {pairs})."


def _missing(
    state: trl_files.TrlState, settings_origin: str | None, table: RewardTable, weights: Sequence[WeightsRef]
) -> Iterator[str]:
    if state.path is None and not state.damaged and not state.metrics:
        yield (
            "There is no trainer_state.json: logged metrics are unknown, and evaluation files cannot be told from "
            "training files."
        )
    if state.path is not None and np.any(table.step > state.last_step):
        yield f"{state.path} ends at step {state.last_step}; nothing is known of what was logged after it."
    if settings_origin is None:
        yield "The trainer's arguments are in a pickle, which is never opened: give them with --run-config."
    if table.num_tokens is None or not np.any(table.num_tokens > 0):
        yield (
            "Completions are text without token ids: they are re-tokenized where a model runs. A reward function can "
            'log them: log_extra("completion_ids", [list(map(int, c)) for c in completion_ids]).'
        )
    if not any(ref.num_updates == 0 for ref in weights):
        yield "The weights before the first update are not in the folder: give them with --initial, as to `rank`."


def _named(pattern: re.Pattern[str], run: Path) -> str | None:
    for card in (run / "README.md", *sorted(run.glob("checkpoint-*/README.md"))):
        match = pattern.search(card.read_text(encoding="utf-8", errors="replace")) if card.is_file() else None
        if match:
            return match[1]
    return None


def trainer_of(run: Path) -> str | None:
    """The trainer in a run's model card, such as ``GRPO``; None without a card, or where it names none."""
    # a subclass of GRPOTrainer inherits the sentence "trained with GRPO" and has a tag of its own, such as gmpo
    trainer, tags = _named(_TRAINER, run), (_named(_TAGS, run) or "").replace("- ", "").split("\n")
    trainer_tags = [tag for tag in tags if tag and tag not in ("generated_from_trainer", "trl")]
    return trainer_tags[0].upper() if trainer == "GRPO" and trainer_tags and "grpo" not in trainer_tags else trainer


def with_card(settings: TrainerSettings, run: Path) -> TrainerSettings:
    """The settings with version and trainer of the model card, unless they have them."""
    card = {VERSION: _named(_VERSION, run), TRAINER: trainer_of(run)}
    new = {name: value for name, value in card.items() if value is not None and name not in settings.values}
    return settings.with_values(new) if new else settings


FORMAT = Format(
    name="trl",
    recognizes=lambda request: bool(trl_files.completion_files(request.path) or trl_files.state_files(request.path)),
    read=_read,
    takes=frozenset({"completion_ids"}),
)

_SWIFT_LOG = "completions.jsonl"
_SWIFT_KEYS = ("step", "prompt", "completion", "advantages")  # the lists that every line has
_SWIFT_FILTERED = filter_caveat("With dynamic_sample, ms-swift drops groups of equal rewards before it logs")
_holds_lists = has_row(lambda row: _swift_lists(row).keys() >= set(_SWIFT_KEYS))


def _swift_lists(row: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The lists of a row, with the step under one name: ms-swift's trainer on Megatron calls it ``gen_step``."""
    return {"step" if name == "gen_step" else name: value for name, value in row.items() if isinstance(value, list)}


class _Line(Struct, frozen=True, kw_only=True):
    """The rollouts of one log call at one step."""

    location: str  # ``file:line``
    step: int  # the step
    columns: Mapping[str, Sequence[Any]]  # its lists by key, in order, [N] each

    @property
    def before_advantages(self) -> list[str]:
        names = list(self.columns)
        return names[: names.index("advantages")]

    def content(self) -> dict[str, Sequence[Any]]:
        """The columns that are equal in a repeated batch; those after the advantages (entropy, ...) may differ."""
        return {name: self.columns[name] for name in (*self.before_advantages, "advantages") if name != "step"}


def _read_swift(request: ReadRequest) -> Run:
    files = files_like(request.path, _SWIFT_LOG)
    quarantine = WatchedLog(request.progress, files)
    settings = read_trainer_settings(request.run_config)
    weights: Mapping[str, float] | None = None
    inferred: tuple[str, ...] = ()
    batches: list[trl_groups.Block] = []
    repeats = 0
    before: dict[str, Sequence[Any]] | None = None
    lines, spans = quarantine.for_lines(), StepSpans()
    for number, file in enumerate(files):
        for line_number, start, end, cells in located_rows(file, lines):
            for line in _lines_in(f"{file}:{line_number}", cells, lines):
                if weights is None:
                    weights, inferred = _swift_weights(line, settings)
                content = line.content()
                if content == before:
                    repeats += 1
                    lines.count_rollouts(-len(line.columns["step"]), num_lines=0)
                    continue
                before = content
                batch = _batch_of(line, weights, in_full=request.measures_completions)
                batches.append(batch)
                # Rows to which no function applies, or whose sum or advantage is not finite, stay in their groups.
                for index in np.flatnonzero(~np.isfinite(batch.rewards + batch.advantages)).tolist():
                    if not math.isfinite(reward := batch.rewards[index]):
                        reason = str(parse.parse_reward(parse.ABSENT if math.isnan(reward) else math.inf))
                        quarantine.add(reason, line.location)
                    elif parse.is_not_finite(line.columns["advantages"][index]):
                        quarantine.add(BROKEN_ADVANTAGE, line.location)
                spans.add(number, line_number - 1, (), [Span(step=line.step, start=start, end=end, line=0)])
    if weights is None:
        raise InputError(f"{request.path} has no line of completions.", hint="Train with --log_completions true.")
    sizes, cut = trl_groups.group_sizes(batches, settings)
    sized = sorted(zip(batches, sizes, strict=True), key=lambda pair: pair[0].step)
    table = trl_groups.table_of_blocks(*zip(*sized, strict=True))
    counted_lines = {(batch.location, batch.step) for batch in batches}

    def groups_of(rows: Iterable[FileRow], step: int | None) -> Sequence[RolloutGroup]:
        by_step: dict[int, list[Mapping[str, Any]]] = {}
        discarded = QuarantineLog().for_lines()
        for line in (line for file, (location, row) in rows for line in _lines_in(location, row, discarded)):
            if (line.location, line.step) in counted_lines and step in (None, line.step):
                cells = zip(*line.columns.values(), strict=True)
                by_step.setdefault(line.step, []).extend(dict(zip(line.columns, row, strict=True)) for row in cells)
        return [group for step, rows in by_step.items() for group in trl_groups.groups_with_rows(table, step, rows, {})]

    return assemble_groups(
        request,
        request.source(
            "ms-swift",
            f"ms-swift completions, {counted(len(batches) + repeats, 'line')}",
            files=files,
            inferred=(
                *(*inferred, *cut),
                *([f"{counted(repeats, 'line')} that repeat the batch before them count once."] if repeats else []),
            ),
            missing=(_SWIFT_FILTERED, TEXT_ONLY),
        ),
        groups=GroupsOfTable(table)
        if request.rewards_only
        else groups_on_disk(table, spans, files, read_jsonl, groups_of),
        quarantine=quarantine,
    )


def _lines_in(location: str, row: Mapping[str, Any], quarantine: QuarantineLog) -> Iterator[_Line]:
    """The log calls of a row, step by step: one line may hold the rollouts of several steps."""
    lists = _swift_lists(row)
    size = len(lists.get("step", ()))
    columns = {name: value for name, value in lists.items() if len(value) == size}
    if not size or not all(key in columns for key in _SWIFT_KEYS):
        quarantine.add("step, prompt, completion and advantages are not lists of one length", location)
        return
    steps = step_numbers(columns["step"])
    if steps.min() < 0:
        quarantine.add("the step is not a whole number", location)
        return
    quarantine.count_rollouts(size)
    different = steps[:1].tolist() if (steps == steps[0]).all() else list(dict.fromkeys(steps.tolist()))
    for step in different:
        part = columns
        if len(different) > 1:
            part = {name: list(compress(cells, (steps == step).tolist())) for name, cells in columns.items()}
        yield _Line(location=location, step=step, columns=part)


def _swift_weights(line: _Line, settings: TrainerSettings) -> tuple[dict[str, float], tuple[str, ...]]:
    lists = {name: line.columns[name] for name in line.before_advantages if name not in _SWIFT_KEYS}
    names = [
        name
        for name, cells in lists.items()
        if any(map(parse.is_number, cells)) and all(cell is None or parse.is_number(cell) for cell in cells)
    ]
    if not names:
        raise InputError(
            f"{line.location} has no list of rewards before `advantages`; its lists are {list_names(line.columns)}.",
            hint="ms-swift writes one list a reward function.",
        )
    if settings.get("reward_weights") is None:
        equal = "" if len(names) == 1 else " with weight 1 each (give reward_weights with --run-config)"
        return dict.fromkeys(names, 1.0), (
            f"The reward is the sum of the lists before `advantages`: {', '.join(names)}{equal}.",
        )
    return trl_groups.named_reward_weights(names, settings), ()


def _batch_of(line: _Line, weights: Mapping[str, float], *, in_full: bool) -> trl_groups.Block:
    absent = (None,) * len(line.columns["step"])
    functions = {name: numbers_of(line.columns.get(name, absent)) for name in weights}
    prompts, are_texts = line.columns["prompt"], {str}.issuperset(map(type, line.columns["prompt"]))
    numbers = defaultdict[str, int](count().__next__)
    prompt_index = np.fromiter(map(numbers.__getitem__, prompts), np.int64) if are_texts else np.arange(len(prompts))
    different, id_of = (list(numbers), parse.prompt_text_id) if are_texts else (prompts, parse.digest)
    is_measured = in_full and trl_files.TOKEN_COLUMNS.isdisjoint(line.columns)
    return trl_groups.Block(
        location=line.location,
        step=line.step,
        prompts=trl_files.RowPrompts.from_distinct(different, prompt_index, id_of),
        rewards=trl_groups.scalar_rewards(functions, weights),
        functions=functions,
        advantages=numbers_of(line.columns["advantages"]),
        completions=completion_columns(list(map(parse.text_of, line.columns["completion"]))) if is_measured else {},
    )


MS_SWIFT = Format(
    name="ms-swift",
    recognizes=lambda request: any(map(_holds_lists, files_like(request.path, _SWIFT_LOG)[:1])),
    read=_read_swift,
)
