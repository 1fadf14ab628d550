"""Relax's rollouts as columns."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

from gradscope.rollouts.readers.format import LogColumns, Reading
from gradscope.rollouts.readers.parsing.jsonl import read_jsonl
from gradscope.rollouts.readers.parsing.nested_cells import numbers_in
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.scan.line_columns import LineColumns, member, numeric, quoted, step_number
from gradscope.rollouts.readers.slime.sample import chosen_part, prompt_digest

_NUM_PEEKED = 20
"""Rows of each file that are looked at for the names of rewards."""
_KEYS = ("rollout_id", "group_index", "sample_index", "reward")
_STEP, _GROUP, _SAMPLE, _REWARD = (f"c[{at}]" for at in range(1, len(_KEYS) + 1))


def relax_columns(reading: Reading) -> LogColumns | None:
    """How rollouts are read as columns; rewards that come late are for the row reader.

    Returns:
        The columns; None where the first file does not begin with the rewards that others have, or with the named one.
    """
    of_files = [
        [
            name
            for _, row in islice(read_jsonl(file, QuarantineLog()), _NUM_PEEKED)
            for name in numbers_in(row.get("reward"))
        ]
        for file in reading.files
    ]
    names = tuple(dict.fromkeys(name for found in of_files for name in found))
    if names and (not of_files[0] or reading.request.columns.reward not in (None, *names)):
        return None
    part = chosen_part(names, reading)
    lines = _line_columns(names, part)
    late: set[str] = set()
    return LogColumns(
        names=lines.columns,
        of_file=lambda _: lines,
        shared={"part": part, "known": frozenset(names), "late": late},
        surveyed={"part": part},
        judged=lambda table: None if late else table,
    )


def _line_columns(names: tuple[str, ...], part: str | None) -> LineColumns:
    cells = {name: numeric(f"c[{at}]") for at, name in enumerate(names, start=len(_KEYS) + 1)}
    known = ", ".join(map(quoted, names))
    return LineColumns(
        paths=(*map(member, _KEYS), *(member("reward", name) for name in names)),
        step=step_number(_STEP),
        group=f"{step_number(_GROUP)}::VARCHAR",
        prompt_paths=(member("prompt"),),
        prompt_id=_prompt_id,
        reward=numeric(_REWARD) if part is None else cells[part],
        rewards=cells,
        sample=f"{step_number(_SAMPLE)}::VARCHAR",
        plain=f"coalesce(list_has_all([{known}]::VARCHAR[], json_keys({_REWARD})), true)",
    )


def _prompt_id(row: Mapping[str, Any]) -> str:
    return prompt_digest(row.get("prompt"))
