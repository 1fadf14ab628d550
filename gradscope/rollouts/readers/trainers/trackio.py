"""Rollouts as trackio's traces: conversations with reward and group in their metadata, as TRL's AsyncGRPO logs them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gradscope.errors import InputError
from gradscope.outside.plain_json import parse_json
from gradscope.rollouts.readers.format import LogRow, Reading, RowFormat
from gradscope.rollouts.readers.metrics_alone.files import trackio_rows
from gradscope.rollouts.readers.metrics_alone.log import holds_metrics, read_metrics_log
from gradscope.rollouts.readers.parsing.cells import (
    ABSENT,
    cut_conversation,
    finite_or_none,
    mapping_of,
    numbers_in,
    required_whole,
    text_of,
)
from gradscope.rollouts.readers.parsing.quarantine import TEXT_ONLY, QuarantineLog, UnusableRowError
from gradscope.rollouts.readers.parsing.records import Record
from gradscope.rollouts.readers.parsing.request import ReadRequest
from gradscope.rollouts.readers.parsing.tables import Row
from gradscope.rollouts.run import Run

_COLUMNS = ("run_name", "step", "key", "messages", "metadata")
_FUNCTION = "rewards/"
_FEW = "Traces are picked: TRL logs the first 16 rollouts of a step, so that groups may be cut short."


def _rows(file: Path, quarantine: QuarantineLog) -> Iterator[Row]:
    for location, cells in trackio_rows(file, "traces", _COLUMNS, quarantine):
        row = dict(zip(_COLUMNS, cells, strict=True))
        try:
            yield location, {**row, **{name: parse_json(row[name]) for name in _COLUMNS[3:]}}
        except (TypeError, ValueError):
            quarantine.add("the trace is not JSON", location)


def _holds_rewards(file: Path) -> bool:
    return any("reward" in mapping_of(cells["metadata"]) for _, cells in _rows(file, QuarantineLog()))


def _survey(rows: Sequence[LogRow], reading: Reading) -> Mapping[str, Any]:
    files = list(dict.fromkeys(str(row.file) for row in rows))
    if len(files) > 1:
        raise InputError(f"{reading.request.path} has traces of {len(files)} projects.", hint=f"Name one: {files[0]}")
    names = list(dict.fromkeys(text_of(row.cells["run_name"]) for row in rows))
    named = reading.request.options.metric_run or (names[0] if len(names) == 1 else None)
    if named not in names:
        raise InputError(
            f"{reading.request.path} has traces of {len(names)} runs: {', '.join(names)}.",
            hint="Name one: --metric-run NAME.",
        )
    return {"run": named}


def _records(row: LogRow, run: str) -> Iterator[Record]:
    metadata = mapping_of(row.cells["metadata"])
    if text_of(row.cells["run_name"]) != run:
        return
    group = text_of(metadata.get("group_id"))
    if not group:
        raise UnusableRowError("metadata.group_id is missing")
    conversation = cut_conversation(row.cells["messages"])
    functions = {name: value for name, value in numbers_in(metadata).items() if name.startswith(_FUNCTION)}
    yield Record(
        step=required_whole(row.cells["step"], "step"),
        group=group,
        prompt_id=conversation.prompt or group,
        prompt=conversation.prompt,
        completion=conversation.completion,
        messages=conversation.messages,
        reward=row.reward(metadata.get("reward", ABSENT)),
        rewards={name.removeprefix(_FUNCTION): value for name, value in functions.items()},
        advantage=finite_or_none(metadata.get("advantage")),
    )


def _completes(request: ReadRequest, run: Run) -> Run:
    """The run with the metrics that stand beside its traces."""
    if not holds_metrics(request.path, request.options):
        return run
    return replace(run, metrics=read_metrics_log(request.path, request.options, QuarantineLog()).metrics)


FORMAT = RowFormat(
    name="trackio",
    looks_for="<project>.db with traces that have metadata.reward and metadata.group_id (trackio)",
    title="trackio traces",
    patterns=("*.db",),
    rows_of=_rows,
    recognizes_file=_holds_rewards,
    survey=_survey,
    records=_records,
    completes=_completes,
    missing=(_FEW, TEXT_ONLY),
    takes=frozenset({"metric_run"}),
)
