"""prime-rl's traces since September 2026: one stream of all episodes, each written once as it arrives.

What was trained on, at which step and with what advantages, stands in annotations beside the stream. A group has the
step at which its first rollout was trained on, or, where none was, that at which it was sent out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gradscope.reason import Reason
from gradscope.rollouts.readers.parsing.assemble import assemble_groups, peek
from gradscope.rollouts.readers.parsing.counted import SEVERAL, counted
from gradscope.rollouts.readers.parsing.grouping import Record, build_groups
from gradscope.rollouts.readers.parsing.jsonl import read_jsonl
from gradscope.rollouts.readers.parsing.nested_cells import mapping_of
from gradscope.rollouts.readers.parsing.request import ReadRequest
from gradscope.rollouts.readers.parsing.tables import files_like
from gradscope.rollouts.readers.parsing.watch import WatchedLog
from gradscope.rollouts.readers.prime_rl.annotations import read_annotations
from gradscope.rollouts.readers.prime_rl.arrivals import DECIMALS, Arrival, FoundStream, arrivals, is_rounded
from gradscope.rollouts.readers.prime_rl.episode import AGENTS
from gradscope.rollouts.readers.prime_rl.left_behind import with_prime_rls
from gradscope.rollouts.readers.prime_rl.stream_table import reduce_stream
from gradscope.rollouts.readers.reduction.log import stays_on_disk
from gradscope.rollouts.run import Run

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
    """Read a stream.

    Args:
        files: Its chunks.
        has_earlier: Whether traces of an earlier version lie beside it.

    Returns:
        The run: groups have all their episodes, and tokens that no batch held are in no loss.
    """
    beside = _annotation_files(files)
    found = reduce_stream(request, files, beside) if request.rewards_only and stays_on_disk(files) else None
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
