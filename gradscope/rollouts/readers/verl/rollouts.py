"""verl's JSONL dumps of rollouts: the V1 trainer's, which name the group, and the legacy trainer's, which do not."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from gradscope.errors import InputError
from gradscope.reason import Reason
from gradscope.rollouts.readers.format import Format
from gradscope.rollouts.readers.parsing.assemble import assemble_groups, peek
from gradscope.rollouts.readers.parsing.counted import SEVERAL, counted, hidden_by
from gradscope.rollouts.readers.parsing.grouping import Record, build_groups
from gradscope.rollouts.readers.parsing.jsonl import read_jsonl
from gradscope.rollouts.readers.parsing.nested_cells import in_environment, whole_number
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog, UnusableRowError
from gradscope.rollouts.readers.parsing.request import ReadRequest
from gradscope.rollouts.readers.parsing.scalars import ABSENT, digest, finite_or_none, is_number, parse_reward, text_of
from gradscope.rollouts.readers.parsing.tables import Row, expand
from gradscope.rollouts.readers.parsing.watch import WatchedLog
from gradscope.rollouts.readers.reduction.log import ColumnLog, FileRow, reduced_groups
from gradscope.rollouts.readers.verl.columns import COLUMNS, NO_REWARDS, Uids, line_columns, row_tokens
from gradscope.rollouts.readers.verl.left_behind import (
    SWITCH_ON,
    is_metrics,
    verl_metrics,
    verl_settings,
    verl_weights,
)
from gradscope.rollouts.reward_table import UNKNOWN, RewardTable
from gradscope.rollouts.run import Run
from gradscope.rollouts.types import RolloutGroup, Tokens

_UID = re.compile(r"(?P<group>.+)_(?P<session>[0-9]+)_(?P<index>[0-9]+)")
_NUM_PEEKED = 1000
"""Rows that tell what uids name."""
_WELL_KNOWN = 20
"""Files of which several rows are looked at before the log is read; of the others one, as there may be thousands."""
_NUMBERED = re.compile(r"[0-9]+\.jsonl(\.gz)?")
_GROUPED_BY_TEXT = (
    "Rows carry no group id and are reordered: rollouts were grouped by input and ground truth within the step; equal "
    "prompts at one step merge."
)
_GROUPED: dict[Uids, tuple[str, ...]] = {
    "of outputs": (),
    "of groups": ("Rollouts of one uid at one step are a group.",),
    None: (_GROUPED_BY_TEXT,),
}
_WRITTEN: dict[Uids, str] = {
    "of outputs": "of the V1 trainer",
    "of groups": "with a uid for each group",
    None: "of the legacy trainer",
}
_NO_TOKENS = (
    "verl's dump has no token ids, log-probabilities or advantages, and its texts lost the chat template's markers; "
    "gradients need them as columns prompts, responses, response_mask, rollout_log_probs and advantages (docs/logs.md)."
)
_FILTERED = hidden_by("With algorithm.filter_groups, verl drops groups of equal rewards before it dumps")
_SHARDS = "Checkpoints of verl are shards; merge one with `python -m verl.model_merger` and give it with --initial."
_SEVERAL_OUTPUTS = Reason(
    "several_sequences",
    "an agent loop gave several outputs, all trained on, and gradients are computed of one sequence a rollout",
)


def _recognizes(request: ReadRequest) -> bool:
    """Whether the path holds rows with input, output, score and step."""
    rows = (row for file in expand(_rollouts(request.path)) if not is_metrics(file) for row in peek(file))
    return {"input", "output", "score", "step"} <= next(rows, {}).keys()


def _read(request: ReadRequest) -> Run:
    """Read a dump of rollouts: a ``rollout_data_dir``, the folder above it, or one file.

    Returns:
        The run.

    Raises:
        InputError: There are no dumps of rollouts.
    """
    given = _rollouts(request.path)
    files = tuple(file for file in expand(given) if not is_metrics(file))
    if not files:
        raise InputError(f"{request.path} holds no rollouts.", hint="Train with trainer.rollout_data_dir=DIR.")
    found = _reduced(files, request) or _by_row(files, request)
    inferred = [*_GROUPED[found.uids], *([SEVERAL] if found.folded else [])]
    folder = given if given.is_dir() else given.parent
    logged = verl_metrics(folder, found.groups, request.options.metric_run, found.quarantine)
    if given != request.path:
        inferred.append(f"Rollouts were read from {folder.name}/; other folders (validation) are left out.")
    settings = verl_settings(request, folder, by_v1=found.uids == "of outputs")
    saved = verl_weights(request, folder, settings.values)
    run = assemble_groups(
        request,
        groups=found.groups,
        quarantine=found.quarantine,
        format="verl",
        recognized=f"verl rollouts {_WRITTEN[found.uids]}, {counted(len(files), 'file')}",
        inferred=[*inferred, *logged.sentences],
        missing=(
            *(() if found.has_tokens else (_NO_TOKENS,)),
            _FILTERED,
            *(() if saved.weights else (_SHARDS,)),
            *(() if logged.file is not None else (SWITCH_ON,)),
        ),
        files=(*files, *(() if logged.file is None else (logged.file,))),
        metrics=logged.metrics,
    )
    return replace(
        run,
        settings=settings,
        weights=saved.weights,
        unmerged_weights=saved.unmerged,
        tokenizer=saved.tokenizer or run.tokenizer,
        notes=dict.fromkeys(sorted(found.folded), _SEVERAL_OUTPUTS),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """What the files hold."""

    groups: Sequence[RolloutGroup]
    quarantine: QuarantineLog
    uids: Uids
    """What uids name."""
    has_tokens: bool
    folded: frozenset[int]
    """Steps at which a session had several outputs."""


def _by_row(files: Sequence[Path], request: ReadRequest) -> _Found:
    quarantine = WatchedLog(request.progress, files)
    rows = [row for file in files for row in read_jsonl(file, quarantine)]
    uids = _uids_of(row for _, row in rows)
    if (
        uids == "of groups"
        and max(Counter((str(row.get("step")), str(row.get("uid"))) for _, row in rows).values()) == 1
    ):
        uids = "of outputs"  # which none is the uid of
    sessions = outputs_of_sessions(rows) if uids == "of outputs" else [[row] for row in rows]
    groups = build_groups(_records(sessions, quarantine, uids), quarantine)
    return _Found(
        groups=groups,
        quarantine=quarantine,
        uids=uids,
        has_tokens=any(rollout.completion_ids is not None for group in groups for rollout in group.rollouts),
        folded=_steps_with_fewer(rows, [outputs[-1] for outputs in sessions]),
    )


def _reduced(files: Sequence[Path], request: ReadRequest) -> _Found | None:
    """The groups of a log, without an object a rollout.

    Returns:
        What was found; None where rows have to be kept, or where all of them have to be seen at once: some lack a uid
        that others have, no two share one, or an output of a session, which may have several, has no score or no tokens
        that can be used.
    """
    first = [row for file in files[:_WELL_KNOWN] for row in peek(file)]
    first += [row for file in files[_WELL_KNOWN:] for row in peek(file, num_rows=1)]
    uids, has_tokens = _uids_of(first), any(COLUMNS & row.keys() for row in first)
    if not first or len({"uid" in row for row in first}) > 1:
        return None
    quarantine, folded, depend = QuarantineLog(), set[int](), set[str]()

    def together(rows: Sequence[FileRow]) -> Iterator[Record]:
        all_rows = [row for _, row in rows]
        sessions = outputs_of_sessions(all_rows) if uids == "of outputs" else [[row] for row in all_rows]
        steps = _steps_with_fewer(all_rows, [outputs[-1] for outputs in sessions])
        folded.update(steps)
        depend.update(at for at, row in all_rows if steps and isinstance(parse_reward(row.get("score", ABSENT)), str))
        return _records(sessions, QuarantineLog(), uids)

    def records(_: Path, rows: Iterable[Row], quarantine: QuarantineLog) -> Iterator[Record]:
        for location, row in rows:
            if ("uid" in row and uids is None) or (uids == "of outputs" and _contradicts(row)):
                depend.add(location)
            yield from _records([[(location, row)]], quarantine, uids)

    lines = line_columns(first, _extra_rewards(first), uids, has_tokens=has_tokens)
    if lines is None:
        return None
    log = ColumnLog(
        files=files,
        declared=lambda _: lines,
        rows=read_jsonl,
        records=records,
        together=together,
        quarantine=quarantine,
        keys=lines.row.__struct_encode_fields__,
    )

    def judged(table: RewardTable) -> RewardTable | None:
        is_alone = uids == "of groups" and len(table) > 0 and table.size.max() == 1
        return None if depend or is_alone else table

    groups = reduced_groups(log, request, judged)
    if groups is None:
        return None
    lengths = groups.table.num_tokens
    return _Found(
        groups=groups,
        quarantine=quarantine,
        uids=uids,
        has_tokens=lengths is not None and bool((lengths != UNKNOWN).any()),
        folded=frozenset(folded),
    )


def _uids_of(rows: Iterable[Mapping[str, Any]]) -> Uids:
    """What uids name, told by the first rows of a log."""
    uids = (str(row["uid"]) for row in rows if "uid" in row)
    first = list(islice(uids, _NUM_PEEKED))
    if not first:
        return None
    return "of outputs" if any(map(_UID.fullmatch, first)) else "of groups"


def _contradicts(row: Mapping[str, Any]) -> bool:
    """Whether a row's tokens cannot be used."""
    try:
        row_tokens(row)
    except UnusableRowError:
        return True
    return False


def _extra_rewards(rows: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for row in rows for name in row if _is_extra(name, row[name])))


def _is_extra(name: str, cell: Any) -> bool:
    return name not in NO_REWARDS and is_number(cell)


def _steps_with_fewer(rows: Sequence[Row], kept: Sequence[Row]) -> frozenset[int]:
    """Steps of which some rows are left out."""
    before, after = (Counter(row["step"] for _, row in some if type(row.get("step")) is int) for some in (rows, kept))
    return frozenset(step for step in before if after[step] < before[step])


def _rollouts(path: Path) -> Path:
    """The folder of rollouts: the one given, or its folder ``rollout``."""
    below = path / "rollout"
    has_own = path.is_dir() and any(_NUMBERED.fullmatch(file.name) for file in path.iterdir())
    return below if below.is_dir() and not has_own else path


def outputs_of_sessions(rows: Iterable[tuple[str, dict[str, Any]]]) -> list[list[tuple[str, dict[str, Any]]]]:
    """Several outputs of one agent loop share its score and are one rollout.

    Returns:
        The outputs of each session, in the order of the sessions; a row without a proper uid, or with one that occurred
        before, is a session of its own.
    """
    sessions: dict[Any, list[tuple[str, dict[str, Any]]]] = {}
    uids: set[tuple[str, str]] = set()
    for location, row in rows:
        step, uid = repr(row.get("step")), str(row.get("uid"))
        match = _UID.fullmatch(uid)
        is_new = match is not None and (step, uid) not in uids
        uids.add((step, uid))
        key = (step, match["group"], match["session"]) if match and is_new else location
        sessions.setdefault(key, []).append((location, row))
    return list(sessions.values())


def _prompt_id(row: Mapping[str, Any]) -> str:
    return digest(row.get("input"), row.get("gts"))


def _records(
    sessions: Iterable[Sequence[tuple[str, Mapping[str, Any]]]], quarantine: QuarantineLog, uids: Uids
) -> Iterator[Record]:
    for outputs in sessions:
        location, row = outputs[-1]
        reward = parse_reward(row.get("score", ABSENT))
        match = _UID.fullmatch(str(row.get("uid"))) if uids == "of outputs" else None
        uid = row.get("uid")
        prompt_id = _prompt_id(row)
        if type(row.get("step")) is not int or whole_number(row["step"]) is None:
            quarantine.add("the step is not a whole number", location)
        elif uids == "of outputs" and match is None:
            quarantine.add("the uid is not <group>_<session>_<index>", location)
        elif uids == "of groups" and not (isinstance(uid, str) and uid):
            quarantine.add("the uid is no text", location)
        else:
            try:
                sequences = _sequences(outputs, quarantine)
            except UnusableRowError as error:
                quarantine.add(str(error), location)
                continue
            if isinstance(reward, str):
                quarantine.add(reward, location)
            score = None if isinstance(reward, str) else reward
            extra = {name: finite_or_none(row[name]) for name in row if _is_extra(name, row[name])}
            yield Record(
                step=row["step"],
                group=match["group"] if match else str(uid) if uids == "of groups" else prompt_id,
                prompt_id=in_environment(row.get("data_source"), prompt_id),
                prompt=text_of(row.get("input")),
                completion=text_of(row.get("output")),
                reward=score,
                tokens=sequences[-1] if sequences else None,
                earlier=sequences[:-1],
                rewards={"score": score, **extra},
                sample_id=match["session"] if match else None,
                location=location,
            )


def _sequences(outputs: Sequence[tuple[str, Mapping[str, Any]]], quarantine: QuarantineLog) -> tuple[Tokens, ...]:
    """The tokens of the outputs of a session.

    Returns:
        Those of each output; nothing where one has none, since a part would pass for all.

    Raises:
        UnusableRowError: The last output's tokens contradict each other.
    """
    *before, (_, last) = outputs
    found = [row_tokens(last)]
    for location, row in reversed(before):
        try:
            found.append(row_tokens(row))
        except UnusableRowError as error:
            quarantine.add(str(error), location)
            found.append(None)
    known = tuple(tokens for tokens in reversed(found) if tokens is not None)
    return known if len(known) == len(found) else ()


FORMAT = Format(
    name="verl",
    looks_for="<step>.jsonl with input, output, score and step (verl)",
    recognizes=_recognizes,
    read=_read,
    takes=frozenset({"metric_run"}),
)
