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

WHOLE_ROLLOUTS = ("rollout", "group")
"""Kinds of rows that are made of whole rollouts, and ask nothing of a step but held-out answers."""
TOKEN_ROWS = ("token", "hidden", "logit")
"""Kinds of rows that are tokens."""
_GROUP_SIZES = (2, 4, 8)
"""Group sizes looked at where none is asked for, as far as the logged groups are large enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOptions:
    """How the rows of a step are grouped, centered and drawn, and what they are held against.

    >>> RankOptions(group_sizes=(4,), pair_groups=True).centered
    False
    """

    group_sizes: Sequence[int] = ()
    """Sizes to regroup into; empty: 2, 4 and 8 as far as groups are large enough, and the logged size; where rows are
    tokens the logged size alone."""
    centered: bool = False
    """Whether to subtract the mean row first."""
    pair_groups: bool = False
    """Whether only groups count that live at every size, each weighing the same: the same prompts at every size."""
    tokens: int | None = None
    """For rows that are tokens: most tokens of a group; of more, as many are drawn at random. None: 512."""
    sketch: int | None = None
    """For token rows: all tokens, each kept as this many numbers."""
    heldout: str | Path | None = None
    """Samples of known correctness to hold each step against: a file, a gradscope run, or another log. It costs the
    passes of each step once more, and one for each correct answer."""
    heldout_threshold: float | None = None
    """A held-out sample is correct when its reward reaches this; None: 1 for rewards of 0/1 or -1/1."""
    seed: int = 0
    """Decides which tokens and held-out answers are drawn, and the sketch."""

    def check(self, rows: RowKind) -> None:
        """Refuse options that do not go with a kind of rows, or with each other.

        Raises:
            UsageError: They do not.
        """
        if self.tokens is not None and (rows not in TOKEN_ROWS or self.tokens < 2):
            raise UsageError(
                "--max-tokens is a number from 2 on, and goes with rows that are tokens.",
                hint="Write --max-tokens 64"
                if rows in TOKEN_ROWS
                else "Add --rows token, --rows hidden or --rows logit.",
            )
        if self.sketch is not None and (rows != "token" or self.tokens is not None or self.sketch < 2):
            raise UsageError(
                "--sketch K keeps every token, as K numbers (2 or more): it goes with --rows token, without "
                "--max-tokens.",
                hint="Write --rows token --sketch 4096",
            )
        if self.pair_groups and rows in ("update", "group"):
            raise UsageError(
                f"--pair-groups is for the rollouts of one group, and --rows {rows} has no such matrix.",
                hint="Use --rows rollout, token, weight, hidden, logit or advantage.",
            )
        if self.heldout is None and self.heldout_threshold is not None:
            raise UsageError("--heldout-threshold is about held-out samples.", hint="Name them: --heldout FILE")
        if self.heldout is not None and rows not in WHOLE_ROLLOUTS:
            raise UsageError(
                f"--heldout is for rows of whole rollouts, and --rows {rows} has others.",
                hint="Leave out --rows, or use --rows group.",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRequest:
    """The matrices, the advantages and the group sizes."""

    rows: RowKind
    """Which matrix."""
    advantages: tuple[str, ...]
    """``logged`` and formulations that exist."""
    group_sizes: tuple[int, ...]
    """Sizes to regroup into, beside the logged one."""
    paired: bool
    """Whether only groups count that live at every size, each weighing the same."""
    centered: bool
    """Whether to subtract the mean row first."""
    seed: int
    """Decides which tokens are drawn, and the sketch."""
    output: Path | None
    """Folder for the Gram matrices; None: they are not written."""

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
    """Names checked against the registry; ``all`` and None stand for the logged one and every formulation.

    A name of a function in a file runs the file.

    Returns:
        The names, each once.
    """
    everything = (LOGGED, *FORMULATIONS, *GRAM_FORMULATIONS)
    for name in names or ():
        if name not in (LOGGED, "all"):
            named_formulation(name)
    if names is None:
        return everything
    return tuple(dict.fromkeys(one for name in names for one in (everything if name == "all" else (name,))))


def possible_sizes(run: Run, sizes: Sequence[int]) -> tuple[int, ...]:
    """Sizes that some group of the log can give; 2, 4 and 8 as far as it can where none is asked for.

    Returns:
        The sizes, each once.

    Raises:
        UsageError: No group is as large as one that is asked for, or it is no group.
    """
    largest = max(sizes_of(run.groups), default=0)
    for size in sizes:
        if not 2 <= size <= largest:
            raise UsageError(
                f"Groups of {size} cannot be taken from this log: its largest group has {largest} rollouts.",
                hint=f"Choose a --group-size from 2 to {largest}.",
            )
    return tuple(dict.fromkeys(sizes)) if sizes else tuple(size for size in _GROUP_SIZES if size < largest)
