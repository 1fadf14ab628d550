"""prime-rl's annotations: facts on a trace that were added after it was written; the newest of each counts.

Every producer has a stream of its own, ``annotations/<producer>/NNNNN.jsonl``. The orchestrator's record at which step
a trace was trained on, with what advantages. For rewards alone only the step of each trace is stored, by a hash of its
id; where texts and tokens count, all annotations are, to be merged into the traces.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

import numpy as np
from msgspec import UNSET, Struct, UnsetType
from msgspec.json import Decoder
from numpy.typing import NDArray

from gradscope.rollouts.arrays import to_floats
from gradscope.rollouts.readers.parsing.cells import list_of, mapping_of, whole_number
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.prime_rl.episode import leaves_of, nodes_of, path_to
from gradscope.rollouts.readers.reduction.lines import blocks_in

STREAMS = ("advantages", "trainer_logprobs", "entropies")
"""Lists of a branch that become lists of the same name of its nodes, which ``read_trace`` reads; prime-rl's trainer
also writes ``is_masked``, the tokens that its loss left out."""
VERSION = 1  # of the annotations that are supported


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotations:
    """The annotations of a run."""

    traces: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Hashes of the ids of traces with a record on training, ascending, [A]."""
    steps: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    """The step of each; NaN where it was not trained on, or not yet, [A]."""
    trained_again: frozenset[int] = frozenset()
    """Steps that a restart trained again, so that rollouts of both attempts are in the log."""
    info: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Trace id -> facts on the trace: ``advantage``, ``dispatch``. Where texts and tokens do not count, only for traces
    with a dispatch."""
    streams: Mapping[str, Sequence[tuple[int, str, list[Any]]]] = field(default_factory=dict)
    """Trace id -> branch, name and values, one for each token of the branch, in the order of writing."""

    @property
    def tell_batches(self) -> bool:
        """Whether they record which traces were trained on."""
        return bool(np.isfinite(self.steps).any())

    def trained_at(self, names: Sequence[Any], own: Sequence[Any]) -> NDArray[np.float64]:
        """The steps at which traces [R] were trained on, by their ids, else by their own cells; NaN where not."""
        steps = to_floats(ship_step({"ship": cell}) for cell in own)
        if len(self.traces) and len(names):
            traces = np.array([hash(name) if isinstance(name, str) else 0 for name in names], dtype=np.int64)
            at = np.minimum(np.searchsorted(self.traces, traces), len(self.traces) - 1)
            is_known = (self.traces[at] == traces) & [isinstance(name, str) for name in names]
            steps[is_known] = self.steps[at[is_known]]
        return steps

    def folded(self, trace: Mapping[str, Any]) -> Mapping[str, Any]:
        """A trace with its annotations merged in."""
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


def ship_step(info: Mapping[str, Any]) -> int | None:
    """The step that a trace was trained on at; None where it was not, or not yet."""
    return step_in(mapping_of(info.get("ship")))


def step_in(cell: Mapping[str, Any]) -> int | None:
    """The step in a cell; None for anything but a whole number that a float represents exactly."""
    step = cell.get("step")
    return step if type(step) is int and whole_number(step) is not None else None


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


def read_annotations(files: Iterable[Path], quarantine: QuarantineLog, *, is_whole: bool = True) -> Annotations:
    """The annotations in files, in the order of writing; other lines go to the quarantine.

    ``is_whole`` stores all annotations, where texts and tokens count.
    """
    info: dict[str, dict[str, Any]] = {}
    streams: dict[str, list[tuple[int, str, list[Any]]]] = {}
    traces, steps = [np.zeros(0, dtype=np.int64)], [np.zeros(0)]
    for file in files:
        num_lines = 0
        for block in blocks_in(file):
            if block.lost is not None:
                quarantine.lose(block.lost)
                continue
            rows, at, bounds = block.decoded(_DECODER)
            usual = {
                number: row
                for number, row in zip(at.tolist(), rows, strict=True)
                if not is_whole and (row.info is UNSET or row.info.dispatch is UNSET)
            }
            ships = [
                (number, hash(row.trace_id), step_in({"step": row.info.ship.step}))
                for number, row in usual.items()
                if row.info is not UNSET and row.info.ship is not UNSET
            ]
            for odd in block.odd_rows(bounds, [number for number in range(len(bounds) - 1) if number not in usual]):
                location = f"{file}:{num_lines + odd.at + 1}"
                name = odd.row if isinstance(odd.row, str) else odd.row.get("trace_id")
                if isinstance(odd.row, str):
                    quarantine.add(odd.row, location, odd.count)
                elif odd.row.get("version") != VERSION or not isinstance(name, str):
                    quarantine.add(f"the annotation is not of version {VERSION} or names no trace", location)
                else:
                    learned = mapping_of(odd.row.get("info"))
                    info.setdefault(name, {}).update(learned)
                    streams.setdefault(name, []).extend(_streams_in(odd.row))
                    ships += [(odd.at, hash(name), ship_step(learned))] if "ship" in learned else []
            num_lines += len(bounds) - 1
            ships.sort(key=itemgetter(0))
            traces.append(np.array([trace for _, trace, _ in ships], dtype=np.int64))
            steps.append(to_floats(step for _, _, step in ships))
    step = np.concatenate(steps)
    shipped = step[np.isfinite(step)]
    runs, count = np.unique(shipped[np.diff(shipped, prepend=-1) != 0], return_counts=True)
    newest, at = np.unique(np.concatenate(traces)[::-1], return_index=True)
    return Annotations(
        traces=newest,
        steps=step[::-1][at],
        trained_again=frozenset(runs[count > 1].astype(int).tolist()),
        info=info,
        streams=streams,
    )


def _streams_in(row: Mapping[str, Any]) -> Iterable[tuple[int, str, list[Any]]]:
    for branch in map(mapping_of, list_of(row.get("branches"))):
        if type(branch.get("index")) is int:
            yield from ((branch["index"], name, branch[name]) for name in STREAMS if list_of(branch.get(name)))


def _spread_over(path: Iterable[dict[str, Any]], name: str, values: Sequence[Any]) -> None:
    """Give each node its part of a branch's values, one for each sampled token, where none of them is null."""
    start = 0
    for node in path:
        end = start + len(list_of(node.get("token_ids")))
        if end > len(values):
            return
        sampled = [value for value, flag in zip(values[start:end], list_of(node.get("mask")), strict=False) if flag]
        if sampled and None not in sampled:
            node[name] = sampled
        start = end
