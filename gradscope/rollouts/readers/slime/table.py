"""The rewards of slime's samples without an object a rollout, and without their tokens and texts.

Legend: R usable samples in the order of the log, J groups, N samples that count.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradscope.rollouts.arrays import to_floats
from gradscope.rollouts.readers.format import LogRow, Reading
from gradscope.rollouts.readers.parsing.grouping import CONTRADICTED, REPEATED
from gradscope.rollouts.readers.parsing.nested_cells import (
    LARGEST_STEP,
    mapping_of,
    numbers_in,
    required_whole,
    usable_reward,
    whole_number,
)
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog, UnusableRowError
from gradscope.rollouts.readers.parsing.scalars import ABSENT, text_of
from gradscope.rollouts.readers.slime.sample import chosen_part, num_logged_tokens, part_of_reward, prompt_digest
from gradscope.rollouts.reward_table import UNKNOWN, RewardTable
from gradscope.rollouts.types import group_name

_UNNUMBERED = 2 * LARGEST_STEP
"""Stands for the number of a sample that has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What forks of slime say of a sample in places of their own."""

    index: Any
    """Its number within the rollout, whatever its type."""
    completion: str
    """The text of its completion."""
    num_tokens: int
    """Those of its completion; ``UNKNOWN`` where they were not logged."""


@dataclass(slots=True)
class _Samples:
    """What is left of the samples that were read so far."""

    groups: dict[tuple[int, int], int] = field(default_factory=dict)
    """Step and group_index -> the group's place among them."""
    prompts: list[str] = field(default_factory=list)
    """The id of each group's prompt, [J]."""
    names: dict[str, None] = field(default_factory=dict)
    """Names of rewards, those of samples that cannot be used among them."""
    group: array[int] = field(default_factory=lambda: array("q"))
    """The place of each sample's group, [R]."""
    number: array[int] = field(default_factory=lambda: array("q"))
    """What tells it from the others of its group, [R]."""
    response: array[int] = field(default_factory=lambda: array("q"))
    """A hash of its completion, [R]."""
    num_tokens: array[int] = field(default_factory=lambda: array("q"))
    """Tokens of its completion, [R]."""
    rewards: list[Any] = field(default_factory=list)
    """Its reward, whatever that is, [R]."""
    locations: list[str] = field(default_factory=list)
    """``file:line``, [R]."""

    def add(self, row: LogRow, told_by: Callable[[LogRow], Told]) -> None:
        """Take in a sample, unless it cannot be used; looks at its cells in the order of ``sample_record``."""
        sample = mapping_of(row.cells["sample"])
        reward = sample.get("reward", ABSENT)
        self.names.update(dict.fromkeys(numbers_in(reward)))
        told = told_by(row)
        step = required_whole(row.cells.get("rollout_id"), "the step")
        key = (step, required_whole(sample.get("group_index"), "group_index"))
        if key not in self.groups:
            self.groups[key] = len(self.groups)
            self.prompts.append(prompt_digest(sample.get("prompt")))
        number = whole_number(told.index)
        self.group.append(self.groups[key])
        self.number.append(_UNNUMBERED if number is None else number)
        self.response.append(hash(told.completion))
        self.num_tokens.append(told.num_tokens)
        self.rewards.append(reward)
        self.locations.append(row.location)


def told_by_slime(row: LogRow) -> Told:
    """What slime says of a sample."""
    sample = mapping_of(row.cells["sample"])
    return Told(
        index=sample.get("index"),
        completion=text_of(sample.get("response")),
        num_tokens=num_logged_tokens(sample),
    )


def table_of_samples(
    rows: Iterable[LogRow], reading: Reading, told_by: Callable[[LogRow], Told] = told_by_slime
) -> RewardTable:
    """The table of a log, of whose samples no more is kept than it takes.

    Args:
        rows: Rows with ``rollout_id`` and ``sample``.
        reading: Takes the samples that cannot be used, and which of several rewards counts.
        told_by: What a row says of its sample; raises :class:`UnusableRowError` where it holds none.

    Returns:
        The table; empty where no sample can be used.
    """
    samples = _Samples()
    for row in rows:
        try:
            samples.add(row, told_by)
        except UnusableRowError as error:
            reading.quarantine.add(str(error), row.location)
    part = chosen_part(samples.names, reading)
    if not samples.groups:
        return RewardTable.of_groups(())
    cells = (part_of_reward(reward, part) for reward in samples.rewards)
    totals = [
        usable_reward(cell, location, reading.quarantine)
        for cell, location in zip(cells, samples.locations, strict=True)
    ]
    counts = _settled(samples, totals, reading.quarantine)
    return _table(samples, totals, np.flatnonzero(counts))


def _settled(samples: _Samples, totals: list[float | None], quarantine: QuarantineLog) -> NDArray[np.bool_]:
    """Whether a row counts, [R]: not if its sample was there before, whose reward it takes where it contradicts it."""
    group, number = np.asarray(samples.group), np.asarray(samples.number)
    order = np.lexsort((number, group))
    again = (np.diff(group[order]) == 0) & (np.diff(number[order]) == 0) & (number[order][1:] != _UNNUMBERED)
    first_of: dict[tuple[int, int], int] = {}
    counts = np.ones(len(group), dtype=np.bool_)
    for at in np.unique([order[:-1][again], order[1:][again]]).tolist():
        first = first_of.setdefault((samples.group[at], samples.number[at]), at)
        if first == at:
            continue
        counts[at] = False
        if (totals[first], samples.response[first]) == (totals[at], samples.response[at]):
            quarantine.add(REPEATED, samples.locations[at])
        else:
            for _ in range(1 if totals[first] is None else 2):  # this row, and the one that counted until now
                quarantine.add(CONTRADICTED, samples.locations[at])
            totals[first] = None
            samples.rewards[first] = dict.fromkeys(numbers_in(samples.rewards[first]), math.nan)
    return counts


def _table(samples: _Samples, totals: Sequence[float | None], counted: NDArray[np.int64]) -> RewardTable:
    """The table of the samples that count, [N]."""
    keys = np.array(list(samples.groups), dtype=np.int64)  # [J, 2]
    by_step = np.argsort(keys[:, 0], kind="stable")
    place = np.argsort(by_step)[np.asarray(samples.group)[counted]]
    rows = counted[np.argsort(place, kind="stable")]
    rewards = [numbers_in(samples.rewards[at]) for at in rows.tolist()]
    num_tokens = np.asarray(samples.num_tokens)[rows]
    prompts: dict[str, int] = {}
    of_group = [prompts.setdefault(samples.prompts[at], len(prompts)) for at in by_step.tolist()]
    return RewardTable(
        step=keys[by_step, 0],
        names=tuple(group_name(step, str(group)) for step, group in keys[by_step].tolist()),
        prompt=np.array(of_group, dtype=np.int64),
        prompts=tuple(prompts),
        size=np.bincount(place),
        reward=to_floats([totals[at] for at in rows.tolist()]),
        rewards={
            name: to_floats([of_sample.get(name) for of_sample in rewards])
            for name in dict.fromkeys(name for of_sample in rewards for name in of_sample)
        },
        num_tokens=num_tokens if np.any(num_tokens != UNKNOWN) else None,
    )
