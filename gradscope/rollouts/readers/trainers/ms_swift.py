"""ms-swift's ``completions.jsonl``: one line a log call, every value a list with an element a rollout.

Like TRL's files, a line holds what the trainer's buffer held: rollouts of a prompt stand side by side, and a batch that
serves several updates is written again at each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradscope.errors import InputError
from gradscope.rollouts.readers.flat.columns import list_names
from gradscope.rollouts.readers.format import Format
from gradscope.rollouts.readers.parsing.assemble import assemble, peek
from gradscope.rollouts.readers.parsing.counted import TEXT_ONLY, counted, hidden_by
from gradscope.rollouts.readers.parsing.grouping import Record
from gradscope.rollouts.readers.parsing.jsonl import read_jsonl
from gradscope.rollouts.readers.parsing.nested_cells import usable_reward, whole_number
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.parsing.request import ReadRequest, read_trainer_settings
from gradscope.rollouts.readers.parsing.scalars import ABSENT, digest, finite_or_none, is_number, text_of
from gradscope.rollouts.readers.parsing.tables import files_like
from gradscope.rollouts.readers.trl.blocks import Block, group_size
from gradscope.rollouts.readers.trl.rewards import scalar_reward
from gradscope.rollouts.run import Run, TrainerSettings

_KEYS = ("step", "prompt", "completion", "advantages")
_FILTERED = hidden_by("With dynamic_sample, ms-swift drops groups of equal rewards before it logs")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """The rollouts of one log call."""

    path: Path
    location: str
    step: int
    columns: Mapping[str, Sequence[Any]]

    @property
    def size(self) -> int:
        return len(self.columns["step"])

    def row(self, at: int) -> dict[str, Any]:
        return {name: cells[at] for name, cells in self.columns.items()}


def _recognizes(request: ReadRequest) -> bool:
    """Whether the path is a ``completions.jsonl`` whose values are lists."""
    files = _files(request.path)
    return bool(files) and any(all(isinstance(row.get(key), list) for key in _KEYS) for row in peek(files[0]))


def _read(request: ReadRequest) -> Run:
    """Read ms-swift's log of completions.

    Returns:
        The run.

    Raises:
        InputError: No line can be used, or no column can be a reward function.
    """
    files = _files(request.path)
    quarantine = QuarantineLog()
    settings = read_trainer_settings(request.run_config)
    lines = [line for file in files for line in _lines(file, quarantine)]
    if not lines:
        raise InputError(f"{request.path} has no line of completions.", hint="Train with --log_completions true.")
    kept = _without_repeats(lines)
    weights, inferred = _weights(kept[0], settings)
    size, cut = group_size([_block(line, weights) for line in kept], settings)
    repeats = len(lines) - len(kept)
    repeats_note = [f"{counted(repeats, 'line')} that repeat the batch before them count once."] if repeats else []
    return assemble(
        request,
        records=[record for line in kept for record in _records(line, size, weights, quarantine)],
        quarantine=quarantine,
        format="ms-swift",
        recognized=f"ms-swift completions, {counted(len(lines), 'line')}",
        inferred=(*inferred, *cut, *repeats_note),
        missing=(_FILTERED, TEXT_ONLY),
        files=files,
    )


def _files(path: Path) -> tuple[Path, ...]:
    return files_like(path, "completions.jsonl")


def _lines(path: Path, quarantine: QuarantineLog) -> Iterator[_Line]:
    """The log calls of a file, step by step: one line may hold the rollouts of several steps."""
    for location, row in read_jsonl(path, quarantine):
        lists = {name: value for name, value in row.items() if isinstance(value, list)}
        size = len(lists.get("step", ()))
        columns = {name: value for name, value in lists.items() if len(value) == size}
        if not size or not all(key in columns for key in _KEYS):
            quarantine.add("step, prompt, completion and advantages are not lists of one length", location)
            continue
        steps = [whole_number(step) for step in columns["step"]]
        if None in steps:
            quarantine.add("the step is not a whole number", location)
            continue
        for step in dict.fromkeys(step for step in steps if step is not None):
            chosen = [at for at in range(size) if steps[at] == step]
            part = {name: [cells[at] for at in chosen] for name, cells in columns.items()}
            yield _Line(path=path, location=location, step=step, columns=part)


def _without_repeats(lines: Sequence[_Line]) -> list[_Line]:
    kept: list[_Line] = []
    for line in lines:
        if not kept or _content(kept[-1]) != _content(line):
            kept.append(line)
    return kept


def _content(line: _Line) -> dict[str, Sequence[Any]]:
    """What a repeated batch has in common: what stands behind the advantages (entropy, ...) is of the update."""
    names = list(line.columns)[: list(line.columns).index("advantages") + 1]
    return {name: line.columns[name] for name in names if name != "step"}


def _weights(line: _Line, settings: TrainerSettings) -> tuple[dict[str, float], tuple[str, ...]]:
    """The reward functions and how they add up.

    Returns:
        Reward function -> weight, and what was inferred.

    Raises:
        InputError: No column can be a reward function, or the given weights do not fit their number.
    """
    before = list(line.columns)[: list(line.columns).index("advantages")]
    names = [name for name in before if name not in _KEYS and _holds_numbers(line.columns[name])]
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
        or not all(map(is_number, named_weights))
    ):
        raise InputError(
            f"{settings.origin} gives reward_weights {named_weights}; the log has {len(names)} reward functions: "
            f"{', '.join(names)}.",
            hint="Give one weight a reward function, in the order of the lists.",
        )
    return dict(zip(names, map(float, named_weights), strict=True)), ()


def _holds_numbers(cells: Sequence[Any]) -> bool:
    return all(cell is None or is_number(cell) for cell in cells) and any(map(is_number, cells))


def _block(line: _Line, weights: Mapping[str, float]) -> Block:
    return Block(
        path=line.path,
        prompts=tuple(digest(prompt) for prompt in line.columns["prompt"]),
        rewards=tuple(scalar_reward(line.row(at), weights)[1] for at in range(line.size)),
        advantages=tuple(finite_or_none(value) for value in line.columns["advantages"]),
        logged_share=None,
    )


def _records(line: _Line, size: int, weights: Mapping[str, float], quarantine: QuarantineLog) -> Iterator[Record]:
    for at in range(line.size):
        row = line.row(at)
        rewards, reward = scalar_reward(row, weights)
        yield Record(
            step=line.step,
            group=str(at // size),
            prompt_id=digest(row["prompt"]),
            prompt=text_of(row["prompt"]),
            completion=text_of(row["completion"]),
            reward=usable_reward(ABSENT if reward is None else reward, line.location, quarantine),
            rewards=rewards,
            advantage=finite_or_none(row["advantages"]),
        )


FORMAT = Format(
    name="ms-swift",
    looks_for="completions.jsonl with a list a column (ms-swift)",
    recognizes=_recognizes,
    read=_read,
)
