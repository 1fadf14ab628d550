"""The episodes of prime-rl's traces as columns: those with one trained agent, whose trace does not branch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from gradscope.rollouts.readers.parsing.nested_cells import mapping_of
from gradscope.rollouts.readers.prime_rl.episode import trained_traces
from gradscope.rollouts.readers.prime_rl.shipments import DIGEST
from gradscope.rollouts.readers.scan.line_columns import LineColumns, member, numeric, quoted, text, whole

_TRACE = "$.traces[0]"
_PATHS = (
    member("run", "work", "step"),
    member("group", "id"),
    member("env", "id"),
    member("task", "hash"),
    f"{_TRACE}.rewards",
    f"{_TRACE}.agent.trainable",
    "$.traces[1]",
    f"{_TRACE}.nodes[1].parent",
    f"{_TRACE}.nodes[2].parent",
    f"{_TRACE}.nodes[2]",
    f"{_TRACE}.nodes[3]",
)
_STEP, _GROUP, _ENVIRONMENT, _HASH, _REWARDS, _TRAINABLE, _SECOND, _PARENT, _NEXT_PARENT, _THIRD, _FOURTH = (
    f"c[{at}]" for at in range(1, len(_PATHS) + 1)
)
_OF_STREAM = (
    member("run", "work", "type"),
    f"{_TRACE}.info.kind",
    f"{_TRACE}.info.ship",
    f"{_TRACE}.id",
    *(f"{_TRACE}.nodes[{at}].logprobs" for at in range(3)),
)
SENT = "\0sent"
"""The step at which an episode was sent out, as a column beside those of rewards."""
_HAS_ONE_AGENT = f"{_SECOND} IS NULL AND coalesce({_TRAINABLE} <> 'false', true)"
# Every message follows the one before it.
_IS_CHAIN = (
    f"CASE WHEN {_FOURTH} IS NULL THEN {_PARENT} = '0' AND ({_THIRD} IS NULL OR {_NEXT_PARENT} = '1') "
    f"ELSE json_extract(line, '{_TRACE}.nodes[*].parent')::VARCHAR[] = "
    f"range(json_array_length(line, '{_TRACE}.nodes')::BIGINT - 1)::VARCHAR[] END"
)


def kinds_of_rewards(rows: Iterable[Mapping[str, Any]]) -> tuple[tuple[str, ...], ...]:
    """The reward functions that episodes with one trained agent have together, in their order, each kind once."""
    traces = (trained_traces(row) for row in rows)
    kinds = (tuple(mapping_of(found[0].get("rewards"))) for found in traces if len(found) == 1)
    return tuple(dict.fromkeys(kind for kind in kinds if kind))


def episode_columns(kinds: tuple[tuple[str, ...], ...]) -> LineColumns:
    """The columns of episodes.

    Args:
        kinds: As :func:`kinds_of_rewards` tells them; episodes of another kind are odd.

    Returns:
        The columns.
    """
    names = tuple(dict.fromkeys(name for kind in kinds for name in kind))
    cells = {
        name: (f"c[{len(_PATHS) + 2 * at + 1}]", f"c[{len(_PATHS) + 2 * at + 2}]") for at, name in enumerate(names)
    }
    scores = {name: numeric(score) for name, (score, _) in cells.items()}
    weights = {
        name: f"CASE WHEN {weight} IS NULL THEN 1 ELSE {numeric(weight)} END" for name, (_, weight) in cells.items()
    }
    sums = (
        f"WHEN [{', '.join(map(quoted, kind))}] THEN 0::DOUBLE + "
        + " + ".join(f"{scores[name]} * ({weights[name]})" for name in kind)
        for kind in kinds
    )
    environment = f"CASE WHEN {_ENVIRONMENT} IS NULL THEN '' ELSE {text(_ENVIRONMENT)} END"
    return LineColumns(
        paths=(
            *_PATHS,
            *(
                f"{_TRACE}{member('rewards', name, part).removeprefix('$')}"
                for name in names
                for part in ("score", "weight")
            ),
        ),
        derived={"kind": f"json_keys({_REWARDS})", "id": f"{environment} || '/' || nullif({text(_HASH)}, '')"},
        step=whole(_STEP),
        group=text(_GROUP),
        prompt=("id",),
        prompt_id="id",
        reward=f"CASE kind {' '.join(sums)} END" if kinds else "NULL::DOUBLE",
        rewards=scores,
        plain=f"{_HAS_ONE_AGENT} AND {_IS_CHAIN}",
    )


def stream_columns(
    kinds: tuple[tuple[str, ...], ...], further: Iterable[str], *, may_branch: bool, odd_logprobs: str
) -> LineColumns:
    """The columns of a stream's episodes.

    Args:
        kinds: As for :func:`episode_columns`.
        further: Rewards that only odd episodes have.
        may_branch: Whether episodes may be plain whose traces branch.
        odd_logprobs: A pattern: episodes are odd in whose log-probabilities it is found. "": none is.

    Returns:
        The columns. Beside those of rewards stand the step of the dispatch and the halves of the trace's digest; groups
        are called by :func:`stream_group`, and all are of step 0.
    """
    lines = episode_columns(kinds)
    work, kind, ship, trace, *of_nodes = (f"c[{len(lines.paths) + at}]" for at in range(1, len(_OF_STREAM) + 1))
    logprobs = (
        f"CASE WHEN {_FOURTH} IS NULL THEN concat({', '.join(of_nodes)}) "
        f"ELSE json_extract(line, '{_TRACE}.nodes[*].logprobs')::VARCHAR END"
    )
    plain = (
        *(
            _HAS_ONE_AGENT if may_branch else lines.plain,
            "sent IS NOT NULL",
            f"{ship} IS NULL",
            f"starts_with({trace}, '\"')",
        ),
        *(f"coalesce({cell} <> '\"eval\"' AND NOT contains({cell}, '\\'), true)" for cell in (work, kind)),
        *([f"NOT regexp_matches({logprobs}, {quoted(odd_logprobs)})"] if odd_logprobs else []),
    )
    return replace(
        lines,
        paths=(*lines.paths, *_OF_STREAM),
        derived={
            **lines.derived,
            **{"sent": whole(_STEP), "in_group": text(_GROUP), "trace": text(trace), "digest": "md5(trace)"},
        },
        step="0",
        group="length(in_group) || ':' || in_group || id",
        rewards={**dict.fromkeys(further, "NULL::DOUBLE"), **lines.rewards, SENT: "sent::DOUBLE", **DIGEST},
        plain=" AND ".join(plain),
    )


def stream_group(group: str, prompt_id: str) -> str:
    """What a group of the stream is called while its step is not known: both names in one."""
    return f"{len(group)}:{group}{prompt_id}"


def named_in(name: str) -> str:
    """The name of the group that :func:`stream_group` made this one of."""
    length, _, names = name.partition(":")
    return names[: int(length)]
