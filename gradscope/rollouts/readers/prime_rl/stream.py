"""prime-rl's traces since September 2026: one stream of all episodes, each written once as it arrives.

What was trained on, at which step and with what advantages, stands in annotations beside the stream. A group has the
step at which its first rollout was trained on, or, where none was, that at which it was sent out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gradscope.reason import Reason
from gradscope.rollouts.readers.parsing.assemble import assemble, peek
from gradscope.rollouts.readers.parsing.counted import SEVERAL, counted
from gradscope.rollouts.readers.parsing.grouping import Record
from gradscope.rollouts.readers.parsing.jsonl import read_jsonl
from gradscope.rollouts.readers.parsing.nested_cells import mapping_of
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.parsing.request import ReadRequest
from gradscope.rollouts.readers.parsing.scalars import finite_or_none, text_of
from gradscope.rollouts.readers.parsing.tables import files_like
from gradscope.rollouts.readers.prime_rl.annotations import Annotations, read_annotations, ship_step
from gradscope.rollouts.readers.prime_rl.batches import in_no_loss
from gradscope.rollouts.readers.prime_rl.episode import AGENTS, group_names, record_of, trained_traces
from gradscope.rollouts.readers.prime_rl.left_behind import with_prime_rls
from gradscope.rollouts.readers.prime_rl.trace import read_trace
from gradscope.rollouts.run import Run

_CHUNK = "[0-9]*.jsonl*"
_FOLDERS = ("monitors/file/traces/stream", "file/traces/stream", "traces/stream", "stream", ".")
_DECIMALS = 4
_ROUNDED = (
    f"Log-probabilities are rounded to {_DECIMALS} decimals, so that ratios are known to 1e-4 only: unset "
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


@dataclass(frozen=True, slots=True)
class _Arrival:
    """One agent's rollout, at the step that it was sent out at, and the step that it was trained on at, if any."""

    record: Record
    trained_at: int | None


@dataclass(frozen=True, slots=True)
class _Stream:
    """A stream that is being read."""

    annotations: Annotations
    quarantine: QuarantineLog
    seen: Counter[str] = field(default_factory=Counter)

    def arrivals(self, files: Iterable[Path]) -> Iterator[_Arrival]:
        for file in files:
            for location, row in read_jsonl(file, self.quarantine):
                group, traces = mapping_of(row.get("group")).get("id"), trained_traces(row)
                if _is_evaluation(row, traces):
                    continue
                if group is None:
                    self.quarantine.add("group.id is missing", location)
                elif not traces:
                    self.quarantine.add("the episode has no trace of a trained agent", location)
                else:
                    self.seen[AGENTS] += len(traces) > 1
                    for name, trace in zip(group_names(text_of(group), traces), traces, strict=True):
                        yield from self._arrival(row, self.annotations.folded(trace), name, location)

    def _arrival(self, row: Mapping[str, Any], trace: Mapping[str, Any], group: str, at: str) -> Iterator[_Arrival]:
        info, name = mapping_of(trace.get("info")), trace.get("id")
        step, trained_at = _dispatched_at(row, info), ship_step(info)
        if step is None:
            self.quarantine.add("the step is not a whole number", at)
            return
        parsed = read_trace(trace)
        self.seen[SEVERAL] += bool(parsed.earlier)
        if self.annotations.tell_batches and trained_at is None:
            parsed = in_no_loss(parsed)
        record = replace(
            record_of(row, trace, parsed, step, group, at, self.quarantine),
            advantage=finite_or_none(info.get("advantage")),
            sample_id=name if isinstance(name, str) else None,
            location=at,
        )
        yield _Arrival(record, trained_at)


def stream_files(path: Path) -> tuple[Path, ...]:
    """The chunks of a stream of training episodes, in order; none where the path holds no such stream."""
    files = _chunks(files_like(path, *(f"{folder}/{_CHUNK}" for folder in _FOLDERS)))
    return files if any(any(map(_is_of_training, peek(file))) for file in files[:1]) else ()


def read_stream(request: ReadRequest, files: tuple[Path, ...], *, has_earlier: bool) -> Run:
    """Read a stream.

    Args:
        files: Its chunks.
        has_earlier: Whether traces of an earlier version lie beside it.

    Returns:
        The run: groups have all their episodes, and tokens that no batch held are in no loss.
    """
    quarantine = QuarantineLog()
    beside = _annotation_files(files)
    stream = _Stream(read_annotations(beside, quarantine), quarantine)
    records, several = _with_one_step(list(stream.arrivals(files)))
    tell_batches, seen = stream.annotations.tell_batches, stream.seen
    run = assemble(
        request,
        records=records,
        quarantine=quarantine,
        format="prime-rl",
        recognized=f"prime-rl stream of traces, {counted(len(files), 'file')}",
        inferred=[
            *([_FIRST] if tell_batches else []),
            *(sentence for sentence in (AGENTS, SEVERAL) if seen[sentence]),
        ],
        missing=[
            *([] if tell_batches else [_NO_BATCHES]),
            *([_ROUNDED] if _are_rounded(records) else []),
            *([_EARLIER] if has_earlier else []),
            *([_ONE_OF_SEVERAL] if len(files) < len(_chunks(files_like(files[0].parent, _CHUNK))) else []),
        ],
        files=(*files, *beside),
    )
    notes = {
        **dict.fromkeys(() if tell_batches else run.steps, _NOT_KNOWN),
        **dict.fromkeys(several, _ELSEWHERE),
        **dict.fromkeys(stream.annotations.trained_again, _AGAIN),
    }
    return replace(with_prime_rls(request, run), notes=dict(sorted(notes.items())))


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


def _is_evaluation(row: Mapping[str, Any], traces: Sequence[Mapping[str, Any]]) -> bool:
    work = mapping_of(mapping_of(row.get("run")).get("work"))
    return "eval" in (work.get("type"), *(mapping_of(trace.get("info")).get("kind") for trace in traces))


def _dispatched_at(row: Mapping[str, Any], info: Mapping[str, Any]) -> int | None:
    sent = (mapping_of(mapping_of(row.get("run")).get("work")), mapping_of(info.get("dispatch")))
    return next((part["step"] for part in sent if type(part.get("step")) is int), None)


def _with_one_step(arrivals: Sequence[_Arrival]) -> tuple[list[Record], set[int]]:
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


def _are_rounded(records: Iterable[Record]) -> bool:
    """Whether there are log-probabilities, and none has more decimals than prime-rl keeps by default."""
    logged = [record.tokens.logprobs for record in records if record.tokens is not None and record.tokens.logprobs]
    return bool(logged) and all(round(value, _DECIMALS) == value for values in logged for value in values)
