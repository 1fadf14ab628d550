"""The rewards of a log as arrays: what every question about groups needs, and no object a rollout.

Legend: J groups, N rollouts of all of them, group after group.

A log of any size is reduced to such a table; one that was read into rollouts has one, too. Tables of parts of a log
are put together by :mod:`gradscope.rollouts.readers.reduction.whole`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import compress
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from gradscope.rollouts.arrays import to_floats, to_indices, to_texts
from gradscope.rollouts.types import RolloutGroup, group_name

Counts = NDArray[np.int64]
Floats = NDArray[np.float64]

_AT_ONCE = 1 << 17
"""Groups of one size that are looked at at once: what is made of them stays below some dozen MB."""
UNKNOWN = -1
"""A number of tokens that was not logged, and a rollout without a policy's name."""


@dataclass(frozen=True, kw_only=True)
class RewardTable:
    """Groups in the order of the log, by step."""

    step: Counts
    """The trainer's step, [J]."""
    names: tuple[str, ...] | pa.Array
    """What groups are called: within the run, or, as an array of strings, within their steps, [J]."""
    prompt: Counts
    """The place of a group's prompt in ``prompts``, [J]."""
    prompts: Sequence[str]
    """Ids of the prompts, each once, by their first group."""
    size: Counts
    """Rollouts of the group, at least 1, [J]."""
    reward: Floats
    """The scalar reward, [N]; NaN where it is missing or not a finite number."""
    rewards: Mapping[str, Floats] = field(default_factory=dict)
    """Reward function -> its rewards, unweighted, [N]; NaN likewise."""
    advantage: Floats | None = None
    """The advantage that the optimizer saw, [N]; NaN where that was not logged, None where it nowhere was."""
    prompt_texts: Sequence[str] | None = None
    """The texts of ``prompts``; None where only their ids were read."""
    num_tokens: Counts | None = None
    """Completion tokens of all its sequences, [N]; -1 where they were not logged, None where they nowhere were."""
    seconds: Floats | None = None
    """How long a completion took to generate, [N]; NaN where that was not logged, None where it nowhere was."""
    policy: Counts | None = None
    """The place of a rollout's policy in ``policies``, [N]; -1 where it has none, None where the log names none."""
    policies: tuple[str, ...] = ()
    """Names of the policies, by their first rollout."""
    place: Counts | None = None
    """The number of each group's first row within the log, ascending from file to file, [J]; None where the rows were
    not numbered."""
    sample: NDArray[np.uint32] | None = None
    """A short hash of what tells a rollout from the others of its group, [N]; 0 where nothing does, None where nothing
    was hashed."""

    @classmethod
    def of_groups(cls, groups: Iterable[RolloutGroup]) -> RewardTable:
        """The table of groups that were read into objects."""
        groups = tuple(groups)
        rollouts = [rollout for group in groups for rollout in group.rollouts]
        prompts = {name: at for at, name in enumerate(dict.fromkeys(group.prompt_id for group in groups))}
        texts = {group.prompt_id: group.rollouts[0].prompt for group in reversed(groups)}
        policies = {
            name: at for at, name in enumerate(dict.fromkeys(rollout.policy for rollout in rollouts if rollout.policy))
        }
        lengths = [UNKNOWN if (known := rollout.num_tokens) is None else known for rollout in rollouts]
        return cls(
            step=np.array([group.step for group in groups], dtype=np.int64),
            names=tuple(group.group_id for group in groups),
            prompt=np.array([prompts[group.prompt_id] for group in groups], dtype=np.int64),
            prompts=tuple(prompts),
            size=np.array([group.size for group in groups], dtype=np.int64),
            reward=to_floats(rollout.reward for rollout in rollouts),
            rewards={
                name: to_floats(rollout.rewards.get(name) for rollout in rollouts)
                for name in dict.fromkeys(name for rollout in rollouts for name in rollout.rewards)
            },
            advantage=to_floats(rollout.advantage for rollout in rollouts)
            if any(rollout.advantage is not None for rollout in rollouts)
            else None,
            prompt_texts=tuple(texts[name] for name in prompts) if any(texts.values()) else None,
            num_tokens=np.array(lengths, dtype=np.int64) if any(length != UNKNOWN for length in lengths) else None,
            seconds=to_floats(rollout.seconds for rollout in rollouts)
            if any(rollout.seconds is not None for rollout in rollouts)
            else None,
            policy=np.array([policies.get(rollout.policy or "", UNKNOWN) for rollout in rollouts], dtype=np.int64)
            if policies
            else None,
            policies=tuple(policies),
        )

    def __len__(self) -> int:
        return len(self.size)

    @cached_property
    def starts(self) -> Counts:
        """The place of each group's first rollout, [J]."""
        return np.asarray(np.cumsum(self.size) - self.size, dtype=np.int64)

    def ids(self) -> tuple[str, ...]:
        """The name of each group within the run, [J]."""
        if isinstance(self.names, tuple):
            return self.names
        return tuple(map(group_name, self.step.tolist(), to_texts(self.names)))

    def sums(self, values: NDArray[Any]) -> NDArray[Any]:
        """Sums over the rollouts of each group.

        Args:
            values: [N].

        Returns:
            [J], whole numbers of whole numbers and of flags.
        """
        sums = np.zeros(len(self), dtype=np.int64 if values.dtype == np.bool_ else values.dtype)
        for start in range(0, len(self), _AT_ONCE):  # flags become numbers on the way
            begins = self.starts[start : start + _AT_ONCE]
            end = begins[-1] + self.size[start : start + _AT_ONCE][-1]
            sums[start : start + _AT_ONCE] = np.add.reduceat(
                values[begins[0] : end], begins - begins[0], dtype=sums.dtype
            )
        return sums

    def spread(self, values: Floats) -> Floats:
        """The range of each group: its greatest value minus its least.

        Args:
            values: [N].

        Returns:
            [J]; NaN where one of the values is.
        """
        if not len(self):
            return np.zeros(0)
        return np.asarray(np.maximum.reduceat(values, self.starts) - np.minimum.reduceat(values, self.starts))

    def by_size(self, values: NDArray[Any]) -> Iterator[tuple[Counts, NDArray[Any]]]:
        """Groups of one size at a time, and of very many some at a time.

        Args:
            values: [N].

        Yields:
            Places of the groups, [j], and their values, [j, G]; sizes in the order of their first groups.
        """
        sizes, first = np.unique(self.size, return_index=True)
        for size in sizes[np.argsort(first)].tolist():
            of_size = np.flatnonzero(self.size == size)
            for start in range(0, len(of_size), _AT_ONCE):
                places = of_size[start : start + _AT_ONCE]
                yield places, self._side_by_side(values, places, size)

    def _side_by_side(self, values: NDArray[Any], places: Counts, size: int) -> NDArray[Any]:
        """The values of groups of one size, [j, G], without a copy where no other group stands between them."""
        if places[-1] - places[0] < len(places):
            begin = int(self.starts[places[0]])
            return values[begin : begin + len(places) * size].reshape(-1, size)
        return np.asarray(values[self.starts[places, None] + np.arange(size)])

    def select(self, kept: NDArray[np.bool_]) -> RewardTable:
        """Some of the groups.

        Args:
            kept: Whether each is taken, [J].

        Returns:
            A table of those; ``prompts``, their texts and ``policies`` are left as they are.
        """
        if kept.all():
            return self
        rows = np.repeat(kept, self.size)
        return RewardTable(
            step=self.step[kept],
            names=_chosen(self.names, kept),
            prompt=self.prompt[kept],
            prompts=self.prompts,
            size=self.size[kept],
            reward=self.reward[rows],
            rewards={name: values[rows] for name, values in self.rewards.items()},
            advantage=None if self.advantage is None else self.advantage[rows],
            prompt_texts=self.prompt_texts,
            num_tokens=None if self.num_tokens is None else self.num_tokens[rows],
            seconds=None if self.seconds is None else self.seconds[rows],
            policy=None if self.policy is None else self.policy[rows],
            policies=self.policies,
            place=None if self.place is None else self.place[kept],
            sample=None if self.sample is None else self.sample[rows],
        )


def _chosen(names: tuple[str, ...] | pa.Array, kept: NDArray[np.bool_]) -> tuple[str, ...] | pa.Array:
    if isinstance(names, tuple):
        return tuple(compress(names, kept.tolist()))
    return names.take(to_indices(np.flatnonzero(kept)))
