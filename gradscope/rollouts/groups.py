"""The groups of a run: in memory, made of a table of rewards, or left on disk until a step is asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from typing import overload

import numpy as np

from gradscope.errors import InputError
from gradscope.rollouts.reward_table import Floats, RewardTable
from gradscope.rollouts.types import Rollout, RolloutGroup


class GroupsOfTable(Sequence[RolloutGroup]):
    """Groups that are made when somebody asks for them: with rewards, without text or place in the log."""

    def __init__(self, table: RewardTable) -> None:
        self.table = table

    @cached_property
    def _groups(self) -> tuple[RolloutGroup, ...]:
        table, rollout_of = self.table, _Rollouts(tuple(self.table.rewards))
        # A missing reward as infinity, which no reward is: unlike NaN it equals itself.
        columns = [np.where(np.isnan(values), np.inf, values).tolist() for values in self._values()]
        rows = list(zip(*columns, strict=True))
        ids = zip(table.step.tolist(), table.ids(), table.prompt.tolist(), strict=True)
        ends = zip(table.starts.tolist(), np.cumsum(table.size).tolist(), strict=True)
        return tuple(
            RolloutGroup(
                step=step,
                group_id=group,
                prompt_id=table.prompts[prompt],
                rollouts=tuple(rollout_of[row] for row in rows[start:end]),
            )
            for (step, group, prompt), (start, end) in zip(ids, ends, strict=True)
        )

    def _values(self) -> Iterator[Floats]:
        table = self.table
        yield table.reward
        yield from table.rewards.values()
        for values in (table.advantage, table.seconds):
            yield np.full(len(table.reward), np.nan) if values is None else values

    def __len__(self) -> int:
        return len(self.table)

    @overload
    def __getitem__(self, index: int) -> RolloutGroup: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[RolloutGroup, ...]: ...

    def __getitem__(self, index: int | slice) -> RolloutGroup | tuple[RolloutGroup, ...]:
        if isinstance(index, slice):
            return tuple(map(self._group, range(len(self))[index]))
        return self._group(range(len(self))[index])

    def _group(self, place: int) -> RolloutGroup:
        return self._groups[place]

    def __iter__(self) -> Iterator[RolloutGroup]:
        return iter(self._groups)


class GroupsOnDisk(GroupsOfTable):
    """Groups whose rollouts stay in the log until a step is asked for, and of which two steps at most are in memory."""

    def __init__(self, table: RewardTable, read: Callable[[int], Sequence[RolloutGroup]]) -> None:
        """Groups on disk.

        Args:
            table: Their rewards.
            read: Reads the groups of a step back, whole and in the order of the table.
        """
        super().__init__(table)
        self.read = read
        self._at = lru_cache(maxsize=2)(self._read_back)

    def at(self, step: int) -> tuple[RolloutGroup, ...]:
        """The groups of a step.

        Returns:
            They with all that the log has of them; none where it has no such step.

        Raises:
            InputError: Its groups are not those of the table.
        """
        return self._at(step)

    def _read_back(self, step: int) -> tuple[RolloutGroup, ...]:
        sizes = self.table.size[self.table.step == step].tolist()
        groups = tuple(self.read(step)) if sizes else ()
        if [group.size for group in groups] != sizes:
            raise InputError(
                f"Step {step} does not have the rollouts any more that it had when the log was scanned.",
                hint="If the log was changed, read it again; else some rows name a key twice, or hold a small nan.",
            )
        return groups

    def _group(self, place: int) -> RolloutGroup:
        step = int(self.table.step[place])
        return self.at(step)[place - int(np.searchsorted(self.table.step, step))]

    def __iter__(self) -> Iterator[RolloutGroup]:
        for step in steps_of(self):
            yield from self.at(step)


def holds_rewards_alone(groups: Sequence[RolloutGroup]) -> bool:
    """Whether groups were reduced to their rewards, so that their texts and tokens cannot be had."""
    return isinstance(groups, GroupsOfTable) and not isinstance(groups, GroupsOnDisk)


def groups_at(groups: Sequence[RolloutGroup], step: int) -> tuple[RolloutGroup, ...]:
    """The groups of one step, in their order."""
    if isinstance(groups, GroupsOnDisk):
        return groups.at(step)
    return tuple(group for group in groups if group.step == step)


def reward_table(groups: Sequence[RolloutGroup]) -> RewardTable:
    """The table of a run's groups: the one that they would be made from, or one made from them."""
    return groups.table if isinstance(groups, GroupsOfTable) else RewardTable.of_groups(groups)


def steps_of(groups: Sequence[RolloutGroup]) -> tuple[int, ...]:
    """The steps of a run's groups, ascending."""
    if isinstance(groups, GroupsOfTable):
        return tuple(np.unique(groups.table.step).tolist())
    return tuple(sorted({group.step for group in groups}))


def sizes_of(groups: Sequence[RolloutGroup]) -> tuple[int, ...]:
    """The sizes that groups have, each once, ascending."""
    if isinstance(groups, GroupsOfTable):
        return tuple(np.unique(groups.table.size).tolist())
    return tuple(sorted({group.size for group in groups}))


def groups_of_steps(groups: Sequence[RolloutGroup], steps: Iterable[int]) -> Sequence[RolloutGroup]:
    """The groups of some steps, in their order."""
    chosen = set(steps)
    if isinstance(groups, GroupsOfTable):
        table = groups.table.select(np.isin(groups.table.step, list(chosen)))
        return GroupsOnDisk(table, groups.read) if isinstance(groups, GroupsOnDisk) else GroupsOfTable(table)
    return tuple(group for group in groups if group.step in chosen)


def num_used(groups: Sequence[RolloutGroup], *, needs_reward: bool = True) -> int:
    """How many rollouts are of use: those with a reward, or all of them where none is needed."""
    if isinstance(groups, GroupsOfTable):
        return int(np.sum(~np.isnan(groups.table.reward))) if needs_reward else len(groups.table.reward)
    return sum(group.size - (group.rewards.count(None) if needs_reward else 0) for group in groups)


class _Rollouts(dict[tuple[float, ...], Rollout]):
    """The rollout of some rewards, made when it is first asked for: rollouts of equal rewards are one object."""

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__()
        self._names = names

    def __missing__(self, row: tuple[float, ...]) -> Rollout:
        reward, *rewards, advantage, seconds = (value if math.isfinite(value) else None for value in row)
        made = Rollout(
            group_id="",
            sample=0,
            row=0,
            prompt="",
            completion="",
            reward=reward,
            rewards=dict(zip(self._names, rewards, strict=True)),
            advantage=advantage,
            seconds=seconds,
        )
        self[row] = made
        return made
