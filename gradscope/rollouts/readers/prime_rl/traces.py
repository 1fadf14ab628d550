"""prime-rl's traces: an episode a line, with exact tokens, log-probabilities and rewards of every trained agent.

Since September 2026 they are one stream (``stream``); before, every step had files of its own.

``all`` holds every episode as it finished, ``effective`` those that were trained on, with their advantages. Both are
read where both are there: rollouts from ``all``, so that no filter hides a group, advantages from ``effective``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from gradscope.reason import Reason
from gradscope.rollouts.readers.parsing.assemble import assemble, peek
from gradscope.rollouts.readers.parsing.counted import SEVERAL, counted, hidden_by
from gradscope.rollouts.readers.parsing.format import Format
from gradscope.rollouts.readers.parsing.grouping import Record
from gradscope.rollouts.readers.parsing.jsonl import read_jsonl
from gradscope.rollouts.readers.parsing.nested_cells import mapping_of, number_in_name, whole_number
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.parsing.request import ReadRequest
from gradscope.rollouts.readers.parsing.scalars import text_of
from gradscope.rollouts.readers.parsing.tables import files_like
from gradscope.rollouts.readers.prime_rl.batches import STEP, TrainedBatches, batches_in
from gradscope.rollouts.readers.prime_rl.episode import AGENTS, is_standalone, record_of, trained_traces
from gradscope.rollouts.readers.prime_rl.left_behind import with_prime_rls
from gradscope.rollouts.readers.prime_rl.stream import read_stream, stream_files
from gradscope.rollouts.run import Run

_ONLY_EFFECTIVE = hidden_by(
    "Only the effective traces were read, from which filters have removed rollouts (the folder `all` beside them holds "
    "everything)"
)
_ELSEWHERE = Reason(
    "rollouts_missing",
    "episodes of this step were trained on at another step",
    hint="Replay the export of tokens, or rollouts/step_N/train/effective/traces.jsonl alone.",
)


def _recognizes(request: ReadRequest) -> bool:
    """Whether the path holds prime-rl's traces of training."""
    files = _files(request.path, "all") or _files(request.path, "effective")
    return bool(stream_files(request.path)) or (bool(files) and not any(map(is_standalone, peek(files[0]))))


def _holds_steps(path: Path) -> bool:
    return bool(_files(path, "all") or _files(path, "effective"))


def _read(request: ReadRequest) -> Run:
    """Read prime-rl's traces of training: of a run, its ``rollouts``, one of their folders, or one file."""
    stream = stream_files(request.path)
    if stream:
        return read_stream(request, stream, has_earlier=_holds_steps(request.path))
    everything, effective = _files(request.path, "all"), _files(request.path, "effective")
    files = everything or effective
    quarantine = QuarantineLog()
    seen: Counter[str] = Counter()
    trained = batches_in(effective) if everything else TrainedBatches()
    records = list(_records(files, trained, quarantine, seen))
    inferred = [sentence for sentence in (AGENTS, SEVERAL) if seen[sentence]]
    if trained.traces:
        inferred.append("Rollouts were read from all/, their advantages from effective/.")
    run = assemble(
        request,
        records=records,
        quarantine=quarantine,
        format="prime-rl",
        recognized=f"prime-rl traces, {counted(len(files), 'file')}",
        inferred=inferred,
        missing=[] if everything else [_ONLY_EFFECTIVE],
        files=(*files, *(effective if everything else ())),
    )
    return replace(with_prime_rls(request, run), notes=dict.fromkeys(sorted(trained.elsewhere), _ELSEWHERE))


def _files(path: Path, kind: str) -> tuple[Path, ...]:
    below = f"{kind}/traces.jsonl"
    deep = (f"rollouts/step_*/train/{below}", f"step_*/train/{below}", f"train/{below}", below)
    if path.is_dir() and path.name != kind:
        return files_like(path, *deep)
    files = files_like(path, "traces.jsonl")
    return tuple(file for file in files if (file.resolve().parent.name == "effective") == (kind == "effective"))


def _records(
    files: tuple[Path, ...], trained: TrainedBatches, quarantine: QuarantineLog, seen: Counter[str]
) -> Iterator[Record]:
    for file in files:
        for location, row in read_jsonl(file, quarantine):
            work = mapping_of(mapping_of(row.get("run")).get("work"))
            step = work.get("step", number_in_name(STEP, file))
            group = mapping_of(row.get("group")).get("id")
            traces = trained_traces(row)
            if type(step) is not int or whole_number(step) is None:
                quarantine.add("the step is not a whole number", location)
            elif group is None:
                quarantine.add("group.id is missing", location)
            elif not traces:
                quarantine.add("the episode has no trace of a trained agent", location)
            else:
                seen[AGENTS] += len(traces) > 1
                for at, trace in enumerate(traces):
                    name = text_of(group) if len(traces) == 1 else f"{text_of(group)}/{at}"
                    parsed = trained.as_trained(trace, step)
                    seen[SEVERAL] += bool(parsed.earlier)
                    yield record_of(row, trace, parsed, step, name, location, quarantine)


FORMAT = Format(
    name="prime-rl",
    looks_for="step_*/train/{all,effective}/traces.jsonl or traces/stream/*.jsonl (prime-rl)",
    recognizes=_recognizes,
    read=_read,
)
