"""ms-swift's ``completions.jsonl``: one line a log call, every value a list with an element a rollout.

Like TRL's files, a line holds what the trainer's buffer held: rollouts of a prompt stand side by side, and a batch that
serves several updates is written again at each. Rewards of all lines are held as arrays; texts are read back.

Legend: N rollouts of a step in a line, G group size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradscope.errors import InputError
from gradscope.rollouts.groups import GroupsOfTable, GroupsOnDisk, RewardTable, RolloutGroup, group_name
from gradscope.rollouts.readers.flat.columns import list_names
from gradscope.rollouts.readers.format import Format
from gradscope.rollouts.readers.parsing.cells import (
    ABSENT,
    digest,
    finite_or_none,
    is_number,
    text_of,
    usable_reward,
    whole_number,
)
from gradscope.rollouts.readers.parsing.jsonl import placed_rows, read_jsonl
from gradscope.rollouts.readers.parsing.quarantine import (
    TEXT_ONLY,
    LinesLog,
    QuarantineLog,
    WatchedLog,
    counted,
    hidden_by,
)
from gradscope.rollouts.readers.parsing.records import Record, assemble_groups, build_groups
from gradscope.rollouts.readers.parsing.request import ReadRequest, read_trainer_settings
from gradscope.rollouts.readers.parsing.tables import files_like
from gradscope.rollouts.readers.reduction.columns import numbers_of
from gradscope.rollouts.readers.reduction.lines import Span
from gradscope.rollouts.readers.reduction.log import FileRow, read_back
from gradscope.rollouts.readers.reduction.spans import StepSpans
from gradscope.rollouts.readers.trl.files import RowPrompts, text_id
from gradscope.rollouts.readers.trl.groups import Block, group_size, prompts_of_groups, scalar_rewards
from gradscope.rollouts.run import Run, TrainerSettings

_KEYS = ("step", "prompt", "completion", "advantages")
"""The lists that every line has."""
_FILTERED = hidden_by("With dynamic_sample, ms-swift drops groups of equal rewards before it logs")
_NUM_PEEKED = 50
"""Lines that are looked at until one is of this format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """The rollouts of one log call at one step."""

    path: Path
    """Its file."""
    location: str
    """``file:line``."""
    step: int
    """The step."""
    columns: Mapping[str, Sequence[Any]]
    """Its lists by key, in order, [N] each."""

    @property
    def before_advantages(self) -> list[str]:
        names = list(self.columns)
        return names[: names.index("advantages")]

    def content(self) -> dict[str, Sequence[Any]]:
        """What a repeated batch has in common: what stands behind the advantages (entropy, ...) is of the update."""
        return {name: self.columns[name] for name in (*self.before_advantages, "advantages") if name != "step"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """What is left of a line without its texts."""

    location: str
    """``file:line``."""
    step: int
    """Its step."""
    block: Block
    """What its rows are cut into groups by, and their scalar rewards."""
    rewards: Mapping[str, NDArray[np.float64]]
    """Reward function -> its rewards, NaN where it gave no finite number, [N] each."""

    @property
    def is_known(self) -> NDArray[np.bool_]:
        """Whether a reward is a finite number, [N]."""
        return np.isfinite(self.block.rewards)


def _recognizes(request: ReadRequest) -> bool:
    """Whether the path is a ``completions.jsonl`` whose values are lists."""
    rows = (row for file in _files(request.path)[:1] for _, row in read_jsonl(file, QuarantineLog()))
    return any(all(isinstance(row.get(key), list) for key in _KEYS) for row in islice(rows, _NUM_PEEKED))


def _read(request: ReadRequest) -> Run:
    """Read ms-swift's log of completions."""
    files = _files(request.path)
    quarantine = WatchedLog(request.progress, files)
    settings = read_trainer_settings(request.run_config)
    weights: Mapping[str, float] | None = None
    inferred: tuple[str, ...] = ()
    batches: list[_Batch] = []
    repeats = 0
    before: dict[str, Sequence[Any]] | None = None
    lines, spans = quarantine.of_lines(), StepSpans()
    for number, file in enumerate(files):
        for row in placed_rows(file, lines):
            for line in _lines_in(file, f"{file}:{row.number}", row.cells, lines):
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
    size, cut = group_size([batch.block for batch in batches], settings)
    for batch in batches:
        _set_aside(batch, quarantine)
    batches.sort(key=lambda batch: batch.step)
    table = _table(batches, size)
    functions, first_groups = weights, _first_groups(batches, size)

    def groups_of(rows: Iterable[FileRow], step: int | None) -> Sequence[RolloutGroup]:
        return build_groups(_records(rows, first_groups, size, functions, step), QuarantineLog())

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


def _lines_in(path: Path, location: str, row: Mapping[str, Any], quarantine: LinesLog) -> Iterator[_Line]:
    """The log calls of a row, step by step: one line may hold the rollouts of several steps."""
    lists = {name: value for name, value in row.items() if isinstance(value, list)}
    size = len(lists.get("step", ()))
    columns = {name: value for name, value in lists.items() if len(value) == size}
    if not size or not all(key in columns for key in _KEYS):
        quarantine.add("step, prompt, completion and advantages are not lists of one length", location)
        return
    steps = _steps(columns["step"])
    if None in steps:
        quarantine.add("the step is not a whole number", location)
        return
    quarantine.held(size)
    different = dict.fromkeys(step for step in steps if step is not None)
    for step in different:
        part = columns
        if len(different) > 1:
            chosen = [at for at in range(size) if steps[at] == step]
            part = {name: [cells[at] for at in chosen] for name, cells in columns.items()}
        yield _Line(path=path, location=location, step=step, columns=part)


def _steps(cells: Sequence[Any]) -> list[int | None]:
    if not _are_texts(cells):
        return list(map(whole_number, cells))
    steps = {cell: whole_number(cell) for cell in set(cells)}
    return [steps[cell] for cell in cells]


def _are_texts(cells: Sequence[Any]) -> bool:
    return {str}.issuperset(map(type, cells))


def _weights(line: _Line, settings: TrainerSettings) -> tuple[dict[str, float], tuple[str, ...]]:
    """The reward functions and how they add up."""
    names = [name for name in line.before_advantages if name not in _KEYS and _holds_numbers(line.columns[name])]
    if not names:
        raise InputError(
            f"{line.location} has no list of rewards before `advantages`; its lists are {list_names(line.columns)}.",
            hint="ms-swift writes one list a reward function.",
        )
    named_weights = settings.get("reward_weights")
    if named_weights is None:
        equal = "" if len(names) == 1 else " with weight 1 each (give reward_weights with --run-config)"
        return dict.fromkeys(names, 1.0), (
            f"The reward is the sum of the lists before `advantages`: {', '.join(names)}{equal}.",
        )
    if (
        not isinstance(named_weights, list)
        or len(named_weights) != len(names)
        or not all(finite_or_none(weight) is not None for weight in named_weights)
    ):
        raise InputError(
            f"{settings.origin} gives reward_weights {named_weights}; the log has {len(names)} reward functions: "
            f"{', '.join(names)}.",
            hint="Give one weight a reward function, in the order of the lists.",
        )
    return dict(zip(names, map(float, named_weights), strict=True)), ()


def _holds_numbers(cells: Sequence[Any]) -> bool:
    return all(cell is None or is_number(cell) for cell in cells) and any(map(is_number, cells))


def _batch_of(line: _Line, weights: Mapping[str, float]) -> _Batch:
    rewards = _rewards(line, weights)
    block = Block(
        path=line.path,
        prompts=_prompts(line.columns["prompt"]),
        rewards=scalar_rewards(rewards, weights),
        advantages=numbers_of(line.columns["advantages"]),
        logged_share=None,
    )
    return _Batch(location=line.location, step=line.step, block=block, rewards=rewards)


def _rewards(line: _Line, names: Iterable[str]) -> dict[str, NDArray[np.float64]]:
    absent = (None,) * len(line.columns["step"])
    return {name: numbers_of(line.columns.get(name, absent)) for name in names}


def _prompts(prompts: Sequence[Any]) -> RowPrompts:
    if not _are_texts(prompts):
        return RowPrompts.of(prompts, np.arange(len(prompts)), digest)
    numbers = {prompt: number for number, prompt in enumerate(dict.fromkeys(prompts))}
    return RowPrompts.of(list(numbers), np.fromiter(map(numbers.__getitem__, prompts), np.int64), text_id)


def _set_aside(batch: _Batch, quarantine: QuarantineLog) -> None:
    """Count the rows to which no reward function applies, or whose sum is too large; they stay in their groups."""
    lacks = np.all([np.isnan(values) for values in batch.rewards.values()], axis=0)
    for at in np.flatnonzero(~batch.is_known).tolist():
        usable_reward(ABSENT if lacks[at] else math.inf, batch.location, quarantine)


def _table(batches: Sequence[_Batch], size: int) -> RewardTable:
    """The table of batches by step, each of whole groups of a size."""
    step = np.repeat([batch.step for batch in batches], [len(batch.block.prompts) // size for batch in batches])
    within = np.arange(len(step)) - np.searchsorted(step, step)
    prompts, of_group = prompts_of_groups([batch.block.prompts for batch in batches], size)
    blocks = [batch.block for batch in batches]
    texts = dict(
        pair for block in reversed(blocks) for pair in zip(block.prompts.ids, block.prompts.texts, strict=True)
    )
    advantage = np.concatenate([block.advantages for block in blocks])
    return RewardTable(
        step=step.astype(np.int64),
        names=tuple(map(group_name, step.tolist(), map(str, within.tolist()))),
        prompt=of_group,
        prompts=prompts,
        size=np.full(len(step), size, dtype=np.int64),
        reward=np.concatenate([np.where(batch.is_known, batch.block.rewards, math.nan) for batch in batches]),
        rewards={name: np.concatenate([batch.rewards[name] for batch in batches]) for name in batches[0].rewards},
        advantage=None if np.isnan(advantage).all() else advantage,
        prompt_texts=tuple(texts[name] for name in prompts) if any(texts.values()) else None,
    )


def _first_groups(batches: Iterable[_Batch], size: int) -> dict[tuple[str, int], int]:
    """``file:line`` and step of each batch -> how many groups of its step come before it."""
    first_groups: dict[tuple[str, int], int] = {}
    num_groups: dict[int, int] = {}
    for batch in batches:
        first = first_groups[batch.location, batch.step] = num_groups.get(batch.step, 0)
        num_groups[batch.step] = first + len(batch.block.prompts) // size
    return first_groups


def _records(
    rows: Iterable[FileRow],
    first_groups: Mapping[tuple[str, int], int],
    size: int,
    weights: Mapping[str, float],
    step: int | None,
) -> Iterator[Record]:
    """The rollouts of the batches in some rows, which were read before; of one step or of all."""
    nobody = QuarantineLog().of_lines()
    lines = (line for file, (location, row) in rows for line in _lines_in(file, location, row, nobody))
    for line in lines:
        first = first_groups.get((line.location, line.step))
        if first is None or step not in (None, line.step):
            continue
        rewards = _rewards(line, weights)
        totals = scalar_rewards(rewards, weights)
        for at, total in enumerate(totals.tolist()):
            cells = {name: values[at] for name, values in line.columns.items()}
            yield Record(
                step=line.step,
                group=str(first + at // size),
                prompt_id=digest(cells["prompt"]),
                prompt=text_of(cells["prompt"]),
                completion=text_of(cells["completion"]),
                reward=finite_or_none(total),
                rewards={name: finite_or_none(values[at].item()) for name, values in rewards.items()},
                advantage=finite_or_none(cells["advantages"]),
            )


FORMAT = Format(
    name="ms-swift",
    looks_for="completions.jsonl with a list a column (ms-swift)",
    recognizes=_recognizes,
    read=_read,
)
