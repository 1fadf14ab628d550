"""At which step each trace was trained on, from annotations of any size: usual lines are no objects but rows.

Traces are told apart by 64 bits of a digest of their ids, so that neither these nor lists of tokens are kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from msgspec import UNSET, Struct, UnsetType
from msgspec.json import Decoder
from numpy.typing import NDArray

from gradscope.rollouts.readers.parsing.nested_cells import mapping_of
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.prime_rl.annotations import annotated, step_in
from gradscope.rollouts.readers.reduction.lines import blocks_in

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
