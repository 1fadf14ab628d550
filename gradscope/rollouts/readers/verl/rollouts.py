"""verl's JSONL dumps of rollouts: the V1 trainer's, which name the group, and the legacy trainer's, which do not."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from gradscope.errors import InputError
from gradscope.reason import Reason
from gradscope.rollouts.groups import holds_rewards_alone
from gradscope.rollouts.readers.format import Format
from gradscope.rollouts.readers.parsing.assemble import assemble_groups, peek
from gradscope.rollouts.readers.parsing.counted import REDUCED, SEVERAL, counted, hidden_by
from gradscope.rollouts.readers.parsing.grouping import Record, build_groups
from gradscope.rollouts.readers.parsing.jsonl import read_jsonl
from gradscope.rollouts.readers.parsing.nested_cells import whole_number
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog, UnusableRowError
from gradscope.rollouts.readers.parsing.request import ReadRequest
from gradscope.rollouts.readers.parsing.scalars import ABSENT, digest, finite_or_none, is_number, parse_reward, text_of
from gradscope.rollouts.readers.parsing.tables import Row, expand
from gradscope.rollouts.readers.parsing.watch import WatchedLog
from gradscope.rollouts.readers.scan.reduction import ColumnLog, FileRow, is_large, reduced_groups
from gradscope.rollouts.readers.verl.columns import line_columns
from gradscope.rollouts.readers.verl.left_behind import verl_settings, verl_weights
from gradscope.rollouts.readers.verl.metrics import SWITCH_ON, find_metrics, is_metrics, read_verl_metrics
from gradscope.rollouts.readers.verl.tokens import COLUMNS, NO_REWARDS, row_tokens
from gradscope.rollouts.reward_table import UNKNOWN
from gradscope.rollouts.run import Run
from gradscope.rollouts.types import RolloutGroup, Tokens

_UID = re.compile(r"(?P<group>.+)_(?P<session>[0-9]+)_(?P<index>[0-9]+)")
_NUMBERED = re.compile(r"[0-9]+\.jsonl(\.gz)?")
_GROUPED_BY_TEXT = (
    "Rows carry no group id and are reordered: rollouts were grouped by input and ground truth within the step; equal "
    "prompts at one step merge."
)
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
    named = found.named
    inferred = [*([] if named else [_GROUPED_BY_TEXT]), *([SEVERAL] if found.folded else [])]
    folder = given if given.is_dir() else given.parent
    metrics_file = find_metrics(folder)
    if given != request.path:
        inferred.append(f"Rollouts were read from {folder.name}/; other folders (validation) are left out.")
    settings = verl_settings(request, folder, by_v1=named)
    saved = verl_weights(request, folder, settings.values)
    run = assemble_groups(
        request,
        groups=found.groups,
        quarantine=found.quarantine,
        format="verl",
        recognized=f"verl rollouts of the {'V1' if named else 'legacy'} trainer, {counted(len(files), 'file')}",
        inferred=inferred,
        missing=(
            *(() if found.has_tokens else (_NO_TOKENS,)),
            _FILTERED,
            *(() if saved.weights else (_SHARDS,)),
            *(() if metrics_file is not None else (SWITCH_ON,)),
            *((REDUCED,) if holds_rewards_alone(found.groups) else ()),
        ),
        files=(*files, *(() if metrics_file is None else (metrics_file,))),
        metrics={} if metrics_file is None else read_verl_metrics(metrics_file, found.quarantine),
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
    named: bool
    """Whether rows name their groups."""
    has_tokens: bool
    folded: frozenset[int]
    """Steps at which a session had several outputs."""


def _by_row(files: Sequence[Path], request: ReadRequest) -> _Found:
    quarantine = WatchedLog(request.progress, files)
    rows = [row for file in files for row in read_jsonl(file, quarantine)]
    named = any("uid" in row for _, row in rows)
    sessions = outputs_of_sessions(rows) if named else [[row] for row in rows]
    records = list(_records(sessions, quarantine, named=named))
    return _Found(
        groups=build_groups(records, quarantine),
        quarantine=quarantine,
        named=named,
        has_tokens=any(record.tokens for record in records),
        folded=_steps_with_fewer(rows, [outputs[-1] for outputs in sessions]),
    )


def _reduced(files: Sequence[Path], request: ReadRequest) -> _Found | None:
    """The groups of a large log.

    Returns:
        What was found; None where the log is small, or where all rows have to be seen at once: some lack a uid that
        others have, some have a uid, tokens or rewards that no file begins with, or an output of a session, which may
        have several, has no score or no tokens that can be used.
    """
    first = [row for file in files for row in peek(file)] if is_large(files) else []
    named, has_tokens = any("uid" in row for row in first), any(COLUMNS & row.keys() for row in first)
    if not first or any(named != ("uid" in row) for row in first):
        return None
    quarantine, folded, depend = QuarantineLog(), set[int](), set[str]()
    extra = _extra_rewards(first)

    def together(rows: Sequence[FileRow]) -> Iterator[Record]:
        all_rows = [row for _, row in rows]
        sessions = outputs_of_sessions(all_rows) if named else [[row] for row in all_rows]
        steps = _steps_with_fewer(all_rows, [outputs[-1] for outputs in sessions])
        folded.update(steps)
        depend.update(at for at, row in all_rows if steps and isinstance(parse_reward(row.get("score", ABSENT)), str))
        return _records(sessions, QuarantineLog(), named=named)

    def records(_: Path, rows: Iterable[Row], quarantine: QuarantineLog) -> Iterator[Record]:
        for location, row in rows:
            late = row.keys() & {"responses", "response_ids"} if not has_tokens else named and _contradicts(row)
            if late or ("uid" in row and not named):
                depend.add(location)
            if not request.rewards_only and not set(_extra_rewards([row])) <= set(extra):
                depend.add(location)
            yield from _records([[(location, row)]], quarantine, named=named)

    others = None if request.rewards_only else sorted({*chain(*first)} - {*extra, *NO_REWARDS})
    lines = line_columns(extra, named=named, has_tokens=has_tokens, others=others, prompt_id=_prompt_id)
    log = ColumnLog(
        files=files,
        columns=lines.columns,
        declared=lambda _: lines,
        rows=read_jsonl,
        records=records,
        together=together,
        quarantine=quarantine,
    )
    groups = reduced_groups(log, request, lambda table: None if depend else table)
    if groups is None:
        return None
    lengths = groups.table.num_tokens
    return _Found(
        groups=groups,
        quarantine=quarantine,
        named=named,
        has_tokens=lengths is not None and bool((lengths != UNKNOWN).any()),
        folded=frozenset(folded),
    )


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
    sessions: Iterable[Sequence[tuple[str, Mapping[str, Any]]]], quarantine: QuarantineLog, *, named: bool
) -> Iterator[Record]:
    for outputs in sessions:
        location, row = outputs[-1]
        reward = parse_reward(row.get("score", ABSENT))
        match = _UID.fullmatch(str(row.get("uid")))
        prompt_id = _prompt_id(row)
        if type(row.get("step")) is not int or whole_number(row["step"]) is None:
            quarantine.add("the step is not a whole number", location)
        elif named and match is None:
            quarantine.add("the uid is not <group>_<session>_<index>", location)
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
                group=match["group"] if match else prompt_id,
                prompt_id=prompt_id,
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
)
