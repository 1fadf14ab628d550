"""verl's JSONL dumps of rollouts: the V1 trainer's, which name the group, and the legacy trainer's, which do not."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gradscope.errors import InputError
from gradscope.reason import Reason
from gradscope.rollouts.readers.parsing.assemble import assemble, peek
from gradscope.rollouts.readers.parsing.counted import counted, hidden_by
from gradscope.rollouts.readers.parsing.format import Format
from gradscope.rollouts.readers.parsing.grouping import Record
from gradscope.rollouts.readers.parsing.jsonl import read_jsonl
from gradscope.rollouts.readers.parsing.nested_cells import whole_number
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog, UnusableRowError
from gradscope.rollouts.readers.parsing.request import ReadRequest
from gradscope.rollouts.readers.parsing.scalars import ABSENT, digest, finite_or_none, is_number, parse_reward, text_of
from gradscope.rollouts.readers.parsing.tables import Row, expand
from gradscope.rollouts.readers.verl.left_behind import verl_settings, verl_weights
from gradscope.rollouts.readers.verl.metrics import SWITCH_ON, find_metrics, is_metrics, read_verl_metrics
from gradscope.rollouts.readers.verl.tokens import COLUMNS, row_tokens
from gradscope.rollouts.run import Run

_UID = re.compile(r"(?P<group>.+)_(?P<session>\d+)_(?P<index>\d+)")
_NUMBERED = re.compile(r"\d+\.jsonl(\.gz)?")
_BASE_KEYS = frozenset({"input", "output", "gts", "score", "step", "uid", "request_id", "reward"})
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
    "rollouts_missing", "an agent loop gave several outputs, of which one is read and all were trained on"
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
    quarantine = QuarantineLog()
    rows = [row for file in files for row in read_jsonl(file, quarantine)]
    named = any("uid" in row for _, row in rows)
    inferred = [] if named else [_GROUPED_BY_TEXT]
    folder = given if given.is_dir() else given.parent
    metrics_file = find_metrics(folder)
    if given != request.path:
        inferred.append(f"Rollouts were read from {folder.name}/; other folders (validation) are left out.")
    kept = _last_turns(rows) if named else rows
    records = list(_records(kept, quarantine))
    settings = verl_settings(request, folder, by_v1=named)
    saved = verl_weights(request, folder, settings.values)
    run = assemble(
        request,
        records=records,
        quarantine=quarantine,
        format="verl",
        recognized=f"verl rollouts of the {'V1' if named else 'legacy'} trainer, {counted(len(files), 'file')}",
        inferred=inferred,
        missing=(
            *(() if any(record.tokens for record in records) else (_NO_TOKENS,)),
            _FILTERED,
            *(() if saved.weights else (_SHARDS,)),
            *(() if metrics_file is not None else (SWITCH_ON,)),
        ),
        files=(*files, *(() if metrics_file is None else (metrics_file,))),
        metrics={} if metrics_file is None else read_verl_metrics(metrics_file, quarantine),
    )
    return replace(
        run,
        settings=settings,
        weights=saved.weights,
        unmerged_weights=saved.unmerged,
        tokenizer=saved.tokenizer or run.tokenizer,
        notes={step: _SEVERAL_OUTPUTS for step in _steps_of(rows) if _dropped(rows, kept, step)},
    )


def _steps_of(rows: Iterable[tuple[str, Mapping[str, Any]]]) -> set[int]:
    return {row["step"] for _, row in rows if type(row.get("step")) is int}


def _dropped(all_rows: Sequence[Row], kept: Sequence[Row], step: int) -> bool:
    """Whether some rows of a step are left out."""
    before, after = (sum(1 for _, row in rows if row.get("step") == step) for rows in (all_rows, kept))
    return after < before


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
        if type(row.get("step")) is not int or whole_number(row["step"]) is None:
            quarantine.add("the step is not a whole number", location)
        elif named and match is None:
            quarantine.add("the uid is not <group>_<session>_<index>", location)
        else:
            try:
                tokens = row_tokens(row)
            except UnusableRowError as error:
                quarantine.add(str(error), location)
                continue
            if isinstance(reward, str):
                quarantine.add(reward, location)
            score = None if isinstance(reward, str) else reward
            extra = {
                name: finite_or_none(row[name])
                for name in row
                if name not in _BASE_KEYS | COLUMNS and is_number(row[name])
            }
            yield Record(
                step=row["step"],
                group=match["group"] if match else prompt_id,
                prompt_id=prompt_id,
                prompt=text_of(row.get("input")),
                completion=text_of(row.get("output")),
                reward=score,
                tokens=tokens,
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
