"""The rollouts of prime-rl's stream as they arrived, before the steps of their groups are known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gradscope.rollouts.readers.parsing.counted import SEVERAL
from gradscope.rollouts.readers.parsing.grouping import Record
from gradscope.rollouts.readers.parsing.nested_cells import mapping_of
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.parsing.scalars import finite_or_none, text_of
from gradscope.rollouts.readers.parsing.tables import Row
from gradscope.rollouts.readers.prime_rl.annotations import Annotations, ship_step, step_in
from gradscope.rollouts.readers.prime_rl.batches import in_no_loss
from gradscope.rollouts.readers.prime_rl.episode import AGENTS, group_names, record_of, trained_traces
from gradscope.rollouts.readers.prime_rl.trace import read_trace
from gradscope.rollouts.types import RolloutGroup

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
    """The rollouts of some episodes; those of evaluations are left out.

    Args:
        rows: Lines of the stream.
        annotations: What was learned of their traces.
        quarantine: Takes what cannot be used.
        seen: Counts the episodes that ``AGENTS`` and ``SEVERAL`` are true of.

    Yields:
        Them, in their order.
    """
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
