"""prime-rl's traces since September 2026: one stream of all episodes, each written once as it arrives.

What was trained on, at which step and with what advantages, stands in annotations beside the stream. A group has the
step at which its first rollout was trained on, or, where none was, that at which it was sent out. Legend: J groups, N
rollouts of all of them.
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

from gradscope.reason import Reason
from gradscope.rollouts.arrays import to_strings, to_texts
from gradscope.rollouts.groups import GroupsOfTable, RewardTable, RolloutGroup
from gradscope.rollouts.readers.parsing.cells import finite_or_none, mapping_of, text_of
from gradscope.rollouts.readers.parsing.jsonl import read_jsonl
from gradscope.rollouts.readers.parsing.quarantine import SEVERAL, QuarantineLog, WatchedLog, counted
from gradscope.rollouts.readers.parsing.records import Record, assemble_groups, build_groups, peek
from gradscope.rollouts.readers.parsing.request import ReadRequest
from gradscope.rollouts.readers.parsing.tables import Row, files_like
from gradscope.rollouts.readers.prime_rl.annotations import (
    HIGH,
    LOW,
    Annotations,
    Shipments,
    digest_halves,
    digests,
    read_annotations,
    read_shipments,
    ship_step,
    step_in,
)
from gradscope.rollouts.readers.prime_rl.columns import SENT, named_in, stream_columns, stream_group
from gradscope.rollouts.readers.prime_rl.episode import (
    AGENTS,
    group_names,
    in_no_loss,
    read_trace,
    record_of,
    trained_traces,
)
from gradscope.rollouts.readers.prime_rl.left_behind import with_prime_rls
from gradscope.rollouts.readers.reduction.columns import REWARD, LineColumns
from gradscope.rollouts.readers.reduction.log import ColumnLog, keeps_texts, reduce_log
from gradscope.rollouts.readers.reduction.parts import Part, table_of
from gradscope.rollouts.run import Run

DECIMALS = 4
"""Those that prime-rl keeps of log-probabilities by default."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One agent's rollout, at the step that it was sent out at, and the step that it was trained on at, if any."""

    record: Record
    trained_at: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundStream:
    """What a stream holds."""

    groups: Sequence[RolloutGroup]
    """Its groups, at their steps."""
    quarantine: QuarantineLog
    """What was set aside."""
    seen: Counter[str] = field(default_factory=Counter)
    """How many episodes some sentences are true of."""
    is_rounded: bool
    """Whether there are log-probabilities, and none has more than ``DECIMALS``."""
    tell_batches: bool
    """Whether annotations tell which traces were trained on."""
    trained_again: frozenset[int]
    """Steps that a restart trained again."""
    divided: frozenset[int]
    """Steps among which some group is divided."""


def arrivals(
    rows: Iterable[Row], annotations: Annotations, quarantine: QuarantineLog, seen: Counter[str]
) -> Iterator[Arrival]:
    """The rollouts of some episodes; those of evaluations are left out."""
    tell_batches = annotations.tell_batches
    for location, row in rows:
        group, traces = mapping_of(row.get("group")).get("id"), trained_traces(row)
        if is_evaluation(row):
            continue
        if group is None:
            quarantine.add("group.id is missing", location)
        elif not traces:
            quarantine.add("the episode has no trace of a trained agent", location)
        else:
            seen[AGENTS] += len(traces) > 1
            for name, trace in zip(group_names(text_of(group), traces), traces, strict=True):
                folded = annotations.folded(trace)
                info = mapping_of(folded.get("info"))
                step, trained_at = _dispatched_at(row, info), ship_step(info)
                if step is None:
                    quarantine.add("the step is not a whole number", location)
                    continue
                parsed = read_trace(folded)
                seen[SEVERAL] += bool(parsed.earlier)
                parsed = in_no_loss(parsed) if tell_batches and trained_at is None else parsed
                record = record_of(row, folded, parsed, step, name, location, quarantine)
                yield Arrival(_named(record, folded, location), trained_at)


def is_evaluation(row: Mapping[str, Any]) -> bool:
    """Whether an episode of a run of training only evaluates it."""
    work = mapping_of(mapping_of(row.get("run")).get("work"))
    return "eval" in (work.get("type"), *(mapping_of(trace.get("info")).get("kind") for trace in trained_traces(row)))


def is_rounded(record: Record) -> bool | None:
    """Whether no log-probability of a rollout has more than ``DECIMALS``; None where it has none."""
    logprobs = None if record.tokens is None else record.tokens.logprobs
    return all(round(value, DECIMALS) == value for value in logprobs) if logprobs else None


def _named(record: Record, trace: Mapping[str, Any], location: str) -> Record:
    name, advantage = trace.get("id"), mapping_of(trace.get("info")).get("advantage")
    sample = name if isinstance(name, str) else None
    return replace(record, advantage=finite_or_none(advantage), sample_id=sample, location=location)


def _dispatched_at(row: Mapping[str, Any], info: Mapping[str, Any]) -> int | None:
    sent = (mapping_of(mapping_of(row.get("run")).get("work")), mapping_of(info.get("dispatch")))
    return next((step for step in map(step_in, sent) if step is not None), None)


_NUM_PEEKED = 20
"""Episodes that are looked at before for what their tokens show: that need not be looked for in the others."""
_BESIDE = (SENT, HIGH, LOW)
"""Columns beside the rewards."""
_ODD_LOGPROBS = {True: "[.][0-9]{5}|[eE]", None: "[0-9tf]", False: ""}
"""A pattern for log-probabilities unlike the first, by what :func:`is_rounded` says of these: more decimals; any."""


def reduce_stream(request: ReadRequest, files: Sequence[Path], beside: Sequence[Path]) -> FoundStream | None:
    """The rewards of a stream; None where a trace tells of its batch itself, or two groups have one name."""
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

    def records(self, _: Path, rows: Iterable[Row], quarantine: QuarantineLog) -> Iterator[tuple[int, Record]]:
        annotations = Annotations(self.shipments.dispatches)
        for place, row in enumerate(rows):
            self.is_unlike |= any(map(_tells_its_batch, trained_traces(row[1])))
            for one in self.known.take(arrivals([row], annotations, quarantine, self.known.seen)):
                yield place, _beside_columns(one)


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


_CHUNK = "[0-9]*.jsonl*"
_FOLDERS = ("monitors/file/traces/stream", "file/traces/stream", "traces/stream", "stream", ".")
_ROUNDED = (
    f"Log-probabilities are rounded to {DECIMALS} decimals, so that ratios are known to 1e-4 only: unset "
    "float_decimals of the file monitor in the next run."
)
_FIRST = "A group has the step at which its first rollout was trained on, or, where none was, that of its dispatch."
_NO_BATCHES = (
    "No annotation says what was trained on: steps are those at which episodes were sent out, and no rollout has an "
    "advantage (annotations/ beside stream/ holds both)."
)
_EARLIER = "rollouts/, which an earlier version of prime-rl wrote, is left out: name it to read it."
_ONE_OF_SEVERAL = "Other files of the stream are left out: groups that lie in several files are incomplete."
_NOT_KNOWN = Reason("rollouts_missing", "what was trained on at this step is not in the log")
_ELSEWHERE = Reason("rollouts_missing", "rollouts of one group were trained on at several steps")
_AGAIN = Reason("rollouts_missing", "a restart trained on this step again, and the log holds the rollouts of both")


def stream_files(path: Path) -> tuple[Path, ...]:
    """The chunks of a stream of training episodes, in order; none where the path holds no such stream."""
    files = _chunks(files_like(path, *(f"{folder}/{_CHUNK}" for folder in _FOLDERS)))
    return files if any(any(map(_is_of_training, peek(file))) for file in files[:2]) else ()


def read_stream(request: ReadRequest, files: tuple[Path, ...], *, has_earlier: bool) -> Run:
    """Read a stream."""
    beside = _annotation_files(files)
    found = reduce_stream(request, files, beside) if request.rewards_only and not keeps_texts(files) else None
    found = found or _by_row(files, beside, request)
    run = assemble_groups(
        request,
        groups=found.groups,
        quarantine=found.quarantine,
        format="prime-rl",
        recognized=f"prime-rl stream of traces, {counted(len(files), 'file')}",
        inferred=[
            *([_FIRST] if found.tell_batches else []),
            *(sentence for sentence in (AGENTS, SEVERAL) if found.seen[sentence]),
        ],
        missing=[
            *([] if found.tell_batches else [_NO_BATCHES]),
            *([_ROUNDED] if found.is_rounded else []),
            *([_EARLIER] if has_earlier else []),
            *([_ONE_OF_SEVERAL] if len(files) < len(_chunks(files_like(files[0].parent, _CHUNK))) else []),
        ],
        files=(*files, *beside),
    )
    notes = {
        **dict.fromkeys(() if found.tell_batches else run.steps, _NOT_KNOWN),
        **dict.fromkeys(found.divided, _ELSEWHERE),
        **dict.fromkeys(found.trained_again, _AGAIN),
    }
    return replace(with_prime_rls(request, run), notes=dict(sorted(notes.items())))


def _by_row(files: Sequence[Path], beside: Sequence[Path], request: ReadRequest) -> FoundStream:
    quarantine, seen = WatchedLog(request.progress, files), Counter[str]()
    annotations = read_annotations(beside, quarantine)
    rows = (row for file in files for row in read_jsonl(file, quarantine))
    records, divided = _with_one_step(list(arrivals(rows, annotations, quarantine, seen)))
    rounded = {is_rounded(record) for record in records} - {None}
    return FoundStream(
        groups=build_groups(records, quarantine),
        quarantine=quarantine,
        seen=seen,
        is_rounded=rounded == {True},
        tell_batches=annotations.tell_batches,
        trained_again=annotations.trained_again,
        divided=frozenset(divided),
    )


def _is_of_training(row: Mapping[str, Any]) -> bool:
    return isinstance(row.get("traces"), list) and mapping_of(row.get("run")).get("type") == "train"


def _chunks(files: Iterable[Path]) -> tuple[Path, ...]:
    """The files of a stream; a chunk that is being sealed is there twice, and counts once."""
    named = {file: file.name.removesuffix(".zst") for file in files}
    plain = {(file.parent, file.name) for file in named}
    return tuple(
        file
        for file, name in named.items()
        if name.endswith(".jsonl") and (file.name == name or (file.parent, name) not in plain)
    )


def _annotation_files(files: Iterable[Path]) -> tuple[Path, ...]:
    """The annotations beside a stream, producer by producer."""
    folders = dict.fromkeys(file.resolve().parent.parent / "annotations" for file in files)
    producers = (child for folder in folders if folder.is_dir() for child in sorted(folder.iterdir()))
    return tuple(file for producer in producers if producer.is_dir() for file in _chunks(files_like(producer, _CHUNK)))


def _with_one_step(arrivals: Sequence[Arrival]) -> tuple[list[Record], set[int]]:
    """The records, each with the step of its group, and the steps among which some group is divided."""
    trained: dict[str, set[int]] = {}
    sent: dict[str, int] = {}
    records = _told_apart([arrival.record for arrival in arrivals])
    for record, arrival in zip(records, arrivals, strict=True):
        sent[record.group] = min(record.step, sent.get(record.group, record.step))
        at = () if arrival.trained_at is None else (arrival.trained_at,)
        trained.setdefault(record.group, set()).update(at)
    steps = {group: min(trained[group], default=first) for group, first in sent.items()}
    divided = {step for among in trained.values() if len(among) > 1 for step in among}
    return [replace(record, step=steps[record.group]) for record in records], divided


def _told_apart(records: Sequence[Record]) -> list[Record]:
    """The records, with the prompt in the name of a group that has several: such a name is used again and again."""
    prompts: dict[str, set[str]] = {}
    for record in records:
        prompts.setdefault(record.group, set()).add(record.prompt_id)
    return [
        replace(record, group=f"{record.group}/{record.prompt_id}") if len(prompts[record.group]) > 1 else record
        for record in records
    ]
