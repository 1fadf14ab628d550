"""What prime-rl learned of a trace after it was written: the newest of each fact counts.

Every producer has a stream of its own, ``annotations/<producer>/NNNNN.jsonl``. The orchestrator's tell at which step a
trace was trained on, with what advantages. They are folded onto traces that are objects; of annotations of any size no
more is kept than the step of each trace, by 64 bits of a digest of its id.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from msgspec import UNSET, Struct, UnsetType
from msgspec.json import Decoder
from numpy.typing import NDArray

from gradscope.rollouts.readers.parsing.cells import list_of, mapping_of, whole_number
from gradscope.rollouts.readers.parsing.jsonl import read_jsonl
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.prime_rl.episode import leaves_of, nodes_of, path_to
from gradscope.rollouts.readers.reduction.lines import blocks_in

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


HIGH, LOW = "\0high", "\0low"
"""The halves of a trace's digest, as columns beside those of rewards."""
_NOT = -(1 << 62)
"""Stands for the step of a trace that was not trained on."""


class _Ship(Struct, gc=False):
    step: Any = UNSET


class _Info(Struct, gc=False):
    ship: _Ship | UnsetType = UNSET
    dispatch: Any = UNSET


class _Annotation(Struct, gc=False):
    version: Literal[1]  # VERSION
    trace_id: str
    info: _Info | UnsetType = UNSET


_DECODER = Decoder(_Annotation)


def digest_halves(name: str) -> tuple[int, int]:
    """The halves of the digest of a trace's id."""
    digest = hashlib.md5(name.encode("utf-8", "surrogatepass"), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4]), int.from_bytes(digest[4:8])


@dataclass(frozen=True, slots=True)
class Shipments:
    """What annotations tell of batches."""

    keys: NDArray[np.uint64]
    """Digests of the traces that were trained on, ascending, [R]."""
    steps: NDArray[np.int64]
    """The step of each, [R]."""
    trained_again: frozenset[int] = frozenset()
    """Steps that a restart trained again."""
    dispatches: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Trace id -> ``dispatch``, of the traces that an annotation tells it of."""

    def steps_of(self, keys: NDArray[np.uint64]) -> NDArray[np.float64]:
        """The steps that some traces were trained on at; NaN where they were not, [N]."""
        found = np.full(len(keys), np.nan)
        if len(self.keys):
            at = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
            is_known = self.keys[at] == keys
            found[is_known] = self.steps[at[is_known]]
        return found


def digests(high: NDArray[Any], low: NDArray[Any]) -> NDArray[np.uint64]:
    """Digests from their halves, [N]; NaN counts as 0."""
    return np.asarray((np.nan_to_num(high).astype(np.uint64) << np.uint64(32)) | np.nan_to_num(low).astype(np.uint64))


def read_shipments(files: Sequence[Path], quarantine: QuarantineLog) -> Shipments:
    """The batches that some annotations tell of; lines that are none go to the quarantine."""
    told: list[NDArray[np.int64]] = [np.zeros((0, 3), dtype=np.int64)]
    dispatches: dict[str, Mapping[str, Any]] = {}
    for file in files:
        num_lines = 0
        for block in blocks_in(file):
            if block.lost is not None:
                quarantine.lose(block.lost)
                continue
            rows, at, bounds = block.decoded(_DECODER)
            numbered = list(zip(at.tolist(), rows, strict=True))
            usual = [number for number, row in numbered if row.info is UNSET or row.info.dispatch is UNSET]
            found = [
                (number, _step_of(row.info.ship.step), *digest_halves(row.trace_id))
                for number, row in numbered
                if row.info is not UNSET and row.info.dispatch is UNSET and row.info.ship is not UNSET
            ]
            for odd in block.odd_rows(bounds, np.setdiff1d(np.arange(len(bounds) - 1), usual).tolist()):
                location = f"{file}:{num_lines + odd.at + 1}"
                if isinstance(odd.row, str):
                    quarantine.add(odd.row, location, odd.count)
                    continue
                name, info = annotated(odd.row, location, quarantine), mapping_of(odd.row.get("info"))
                if name is not None and "ship" in info:
                    found.append((odd.at, _step_of(mapping_of(info["ship"]).get("step")), *digest_halves(name)))
                if name is not None and "dispatch" in info:
                    dispatches[name] = {"dispatch": info["dispatch"]}
            num_lines += len(bounds) - 1
            told.append(np.array(sorted(found), dtype=np.int64).reshape(-1, 4)[:, 1:])
    step, high, low = np.concatenate(told).T
    key = digests(high, low)
    shipped = step[step != _NOT]
    runs, count = np.unique(shipped[np.diff(shipped, prepend=_NOT) != 0], return_counts=True)
    newest, at = np.unique(key[::-1], return_index=True)
    of_newest = step[::-1][at]
    return Shipments(
        keys=newest[of_newest != _NOT],
        steps=of_newest[of_newest != _NOT],
        trained_again=frozenset(runs[count > 1].tolist()),
        dispatches=dispatches,
    )


def _step_of(cell: Any) -> int:
    step = step_in({"step": cell})
    return _NOT if step is None else step
