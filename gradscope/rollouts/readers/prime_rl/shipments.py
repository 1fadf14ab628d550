"""At which step each trace was trained on, from annotations of any size: their lines as columns.

Traces are told apart by 64 bits of a digest of their ids, so that neither these nor lists of tokens are kept.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradscope.rollouts.readers.parsing.jsonl import parse_line
from gradscope.rollouts.readers.parsing.nested_cells import mapping_of
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.prime_rl.annotations import VERSION, annotated, ship_step
from gradscope.rollouts.readers.scan.line_columns import LineColumns, member, text, whole
from gradscope.rollouts.readers.scan.line_queries import LineQueries
from gradscope.rollouts.readers.scan.lines import ScannedLines, scan_lines
from gradscope.rollouts.readers.scan.parts import REWARD, Part
from gradscope.rollouts.readers.scan.workers import Block, LineBlock, Workers, blocks_of

HIGH, LOW = "\0high", "\0low"
"""The halves of a trace's digest, as columns beside those of rewards."""
_NOT = -(1 << 62)
"""Stands for the step of a trace that was not trained on."""
_KEYS = (("version",), ("trace_id",), ("info", "ship"), ("info", "ship", "step"), ("info", "dispatch"))
_VERSION, _TRACE, _SHIP, _STEP, _DISPATCH = (f"c[{at}]" for at in range(1, len(_KEYS) + 1))


DIGEST = {name: f"('0x' || substr(digest, {at}, 8))::UINTEGER::DOUBLE" for name, at in ((HIGH, 1), (LOW, 9))}
"""The expressions for both, where ``digest`` is the MD5 of the trace's id."""


def digest_halves(name: str) -> tuple[int, int]:
    """What these expressions are for a trace's id."""
    digest = hashlib.md5(name.encode("utf-8", "surrogatepass"), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4]), int.from_bytes(digest[4:8])


_LINES = LineColumns(
    paths=tuple(member(*keys) for keys in _KEYS),
    derived={"trace": text(_TRACE), "digest": "md5(trace)"},
    step=f"CASE WHEN {_SHIP} IS NULL THEN {_NOT} ELSE {whole(_STEP)} END",
    group="trace",
    prompt=("trace",),
    prompt_id="trace",
    reward="0::DOUBLE",
    rewards=DIGEST,
    plain=f"{_VERSION} = '{VERSION}' AND starts_with({_TRACE}, '\"') AND {_DISPATCH} IS NULL",
)


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
    keys, steps = [np.zeros(0, dtype=np.uint64)], [np.zeros(0, dtype=np.int64)]
    dispatches: dict[str, Mapping[str, Any]] = {}
    num_lines: Counter[Path] = Counter()
    with Workers() as workers:
        for block, found in workers.map(blocks_of(files, lambda _: _LINES, quarantine=quarantine), _scan):
            if isinstance(block, LineBlock) and found is not None:
                odd = list(_of_odd_lines(found, _locations(block, found, num_lines), dispatches, quarantine))
                told = np.concatenate([_of_part(found.part), np.array(odd, dtype=np.int64).reshape(-1, 4)])
                told = told[np.argsort(told[:, 0])]
                keys.append(digests(told[:, 2], told[:, 3]))
                steps.append(told[:, 1])
    key, step = np.concatenate(keys), np.concatenate(steps)
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


def _scan(queries: LineQueries, block: Block) -> ScannedLines | None:
    """The lines of a block; all are odd where one tells again what another has told, since their order then counts."""
    if not isinstance(block, LineBlock):
        return None
    found = scan_lines(queries, block.data, block.columns)
    if found.part is None or not np.any((found.part.size > 1) & (found.part.step != _NOT)):
        return found
    return replace(found, part=None, odd=np.arange(len(found.lines)))


def _of_part(part: Part | None) -> NDArray[np.int64]:
    """What plain lines tell: place, step and both halves of the digest, [m, 4]."""
    if part is None:
        return np.zeros((0, 4), dtype=np.int64)
    is_told = part.step != _NOT
    rows = np.repeat(is_told, part.size)
    halves = [part.columns[REWARD + name][rows].astype(np.int64) for name in (HIGH, LOW)]
    return np.stack([part.place[is_told], part.step[is_told], *halves], axis=1)


def _of_odd_lines(
    found: ScannedLines,
    locations: Sequence[str],
    dispatches: dict[str, Mapping[str, Any]],
    quarantine: QuarantineLog,
) -> Iterator[tuple[int, int, int, int]]:
    """What the odd lines of a block tell, likewise."""
    for at in found.odd.tolist():
        row = parse_line(found.lines[at])
        if isinstance(row, str):
            quarantine.add(row, locations[at])
            continue
        name = annotated(row, locations[at], quarantine)
        info = mapping_of(row.get("info"))
        if name is not None and "dispatch" in info:
            dispatches[name] = {"dispatch": info["dispatch"]}
        if name is not None and "ship" in info:
            step = ship_step(info)
            yield at, _NOT if step is None else step, *digest_halves(name)


def _locations(block: LineBlock, found: ScannedLines, num_lines: Counter[Path]) -> list[str]:
    """The ``file:line`` of each line of a block, the next of its files."""
    locations = []
    for piece, count in zip(block.pieces, found.lines.lines_of_piece, strict=True):
        first = num_lines[piece.path] + 1
        num_lines[piece.path] += count
        locations += [f"{piece.path}:{number}" for number in range(first, first + count)]
    return locations
