"""verl's JSONL dumps of rollouts: the V1 trainer's, which name the group, and the legacy trainer's, which do not."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gradscope.errors import InputError
from gradscope.rollouts.readers.parsing.assemble import assemble, peek
from gradscope.rollouts.readers.parsing.counted import counted, hidden_by
from gradscope.rollouts.readers.parsing.format import Format
from gradscope.rollouts.readers.parsing.grouping import Record
from gradscope.rollouts.readers.parsing.jsonl import read_jsonl
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.parsing.request import ReadRequest
from gradscope.rollouts.readers.parsing.scalars import ABSENT, digest, finite_or_none, is_number, parse_reward, text_of
from gradscope.rollouts.readers.parsing.tables import expand
from gradscope.rollouts.readers.verl.metrics import SWITCH_ON, find_metrics, is_metrics, read_verl_metrics
from gradscope.rollouts.run import Run

_UID = re.compile(r"(?P<group>.+)_(?P<session>\d+)_(?P<index>\d+)")
_NUMBERED = re.compile(r"\d+\.jsonl(\.gz)?")
_BASE_KEYS = frozenset({"input", "output", "gts", "score", "step", "uid", "request_id", "reward"})
_GROUPED_BY_TEXT = (
    "Rows carry no group id and are reordered: rollouts were grouped by input and ground truth within the step; equal "
    "prompts at one step merge."
)
_MISSING = (
    "verl's dump has no token ids, log-probabilities or advantages, and its texts lost the chat template's markers.",
    hidden_by("With algorithm.filter_groups, verl drops groups of equal rewards before it dumps"),
    "Checkpoints of verl are shards; merge one with `python -m verl.model_merger` and give it with --initial.",
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
    folder = _rollouts(request.path)
    files = tuple(file for file in expand(folder) if not is_metrics(file))
    if not files:
        raise InputError(f"{request.path} holds no rollouts.", hint="Train with trainer.rollout_data_dir=DIR.")
    quarantine = QuarantineLog()
    rows = [row for file in files for row in read_jsonl(file, quarantine)]
    named = any("uid" in row for _, row in rows)
    inferred = [] if named else [_GROUPED_BY_TEXT]
    metrics_file = find_metrics(folder if folder.is_dir() else folder.parent)
    if folder != request.path:
        inferred.append(f"Rollouts were read from {folder.name}/; other folders (validation) are left out.")
    return assemble(
        request,
        records=list(_records(_last_turns(rows) if named else rows, quarantine)),
        quarantine=quarantine,
        format="verl",
        recognized=f"verl rollouts of the {'V1' if named else 'legacy'} trainer, {counted(len(files), 'file')}",
        inferred=inferred,
        missing=(*_MISSING, *(() if metrics_file is not None else (SWITCH_ON,))),
        files=(*files, *(() if metrics_file is None else (metrics_file,))),
        metrics={} if metrics_file is None else read_verl_metrics(metrics_file, quarantine),
    )


def _rollouts(path: Path) -> Path:
    """The folder of rollouts: the one given, or its folder ``rollout``."""
    below = path / "rollout"
    has_own = path.is_dir() and any(_NUMBERED.fullmatch(file.name) for file in path.iterdir())
    return below if below.is_dir() and not has_own else path


def _last_turns(rows: Iterable[tuple[str, dict[str, Any]]]) -> list[tuple[str, dict[str, Any]]]:
    """One row a session: several outputs of one agent loop share its score and are one rollout.

    Returns:
        The last output of each session, in the order of the sessions; rows without a proper uid, or with one that
        occurred before, stay.
    """
    kept: dict[Any, tuple[str, dict[str, Any]]] = {}
    uids: set[tuple[str, str]] = set()
    for location, row in rows:
        step, uid = repr(row.get("step")), str(row.get("uid"))
        match = _UID.fullmatch(uid)
        is_new = match is not None and (step, uid) not in uids
        uids.add((step, uid))
        kept[(step, match["group"], match["session"]) if match and is_new else location] = (location, row)
    return list(kept.values())


def _records(rows: Iterable[tuple[str, Mapping[str, Any]]], quarantine: QuarantineLog) -> Iterator[Record]:
    named = False
    for location, row in rows:
        named = named or "uid" in row
        reward = parse_reward(row.get("score", ABSENT))
        match = _UID.fullmatch(str(row.get("uid")))
        prompt_id = digest(row.get("input"), row.get("gts"))
        if type(row.get("step")) is not int:
            quarantine.add("the step is not a whole number", location)
        elif named and match is None:
            quarantine.add("the uid is not <group>_<session>_<index>", location)
        else:
            if isinstance(reward, str):
                quarantine.add(reward, location)
            score = None if isinstance(reward, str) else reward
            extra = {name: finite_or_none(row[name]) for name in row if name not in _BASE_KEYS and is_number(row[name])}
            yield Record(
                step=row["step"],
                group=match["group"] if match else prompt_id,
                prompt_id=prompt_id,
                prompt=text_of(row.get("input")),
                completion=text_of(row.get("output")),
                reward=score,
                rewards={"score": score, **extra},
                sample_id=match["session"] if match else None,
                location=location,
            )


FORMAT = Format(
    name="verl",
    looks_for="<step>.jsonl with input, output, score and step (verl)",
    recognizes=_recognizes,
    read=_read,
)
