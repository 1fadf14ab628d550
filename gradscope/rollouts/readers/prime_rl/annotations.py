"""What prime-rl learned of a trace after it was written, folded onto the trace: the newest of each fact counts.

Every producer has a stream of its own, ``annotations/<producer>/NNNNN.jsonl``. The orchestrator's tell at which step a
trace was trained on, with what advantages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradscope.rollouts.readers.parsing.jsonl import read_jsonl
from gradscope.rollouts.readers.parsing.nested_cells import list_of, mapping_of, whole_number
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.prime_rl.trace import leaves_of, nodes_of, path_to

STREAMS = ("advantages", "trainer_logprobs", "entropies")
"""Lists a branch that become lists of the same name of its nodes, which ``read_trace`` takes up; prime-rl's trainer
also writes ``is_masked``, what its loss left out."""
VERSION = 1
"""That of the annotations that are known."""


@dataclass(frozen=True, slots=True)
class Annotations:
    """The annotations of a run."""

    info: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Trace id -> what was learned of the trace as a whole: ``ship``, ``advantage``."""
    streams: Mapping[str, Sequence[tuple[int, str, list[Any]]]] = field(default_factory=dict)
    """Trace id -> branch, name and values, a value a token of the branch, in the order of writing."""
    trained_again: frozenset[int] = frozenset()
    """Steps that a restart trained again, so that rollouts of both attempts are in the log."""

    @property
    def tell_batches(self) -> bool:
        """Whether they tell which traces were trained on."""
        return any(ship_step(info) is not None for info in self.info.values())

    def folded(self, trace: Mapping[str, Any]) -> Mapping[str, Any]:
        """A trace with all that was learned of it."""
        name = trace.get("id")
        if not isinstance(name, str):
            return trace
        nodes = [dict(node) for node in nodes_of(trace)]
        leaves = leaves_of(nodes)
        for branch, stream, values in self.streams.get(name, ()):
            if 0 <= branch < len(leaves):
                _spread_over([nodes[at] for at in path_to(leaves[branch], nodes)], stream, values)
        info = {**mapping_of(trace.get("info")), **self.info.get(name, {})}
        return {**trace, "info": info, "nodes": nodes}


def read_annotations(files: Iterable[Path], quarantine: QuarantineLog) -> Annotations:
    """The annotations in some files, in the order of writing; lines that are none go to the quarantine."""
    info: dict[str, dict[str, Any]] = {}
    streams: dict[str, list[tuple[int, str, list[Any]]]] = {}
    shipped: list[int] = []
    for file in files:
        for location, row in read_jsonl(file, quarantine):
            name = annotated(row, location, quarantine)
            if name is None:
                continue
            learned = mapping_of(row.get("info"))
            info.setdefault(name, {}).update(learned)
            step = ship_step(learned)
            shipped += [step] if step is not None and [step] != shipped[-1:] else []
            streams.setdefault(name, []).extend(_streams_in(row))
    return Annotations(info, streams, frozenset(step for step, count in Counter(shipped).items() if count > 1))


def annotated(row: Mapping[str, Any], location: str, quarantine: QuarantineLog) -> str | None:
    """The trace that an annotation is of; None where it is none, which goes to the quarantine."""
    name = row.get("trace_id")
    if row.get("version") == VERSION and isinstance(name, str):
        return name
    quarantine.add(f"the annotation is not of version {VERSION} or names no trace", location)
    return None


def ship_step(info: Mapping[str, Any]) -> int | None:
    """The step that a trace was trained on at; None where it was not, or not yet."""
    return step_in(mapping_of(info.get("ship")))


def step_in(cell: Mapping[str, Any]) -> int | None:
    """The step that a cell names; None where that is no whole number that a float can tell from its neighbors."""
    step = cell.get("step")
    return step if type(step) is int and whole_number(step) is not None else None


def _streams_in(row: Mapping[str, Any]) -> Iterable[tuple[int, str, list[Any]]]:
    for branch in map(mapping_of, list_of(row.get("branches"))):
        if type(branch.get("index")) is int:
            yield from ((branch["index"], name, branch[name]) for name in STREAMS if list_of(branch.get(name)))


def _spread_over(path: Iterable[dict[str, Any]], name: str, values: Sequence[Any]) -> None:
    """Give each node its part of a branch's values, one a sampled token, where none of them is null."""
    start = 0
    for node in path:
        end = start + len(list_of(node.get("token_ids")))
        if end > len(values):
            return
        sampled = [value for value, flag in zip(values[start:end], list_of(node.get("mask")), strict=False) if flag]
        if sampled and None not in sampled:
            node[name] = sampled
        start = end
