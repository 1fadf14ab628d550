"""open-instruct's traces: exact tokens, rewards and advantages, a row a rollout, shards of ten thousand rows.

``prompt_idx`` is a row's position divided by the group size. Where truncated completions were dropped before it was
made, it mixes prompts; then, and only then, the prompt's tokens tell groups apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gradscope.rollouts.readers.parsing.assemble import assemble, peek
from gradscope.rollouts.readers.parsing.counted import counted, hidden_by
from gradscope.rollouts.readers.parsing.grouping import Record
from gradscope.rollouts.readers.parsing.jsonl import read_jsonl
from gradscope.rollouts.readers.parsing.nested_cells import usable_reward, whole_number
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.parsing.request import ReadRequest
from gradscope.rollouts.readers.parsing.scalars import ABSENT, digest, finite_or_none
from gradscope.rollouts.readers.parsing.tables import files_like
from gradscope.rollouts.readers.parsing.token_lists import NOT_ALIGNED, NOT_IDS, Tokens, numbers, token_ids
from gradscope.rollouts.run import Run
from gradscope.rollouts.types import Status

_KEYS = frozenset({"step", "prompt_idx", "prompt_tokens", "response_tokens", "reward"})
_STATUS: dict[str, Status] = {"'stop'": "completed", "'length'": "truncated"}
_MISSING = (
    hidden_by(
        "open-instruct drops groups of equal rewards before it saves traces, unless filter_zero_std_samples=False"
    ),
    "Traces hold no text and no mask of tool tokens: every token of a response counts.",
)


def recognizes(request: ReadRequest) -> bool:
    """Whether the path holds open-instruct's traces.

    Args:
        request: What to read; its path exists.

    Returns:
        True for rows with prompt and response tokens under a name with ``_rollouts_``.
    """
    files = _files(request.path)
    return bool(files) and any(row.keys() >= _KEYS for row in peek(files[0]))


def read(request: ReadRequest) -> Run:
    """Read open-instruct's traces.

    Args:
        request: The ``rollouts_save_path``, or one of its files.

    Returns:
        The run.
    """
    files = _files(request.path)
    quarantine = QuarantineLog()
    rows = [(place, row) for file in files for place, row in read_jsonl(file, quarantine)]
    mixed = _steps_with_mixed_prompts(row for _, row in rows)
    regrouped = [
        f"At {counted(len(mixed), 'step')} prompt_idx mixes prompts (truncated completions were dropped first): there "
        "rollouts were grouped by the prompt's tokens."
    ]
    return assemble(
        request,
        records=_records(rows, mixed, quarantine),
        quarantine=quarantine,
        format="open-instruct",
        recognized=f"open-instruct traces, {counted(len(files), 'file')}",
        inferred=regrouped if mixed else (),
        missing=_MISSING,
        files=files,
    )


def _files(path: Path) -> tuple[Path, ...]:
    return files_like(path, "*_rollouts_*.jsonl", "*_rollouts_*.jsonl.gz")


def _steps_with_mixed_prompts(rows: Iterator[Mapping[str, Any]]) -> frozenset[int]:
    first: dict[tuple[int, int | None], Any] = {}
    mixed = set()
    for row in rows:
        step, index = whole_number(row.get("step")), whole_number(row.get("prompt_idx"))
        prompt = token_ids(row.get("prompt_tokens"))
        known = step is not None and index is not None and prompt is not None
        if step is not None and known and first.setdefault((step, index), prompt) != prompt:
            mixed.add(step)
    return frozenset(mixed)


def _records(
    rows: list[tuple[str, dict[str, Any]]], mixed: frozenset[int], quarantine: QuarantineLog
) -> Iterator[Record]:
    for place, row in rows:
        step, index = whole_number(row.get("step")), whole_number(row.get("prompt_idx"))
        tokens = _tokens(row)
        if step is None:
            quarantine.add("the step is not a whole number", place)
        elif index is None and step not in mixed:
            quarantine.add("prompt_idx is not a whole number", place)
        elif isinstance(tokens, str):
            quarantine.add(tokens, place)
        else:
            prompt_id = digest(tokens.prompt_ids)
            yield Record(
                step=step,
                group=prompt_id if step in mixed else str(index),
                prompt_id=prompt_id,
                prompt="",
                completion="",
                reward=usable_reward(row.get("reward", ABSENT), place, quarantine),
                advantage=finite_or_none(row.get("advantage")),
                status=_STATUS.get(repr(row.get("finish_reason")), "unknown"),
                tokens=tokens,
            )


def _tokens(row: Mapping[str, Any]) -> Tokens | str:
    prompt, response = token_ids(row.get("prompt_tokens")), token_ids(row.get("response_tokens"))
    if prompt is None or response is None:
        return NOT_IDS
    logged = row.get("logprobs")
    if logged is not None and not (isinstance(logged, list) and len(logged) == len(response)):
        return NOT_ALIGNED
    return Tokens(
        prompt_ids=prompt,
        completion_ids=response,
        mask=(True,) * len(response),
        logprobs=numbers(logged, len(response)),
    )
