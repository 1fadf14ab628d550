"""How the matrices of a step are made: one record, from which the flags of `gradscope rank` are made.

Nothing heavy is imported here, so that `gradscope rank --help` loads no numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from msgspec import Struct

from gradscope.errors import UsageError
from gradscope.option import Option
from gradscope.results.source import RowKind

ROLLOUT_ROWS = ("rollout", "group")
"""Kinds of rows that are whole rollouts, and ask nothing of a step but held-out answers."""
TOKEN_ROWS = ("token", "hidden", "logit")  # kinds of rows that are tokens


class RankOptions(Struct, frozen=True, kw_only=True):
    """How the rows of a step are grouped, centered and drawn, and what they are held against.

    >>> RankOptions(group_sizes=(4,), pair_groups=True).centered
    False
    """

    group_sizes: Sequence[int] = ()
    """Sizes to regroup into; empty: 2, 4 and 8 as far as groups are large enough, and the logged size; where rows are
    tokens the logged size alone."""
    pair_groups: Annotated[
        bool,
        Option(
            "Count only prompts that have a gradient at every group size, each the same: then the size is all that "
            "changes."
        ),
    ] = False
    centered: Annotated[bool, Option("Subtract the mean row first.", flags=("--center",))] = False
    tokens: Annotated[
        int | None,
        Option(
            "For rows that are tokens: most tokens of a group, drawn at random where it has more; 512 by default.",
            "N",
            flags=("--max-tokens",),
        ),
    ] = None
    sketch: Annotated[
        int | None,
        Option("For --rows token: all tokens, however many, each row sketched in K numbers; the error is stated.", "K"),
    ] = None
    heldout: Annotated[
        str | Path | None,
        Option(
            "Samples of known correctness (a file, a gradscope run, another log): what each step does to the correct "
            "answers of their prompts. Runs each step's rollouts twice.",
            "FILE",
            shows_default=False,
        ),
    ] = None
    heldout_threshold: Annotated[
        float | None,
        Option(
            "A held-out sample is correct when its reward reaches this; 1 by default for rewards of 0/1 or -1/1.",
            "X",
            shows_default=False,
        ),
    ] = None
    seed: Annotated[int, Option("Decides what is drawn at random.", "N")] = 0
    output: str | Path | None = None  # folder for the Gram matrices, written step by step

    def check(self, rows: RowKind) -> None:
        """Refuse options that do not go with a kind of rows, or with each other."""
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
        if self.heldout is not None and rows not in ROLLOUT_ROWS:
            raise UsageError(
                f"--heldout is for rows of whole rollouts, and --rows {rows} has others.",
                hint="Leave out --rows, or use --rows group.",
            )
