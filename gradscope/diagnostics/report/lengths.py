"""How long completions are, how they ended, and how often they repeat one another, beside their rewards."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from gradscope.diagnostics.logged.measure import ENDED
from gradscope.rollouts.groups import UNKNOWN, RewardTable, Rollout, RolloutGroup


class RunLengths(Struct, frozen=True, kw_only=True):
    """The rollouts of groups whose rewards are all known, [R] each."""

    unit: str  # tokens or characters
    values: NDArray[np.int64]
    rewards: NDArray[np.float64]
    steps: NDArray[np.int64]
    samples: NDArray[np.int64]
    groups: NDArray[np.int64]  # the indices of their groups in ``names``
    prompts: NDArray[np.int64]  # a number for each prompt
    names: Sequence[str]


class Ends:
    """How many completions were cut off, and their part of the absolute advantages."""

    def __init__(self) -> None:
        self.num_judged = self.num_cut = 0
        self._sizes, self._of_cut = array("d"), array("d")

    def add(self, rollout: Rollout) -> None:
        """Take in the next rollout."""
        if rollout.status not in ENDED:
            return
        is_cut, has_advantage = rollout.status == "truncated", rollout.advantage is not None
        self.num_judged += 1
        self.num_cut += is_cut
        if has_advantage:
            self._sizes.append(abs(rollout.advantage or 0.0))
        if is_cut:
            self._of_cut.append(abs(rollout.advantage or 0.0))

    def join(self, other: Ends) -> None:
        """Take in those of further steps."""
        self.num_judged += other.num_judged
        self.num_cut += other.num_cut
        self._sizes += other._sizes
        self._of_cut += other._of_cut

    @property
    def frac_advantage(self) -> float | None:
        """Their share of the summed absolute advantages; None where it is not known, or is nothing of nothing."""
        total = sum(self._sizes)
        return sum(self._of_cut) / total if self.num_cut and len(self._sizes) == self.num_judged and total else None


class Lengths:
    """How long each rollout is and what it is worth, of the groups whose rewards are all known."""

    def __init__(self) -> None:
        self._tables: list[RewardTable] = []
        self.ends = Ends()
        self.num_texts = self.num_empty = self.num_repeats = 0
        """Completions with a text, those that are empty, and those whose text an earlier one of their group has."""
        self.num_torn = 0  # groups in which one text has several rewards

    def add_step(self, groups: Sequence[RolloutGroup]) -> None:
        """Take in the rollouts of the next step."""
        for rollout in (rollout for group in groups for rollout in group.rollouts):
            self.ends.add(rollout)
        self.add(RewardTable.of_groups(groups, with_completions=True))

    def add(self, table: RewardTable) -> None:
        """Take in further groups, whose completions are measured."""
        table = table.select(table.is_complete)
        if not len(table):
            return
        self._tables.append(replace(table, prompt_texts=None, rewards={}))  # which all steps together need not hold
        measured, hashes = np.asarray(table.num_characters), np.asarray(table.text_hash)
        group, rows = np.repeat(np.arange(len(table)), table.size), np.flatnonzero(measured > 0)
        order = rows[np.lexsort((table.reward[rows], hashes[rows], group[rows]))]
        repeats = (np.diff(group[order]) == 0) & (np.diff(hashes[order]) == 0)
        is_torn = repeats & (np.diff(table.reward[order]) != 0)
        self.num_texts += len(rows)
        self.num_empty += int(np.sum(measured == 0))
        self.num_repeats += int(repeats.sum())
        self.num_torn += len(np.unique(group[order[1:][is_torn]]))

    def join(self, other: Lengths) -> None:
        """Take in those of further steps."""
        self._tables += other._tables
        self.num_texts += other.num_texts
        self.num_empty += other.num_empty
        self.num_repeats += other.num_repeats
        self.num_torn += other.num_torn
        self.ends.join(other.ends)

    def all_steps(self) -> RunLengths:
        """Those of all steps."""
        tables = self._tables or [RewardTable.of_groups(())]
        exact = all(table.num_tokens is not None and UNKNOWN not in table.num_tokens for table in self._tables)
        names = [name for table in tables for name in table.ids()]
        prompts = [table.prompts[at] for table in tables for at in table.prompt.tolist()]
        numbers = {prompt: number for number, prompt in enumerate(dict.fromkeys(prompts))}
        sizes = np.concatenate([table.size for table in tables])
        unit = "tokens" if exact and self._tables else "characters"

        def joined(name: str) -> NDArray[Any]:
            return np.concatenate([getattr(table, name) for table in self._tables] or [np.zeros(0, dtype=np.int64)])

        return RunLengths(
            unit=unit,
            values=joined(f"num_{unit}"),
            rewards=joined("reward"),
            steps=np.repeat(joined("step"), sizes),
            samples=np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes),
            groups=np.repeat(np.arange(len(names)), sizes),
            prompts=np.repeat([numbers[prompt] for prompt in prompts], sizes).astype(np.int64),
            names=names,
        )
