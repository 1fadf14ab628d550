"""One line of prime-rl's traces: an episode, in which one agent or several were trained.

An agent's trace is a tree of messages with their tokens; the path from its root to a leaf is a sequence.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import UNSET, Raw, Struct
from numpy.typing import NDArray

from gradscope.rollouts.readers.parsing.cells import (
    ABSENT,
    cut_sequence,
    digest,
    finite_or_none,
    list_of,
    mapping_of,
    number_in_name,
    parse_messages,
    text_of,
    usable_reward,
    whole_number,
)
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog, UnusableRowError
from gradscope.rollouts.readers.parsing.records import Record
from gradscope.rollouts.readers.prime_rl.annotations import HIGH, LOW, digest_halves
from gradscope.rollouts.readers.reduction.columns import REWARD, Columns, LineColumns, Name, numbers_of, step_numbers
from gradscope.rollouts.run import Tokens

_COLUMNS = ("logprobs", "advantages", "trainer_logprobs", "entropies")
"""Lists of a node, a value a sampled token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentTrace:
    """What one agent read and wrote."""

    prompt: str
    """The contents of the messages before the first sampled one, joined by newlines."""
    messages: tuple[dict[str, Any], ...] | None
    """Those messages; None where one of them has no role."""
    completion: str
    """The contents of the messages from then on, joined by newlines."""
    tokens: Tokens | None
    """Its tokens, of several sequences the last; None where they were not logged or contradict each other."""
    earlier: tuple[Tokens, ...]
    """Those of the sequences before: each branch that was trained on is one."""


def read_trace(trace: Mapping[str, Any]) -> AgentTrace:
    """The text and tokens of a trace; of one that branches, the text of the last branch that was trained on."""
    nodes = nodes_of(trace)
    leaves = _trained_leaves(nodes)
    path = [nodes[at] for at in path_to(leaves[-1], nodes)] if leaves else []
    sampled = next((at for at, node in enumerate(path) if node.get("sampled") is True), len(path))
    messages = [node.get("message") for node in path]
    sequences = _sequences(leaves, nodes)
    return AgentTrace(
        prompt="\n".join(_text(message) for message in messages[:sampled]),
        messages=parse_messages(messages[:sampled]),
        completion="\n".join(_text(message) for message in messages[sampled:]),
        tokens=sequences[-1] if sequences else None,
        earlier=sequences[:-1],
    )


def nodes_of(trace: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The messages of a trace."""
    return [mapping_of(node) for node in list_of(trace.get("nodes"))]


def leaves_of(nodes: Sequence[Mapping[str, Any]]) -> list[int]:
    """Where each branch ends, in the order in which prime-rl numbers branches."""
    parents = {node.get("parent") for node in nodes if type(node.get("parent")) is int}
    return [at for at in range(len(nodes)) if at not in parents]


def path_to(leaf: int, nodes: Sequence[Mapping[str, Any]]) -> list[int]:
    """The nodes from the root to a leaf; a parent comes before its children, so that a cycle cannot be written."""
    path = [leaf]
    while type(parent := nodes[path[-1]].get("parent")) is int and 0 <= parent < path[-1]:
        path.append(parent)
    return path[::-1]


def _trained_leaves(nodes: Sequence[Mapping[str, Any]]) -> list[int]:
    """The leaves of branches that were trained on: of attempts to compact the context only those resumed from."""
    resumed = {link.get("node") for node in nodes for link in _links(node) if link.get("type") == "compaction"}
    return [
        leaf
        for leaf in leaves_of(nodes)
        if leaf in resumed or all(link.get("type") != "compaction_attempt" for link in _links(nodes[leaf]))
    ]


def _links(node: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [mapping_of(link) for link in list_of(node.get("semantic_parents"))]


def _text(message: Any) -> str:
    return text_of([message]) if isinstance(message, Mapping) and "role" in message else text_of(message)


def _sequences(leaves: Sequence[int], nodes: Sequence[Mapping[str, Any]]) -> tuple[Tokens, ...]:
    """The tokens of each branch, without those that sampled nothing of their own.

    Returns:
        What was trained on; what was sampled before a fork counts in the first branch that holds it. Nothing where one
        branch cannot be told, since a part would pass for all.
    """
    found: list[Tokens] = []
    counted: set[int] = set()
    for leaf in leaves:
        path = path_to(leaf, nodes)
        is_own = [at not in counted for at in path]
        counted.update(at for at in path if nodes[at].get("sampled") is True)
        branch = [nodes[at] for at in path]
        if not any(own and any(list_of(node.get("mask"))) for own, node in zip(is_own, branch, strict=True)):
            continue
        tokens = _tokens(branch, is_own)
        if tokens is None:
            return ()
        found.append(tokens)
    return tuple(found)


def _tokens(path: Sequence[Mapping[str, Any]], is_own: Sequence[bool]) -> Tokens | None:
    """The tokens of a branch, of which those of some nodes are its own and the others what it was conditioned on."""
    ids: list[Any] = []
    mask: list[Any] = []
    columns: dict[str, list[Any] | None] = {name: [] for name in _COLUMNS}
    for node, own in zip(path, is_own, strict=True):
        flags = list_of(node.get("mask")) if own else [False] * len(list_of(node.get("mask")))
        ids += list_of(node.get("token_ids"))
        mask += flags
        for name, joined in columns.items():
            spread = _spread(list_of(node.get(name)) if own else [], flags)
            if joined is None or spread is None:
                columns[name] = None
            else:
                joined += spread
    try:
        return cut_sequence(ids, mask, **columns)
    except UnusableRowError:
        return None


def _spread(compact: Sequence[Any], mask: Sequence[Any]) -> list[Any] | None:
    """One value a token, 0 where not sampled, from one a sampled token; None where there are more or fewer of these."""
    if len(compact) != sum(bool(flag) for flag in mask):
        return None
    values = iter(compact)
    return [next(values) if flag else 0.0 for flag in mask]


AGENTS = "Episodes with several trained agents: the rollouts of one agent form a group."
"""For ``Source.inferred``."""


def is_standalone(episode: Mapping[str, Any]) -> bool:
    """Whether an episode is of an evaluation on its own, beside no training."""
    return isinstance(episode.get("traces"), list) and mapping_of(episode.get("run")).get("type") == "eval"


def trained_traces(episode: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The traces of an episode whose agents were trained."""
    return [trace for trace in map(mapping_of, list_of(episode.get("traces"))) if _is_trained(trace)]


def _is_trained(trace: Mapping[str, Any]) -> bool:
    return bool(trace) and mapping_of(trace.get("agent")).get("trainable") is not False


def group_names(group: str, traces: Sequence[Mapping[str, Any]]) -> list[str]:
    """A group for each agent of an episode, by its name where that tells it from the others, else by its place."""
    if len(traces) == 1:
        return [group]
    agents = [text_of(mapping_of(trace.get("agent")).get("name")) for trace in traces]
    return [f"{group}/{agent if len(set(agents)) == len(agents) else at}" for at, agent in enumerate(agents)]


def record_of(
    episode: Mapping[str, Any],
    trace: Mapping[str, Any],
    parsed: AgentTrace,
    step: int,
    group: str,
    location: str,
    quarantine: QuarantineLog,
) -> Record:
    """One agent's rollout of an episode; without a usable reward it is set aside, but stays in its group."""
    task = mapping_of(episode.get("task"))
    environment = text_of(mapping_of(episode.get("env")).get("id"))
    failed = episode.get("ok") is False
    scored = {name: mapping_of(cell) for name, cell in mapping_of(trace.get("rewards")).items()}
    return Record(
        step=step,
        group=group,
        prompt_id=f"{environment}/{text_of(task.get('hash')) or digest(task.get('data'))}",
        prompt=parsed.prompt,
        completion=parsed.completion,
        messages=parsed.messages,
        reward=usable_reward(_weighted_sum(scored), location, quarantine),
        rewards={name: finite_or_none(cell.get("score")) for name, cell in scored.items()},
        status="error" if failed else "unknown",
        tokens=parsed.tokens,
        earlier=parsed.earlier,
        policy_versions=_policy_versions(episode),
    )


def _policy_versions(episode: Mapping[str, Any]) -> tuple[int, int] | None:
    """The versions of the weights that an episode began and ended with, counted in updates; None of other cells."""
    policy = mapping_of(mapping_of(mapping_of(episode.get("run")).get("work")).get("policy"))
    start, end = whole_number(policy.get("start")), whole_number(policy.get("end"))
    return (start, end) if start is not None and end is not None and 0 <= start <= end else None


def _weighted_sum(scored: Mapping[str, Mapping[str, Any]]) -> Any:
    """The scalar reward, the sum of score times weight; where a score is none, what stands in its place."""
    if not scored:
        return ABSENT
    total = 0.0
    for cell in scored.values():
        score, weight = finite_or_none(cell.get("score")), finite_or_none(cell.get("weight", 1.0))
        if score is None or weight is None:
            return cell.get("score") if score is None else cell.get("weight")
        total += score * weight
    return total


def in_no_loss(trace: AgentTrace) -> AgentTrace:
    """A trace none of whose tokens was trained on."""
    return replace(
        trace,
        tokens=None if trace.tokens is None else _without_loss(trace.tokens),
        earlier=tuple(map(_without_loss, trace.earlier)),
    )


def _without_loss(tokens: Tokens) -> Tokens:
    num_tokens = len(tokens.mask)
    return replace(tokens, mask=(False,) * num_tokens, token_advantages=(0.0,) * num_tokens)


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
    id: Name


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
