"""One line of prime-rl's traces: an episode, in which one agent or several were trained.

An agent's trace is a tree of messages with their tokens; the path from its root to a leaf is a sequence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gradscope.rollouts.groups import Tokens
from gradscope.rollouts.readers.parsing.cells import (
    ABSENT,
    cut_sequence,
    digest,
    finite_or_none,
    list_of,
    mapping_of,
    parse_messages,
    text_of,
    usable_reward,
    whole_number,
)
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog, UnusableRowError
from gradscope.rollouts.readers.parsing.records import Record

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
