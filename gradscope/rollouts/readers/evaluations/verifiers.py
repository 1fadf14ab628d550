"""verifiers' evaluations: an episode a line, in prime-rl's form but of no training step. A group a task, at step 0."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from gradscope.rollouts.readers.format import LogRow, RowFormat, has_row
from gradscope.rollouts.readers.parsing.grouping import Record
from gradscope.rollouts.readers.parsing.nested_cells import mapping_of
from gradscope.rollouts.readers.parsing.quarantine import UnusableRowError
from gradscope.rollouts.readers.parsing.scalars import digest, text_of
from gradscope.rollouts.readers.prime_rl.episode import AGENTS, group_names, is_standalone, record_of, trained_traces
from gradscope.rollouts.readers.prime_rl.trace import read_trace

_BY_TASK = "Episodes of one task (task.key, else task.hash) of an environment are the samples of a prompt."


def _records(row: LogRow) -> Iterator[Record]:
    episode, quarantine = row.cells, row.reading.quarantine
    if not is_standalone(episode):
        raise UnusableRowError("the episode is not of an evaluation")
    prompt, traces = _prompt(episode), trained_traces(episode)
    if not traces:
        raise UnusableRowError("the episode has no trace of an agent")
    if len(traces) > 1:
        row.reading.noted.add(AGENTS)
    log = f"{row.file.resolve().parent.name}/" if len(row.reading.files) > 1 else ""
    for name, trace in zip(group_names(prompt, traces), traces, strict=True):
        record = record_of(episode, trace, read_trace(trace), 0, f"{log}{name}", row.location, quarantine)
        given = trace.get("id")
        yield replace(
            record, prompt_id=prompt, sample_id=given if isinstance(given, str) else None, location=row.location
        )


def _prompt(episode: Mapping[str, Any]) -> str:
    task, environment = mapping_of(episode.get("task")), mapping_of(episode.get("env"))
    name = text_of(task.get("key")) or text_of(task.get("hash")) or (digest(task["data"]) if task.get("data") else "")
    if not name:
        raise UnusableRowError("task.key, task.hash and task.data are missing")
    return f"{text_of(environment.get('name')) or text_of(environment.get('id'))}/{name}"


FORMAT = RowFormat(
    name="verifiers",
    looks_for="traces.jsonl of a run of type eval (verifiers)",
    title="verifiers evaluation",
    patterns=("traces.jsonl",),
    recognizes_file=has_row(is_standalone),
    records=_records,
    inferred=(_BY_TASK, AGENTS),
    if_noted=frozenset({AGENTS}),
)
