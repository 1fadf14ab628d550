"""The episodes of prime-rl's traces as columns: those with one trained agent, whose trace does not branch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import UNSET, Raw, Struct
from numpy.typing import NDArray

from gradscope.rollouts.readers.parsing.cells import number_in_name
from gradscope.rollouts.readers.prime_rl.annotations import HIGH, LOW, digest_halves
from gradscope.rollouts.readers.reduction.columns import REWARD, Columns, LineColumns, numbers_of, step_numbers

STEP = re.compile(r"^step_([0-9]+)$")
"""A step's folder."""
SENT = "\0sent"
"""The step at which an episode was sent out, as a column beside those of rewards."""


class _Score(Struct, gc=False):
    score: Any = UNSET
    weight: Any = 1.0


class _Agent(Struct, gc=False):
    trainable: Any = UNSET


class _Node(Struct, gc=False):
    parent: Any = UNSET
    logprobs: Raw = Raw()


class _Info(Struct, gc=False):
    kind: Any = UNSET
    ship: Any = UNSET


class _Trace(Struct, gc=False):
    id: Any = UNSET
    rewards: dict[str, _Score] = {}
    agent: _Agent | None = None
    nodes: list[_Node] = []
    info: _Info | None = None


class _Work(Struct, gc=False):
    step: Any = UNSET
    type: Any = UNSET


class _Of(Struct, gc=False):
    work: _Work


class _Group(Struct, gc=False):
    id: str | int


class _Environment(Struct, gc=False):
    id: str | None = None


class _Task(Struct, gc=False):
    hash: str


class _Episode(Struct, gc=False):
    run: _Of
    group: _Group
    traces: list[_Trace]
    task: _Task
    env: _Environment | None = None


def episode_columns() -> LineColumns:
    """The columns of episodes."""

    def take(rows: Sequence[_Episode], path: Path) -> Columns:
        steps = [row.run.work.step for row in rows]
        in_name = number_in_name(STEP, path) if UNSET in steps else None
        reward, rewards = _rewards_of(rows)
        return Columns(
            step=_steps_of([in_name if step is UNSET else step for step in steps]),
            group=[str(row.group.id) for row in rows],
            prompts=lambda some: [_prompt_id(rows[at]) for at in some],
            numbers={"reward": reward, **rewards},
            is_odd=np.array([not (_has_one_agent(row) and _is_chain(row) and row.task.hash) for row in rows]),
        )

    return LineColumns(row=_Episode, take=take, looks_at_path=True)


def stream_columns(*, may_branch: bool, odd_logprobs: str) -> LineColumns:
    """The columns of a stream's episodes.

    Args:
        may_branch: Whether episodes may be usual whose traces branch.
        odd_logprobs: A pattern: episodes are odd in whose log-probabilities it is found. "": none is.

    Returns:
        The columns. Beside those of rewards stand the step of the dispatch and the halves of the trace's digest; groups
        are called by :func:`stream_group`, and all are of step 0.
    """
    odd = re.compile(odd_logprobs.encode())

    def is_usual(row: _Episode, step: int) -> bool:
        if step < 0 or not row.task.hash or not _has_one_agent(row) or not (may_branch or _is_chain(row)):
            return False
        (trace,) = row.traces
        info = trace.info or _Info()
        is_evaluation = "eval" in (row.run.work.type, info.kind)
        is_like = not odd_logprobs or not any(odd.search(bytes(node.logprobs)) for node in trace.nodes)
        return type(trace.id) is str and info.ship is UNSET and not is_evaluation and is_like

    def take(rows: Sequence[_Episode], _: Path) -> Columns:
        sent = _steps_of([row.run.work.step for row in rows])
        is_odd = np.array([not is_usual(row, step) for row, step in zip(rows, sent.tolist(), strict=True)])
        names = ["" if one else row.traces[0].id for row, one in zip(rows, is_odd.tolist(), strict=True)]
        halves = np.array(list(map(digest_halves, names)), dtype=np.float64)
        prompts = list(map(_prompt_id, rows))
        reward, rewards = _rewards_of(rows)
        beside = {SENT: sent.astype(np.float64), HIGH: halves[:, 0], LOW: halves[:, 1]}
        return Columns(
            step=np.zeros(len(rows), dtype=np.int64),
            group=[stream_group(str(row.group.id), prompt) for row, prompt in zip(rows, prompts, strict=True)],
            prompts=lambda some: [prompts[at] for at in some],
            numbers={"reward": reward, **rewards, **{REWARD + name: values for name, values in beside.items()}},
            is_odd=is_odd,
        )

    return LineColumns(row=_Episode, take=take)


def stream_group(group: str, prompt_id: str) -> str:
    """What a group of the stream is called while its step is not known: both names in one."""
    return f"{len(group)}:{group}{prompt_id}"


def named_in(name: str) -> str:
    """The name of the group that :func:`stream_group` made this one of."""
    length, _, names = name.partition(":")
    return names[: int(length)]


def _prompt_id(row: _Episode) -> str:
    return f"{(row.env.id if row.env else None) or ''}/{row.task.hash}"


def _has_one_agent(row: _Episode) -> bool:
    if len(row.traces) != 1:
        return False
    agent = row.traces[0].agent
    return agent is None or agent.trainable is not False


def _is_chain(row: _Episode) -> bool:
    """Whether every message follows the one before it."""
    return all(node.parent == at and type(node.parent) is int for at, node in enumerate(row.traces[0].nodes[1:]))


def _steps_of(cells: Sequence[Any]) -> NDArray[np.int64]:
    return step_numbers([cell if type(cell) is int else None for cell in cells])


def _rewards_of(rows: Sequence[_Episode]) -> tuple[NDArray[np.float64], dict[str, NDArray[np.float64]]]:
    """The scalar rewards, sums of scores times weights, NaN where one of them is none, [R]; and columns of scores."""
    scored = [row.traces[0].rewards if row.traces else {} for row in rows]
    kinds: dict[tuple[str, ...], list[int]] = {}
    for at, one in enumerate(scored):
        kinds.setdefault(tuple(one), []).append(at)
    total = np.full(len(rows), np.nan)
    columns: dict[str, NDArray[np.float64]] = {}
    for kind, some in kinds.items():
        if kind:
            total[some] = 0.0
        for name in kind:
            cells = [scored[at][name] for at in some]
            score = numbers_of([cell.score for cell in cells])
            columns.setdefault(REWARD + name, np.full(len(rows), np.nan))[some] = score
            with np.errstate(over="ignore", invalid="ignore"):
                total[some] += score * numbers_of([cell.weight for cell in cells])
    return total, columns
