"""One trace of prime-rl's: a tree of messages with their tokens; the path from its root to a leaf is a sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradscope.rollouts.readers.parsing.nested_cells import list_of, mapping_of
from gradscope.rollouts.readers.parsing.quarantine import UnusableRowError
from gradscope.rollouts.readers.parsing.scalars import parse_messages, text_of
from gradscope.rollouts.readers.parsing.token_lists import Tokens, cut_sequence

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
    """Its tokens; None where they were not logged, contradict each other, or the trace branches."""
    branches: bool
    """Whether it has several leaves, each a sequence that was trained on."""


def read_trace(trace: Mapping[str, Any]) -> AgentTrace:
    """The text and tokens of a trace; of one that branches, the text of the last branch that was trained on."""
    nodes = nodes_of(trace)
    leaves = _trained_leaves(nodes)
    path = [nodes[at] for at in path_to(leaves[-1], nodes)] if leaves else []
    sampled = next((at for at, node in enumerate(path) if node.get("sampled") is True), len(path))
    messages = [node.get("message") for node in path]
    return AgentTrace(
        prompt="\n".join(_text(message) for message in messages[:sampled]),
        messages=parse_messages(messages[:sampled]),
        completion="\n".join(_text(message) for message in messages[sampled:]),
        tokens=_tokens(path) if len(leaves) == 1 else None,
        branches=len(leaves) > 1,
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


def _tokens(path: Sequence[Mapping[str, Any]]) -> Tokens | None:
    masks = [list_of(node.get("mask")) for node in path]
    ids = [token for node in path for token in list_of(node.get("token_ids"))]
    columns: dict[str, list[Any] | None] = {}
    for name in _COLUMNS:
        spread = [_spread(list_of(node.get(name)), mask) for node, mask in zip(path, masks, strict=True)]
        columns[name] = None if None in spread else [value for values in spread for value in values or ()]
    try:
        return cut_sequence(ids, [flag for mask in masks for flag in mask], **columns)
    except UnusableRowError:
        return None


def _spread(compact: Sequence[Any], mask: Sequence[Any]) -> list[Any] | None:
    """One value a token, 0 where not sampled, from one a sampled token; None where there are more or fewer of these."""
    if len(compact) != sum(bool(flag) for flag in mask):
        return None
    values = iter(compact)
    return [next(values) if flag else 0.0 for flag in mask]
