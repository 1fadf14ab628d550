"""The lines of verl's dump as columns."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from msgspec import UNSET, Raw, UnsetType

from gradscope.rollouts.readers.parsing.quarantine import UnusableRowError
from gradscope.rollouts.readers.reduction.columns import (
    REWARD,
    Columns,
    Keys,
    LineColumns,
    Number,
    digest_of,
    json_of,
    numbers_of,
    samples_of,
    steps_of,
)
from gradscope.rollouts.readers.verl.tokens import COLUMNS, NO_REWARDS, row_tokens
from gradscope.rollouts.reward_table import UNKNOWN

Uids = Literal["of outputs", "of groups"] | None
"""What uids name: each output, as ``<group>_<session>_<index>``, or its group; None: rows have none."""
_TAIL = re.compile(r"_([0-9]+)_([0-9]+)")
_NO_NUMBER = b'"[{n'
"""How JSON texts begin that are no number or boolean."""


def line_columns(
    first: Iterable[Collection[str]], extra: Sequence[str], uids: Uids, *, has_tokens: bool
) -> LineColumns | None:
    """The columns of a dump.

    Args:
        first: The keys of its first rows; a row with any other is odd, as it may hold a reward.
        extra: Those of numbers beside the score.
        uids: What uids name.
        has_tokens: Whether rows may have columns of tokens; without, a row that has them is odd.

    Returns:
        The columns; None where a key is none that a struct can have.
    """
    keys = Keys()
    step, score = keys("step", int), keys("score", Number)
    uid = keys("uid", str if uids else Raw | UnsetType)
    texts = [keys(name, Raw | UnsetType) for name in ("input", "gts")]
    further = {name: keys(name, Any | UnsetType) for name in extra}
    known = {*NO_REWARDS, *extra}
    tokens = {name: keys(name, Any | UnsetType) for name in sorted(COLUMNS if has_tokens else ())}
    for name in sorted(NO_REWARDS - COLUMNS):
        if name not in keys:
            keys(name, Raw | UnsetType)
    others = [
        keys(name, Raw | UnsetType)
        for name in dict.fromkeys(name for row in first for name in row)
        if name not in known
    ]

    def prompt_of(row: Any) -> str:
        return digest_of(*(json_of(text(row)) for text in texts))

    def take(rows: Sequence[Any], _: Path) -> Columns:
        rewards = numbers_of(list(map(score, rows)))
        numbers = {"reward": rewards, REWARD + "score": rewards}
        numbers |= {REWARD + name: numbers_of(list(map(cell, rows))) for name, cell in further.items()}
        is_odd = np.zeros(len(rows), dtype=np.bool_)
        for other in others:
            is_odd |= [cell is not UNSET and bytes(cell)[0] not in _NO_NUMBER for cell in map(other, rows)]
        if has_tokens:
            lengths = [_num_tokens({name: cell(row) for name, cell in tokens.items()}) for row in rows]
            is_odd |= [length is None for length in lengths]
            numbers["num_tokens"] = np.array([UNKNOWN if length is None else length for length in lengths])
        cells = list(map(uid, rows))
        match uids:
            case "of outputs":
                cuts = [cell.rfind("_", 0, cell.rfind("_")) for cell in cells]
                tails = [cell[cut:] for cell, cut in zip(cells, cuts, strict=True)]
                groups = [cell[:cut] for cell, cut in zip(cells, cuts, strict=True)]
                kinds = {tail: _TAIL.fullmatch(tail) for tail in tails}
                improper = {tail for tail, found in kinds.items() if found is None}
                sessions = samples_of(found and found[1] for found in kinds.values())
                codes = dict(zip(kinds, sessions, strict=True))
                numbers["sample"] = np.array(list(map(codes.__getitem__, tails)), dtype=np.uint32)
                if improper or "\n" in "".join(groups):
                    is_odd |= [tail in improper or "\n" in name for tail, name in zip(tails, groups, strict=True)]
            case "of groups":
                groups = cells
            case None:
                is_odd |= [cell is not UNSET for cell in cells]
                ids: dict[tuple[bytes, ...], str] = {}
                groups = [
                    ids.get(pair) or ids.setdefault(pair, digest_of(*pair))
                    for pair in (tuple(json_of(text(row)) for text in texts) for row in rows)
                ]
        return Columns(
            step=steps_of(list(map(step, rows))),
            group=groups,
            prompts=lambda some: [prompt_of(rows[at]) for at in some],
            numbers=numbers,
            is_odd=is_odd,
        )

    return LineColumns(row=keys.struct(is_complete=True), take=take) if keys.are_plain else None


def _num_tokens(cells: dict[str, Any]) -> int | None:
    """How many tokens a row has; None where its lists contradict each other."""
    try:
        tokens = row_tokens({name: cell for name, cell in cells.items() if cell is not UNSET})
    except UnusableRowError:
        return None
    return UNKNOWN if tokens is None else len(tokens.completion_ids)
