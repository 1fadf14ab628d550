"""The rewards of a large stream without an object a rollout: its groups as columns, and their steps from annotations.

Legend: J groups, N rollouts of all of them.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradscope.rollouts.arrays import to_strings, to_texts
from gradscope.rollouts.groups import GroupsOfTable
from gradscope.rollouts.readers.parsing.counted import SEVERAL
from gradscope.rollouts.readers.parsing.grouping import Record
from gradscope.rollouts.readers.parsing.jsonl import read_jsonl
from gradscope.rollouts.readers.parsing.nested_cells import mapping_of
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.parsing.request import ReadRequest
from gradscope.rollouts.readers.parsing.tables import Row
from gradscope.rollouts.readers.prime_rl.annotations import Annotations, ship_step
from gradscope.rollouts.readers.prime_rl.arrivals import Arrival, FoundStream, arrivals, is_evaluation, is_rounded
from gradscope.rollouts.readers.prime_rl.columns import (
    SENT,
    named_in,
    stream_columns,
    stream_group,
)
from gradscope.rollouts.readers.prime_rl.episode import trained_traces
from gradscope.rollouts.readers.prime_rl.shipments import HIGH, LOW, Shipments, digest_halves, digests, read_shipments
from gradscope.rollouts.readers.reduction.columns import REWARD, LineColumns
from gradscope.rollouts.readers.reduction.log import ColumnLog, reduce_log
from gradscope.rollouts.readers.reduction.parts import Part
from gradscope.rollouts.readers.reduction.whole import table_of
from gradscope.rollouts.reward_table import RewardTable

_NUM_PEEKED = 20
"""Episodes that are looked at before for what their tokens show: that need not be looked for in the others."""
_BESIDE = (SENT, HIGH, LOW)
"""Columns beside the rewards."""
_ODD_LOGPROBS = {True: "[.][0-9]{5}|[eE]", None: "[0-9tf]", False: ""}
"""A pattern for log-probabilities unlike the first, by what :func:`is_rounded` says of these: more decimals; any."""


def reduce_stream(request: ReadRequest, files: Sequence[Path], beside: Sequence[Path]) -> FoundStream | None:
    """The rewards of a stream.

    Args:
        files: Its chunks.
        beside: Its annotations.

    Returns:
        What it holds; None where it has to be read row by row: where a trace tells of its batch itself, or two groups
        have one name.
    """
    columns, known = _columns(files)
    quarantine = QuarantineLog()
    shipments = read_shipments(beside, quarantine)
    rows = _OddRows(shipments, known)
    groups = _Groups(shipments)
    log = ColumnLog(
        files=files,
        declared=lambda _: columns,
        rows=read_jsonl,
        records=rows.records,
        repeats=groups.repeats,
    )
    table = reduce_log(log, request.progress)
    named = groups.named(table) if len(table) else table
    if rows.is_unlike or named is None:
        return None
    quarantine.include(log.quarantine, {str(file): number for number, file in enumerate((*beside, *files))})
    return FoundStream(
        groups=GroupsOfTable(named),
        quarantine=quarantine,
        seen=known.seen,
        is_rounded=known.rounded == {True},
        tell_batches=len(shipments.keys) > 0,
        trained_again=shipments.trained_again,
        divided=groups.divided,
    )


@dataclass(slots=True)
class _Known:
    """What is known of all episodes."""

    rounded: set[bool | None] = field(default_factory=set)
    """What :func:`is_rounded` says of those that have log-probabilities."""
    seen: Counter[str] = field(default_factory=Counter)
    """How many some sentences are true of."""

    def take(self, arrived: Iterable[Arrival]) -> Iterator[Arrival]:
        """Look at rollouts on their way."""
        for one in arrived:
            self.rounded |= {is_rounded(one.record)} - {None}
            yield one


def _columns(files: Sequence[Path]) -> tuple[LineColumns, _Known]:
    """The columns of a stream, by its first episodes, and what these tell."""
    known = _Known()
    training = (row for row in read_jsonl(files[0], QuarantineLog()) if not is_evaluation(row[1]))
    rows = islice(training, _NUM_PEEKED)
    deque(known.take(arrivals(rows, Annotations(), QuarantineLog(), known.seen)), maxlen=0)
    odd_logprobs = _ODD_LOGPROBS[all(known.rounded) if known.rounded else None]
    return stream_columns(may_branch=known.seen[SEVERAL] > 0, odd_logprobs=odd_logprobs), known


@dataclass(slots=True)
class _OddRows:
    """The row reader, for the rows that are no columns."""

    shipments: Shipments
    known: _Known
    is_unlike: bool = False
    """Whether some row cannot stand beside columns."""

    def records(self, _: Path, rows: Iterable[Row], quarantine: QuarantineLog) -> Iterator[Record]:
        annotations = Annotations(self.shipments.dispatches)
        for row in rows:
            self.is_unlike |= any(map(_tells_its_batch, trained_traces(row[1])))
            for one in self.known.take(arrivals([row], annotations, quarantine, self.known.seen)):
                yield _beside_columns(one)


def _tells_its_batch(trace: Mapping[str, Any]) -> bool:
    return ship_step(mapping_of(trace.get("info"))) is not None


def _beside_columns(arrival: Arrival) -> Record:
    """A rollout as columns have it."""
    record = arrival.record
    digest = (None, None) if record.sample_id is None else digest_halves(record.sample_id)
    return replace(
        record,
        tokens=None,
        earlier=(),
        step=0,
        group=stream_group(record.group, record.prompt_id),
        rewards={**record.rewards, **dict(zip(_BESIDE, (record.step, *digest), strict=True))},
    )


@dataclass(slots=True)
class _Groups:
    """The groups of a stream, from all rollouts that arrived, those among them that repeat others."""

    shipments: Shipments
    step: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """The first step that trained on each group, or, where none did, that of its dispatch, [J]."""
    divided: frozenset[int] = frozenset()
    """Steps among which some group is divided."""

    def repeats(self, table: RewardTable) -> NDArray[np.bool_]:
        """Take in the groups, and tell in which of them a trace returns, [J]."""
        sent, high, low = (table.rewards[name] for name in _BESIDE)
        keys, has_name = digests(high, low), ~np.isnan(high)
        trained = np.where(has_name, self.shipments.steps_of(keys), np.nan)
        first, last = (extreme.reduceat(trained, table.starts) for extreme in (np.fmin, np.fmax))
        among = trained[np.repeat(first < last, table.size)]
        self.step = np.where(np.isnan(first), np.minimum.reduceat(sent, table.starts), first).astype(np.int64)
        self.divided = frozenset(np.unique(among[~np.isnan(among)]).astype(np.int64).tolist())
        return _have_equal(np.repeat(np.arange(len(table)), table.size)[has_name], keys[has_name], len(table))

    def named(self, table: RewardTable) -> RewardTable | None:
        """The groups under their names at their steps; None where two have one name."""
        in_log = list(map(named_in, to_texts(table.names)))
        count = Counter(in_log)
        prompts = [table.prompts[at] for at in table.prompt.tolist()]
        names = [name if count[name] == 1 else f"{name}/{prompt}" for name, prompt in zip(in_log, prompts, strict=True)]
        if len(set(names)) < len(names):
            return None
        rewards = {REWARD + name: values for name, values in table.rewards.items() if name not in _BESIDE}
        part = Part(
            place=np.arange(len(table)),
            step=self.step,
            group=to_strings(names),
            prompt=prompts,
            size=table.size,
            columns={"reward": table.reward, **rewards},
        )
        return table_of(part)


def _have_equal(group: NDArray[np.int64], keys: NDArray[np.uint64], num_groups: int) -> NDArray[np.bool_]:
    """The groups that hold a key twice, [J]."""
    order = np.lexsort((keys, group))
    is_again = (np.diff(group[order]) == 0) & (keys[order][1:] == keys[order][:-1])
    return np.bincount(group[order][1:][is_again], minlength=num_groups) > 0
