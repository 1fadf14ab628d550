"""One trace of prime-rl's: a tree of messages with their tokens; the path from its root to a leaf is a sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradscope.rollouts.readers.parsing.nested_cells import list_of, mapping_of
from gradscope.rollouts.readers.parsing.quarantine import UnusableRowError
from gradscope.rollouts.readers.parsing.scalars import parse_messages, text_of
from gradscope.rollouts.readers.parsing.token_lists import cut_sequence
from gradscope.rollouts.types import Tokens

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
