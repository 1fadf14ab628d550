"""What is asked of every step of a run, checked against what the run holds.

Shapes: R rollouts of a step, G group size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gradscope.advantages.registry import FORMULATIONS, GRAM_FORMULATIONS, LOGGED, formulation, named_formulation
from gradscope.diagnostics.rank.rows import StepRows, paired_groups
from gradscope.errors import UsageError
from gradscope.results.row_kinds import RowKind
from gradscope.rollouts.groups import sizes_of
from gradscope.rollouts.run import Run

_GROUP_SIZES = (2, 4, 8)
"""Group sizes looked at where none is asked for, as far as the logged groups are large enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRequest:
    """The matrices, the advantages and the group sizes."""

    rows: RowKind  # which matrix
    advantages: tuple[str, ...]  # ``logged`` and formulations that exist
    group_sizes: tuple[int, ...]  # sizes to regroup into, beside the logged one
    paired: bool  # whether only groups count that live at every size, each weighing the same
    centered: bool  # whether to subtract the mean row first
    seed: int  # decides which tokens are drawn, and the sketch
    output: Path | None  # folder for the Gram matrices; None: they are not written

    def sizes(self, rows: StepRows, advantage: str) -> tuple[int | None, ...]:
        """The group sizes of one advantage, first None: the groups as they are, the only ones that logged ones have."""
        if advantage == LOGGED:
            return (None,)
        logged_sizes = set(np.unique(rows.group_ids, return_counts=True)[1].tolist())
        fewest = formulation(advantage).min_group_size
        return (None, *(size for size in self.group_sizes if size >= fewest and logged_sizes != {size}))

    def groups(self, rows: StepRows, advantage: str) -> frozenset[str] | None:
        """The groups that count under one advantage; None: all of them."""
        return paired_groups(rows, advantage, self.sizes(rows, advantage)) if self.paired else None


def known_advantages(names: Sequence[str] | None) -> tuple[str, ...]:
    """Names checked against the registry, each once; ``all`` and None: the logged one and every formulation."""
    # A name of a function in a file runs the file.
    everything = (LOGGED, *FORMULATIONS, *GRAM_FORMULATIONS)
    for name in names or ():
        if name not in (LOGGED, "all"):
            named_formulation(name)
    if names is None:
        return everything
    return tuple(dict.fromkeys(one for name in names for one in (everything if name == "all" else (name,))))


def possible_sizes(run: Run, sizes: Sequence[int]) -> tuple[int, ...]:
    """Sizes that some group of the log can give; 2, 4 and 8 as far as it can where none is asked for."""
    largest = max(sizes_of(run.groups), default=0)
    for size in sizes:
        if not 2 <= size <= largest:
            raise UsageError(
                f"Groups of {size} cannot be taken from this log: its largest group has {largest} rollouts.",
                hint=f"Choose a --group-size from 2 to {largest}.",
            )
    return tuple(dict.fromkeys(sizes)) if sizes else tuple(size for size in _GROUP_SIZES if size < largest)
