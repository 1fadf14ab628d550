"""The lines of verl's dump as columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

from gradscope.rollouts.readers.scan.line_columns import LineColumns, is_list_of_ids, member, numeric, quoted, whole
from gradscope.rollouts.readers.verl.tokens import NO_REWARDS

_PROMPTS = tuple(map(member, ("input", "gts")))
_KEYS = ("step", "uid", "score", "responses", "response_ids")
_TOKENS = ("prompts", "prompt_ids", "attention_mask", "response_mask", "rollout_log_probs", "advantages")
_PATHS = tuple(map(member, (*_KEYS, *_TOKENS)))
_STEP, _UID, _SCORE, _RESPONSE, _RESPONSE_IDS, _PROMPT, _PROMPT_IDS, *_CELLS = (
    f"c[{at}]" for at in range(1, len(_PATHS) + 1)
)
_ATTENTION, _MASK, _LOGPROBS, _ADVANTAGES = _CELLS


def _number_of(cell: str) -> str:
    """How many numbers a list of numbers has."""
    return f"if({cell} = '[]', 0, strlen({cell}) - strlen(replace({cell}, ',', '')) + 1)"


def _is_absent(cell: str) -> str:
    return f"coalesce({cell} = 'null', true)"


def _is_aligned(cell: str) -> str:
    """Whether a list has a number for each token of the response."""
    return f"(regexp_full_match({cell}, '\\[[-+.,eE0-9]*\\]') AND {_number_of(cell)} = num_response)"


_DERIVED = {
    "prompt_ids": f"coalesce({_PROMPT}, {_PROMPT_IDS})",
    "response_ids": f"coalesce({_RESPONSE}, {_RESPONSE_IDS})",
    "num_prompt": _number_of("prompt_ids"),
    "num_response": _number_of("response_ids"),
    # Flags of one digit each stand at every other place, those of the response behind those of the prompt.
    "attended": f"substr({_ATTENTION}, 2 * num_prompt + 2)",
    "has_tokens": f"NOT ({_is_absent('prompt_ids')} OR {_is_absent('response_ids')})",
}
_NUM_TOKENS = (
    f"CASE WHEN NOT has_tokens THEN NULL WHEN {_is_absent(_ATTENTION)} THEN num_response "
    "ELSE num_response - strlen(attended) + strlen(replace(attended, '0', '')) END"
)
_ARE_ALIGNED = " AND ".join(
    (
        is_list_of_ids("prompt_ids"),
        is_list_of_ids("response_ids"),
        f"({_is_absent(_ATTENTION)} OR {_number_of(_ATTENTION)} = num_prompt + num_response "
        f"AND starts_with({_ATTENTION}, '[') AND strlen({_ATTENTION}) = 2 * (num_prompt + num_response) + 1)",
        *(f"({_is_absent(cell)} OR {_is_aligned(cell)})" for cell in (_MASK, _LOGPROBS)),
        f"({_is_absent(_ADVANTAGES)} OR isfinite(try_cast({_ADVANTAGES} AS DOUBLE)) OR {_is_aligned(_ADVANTAGES)})",
    )
)


def line_columns(
    extra: Sequence[str],
    *,
    named: bool,
    has_tokens: bool,
    others: Sequence[str] | None,
    prompt_id: Callable[[Mapping[str, Any]], str],
) -> LineColumns:
    """The columns of a dump.

    Args:
        extra: Names of the numbers that rows have beside the score.
        named: Whether rows have a uid, as those of the V1 trainer.
        has_tokens: Whether rows may have columns of tokens; without, a row that has them is odd.
        others: Names of further cells that are no numbers; rows with a number elsewhere are odd. None: nobody looks.
        prompt_id: The id of a row's prompt.

    Returns:
        The columns.
    """
    score = numeric(_SCORE)
    # <group>_<session>_<index> between quotes; what is not plain ASCII goes to the row reader
    tail = {"tail": f"regexp_extract({_UID}, '_[0-9]+_[0-9]+\"$')"} if named else {}
    is_uid = f"tail <> '' AND starts_with({_UID}, '\"') AND NOT contains({_UID}, '\\')"
    no_tokens = f"{_RESPONSE} IS NULL AND {_RESPONSE_IDS} IS NULL"
    before = _PATHS if has_tokens else _PATHS[: len(_KEYS)]
    # without uids a group is what has the same texts; with them only its first row is asked for them
    texts = () if named else _PROMPTS
    cells = count(len(before) + 1)
    of_texts, of_extra, of_others = ([f"c[{next(cells)}]" for _ in some] for some in (texts, extra, others or ()))
    same_texts = f"hash({', '.join(of_texts)})::VARCHAR"
    plain = [
        f"{is_uid} AND strlen({_UID}) = length({_UID})" if named else f"{_UID} IS NULL",
        f"(NOT has_tokens OR {_ARE_ALIGNED})" if has_tokens else no_tokens,
    ]
    if others is not None:
        known = ", ".join(map(quoted, (*sorted(NO_REWARDS), *extra, *others)))
        plain.append(f"list_has_all([{known}]::VARCHAR[], json_keys(line))")
        kept = "coalesce({0} = 'null' OR left({0}, 1) IN ('\"', '[', '{{'), true)"
        plain += map(kept.format, of_others)
    return LineColumns(
        paths=(*before, *texts, *map(member, (*extra, *(others or ())))),
        step=whole(_STEP),
        derived=tail | (_DERIVED if has_tokens else {}),
        group=f"substr({_UID}, 2, strlen({_UID}) - strlen(tail) - 1)" if named else same_texts,
        group_is_prompt=not named,
        prompt=tuple(of_texts),
        prompt_paths=_PROMPTS if named else (),
        prompt_id=prompt_id,
        reward=score,
        rewards={"score": score, **dict(zip(extra, map(numeric, of_extra), strict=True))},
        further={"num_tokens": f"({_NUM_TOKENS})::BIGINT"} if has_tokens else {},
        # of a session with several outputs one has an index above 0, and the row reader folds them
        sample=f"CASE WHEN ends_with({_UID}, '_0\"') THEN {_UID} END" if named else None,
        plain=" AND ".join(plain),
    )
