"""prime-rl's traces since September 2026: one stream of all episodes, each written once as it arrives.

Annotations next to the stream record which rollouts were trained on, at which step and with what advantages. The step
of a group is that at which its first rollout was trained on, or, where none was, that of its dispatch: until all are
read, the steps of each rollout are columns like its rewards. Legend: J groups, N rollouts in all, R in a block.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Raw
from numpy.typing import NDArray

from gradscope.reason import Reason
from gradscope.rollouts.arrays import to_floats, to_strings, to_texts
from gradscope.rollouts.groups import GroupsOfTable, RewardTable, RolloutGroup
from gradscope.rollouts.readers.parsing.cells import finite_or_none, mapping_of
from gradscope.rollouts.readers.parsing.quarantine import SEVERAL, QuarantineLog, WatchedLog, counted
from gradscope.rollouts.readers.parsing.records import Record, assemble_groups, build_groups, peek
from gradscope.rollouts.readers.parsing.request import ReadRequest
from gradscope.rollouts.readers.parsing.tables import files_like
from gradscope.rollouts.readers.prime_rl.annotations import Annotations, read_annotations, step_in
from gradscope.rollouts.readers.prime_rl.episode import (
    AGENTS,
    AgentRollout,
    AgentTrace,
    EpisodeLayout,
    columns_of,
    in_no_loss,
    names_by_agent,
    read_trace,
)
from gradscope.rollouts.readers.reduction.columns import REWARD, Columns, Counts, Floats, int_steps, sample_hashes
from gradscope.rollouts.readers.reduction.log import ColumnLog, keeps_texts, reduce_log
from gradscope.rollouts.readers.reduction.parts import Part, repeated_samples, table_of
from gradscope.rollouts.run import Run

_SENT, _TRAINED = "\0sent", "\0trained"
"""Columns of the steps at which a rollout was sent out and trained on, the latter NaN where it was not."""
_LOGGED, _FINE = "\0logged", "\0fine"
"""Notes that a rollout has log-probabilities, and that one of them has more decimals than prime-rl writes."""
_DECIMALS = 4
_FINER = re.compile(rb"[.][0-9]{5}|[0-9][eE]")


def stream_layout(annotations: Annotations, *, is_whole: bool) -> EpisodeLayout:
    """How a stream is read: all rollouts at step 0, in groups that have the prompt in their names."""
    noted: set[str] = set()

    def take(rollouts: Sequence[AgentRollout], _: Path) -> Columns:
        sent = int_steps([rollout.step for rollout in rollouts])
        names = [rollout.trace.id if isinstance(rollout.trace.id, str) else None for rollout in rollouts]
        infos = (rollout.trace.info for rollout in rollouts)
        trained = annotations.trained_at(names, [info and info.ship for info in infos])
        prompts = [rollout.prompt_id for rollout in rollouts]
        folded = lru_cache(maxsize=1)(lambda at: annotations.folded(rollouts[at].plain))
        for at in np.flatnonzero(sent < 0).tolist():
            dispatched = step_in(mapping_of(mapping_of(folded(at).get("info")).get("dispatch")))
            sent[at] = -1 if dispatched is None else dispatched

        def read(at: int) -> AgentTrace:
            trace = read_trace(folded(at))
            return in_no_loss(trace) if annotations.tell_batches and np.isnan(trained[at]) else trace

        columns = columns_of(rollouts, np.where(sent < 0, -1, 0), read, noted.add)
        return replace(
            columns,
            group=list(map(_name_in_log, (rollout.group for rollout in rollouts), prompts)),
            prompts=lambda chosen: [prompts[at] for at in chosen],
            numbers={
                **columns.numbers,
                REWARD + _SENT: sent.astype(np.float64),
                REWARD + _TRAINED: trained,
                "sample": sample_hashes(names),
            },
            noted=_about_logprobs([rollout.logprobs for rollout in rollouts]),
            sample=names.__getitem__,
            further=lambda at: {
                **columns.further(at),
                "advantage": finite_or_none(mapping_of(folded(at).get("info")).get("advantage")),
            },
        )

    return EpisodeLayout(
        names=names_by_agent, take=take, is_left_out=attrgetter("evaluates"), is_whole=is_whole, noted=noted
    )


def _about_logprobs(rollouts: Sequence[Sequence[Any]]) -> dict[str, NDArray[np.bool_]]:
    def text(logprobs: Any) -> bytes:
        return bytes(logprobs) if isinstance(logprobs, Raw) else repr(logprobs).encode()

    texts = [b" ".join(map(text, nodes)) for nodes in rollouts]
    patterns = {_LOGGED: re.compile(rb"[0-9]"), _FINE: _FINER}
    return {
        name: np.array([pattern.search(text) is not None for text in texts], dtype=np.bool_)
        for name, pattern in patterns.items()
    }


def _name_in_log(group: str, prompt_id: str) -> str:
    """The name of a group while its step is not known: both names in one."""
    return f"{len(group)}:{group}{prompt_id}"


@dataclass(frozen=True, slots=True)
class _GroupSteps:
    """Groups with their steps."""

    names: list[str]
    """Within the step, with the prompt where several groups share a name, [J]."""
    steps: Counts  # the first step that trained on each, or, where none did, the first of its dispatches, [J]
    divided: frozenset[int]  # steps that share a group


def _group_steps(
    in_log: Sequence[str], prompts: Sequence[str], group: Counts, sent: Floats, trained: Floats
) -> _GroupSteps:
    """The groups [J] of all rollouts [N] that arrived, including repeats."""
    own = [name.partition(":")[2][: int(name.partition(":")[0])] for name in in_log]
    count = Counter(own)
    names = [name if count[name] == 1 else f"{name}/{prompt}" for name, prompt in zip(own, prompts, strict=True)]
    _, number = np.unique(np.array(names, dtype=object), return_inverse=True)
    group, first, last, begun = number[group], *np.full((3, len(names)), np.nan)
    for extreme, of_group, values in ((np.fmin, first, trained), (np.fmax, last, trained), (np.fmin, begun, sent)):
        extreme.at(of_group, group, values)
    among = trained[(first < last)[group]]
    return _GroupSteps(
        names=names,
        steps=np.where(np.isnan(first), begun, first)[number].astype(np.int64),
        divided=frozenset(np.unique(among[~np.isnan(among)]).astype(np.int64).tolist()),
    )


def _at_their_steps(
    records: Sequence[Record], quarantine: QuarantineLog
) -> tuple[tuple[RolloutGroup, ...], _GroupSteps]:
    """The groups of rollouts that are all in memory."""
    prompts = {record.group: record.prompt_id for record in records}
    numbers = {name: number for number, name in enumerate(prompts)}
    group = np.array([numbers[record.group] for record in records], dtype=np.int64)
    sent, trained = (to_floats(record.rewards.get(name) for record in records) for name in (_SENT, _TRAINED))
    placement = _group_steps(list(prompts), list(prompts.values()), group, sent, trained)
    moved = (
        replace(
            record,
            step=int(placement.steps[number]),
            group=placement.names[number],
            rewards={name: reward for name, reward in record.rewards.items() if name not in (_SENT, _TRAINED)},
        )
        for record, number in zip(records, group.tolist(), strict=True)
    )
    return build_groups(moved, quarantine), placement


def _rewards_alone(log: ColumnLog, request: ReadRequest) -> tuple[GroupsOfTable, _GroupSteps]:
    """The groups of a log of any size, reduced to rewards, each of one prompt."""
    placements: list[_GroupSteps] = []

    def repeats(table: RewardTable) -> NDArray[np.bool_]:
        group = np.repeat(np.arange(len(table)), table.size)
        sent, trained = (table.rewards[name] for name in (_SENT, _TRAINED))
        placements.append(_group_steps(to_texts(table.names), _prompts(table), group, sent, trained))
        assert table.sample is not None
        return repeated_samples(table, table.sample)

    table = reduce_log(replace(log, repeats=repeats), request.progress)
    if not placements:
        return GroupsOfTable(table), _group_steps((), (), *np.zeros((3, 0)))
    rewards = {REWARD + name: values for name, values in table.rewards.items() if name not in (_SENT, _TRAINED)}
    part = Part(
        first_row=np.arange(len(table)),
        step=placements[0].steps,
        group=to_strings(placements[0].names),
        prompt=_prompts(table),
        size=table.size,
        columns={"reward": table.reward, **rewards},
    )
    return GroupsOfTable(table_of(part)), placements[0]


def _prompts(table: RewardTable) -> list[str]:
    return [table.prompts[at] for at in table.prompt.tolist()]


_CHUNK = "[0-9]*.jsonl*"
_FOLDERS = ("monitors/file/traces/stream", "file/traces/stream", "traces/stream", "stream", ".")
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


def stream_files(path: Path) -> tuple[Path, ...]:
    """The chunks of a stream of training episodes, in order; empty where the path holds no such stream."""
    files = _chunks(files_like(path, *(f"{folder}/{_CHUNK}" for folder in _FOLDERS)))
    return files if any(any(map(_is_of_training, peek(file))) for file in files[:2]) else ()


def read_stream(request: ReadRequest, files: tuple[Path, ...], *, has_earlier: bool) -> Run:
    """Read a stream."""
    annotation_files, is_whole = _annotation_files(files), not request.rewards_only or keeps_texts(files)
    quarantine = WatchedLog(request.progress, files)
    annotations = read_annotations(annotation_files, quarantine, is_whole=is_whole)
    layout = stream_layout(annotations, is_whole=is_whole)
    groups: Sequence[RolloutGroup]
    if is_whole:
        groups, placement = _at_their_steps(layout.all_records(files, quarantine), quarantine)
    else:
        of_log, order = QuarantineLog(), {str(file): number for number, file in enumerate((*annotation_files, *files))}
        groups, placement = _rewards_alone(layout.log(files, of_log), request)
        quarantine.include(of_log, order)
    tell_batches, noted = annotations.tell_batches, layout.noted
    run = assemble_groups(
        request,
        groups=groups,
        quarantine=quarantine,
        format="prime-rl",
        recognized=f"prime-rl stream of traces, {counted(len(files), 'file')}",
        inferred=[
            *([_FIRST] if tell_batches else []),
            *(sentence for sentence in (AGENTS, SEVERAL) if sentence in noted),
        ],
        missing=[
            *([] if tell_batches else [_NO_BATCHES]),
            *([_ROUNDED] if _LOGGED in noted and _FINE not in noted else []),
            *([_EARLIER] if has_earlier else []),
            *([_ONE_OF_SEVERAL] if len(files) < len(_chunks(files_like(files[0].parent, _CHUNK))) else []),
        ],
        files=(*files, *annotation_files),
    )
    notes = {
        **dict.fromkeys(() if tell_batches else run.steps, _NOT_KNOWN),
        **dict.fromkeys(placement.divided, _ELSEWHERE),
        **dict.fromkeys(annotations.trained_again, _AGAIN),
    }
    return replace(run, notes=dict(sorted(notes.items())))


def _is_of_training(row: Mapping[str, Any]) -> bool:
    return isinstance(row.get("traces"), list) and mapping_of(row.get("run")).get("type") == "train"


def _chunks(files: Iterable[Path]) -> tuple[Path, ...]:
    """The files of a stream; a chunk that is being compressed exists twice, and counts once."""
    named = {file: file.name.removesuffix(".zst") for file in files}
    plain = {(file.parent, file.name) for file in named}
    return tuple(
        file
        for file, name in named.items()
        if name.endswith(".jsonl") and (file.name == name or (file.parent, name) not in plain)
    )


def _annotation_files(files: Iterable[Path]) -> tuple[Path, ...]:
    """The annotations of a stream, producer by producer."""
    folders = dict.fromkeys(file.resolve().parent.parent / "annotations" for file in files)
    producers = (child for folder in folders if folder.is_dir() for child in sorted(folder.iterdir()))
    return tuple(file for producer in producers if producer.is_dir() for file in _chunks(files_like(producer, _CHUNK)))
