"""prime-rl's traces: an episode a line, with exact tokens, log-probabilities and rewards of every trained agent.

Since September 2026 they are one stream (``stream``); before, every step had files of its own.

``all`` holds every episode as it finished, ``effective`` those that were trained on, with their advantages: whatever
else ``all`` holds was in no loss. Both are read where both are there: rollouts from ``all``, so that no filter hides a
group, advantages from ``effective``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gradscope.reason import Reason
from gradscope.rollouts.groups import GroupsOfTable, RolloutGroup
from gradscope.rollouts.readers.format import Format, LogRow, RowFormat, has_keys
from gradscope.rollouts.readers.parsing.cells import (
    cut_sequence,
    digest,
    list_of,
    mapping_of,
    number_in_name,
    required_whole,
    text_of,
    whole_number,
)
from gradscope.rollouts.readers.parsing.jsonl import read_jsonl
from gradscope.rollouts.readers.parsing.quarantine import SEVERAL, QuarantineLog, WatchedLog, counted, hidden_by
from gradscope.rollouts.readers.parsing.records import Record, assemble_groups, build_groups, peek
from gradscope.rollouts.readers.parsing.request import ReadRequest
from gradscope.rollouts.readers.parsing.tables import Row, files_like
from gradscope.rollouts.readers.prime_rl.columns import STEP, episode_columns
from gradscope.rollouts.readers.prime_rl.episode import (
    AGENTS,
    AgentTrace,
    in_no_loss,
    is_standalone,
    read_trace,
    record_of,
    trained_traces,
)
from gradscope.rollouts.readers.prime_rl.left_behind import with_prime_rls
from gradscope.rollouts.readers.prime_rl.stream import read_stream, stream_files
from gradscope.rollouts.readers.reduction.log import ColumnLog, keeps_texts, reduced_groups
from gradscope.rollouts.run import Run

_STEP = re.compile(r"^step_([0-9]+)$")


def _exported(row: LogRow) -> Iterator[Record]:
    cells = row.cells
    step = required_whole(cells.get("step", number_in_name(_STEP, row.file)), "the step")
    tokens = cut_sequence(
        cells.get("token_ids"),
        cells.get("loss_mask"),
        logprobs=cells.get("inference_logprobs"),
        advantages=cells.get("advantages"),
        trainer_logprobs=cells.get("trainer_logprobs"),
        entropies=cells.get("entropy"),
    )
    prompt_id = f"{text_of(cells.get('env_name'))}/{digest(tokens.prompt_ids)}"
    yield Record(step=step, group=prompt_id, prompt_id=prompt_id, prompt="", completion="", reward=None, tokens=tokens)


TOKEN_EXPORT = RowFormat(
    name="prime-rl-tokens",
    looks_for="token_exports/step_*/rank_*.jsonl (prime-rl)",
    title="prime-rl token export",
    patterns=("token_exports/step_*/rank_*.jsonl", "step_*/rank_*.jsonl", "rank_*.jsonl"),
    recognizes_file=has_keys("token_ids", "loss_mask", "advantages"),
    records=_exported,
    needs_reward=False,
    completes=with_prime_rls,
    inferred=("Rows carry no group id: rollouts of equal prompt tokens at one step are a group; equal prompts merge.",),
    missing=(
        "The export has no rewards: degeneracy and pass@k need the traces (rollouts/step_<N>/train/all/traces.jsonl).",
        "The trainer removes tokens of zero advantage before the export (filter_zero_advantages): dead groups are "
        "absent.",
    ),
)


@dataclass(frozen=True, slots=True)
class TrainedBatches:
    """The batches of a run.

    Args:
        traces: Trace id -> the trace as it was trained on, and the step of its batch where that is known; empty where
            the batches are not at hand or are all that is read.
        elsewhere: Steps found so far whose rollouts are not those of their update.
    """

    traces: Mapping[str, tuple[Mapping[str, Any], int | None]] = field(default_factory=dict)
    elsewhere: set[int] = field(default_factory=set)

    def as_trained(self, trace: Mapping[str, Any], step: int) -> AgentTrace:
        """A trace that arrived at a step, with its advantages; no token of one that no batch holds counts."""
        if not self.traces:
            return read_trace(trace)
        found, batch = self.traces.get(text_of(trace.get("id")), (None, None))
        if found is None:
            return in_no_loss(read_trace(trace))
        if batch is not None and batch != step:
            self.elsewhere.update((batch, step))
        return read_trace(found)


def batches_in(files: Iterable[Path]) -> TrainedBatches:
    """The batches of some files; lines that cannot be read are judged where ``all`` is read."""
    traces: dict[str, tuple[Mapping[str, Any], int | None]] = {}
    for file in files:
        step = number_in_name(STEP, file)
        for _, row in read_jsonl(file, QuarantineLog()):
            for trace in map(mapping_of, list_of(row.get("traces"))):
                if isinstance(trace.get("id"), str):
                    traces[trace["id"]] = (trace, step)
    return TrainedBatches(traces)


def names_traces(files: Iterable[Path]) -> bool:
    """Whether there is a trace with a name in some files."""
    rows = (row for file in files for _, row in read_jsonl(file, QuarantineLog()))
    return any(
        isinstance(trace.get("id"), str) for row in rows for trace in map(mapping_of, list_of(row.get("traces")))
    )


_NUM_PEEKED = 20
"""Episodes of each file that are looked at for the names of its rewards, before a reduction."""
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
    batches = effective if everything else ()
    found = _reduced(files, request) or _by_row(files, batches, request)
    has_batches = found.trained.traces or (isinstance(found.groups, GroupsOfTable) and names_traces(batches))
    run = assemble_groups(
        request,
        groups=found.groups,
        quarantine=found.quarantine,
        format="prime-rl",
        recognized=f"prime-rl traces, {counted(len(files), 'file')}",
        inferred=[
            *(sentence for sentence in (AGENTS, SEVERAL) if found.seen[sentence]),
            *(["Rollouts were read from all/, their advantages from effective/."] if has_batches else []),
        ],
        missing=[] if everything else [_ONLY_EFFECTIVE],
        files=(*files, *batches),
    )
    return replace(with_prime_rls(request, run), notes=dict.fromkeys(sorted(found.trained.elsewhere), _ELSEWHERE))


def _files(path: Path, kind: str) -> tuple[Path, ...]:
    below = f"{kind}/traces.jsonl"
    deep = (f"rollouts/step_*/train/{below}", f"step_*/train/{below}", f"train/{below}", below)
    if path.is_dir() and path.name != kind:
        return files_like(path, *deep)
    files = files_like(path, "traces.jsonl")
    return tuple(file for file in files if (file.resolve().parent.name == "effective") == (kind == "effective"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """What the files hold."""

    groups: Sequence[RolloutGroup]
    quarantine: QuarantineLog = field(default_factory=QuarantineLog)
    seen: Counter[str] = field(default_factory=Counter)
    """How many episodes some sentences are true of."""
    trained: TrainedBatches = field(default_factory=TrainedBatches)
    """What was trained on; empty where nothing but rewards is read."""


def _by_row(files: Sequence[Path], batches: Sequence[Path], request: ReadRequest) -> _Found:
    found = _Found(groups=(), quarantine=WatchedLog(request.progress, files), trained=batches_in(batches))
    records = (
        record
        for file in files
        for record in _records(file, read_jsonl(file, found.quarantine), found.trained, found.quarantine, found.seen)
    )
    return replace(found, groups=build_groups(records, found.quarantine))


def _reduced(files: Sequence[Path], request: ReadRequest) -> _Found | None:
    """The rewards of a large log; None where it is small, so that what was trained on can be looked at, too."""
    if not request.rewards_only or keeps_texts(files):
        return None
    found, columns = _Found(groups=()), episode_columns()

    def records(file: Path, rows: Iterable[Row], quarantine: QuarantineLog) -> Iterator[tuple[int, Record]]:
        for place, row in enumerate(rows):
            for record in _records(file, [row], TrainedBatches(), quarantine, found.seen):
                yield place, replace(record, tokens=None, earlier=())  # as usual rows have none

    log = ColumnLog(
        files=files,
        declared=lambda _: columns,
        rows=read_jsonl,
        records=records,
        quarantine=found.quarantine,
    )
    groups = reduced_groups(log, request)
    return None if groups is None else replace(found, groups=groups)


def _records(
    file: Path, rows: Iterable[Row], trained: TrainedBatches, quarantine: QuarantineLog, seen: Counter[str]
) -> Iterator[Record]:
    for location, row in rows:
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
