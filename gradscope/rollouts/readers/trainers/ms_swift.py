"""ms-swift's ``completions.jsonl``: a line for each log call, every value a list with an element for each rollout.

Like TRL's files, a line holds the trainer's buffer: rollouts of a prompt are adjacent, and a batch that serves several
updates is written again at each. Rewards of all lines are held as arrays; texts are read back.

Legend: N rollouts of a step in a line, G group size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from gradscope.errors import InputError
from gradscope.rollouts.groups import GroupsOfTable, GroupsOnDisk, RolloutGroup
from gradscope.rollouts.readers.format import Format, has_row
from gradscope.rollouts.readers.generic import list_names
from gradscope.rollouts.readers.parsing.cells import (
    ABSENT,
    digest,
    is_number,
    usable_reward,
    whole_number,
)
from gradscope.rollouts.readers.parsing.quarantine import (
    TEXT_ONLY,
    LinesLog,
    QuarantineLog,
    WatchedLog,
    hidden_by,
)
from gradscope.rollouts.readers.parsing.records import assemble_groups
from gradscope.rollouts.readers.parsing.request import ReadRequest, read_trainer_settings
from gradscope.rollouts.readers.parsing.tables import files_like, located_rows, read_jsonl
from gradscope.rollouts.readers.reduction.columns import numbers_of
from gradscope.rollouts.readers.reduction.lines import Span
from gradscope.rollouts.readers.reduction.log import FileRow, StepSpans, read_back
from gradscope.rollouts.readers.trainers.trl_files import RowPrompts, text_id
from gradscope.rollouts.readers.trainers.trl_groups import (
    Block,
    group_size,
    groups_with_rows,
    named_reward_weights,
    scalar_rewards,
    table_of_blocks,
)
from gradscope.rollouts.run import Run, TrainerSettings
from gradscope.say import counted

_KEYS = ("step", "prompt", "completion", "advantages")  # the lists that every line has
_FILTERED = hidden_by("With dynamic_sample, ms-swift drops groups of equal rewards before it logs")
_holds_lists = has_row(lambda row: all(isinstance(row.get(key), list) for key in _KEYS))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
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


def _read(request: ReadRequest) -> Run:
    """Read ms-swift's log of completions."""
    files = _files(request.path)
    quarantine = WatchedLog(request.progress, files)
    settings = read_trainer_settings(request.run_config)
    weights: Mapping[str, float] | None = None
    inferred: tuple[str, ...] = ()
    batches: list[Block] = []
    repeats = 0
    before: dict[str, Sequence[Any]] | None = None
    lines, spans = quarantine.of_lines(), StepSpans()
    for number, file in enumerate(files):
        for row in located_rows(file, lines):
            for line in _lines_in(f"{file}:{row.number}", row.cells, lines):
                if weights is None:
                    weights, inferred = _weights(line, settings)
                content = line.content()
                if content == before:
                    repeats += 1
                    lines.held(-len(line.columns["step"]), num_lines=0)
                    continue
                before = content
                batches.append(_batch_of(line, weights))
                spans.add(number, row.number - 1, (), [Span(step=line.step, start=row.start, end=row.end, line=0)])
    if weights is None:
        raise InputError(f"{request.path} has no line of completions.", hint="Train with --log_completions true.")
    size, cut = group_size(batches, settings)
    for batch in batches:  # rows to which no function applies, or whose sum is too large, stay in their groups
        for at in np.flatnonzero(~np.isfinite(batch.rewards)).tolist():
            usable_reward(ABSENT if np.isnan(batch.rewards[at]) else math.inf, batch.location, quarantine)
    batches.sort(key=lambda batch: batch.step)
    table, counted_lines = table_of_blocks(batches, size), {(batch.location, batch.step) for batch in batches}

    def groups_of(rows: Iterable[FileRow], step: int | None) -> Sequence[RolloutGroup]:
        of_step: dict[int, list[Mapping[str, Any]]] = {}
        discarded = QuarantineLog().of_lines()
        for line in (line for file, (location, row) in rows for line in _lines_in(location, row, discarded)):
            if (line.location, line.step) in counted_lines and step in (None, line.step):
                cells = (
                    dict(zip(line.columns, of_row, strict=True)) for of_row in zip(*line.columns.values(), strict=True)
                )
                of_step.setdefault(line.step, []).extend(cells)
        return [group for step, rows in of_step.items() for group in groups_with_rows(table, step, rows, {})]

    on_disk = None if request.rewards_only else read_back(spans, files, read_jsonl, groups_of)
    return assemble_groups(
        request,
        groups=GroupsOfTable(table) if on_disk is None else GroupsOnDisk(table, on_disk),
        quarantine=quarantine,
        format="ms-swift",
        recognized=f"ms-swift completions, {counted(len(batches) + repeats, 'line')}",
        inferred=(
            *(*inferred, *cut),
            *([f"{counted(repeats, 'line')} that repeat the batch before them count once."] if repeats else []),
        ),
        missing=(_FILTERED, TEXT_ONLY),
        files=files,
    )


def _files(path: Path) -> tuple[Path, ...]:
    return files_like(path, "completions.jsonl")


def _lines_in(location: str, row: Mapping[str, Any], quarantine: LinesLog) -> Iterator[_Line]:
    """The log calls of a row, step by step: one line may hold the rollouts of several steps."""
    lists = {name: value for name, value in row.items() if isinstance(value, list)}
    size = len(lists.get("step", ()))
    columns = {name: value for name, value in lists.items() if len(value) == size}
    if not size or not all(key in columns for key in _KEYS):
        quarantine.add("step, prompt, completion and advantages are not lists of one length", location)
        return
    steps = _steps(columns["step"])
    if steps is None:
        quarantine.add("the step is not a whole number", location)
        return
    quarantine.held(size)
    different = dict.fromkeys(steps)
    for step in different:
        part = columns
        if len(different) > 1:
            chosen = [at for at in range(size) if steps[at] == step]
            part = {name: [cells[at] for at in chosen] for name, cells in columns.items()}
        yield _Line(location=location, step=step, columns=part)


def _steps(cells: Sequence[Any]) -> list[int] | None:
    """The steps of a line's rollouts; None where one is not a whole number."""
    number_of = {cell: whole_number(cell) for cell in set(cells)}.__getitem__ if _are_texts(cells) else whole_number
    steps = list(map(number_of, cells))
    return None if None in steps else cast("list[int]", steps)


def _are_texts(cells: Sequence[Any]) -> bool:
    return {str}.issuperset(map(type, cells))


def _weights(line: _Line, settings: TrainerSettings) -> tuple[dict[str, float], tuple[str, ...]]:
    """The reward functions and how they add up."""
    lists = {name: line.columns[name] for name in line.before_advantages if name not in _KEYS}
    names = [
        name
        for name, cells in lists.items()
        if any(map(is_number, cells)) and all(cell is None or is_number(cell) for cell in cells)
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
    return named_reward_weights(names, settings), ()


def _batch_of(line: _Line, weights: Mapping[str, float]) -> Block:
    absent = (None,) * len(line.columns["step"])
    functions = {name: numbers_of(line.columns.get(name, absent)) for name in weights}
    return Block(
        location=line.location,
        step=line.step,
        prompts=_prompts(line.columns["prompt"]),
        rewards=scalar_rewards(functions, weights),
        functions=functions,
        advantages=numbers_of(line.columns["advantages"]),
    )


def _prompts(prompts: Sequence[Any]) -> RowPrompts:
    if not _are_texts(prompts):
        return RowPrompts.of(prompts, np.arange(len(prompts)), digest)
    numbers = {prompt: number for number, prompt in enumerate(dict.fromkeys(prompts))}
    return RowPrompts.of(list(numbers), np.fromiter(map(numbers.__getitem__, prompts), np.int64), text_id)


FORMAT = Format(
    name="ms-swift",
    looks_for="completions.jsonl with a list a column (ms-swift)",
    recognizes=lambda request: any(map(_holds_lists, _files(request.path)[:1])),
    read=_read,
)
