"""prime-rl's traces since September 2026: one stream of all episodes, each written once as it arrives.

Annotations next to the stream record which rollouts were trained on, at which step and with what advantages. The step
of a group is that at which its first rollout was trained on, or, where none was, that of its dispatch: until all are
read, the steps of each rollout are columns like its rewards. Legend: J groups, N rollouts in all, R in a block.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any, Literal

import numpy as np
from msgspec import UNSET, Raw, Struct, UnsetType, field
from msgspec.json import Decoder
from msgspec.structs import replace

from gradscope.reason import Reason
from gradscope.rollouts.arrays import Counts, Flags, Floats, to_floats, to_strings, to_texts
from gradscope.rollouts.groups import REWARD, GroupsOfTable, RewardTable, RolloutGroup
from gradscope.rollouts.readers.parsing.cells import finite_or_none, list_of, mapping_of, whole_number
from gradscope.rollouts.readers.parsing.quarantine import BRANCHED, QuarantineLog, WatchedLog
from gradscope.rollouts.readers.parsing.records import ReadRequest, Record, assemble_groups, build_groups, peek
from gradscope.rollouts.readers.parsing.tables import files_like
from gradscope.rollouts.readers.reduction.columns import Columns, Note
from gradscope.rollouts.readers.reduction.lines import blocks_in
from gradscope.rollouts.readers.reduction.log import ColumnLog, reduce_log
from gradscope.rollouts.readers.reduction.numbers import int_steps
from gradscope.rollouts.readers.reduction.parts import merge_parts, part_of_table, repeated_samples
from gradscope.rollouts.readers.trainers import prime_rl_episode as episodes
from gradscope.rollouts.run import Run
from gradscope.say import counted

STREAMS = ("advantages", "trainer_logprobs", "entropies")
"""Lists of a branch that become lists of the same name of its nodes, which ``read_trace`` reads; prime-rl's trainer
also writes ``is_masked``, the tokens that its loss left out."""
VERSION = 1  # of the annotations that are supported


class Annotations(Struct, frozen=True, kw_only=True):
    """The annotations of a run."""

    traces: Counts = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Hashes of the ids of traces with a record on training, ascending, [A]."""
    steps: Floats = field(default_factory=lambda: np.zeros(0))
    """The step of each; NaN where it was not trained on, or not yet, [A]."""
    advantages: Floats = field(default_factory=lambda: np.zeros(0))
    """The advantage of each, [A]; NaN where its tokens differ, or it is among those that are stored whole."""
    trained_again: frozenset[int] = frozenset()
    """Steps that a restart trained again, so that rollouts of both attempts are in the log."""
    info: Mapping[str, Mapping[str, Any]] = {}
    """Trace id -> facts on the trace: ``advantage``, ``dispatch``. Where tokens are only counted, those of unusual
    annotations."""
    streams: Mapping[str, Sequence[tuple[int, str, list[Any]]]] = {}
    """Trace id -> branch, name and values, one for each token of the branch, in the order of writing."""

    @property
    def record_batches(self) -> bool:
        """Whether they record which traces were trained on."""
        return bool(np.isfinite(self.steps).any())

    def records_of(self, names: Sequence[Any], ships: Sequence[Any]) -> tuple[Floats, Floats]:
        """What is recorded of traces [R], by their ids.

        Returns:
            The steps at which they were trained on, else those of their own cells, NaN where they were not; their
            advantages, NaN where none is recorded.
        """
        steps = to_floats(step_in(mapping_of(cell)) for cell in ships)
        advantages = np.full(len(names), np.nan)
        if len(self.traces) and len(names):
            traces = np.array([hash(name) if isinstance(name, str) else 0 for name in names], dtype=np.int64)
            index = np.minimum(np.searchsorted(self.traces, traces), len(self.traces) - 1)
            is_known = (self.traces[index] == traces) & [isinstance(name, str) for name in names]
            steps[is_known], advantages[is_known] = self.steps[index[is_known]], self.advantages[index[is_known]]
        return steps, advantages

    def folded(self, trace: Mapping[str, Any]) -> Mapping[str, Any]:
        """A trace with its annotations merged in."""
        name = trace.get("id")
        if not isinstance(name, str):
            return trace
        nodes = [dict(node) for node in episodes.nodes_of(trace)]
        leaves = episodes.leaves_of(nodes)
        for branch, stream, values in self.streams.get(name, ()):
            if 0 <= branch < len(leaves):
                start = 0
                for node in (nodes[index] for index in episodes.path_to_leaf(leaves[branch], nodes)):
                    end = start + len(list_of(node.get("token_ids")))
                    if end > len(values):
                        break
                    flagged = zip(values[start:end], list_of(node.get("mask")), strict=False)
                    sampled = [value for value, flag in flagged if flag]
                    if sampled and None not in sampled:
                        node[stream] = sampled
                    start = end
        info = {**mapping_of(trace.get("info")), **self.info.get(name, {})}
        return {**trace, "info": info, "nodes": nodes}


def step_in(cell: Mapping[str, Any]) -> int | None:
    """The step in a cell; None for anything but a whole number that a float represents exactly."""
    step = cell.get("step")
    return step if type(step) is int and whole_number(step) is not None else None


class _Ship(Struct, gc=False, frozen=True):
    step: Any = UNSET


class _Info(Struct, gc=False, frozen=True):
    ship: _Ship | UnsetType = UNSET
    dispatch: Any = UNSET
    advantage: float | UnsetType = UNSET


class _Branch(Struct, gc=False, frozen=True):
    advantages: list[float | None] = []


class _Annotation(Struct, gc=False, frozen=True):
    version: Literal[1]  # VERSION
    trace_id: str
    info: _Info = _Info()
    branches: list[_Branch] = []

    @property
    def advantage(self) -> float | None:
        """The advantage of all sampled tokens, NaN where they differ; None where it has none."""
        levels = {level for branch in self.branches for level in branch.advantages} - {None}
        if not levels:
            return None if self.info.advantage is UNSET else self.info.advantage
        levels = levels - {0.0} or levels  # those of tokens that were not sampled
        return levels.pop() if len(levels) == 1 else math.nan

    @property
    def is_usual(self) -> bool:
        """Whether nothing but a record on training is to be learned from it, if it is one."""
        return self.info.dispatch is UNSET and (self.info.ship is not UNSET or self.advantage is None)


_DECODER = Decoder(_Annotation)


def read_annotations(files: Iterable[Path], quarantine: QuarantineLog, *, is_whole: bool = True) -> Annotations:
    """The annotations in files, in the order of writing; other lines go to the quarantine.

    ``is_whole`` stores all annotations, where texts and tokens count.
    """
    info: dict[str, dict[str, Any]] = {}
    streams: dict[str, list[tuple[int, str, list[Any]]]] = {}
    traces, steps, advantages = [np.zeros(0, dtype=np.int64)], [np.zeros(0)], [np.zeros(0)]
    for file in files:
        num_lines = 0
        for block in blocks_in(file):
            if block.lost is not None:
                quarantine.add_unreadable(block.lost)
                continue
            rows, indices, bounds = block.decoded(_DECODER)
            usual = {
                number: row for number, row in zip(indices.tolist(), rows, strict=True) if not is_whole and row.is_usual
            }
            ships = [
                (number, hash(row.trace_id), step_in({"step": row.info.ship.step}), row.advantage)
                for number, row in usual.items()
                if row.info.ship is not UNSET
            ]
            for line in block.irregular_rows(
                bounds, [number for number in range(len(bounds) - 1) if number not in usual]
            ):
                location = f"{file}:{num_lines + line.index + 1}"
                name = line.row if isinstance(line.row, str) else line.row.get("trace_id")
                if isinstance(line.row, str):
                    quarantine.add(line.row, location, line.count)
                elif line.row.get("version") != VERSION or not isinstance(name, str):
                    quarantine.add(f"the annotation is not of version {VERSION} or names no trace", location)
                else:
                    learned = mapping_of(line.row.get("info"))
                    info.setdefault(name, {}).update(learned)
                    for branch in map(mapping_of, list_of(line.row.get("branches"))):
                        if type(index := branch.get("index")) is int:
                            values = ((index, key, branch[key]) for key in STREAMS if list_of(branch.get(key)))
                            streams.setdefault(name, []).extend(values)
                    if "ship" in learned:
                        ships.append((line.index, hash(name), step_in(mapping_of(learned["ship"])), None))
            num_lines += len(bounds) - 1
            ships.sort(key=itemgetter(0))
            traces.append(np.array([trace for _, trace, *_ in ships], dtype=np.int64))
            steps.append(to_floats(step for *_, step, _ in ships))
            advantages.append(to_floats(advantage for *_, advantage in ships))
    step = np.concatenate(steps)
    shipped = step[np.isfinite(step)]
    runs, count = np.unique(shipped[np.diff(shipped, prepend=-1) != 0], return_counts=True)
    newest, indices = np.unique(np.concatenate(traces)[::-1], return_index=True)
    return Annotations(
        traces=newest,
        steps=step[::-1][indices],
        advantages=np.concatenate(advantages)[::-1][indices],
        trained_again=frozenset(runs[count > 1].astype(int).tolist()),
        info=info,
        streams=streams,
    )


_SENT, _TRAINED = "\0sent", "\0trained"
"""Columns of the steps at which a rollout was sent out and trained on, the latter NaN where it was not."""
_LOGGED, _FINE = "\0logged", "\0fine"
"""Notes that a rollout has log-probabilities, and that one of them has more decimals than prime-rl writes."""
_DECIMALS = 4
_FINER = re.compile(rb"[.][0-9]{5}|[0-9][eE]")


def stream_layout(annotations: Annotations) -> episodes.EpisodeLayout:
    """How a stream is read: all rollouts at step 0, in groups that have the prompt in their names."""
    noted: set[Note] = set()

    def to_columns(rollouts: Sequence[episodes.AgentRollout], _: Path) -> Columns:
        sent = int_steps([rollout.step for rollout in rollouts])
        names = [rollout.trace.id if isinstance(rollout.trace.id, str) else None for rollout in rollouts]
        infos = (rollout.trace.info for rollout in rollouts)
        trained, advantages = annotations.records_of(names, [info and info.ship for info in infos])
        prompts = [rollout.prompt_id for rollout in rollouts]
        folded = lru_cache(maxsize=1)(lambda row: annotations.folded(rollouts[row].as_json))
        for row in np.flatnonzero(sent < 0).tolist():
            dispatched = step_in(mapping_of(mapping_of(folded(row).get("info")).get("dispatch")))
            sent[row] = -1 if dispatched is None else dispatched

        def read(row: int) -> episodes.AgentTrace:
            trace = episodes.read_trace(folded(row))
            return episodes.untrained(trace) if annotations.record_batches and np.isnan(trained[row]) else trace

        def trace_advantage(row: int) -> float | None:
            info, stored = rollouts[row].trace.info, annotations.info.get(names[row] or "", {})
            logged = finite_or_none(stored.get("advantage", info and info.advantage))
            return logged if math.isnan(advantages[row]) else float(advantages[row])

        def count_tokens() -> tuple[Counts, Floats]:
            num_tokens, logged = episodes.count_tokens(rollouts)
            is_untrained = np.isnan(trained) if annotations.record_batches else np.zeros(len(rollouts), dtype=np.bool_)
            level = np.where(np.isnan(advantages), logged, advantages)
            level[is_untrained] = np.nan
            for row in np.flatnonzero(np.isnan(level) & ~is_untrained).tolist():
                level_of_trace = trace_advantage(row)
                is_whole = names[row] in annotations.info  # so that its tokens may have advantages of their own
                level[row] = to_floats([read(row).advantage(level_of_trace) if is_whole else level_of_trace])[0]
            return num_tokens, level

        columns = episodes.columns_of(rollouts, np.where(sent < 0, -1, 0), read, noted.add, count_tokens)
        return replace(
            columns,
            # the name of a group while its step is not known: both names in one
            group=[
                f"{len(rollout.group)}:{rollout.group}{prompt}"
                for rollout, prompt in zip(rollouts, prompts, strict=True)
            ],
            prompts=lambda chosen: [prompts[row] for row in chosen],
            numbers={**columns.numbers, REWARD + _SENT: sent.astype(np.float64), REWARD + _TRAINED: trained},
            noted=_about_logprobs([rollout.logprobs for rollout in rollouts]),
            samples=names,
            details=lambda row: {**columns.details(row), "advantage": trace_advantage(row)},
        )

    return episodes.EpisodeLayout(
        names=episodes.names_by_agent, to_columns=to_columns, is_left_out=attrgetter("is_evaluation"), noted=noted
    )


def _about_logprobs(rollouts: Sequence[Sequence[Any]]) -> dict[str, Flags]:
    def text(logprobs: Any) -> bytes:
        return bytes(logprobs) if isinstance(logprobs, Raw) else repr(logprobs).encode()

    texts = [b" ".join(map(text, nodes)) for nodes in rollouts]
    patterns = {_LOGGED: re.compile(rb"[0-9]"), _FINE: _FINER}
    return {
        name: np.array([pattern.search(text) is not None for text in texts], dtype=np.bool_)
        for name, pattern in patterns.items()
    }


class _GroupSteps(Struct, frozen=True):
    names: list[str]
    """Within the step, with the prompt where several groups share a name, [J]."""
    steps: Counts  # the first step that trained on each, or, where none did, the first of its dispatches, [J]
    divided: frozenset[int]  # steps that share a group


def _group_steps(
    in_log: Sequence[str], prompts: Sequence[str], group: Counts, sent: Floats, trained: Floats
) -> _GroupSteps:
    """The groups [J] of all rollouts [N] that arrived, including repeats."""
    ids = [name.partition(":")[2][: int(name.partition(":")[0])] for name in in_log]
    count = Counter(ids)
    names = [name if count[name] == 1 else f"{name}/{prompt}" for name, prompt in zip(ids, prompts, strict=True)]
    _, number = np.unique(np.array(names, dtype=object), return_inverse=True)
    group, first, last, first_sent = number[group], *np.full((3, len(names)), np.nan)
    for extreme, result, values in ((np.fmin, first, trained), (np.fmax, last, trained), (np.fmin, first_sent, sent)):
        extreme.at(result, group, values)
    among = trained[(first < last)[group]]
    return _GroupSteps(
        names=names,
        steps=np.where(np.isnan(first), first_sent, first)[number].astype(np.int64),
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

    def repeats(table: RewardTable) -> Flags:
        group = np.repeat(np.arange(len(table)), table.size)
        sent, trained = (table.rewards[name] for name in (_SENT, _TRAINED))
        placements.append(_group_steps(to_texts(table.names), table.prompts_of_groups(), group, sent, trained))
        assert table.sample is not None
        return repeated_samples(table, table.sample)

    table = reduce_log(replace(log, repeats=repeats), request.progress)
    if not placements:
        return GroupsOfTable(table), _group_steps((), (), *np.zeros((3, 0)))
    placed = (REWARD + _SENT, REWARD + _TRAINED, "sample")
    part = replace(
        part_of_table(table),
        first_row=np.arange(len(table)),
        step=placements[0].steps,
        group=to_strings(placements[0].names),
        columns={name: values for name, values in table.columns.items() if name not in placed},
        may_repeat=True,
    )
    return GroupsOfTable(merge_parts([part])), placements[0]


_CHUNK = "[0-9]*.jsonl"
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
_SEVERAL_STEPS = Reason("rollouts_missing", "rollouts of one group were trained on at several steps")
_RETRAINED = Reason("rollouts_missing", "a restart trained on this step again, and the log holds the rollouts of both")


def stream_files(path: Path) -> tuple[Path, ...]:
    """The chunks of a stream of training episodes, in order; empty where the path holds no such stream."""
    files = files_like(path, *(f"{folder}/{_CHUNK}" for folder in _FOLDERS))
    rows = [row for file in files[:2] for row in peek(file) if isinstance(row.get("traces"), list)]
    return files if any(mapping_of(row.get("run")).get("type") == "train" for row in rows) else ()


def read_stream(request: ReadRequest, files: tuple[Path, ...], *, has_earlier: bool) -> Run:
    """Read a stream."""
    folders = dict.fromkeys(file.resolve().parent.parent / "annotations" for file in files)
    producers = (child for folder in folders if folder.is_dir() for child in sorted(folder.iterdir()) if child.is_dir())
    annotation_files = tuple(file for producer in producers for file in files_like(producer, _CHUNK))
    quarantine = WatchedLog(request.progress, files)
    annotations = read_annotations(annotation_files, quarantine, is_whole=not request.rewards_only)
    layout = stream_layout(annotations)
    groups: Sequence[RolloutGroup]
    if not request.rewards_only:
        groups, placement = _at_their_steps(layout.all_records(files, quarantine), quarantine)
    else:
        order = {str(file): number for number, file in enumerate((*annotation_files, *files))}
        groups, placement = _rewards_alone(layout.log(files, lost := QuarantineLog()), request)
        quarantine.include(lost, order)
    record_batches, noted = annotations.record_batches, layout.noted
    run = assemble_groups(
        request,
        request.source(
            "prime-rl",
            f"prime-rl stream of traces, {counted(len(files), 'file')}",
            files=(*files, *annotation_files),
            inferred=[
                *([_FIRST] if record_batches else []),
                *(sentence for sentence in (episodes.AGENTS, BRANCHED) if sentence in noted),
            ],
            missing=[
                *([] if record_batches else [_NO_BATCHES]),
                *([_ROUNDED] if _LOGGED in noted and _FINE not in noted else []),
                *([_EARLIER] if has_earlier else []),
                *([_ONE_OF_SEVERAL] if len(files) < len(files_like(files[0].parent, _CHUNK)) else []),
            ],
        ),
        groups=groups,
        quarantine=quarantine,
    )
    notes = {
        **dict.fromkeys(() if record_batches else run.steps, _NOT_KNOWN),
        **dict.fromkeys(placement.divided, _SEVERAL_STEPS),
        **dict.fromkeys(annotations.trained_again, _RETRAINED),
    }
    return replace(run, notes=dict(sorted(notes.items())))
