"""What prime-rl trained on, told from ``effective`` beside ``all``: whatever else ``all`` holds was in no loss."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gradscope.rollouts.readers.parsing.jsonl import read_jsonl
from gradscope.rollouts.readers.parsing.nested_cells import list_of, mapping_of, number_in_name
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.parsing.scalars import text_of
from gradscope.rollouts.readers.prime_rl.trace import AgentTrace, read_trace
from gradscope.rollouts.types import Tokens

STEP = re.compile(r"^step_([0-9]+)$")
"""A step's folder."""


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


def in_no_loss(trace: AgentTrace) -> AgentTrace:
    """A trace none of whose tokens was trained on."""
    return replace(
        trace,
        tokens=None if trace.tokens is None else _without_loss(trace.tokens),
        earlier=tuple(map(_without_loss, trace.earlier)),
    )


def _without_loss(tokens: Tokens) -> Tokens:
    num_tokens = len(tokens.mask)
    return replace(tokens, mask=(False,) * num_tokens, token_advantages=(0.0,) * num_tokens)
