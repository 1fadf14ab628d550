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
    # <group>_<session>_<index> between quotes; what is not plain ASCII goes to the row reader
    derived = {"tail": f"regexp_extract({_UID}, '_[0-9]+_[0-9]+\"$')"}
    is_uid = f"tail <> '' AND starts_with({_UID}, '\"') AND NOT contains({_UID}, '\\')"
    no_tokens = " AND ".join(f"{cell} IS NULL" for cell in _RESPONSES)
    return LineColumns(
        paths=tuple(member(name) for name in (*_KEYS, *extra)),
        step=whole(_STEP),
        derived=derived if named else {},
        group=f"substr({_UID}, 2, strlen({_UID}) - strlen(tail) - 1)" if named else f"hash({_INPUT}, {_GTS})::VARCHAR",
        group_is_prompt=not named,
        prompt=(_INPUT, _GTS),
        prompt_id=prompt_id,
        reward=score,
        rewards={"score": score, **{name: numeric(f"c[{at}]") for at, name in enumerate(extra, start=len(_KEYS) + 1)}},
        # of a session with several outputs one has an index above 0, and the row reader folds them
        sample=f"CASE WHEN ends_with({_UID}, '_0\"') THEN {_UID} END" if named else None,
        plain=f"{no_tokens} AND {f'{is_uid} AND strlen({_UID}) = length({_UID})' if named else f'{_UID} IS NULL'}",
    )
