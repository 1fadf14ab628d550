"""ms-swift's ``completions.jsonl``: one line a log call, every value a list with an element a rollout.

Like TRL's files, a line holds what the trainer's buffer held: rollouts of a prompt stand side by side, and a batch that
serves several updates is written again at each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from gradscope.errors import InputError
from gradscope.rollouts.groups import GroupsOfTable
from gradscope.rollouts.readers.flat.columns import list_names
from gradscope.rollouts.readers.format import Format
from gradscope.rollouts.readers.ms_swift.lines import KEYS, Line, read_lines, without_repeats
from gradscope.rollouts.readers.ms_swift.table import Batch, batch_of, table_of_batches
from gradscope.rollouts.readers.parsing.assemble import assemble_groups
from gradscope.rollouts.readers.parsing.counted import TEXT_ONLY, counted, hidden_by
from gradscope.rollouts.readers.parsing.grouping import Record, build_groups
from gradscope.rollouts.readers.parsing.jsonl import read_jsonl
from gradscope.rollouts.readers.parsing.nested_cells import usable_reward
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.parsing.request import ReadRequest, read_trainer_settings
from gradscope.rollouts.readers.parsing.scalars import ABSENT, digest, finite_or_none, is_number, text_of
from gradscope.rollouts.readers.parsing.tables import files_like
from gradscope.rollouts.readers.parsing.watch import WatchedLog
from gradscope.rollouts.readers.trl.blocks import group_size
from gradscope.rollouts.readers.trl.rewards import scalar_reward
from gradscope.rollouts.run import Run, TrainerSettings
from gradscope.rollouts.types import RolloutGroup

_FILTERED = hidden_by("With dynamic_sample, ms-swift drops groups of equal rewards before it logs")
_NUM_PEEKED = 50
"""Lines that are looked at until one is of this format."""


def _recognizes(request: ReadRequest) -> bool:
    """Whether the path is a ``completions.jsonl`` whose values are lists."""
    rows = (row for file in _files(request.path)[:1] for _, row in read_jsonl(file, QuarantineLog()))
    return any(all(isinstance(row.get(key), list) for key in KEYS) for row in islice(rows, _NUM_PEEKED))


def _read(request: ReadRequest) -> Run:
    """Read ms-swift's log of completions.

    Returns:
        The run.

    Raises:
        InputError: No line can be used, or no column can be a reward function.
    """
    files = _files(request.path)
    quarantine = WatchedLog(request.progress, files)
    settings = read_trainer_settings(request.run_config)
    weights: Mapping[str, float] | None = None
    inferred: tuple[str, ...] = ()
    batches: list[Batch] = []
    kept: list[Line] = []
    repeats = 0
    lines = quarantine.of_lines()
    for line, again in without_repeats(line for file in files for line in read_lines(file, lines)):
        if weights is None:
            weights, inferred = _weights(line, settings)
        batches.append(batch_of(line, weights))
        repeats += again
        lines.held(-again * line.size, num_lines=0)
        if not request.rewards_only:
            kept.append(line)
    if weights is None:
        raise InputError(f"{request.path} has no line of completions.", hint="Train with --log_completions true.")
    size, cut = group_size([batch.block for batch in batches], settings)
    groups: Sequence[RolloutGroup]
    if request.rewards_only:
        groups = GroupsOfTable(table_of_batches(batches, size, quarantine))
    else:
        groups = build_groups(_records(kept, size, weights, quarantine), quarantine)
    repeats_note = [f"{counted(repeats, 'line')} that repeat the batch before them count once."] if repeats else []
    return assemble_groups(
        request,
        groups=groups,
        quarantine=quarantine,
        format="ms-swift",
        recognized=f"ms-swift completions, {counted(len(batches) + repeats, 'line')}",
        inferred=(*inferred, *cut, *repeats_note),
        missing=(_FILTERED, TEXT_ONLY),
        files=files,
    )


def _files(path: Path) -> tuple[Path, ...]:
    return files_like(path, "completions.jsonl")


def _weights(line: Line, settings: TrainerSettings) -> tuple[dict[str, float], tuple[str, ...]]:
    """The reward functions and how they add up.

    Returns:
        Reward function -> weight, and what was inferred.

    Raises:
        InputError: No column can be a reward function, or the given weights do not fit their number.
    """
    before = list(line.columns)[: list(line.columns).index("advantages")]
    names = [name for name in before if name not in KEYS and _holds_numbers(line.columns[name])]
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


def _records(
    lines: Iterable[Line], size: int, weights: Mapping[str, float], quarantine: QuarantineLog
) -> Iterator[Record]:
    num_groups: dict[int, int] = {}
    for line in lines:
        first = num_groups.get(line.step, 0)
        num_groups[line.step] = first + line.size // size
        for at in range(line.size):
            row = line.row(at)
            rewards, reward = scalar_reward(row, weights)
            yield Record(
                step=line.step,
                group=str(first + at // size),
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
