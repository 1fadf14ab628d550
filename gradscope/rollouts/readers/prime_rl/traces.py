"""prime-rl's traces: an episode a line, with exact tokens, log-probabilities and rewards of every trained agent.

``all`` holds every episode as it finished, ``effective`` those that were trained on, with their advantages. Both are
read where both are there: rollouts from ``all``, so that no filter hides a group, advantages from ``effective``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gradscope.reason import Reason
from gradscope.rollouts.readers.parsing.assemble import assemble
from gradscope.rollouts.readers.parsing.counted import counted, hidden_by
from gradscope.rollouts.readers.parsing.format import Format
from gradscope.rollouts.readers.parsing.grouping import Record
from gradscope.rollouts.readers.parsing.jsonl import read_jsonl
from gradscope.rollouts.readers.parsing.nested_cells import (
    list_of,
    mapping_of,
    number_in_name,
    usable_reward,
    whole_number,
)
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.parsing.request import ReadRequest
from gradscope.rollouts.readers.parsing.scalars import ABSENT, digest, finite_or_none, text_of
from gradscope.rollouts.readers.parsing.tables import files_like
from gradscope.rollouts.readers.prime_rl.batches import STEP, TrainedBatches, batches_in
from gradscope.rollouts.readers.prime_rl.left_behind import with_prime_rls
from gradscope.rollouts.readers.prime_rl.trace import AgentTrace
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
_BRANCHING = "Some traces branch into several sequences: their tokens are left out, their rewards count."
_AGENTS = "Episodes with several trained agents: the rollouts of one agent form a group."


def _recognizes(request: ReadRequest) -> bool:
    """Whether the path holds prime-rl's traces of training."""
    return bool(_files(request.path, "all") or _files(request.path, "effective"))


def _read(request: ReadRequest) -> Run:
    """Read prime-rl's traces of training: of a run, its ``rollouts``, one of their folders, or one file."""
    everything, effective = _files(request.path, "all"), _files(request.path, "effective")
    files = everything or effective
    quarantine = QuarantineLog()
    seen: Counter[str] = Counter()
    trained = batches_in(effective) if everything else TrainedBatches()
    records = list(_records(files, trained, quarantine, seen))
    inferred = [sentence for sentence in (_AGENTS,) if seen[sentence]]
    if trained.traces:
        inferred.append("Rollouts were read from all/, their advantages from effective/.")
    run = assemble(
        request,
        records=records,
        quarantine=quarantine,
        format="prime-rl",
        recognized=f"prime-rl traces, {counted(len(files), 'file')}",
        inferred=inferred,
        missing=[*([] if everything else [_ONLY_EFFECTIVE]), *([_BRANCHING] if seen[_BRANCHING] else [])],
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
            traces = [trace for trace in map(mapping_of, list_of(row.get("traces"))) if _is_trained(trace)]
            if type(step) is not int or whole_number(step) is None:
                quarantine.add("the step is not a whole number", location)
            elif group is None:
                quarantine.add("group.id is missing", location)
            elif not traces:
                quarantine.add("the episode has no trace of a trained agent", location)
            else:
                seen[_AGENTS] += len(traces) > 1
                for at, trace in enumerate(traces):
                    name = text_of(group) if len(traces) == 1 else f"{text_of(group)}/{at}"
                    parsed = trained.as_trained(trace, step)
                    seen[_BRANCHING] += parsed.branches
                    yield _record(row, trace, parsed, step, name, location, quarantine)


def _is_trained(trace: Mapping[str, Any]) -> bool:
    return bool(trace) and mapping_of(trace.get("agent")).get("trainable") is not False


def _record(
    row: Mapping[str, Any],
    trace: Mapping[str, Any],
    parsed: AgentTrace,
    step: int,
    group: str,
    location: str,
    quarantine: QuarantineLog,
) -> Record:
    task = mapping_of(row.get("task"))
    environment = text_of(mapping_of(row.get("env")).get("id"))
    failed = row.get("ok") is False
    scored = {name: mapping_of(cell) for name, cell in mapping_of(trace.get("rewards")).items()}
    return Record(
        step=step,
        group=group,
        prompt_id=f"{environment}/{text_of(task.get('hash')) or digest(task.get('data'))}",
        prompt=parsed.prompt,
        completion=parsed.completion,
        messages=parsed.messages,
        reward=usable_reward(_weighted_sum(scored), location, quarantine),
        rewards={name: finite_or_none(cell.get("score")) for name, cell in scored.items()},
        status="error" if failed else "unknown",
        tokens=parsed.tokens,
        policy_versions=_policy_versions(row),
    )


def _policy_versions(row: Mapping[str, Any]) -> tuple[int, int] | None:
    """The versions of the weights that an episode began and ended with, counted in updates; None of other cells."""
    policy = mapping_of(mapping_of(mapping_of(row.get("run")).get("work")).get("policy"))
    start, end = whole_number(policy.get("start")), whole_number(policy.get("end"))
    return (start, end) if start is not None and end is not None and 0 <= start <= end else None


def _weighted_sum(scored: Mapping[str, Mapping[str, Any]]) -> Any:
    """The scalar reward, the sum of score times weight; where a score is none, what stands in its place."""
    if not scored:
        return ABSENT
    total = 0.0
    for cell in scored.values():
        score, weight = finite_or_none(cell.get("score")), finite_or_none(cell.get("weight", 1.0))
        if score is None or weight is None:
            return cell.get("score") if score is None else cell.get("weight")
        total += score * weight
    return total


FORMAT = Format(
    name="prime-rl",
    looks_for="step_*/train/{all,effective}/traces.jsonl (prime-rl)",
    recognizes=_recognizes,
    read=_read,
)
