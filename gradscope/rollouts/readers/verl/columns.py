"""The lines of verl's dump as columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gradscope.rollouts.readers.scan.lines import LineColumns, member, numeric, whole

_KEYS = ("step", "uid", "score", "input", "gts", "responses", "response_ids")
_STEP, _UID, _SCORE, _INPUT, _GTS, *_RESPONSES = (f"c[{at}]" for at in range(1, len(_KEYS) + 1))


def line_columns(extra: Sequence[str], *, named: bool, prompt_id: Callable[[Mapping[str, Any]], str]) -> LineColumns:
    """The columns of a dump without tokens.

    Args:
        extra: Names of the numbers that rows have beside the score.
        named: Whether rows have a uid, as those of the V1 trainer.
        prompt_id: The id of a row's prompt.

    Returns:
        The columns.
    """
    score = numeric(_SCORE)
    is_uid = (
        f"starts_with({_UID}, '\"') AND NOT contains({_UID}, '\\') "
        "AND regexp_full_match(parts[-2], '[0-9]+') AND regexp_full_match(parts[-1], '[0-9]+\"')"
    )
    no_tokens = " AND ".join(f"{cell} IS NULL" for cell in _RESPONSES)
    return LineColumns(
        paths=tuple(member(name) for name in (*_KEYS, *extra)),
        step=whole(_STEP),
        # <group>_<session>_<index>, between quotes
        derived={"parts": f"string_split({_UID}, '_')"} if named else {},
        group="substr(array_to_string(parts[:-3], '_'), 2)" if named else f"hash({_INPUT}, {_GTS})::VARCHAR",
        group_is_prompt=not named,
        prompt=(_INPUT, _GTS),
        prompt_id=prompt_id,
        reward=score,
        rewards={"score": score, **{name: numeric(f"c[{at}]") for at, name in enumerate(extra, start=len(_KEYS) + 1)}},
        sample="parts[-2]" if named else None,
        plain=f"{no_tokens} AND {is_uid if named else f'{_UID} IS NULL'}",
    )
