"""open-instruct's traces: exact tokens, rewards and advantages, a row a rollout, shards of ten thousand rows.

``prompt_idx`` is a row's position divided by the group size. Where truncated completions were dropped before it was
made, it mixes prompts; then, and only then, the prompt's tokens tell groups apart.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Raw, UnsetType

from gradscope.rollouts.arrays import to_strings, to_texts
from gradscope.rollouts.groups import RewardTable, Status, Tokens
from gradscope.rollouts.readers.beside import with_logged_metrics
from gradscope.rollouts.readers.format import LogColumns, LogRow, Reading, RowFormat, has_keys
from gradscope.rollouts.readers.parsing.cells import (
    ABSENT,
    NOT_ALIGNED,
    NOT_IDS,
    digest,
    finite_or_none,
    numbers,
    required_whole,
    token_ids,
    whole_number,
)
from gradscope.rollouts.readers.parsing.quarantine import UnusableRowError, counted, hidden_by
from gradscope.rollouts.readers.parsing.records import Record
from gradscope.rollouts.readers.reduction.columns import (
    Columns,
    Keys,
    LineColumns,
    Name,
    Number,
    flat_lengths,
    ids_digest,
    jsons_of,
    num_ids,
    numbers_of,
    nums_ids,
    step_numbers,
    whole_names_of,
)

Prompts = defaultdict[tuple[int, str | None], set[str]]
"""Step and ``prompt_idx`` -> ids of its prompts."""
_STATUS: dict[str, Status] = {"'stop'": "completed", "'length'": "truncated"}


def _survey(rows: Sequence[LogRow], reading: Reading) -> dict[str, frozenset[int]]:
    mixed = _steps_with_mixed_prompts(row.cells for row in rows)
    if mixed:
        reading.inferred.append(
            f"At {counted(len(mixed), 'step')} prompt_idx mixes prompts (truncated completions were dropped first): "
            "there rollouts were grouped by the prompt's tokens."
        )
    return {"mixed": mixed}


def _steps_with_mixed_prompts(rows: Iterator[Mapping[str, Any]]) -> frozenset[int]:
    first: dict[tuple[int, int], Any] = {}
    mixed = set()
    for row in rows:
        step, index = whole_number(row.get("step")), whole_number(row.get("prompt_idx"))
        prompt = token_ids(row.get("prompt_tokens"))
        if step is None or index is None or prompt is None:
            continue
        if first.setdefault((step, index), prompt) != prompt:
            mixed.add(step)
    return frozenset(mixed)


def _records(row: LogRow, mixed: frozenset[int], of_odd_rows: Prompts | None = None) -> Iterator[Record]:
    step = required_whole(row.cells.get("step"), "the step")
    index = None if step in mixed else str(required_whole(row.cells.get("prompt_idx"), "prompt_idx"))
    if of_odd_rows is not None and (prompt := token_ids(row.cells.get("prompt_tokens"))) is not None:
        of_odd_rows[step, index].add(digest(prompt))
    tokens = _tokens(row.cells)
    prompt_id = digest(tokens.prompt_ids)
    group = index if of_odd_rows is None else f"{index}/{prompt_id}"
    yield Record(
        step=step,
        group=prompt_id if group is None else group,
        prompt_id=prompt_id,
        prompt="",
        completion="",
        reward=row.reward(row.cells.get("reward", ABSENT)),
        advantage=finite_or_none(row.cells.get("advantage")),
        status=_STATUS.get(repr(row.cells.get("finish_reason")), "unknown"),
        tokens=tokens,
    )


def _tokens(cells: Mapping[str, Any]) -> Tokens:
    prompt, response = token_ids(cells.get("prompt_tokens")), token_ids(cells.get("response_tokens"))
    if prompt is None or response is None:
        raise UnusableRowError(NOT_IDS)
    logprobs = cells.get("logprobs")
    if logprobs is not None and not (isinstance(logprobs, list) and len(logprobs) == len(response)):
        raise UnusableRowError(NOT_ALIGNED)
    return Tokens(
        prompt_ids=prompt,
        completion_ids=response,
        mask=(True,) * len(response),
        logprobs=numbers(logprobs, len(response)),
    )


def _columns(_: Reading) -> LogColumns:
    """The columns of traces, whose groups carry the prompt's id until it is known whether each index has one prompt."""
    of_odd_rows: Prompts = defaultdict(set)

    def judged(table: RewardTable) -> RewardTable | None:
        names = [name.partition("/")[0] for name in to_texts(table.names)]
        groups = list(zip(table.step.tolist(), names, strict=True))
        if len(set(groups)) < len(groups):
            return None
        for group, prompt in zip(groups, table.prompt.tolist(), strict=True):
            if of_odd_rows and of_odd_rows[group] | {table.prompts[prompt]} != {table.prompts[prompt]}:
                return None
        return replace(table, names=to_strings(names))

    return LogColumns(
        lines=_line_columns(),
        shared={"mixed": frozenset(), "of_odd_rows": of_odd_rows},
        surveyed={"mixed": frozenset()},
        judged=judged,
    )


def _line_columns() -> LineColumns:
    keys = Keys()
    step, index, reward = keys("step", Name | float), keys("prompt_idx", Name | float), keys("reward", Number)
    prompt, response = keys("prompt_tokens", Raw), keys("response_tokens", Raw)
    logprobs, advantage = keys("logprobs", Raw | UnsetType), keys("advantage", Any | UnsetType)

    def take(rows: Sequence[Any], _: Path) -> Columns:
        prompts = jsons_of(list(map(prompt, rows)))
        ids = {text: ids_digest(text) if num_ids(text) >= 0 else "" for text in dict.fromkeys(prompts)}
        lengths = nums_ids(jsons_of(list(map(response, rows))))
        logged = jsons_of(list(map(logprobs, rows)))
        num_logged = flat_lengths(logged)
        is_logged = np.array([text != b"null" for text in logged])
        indices = whole_names_of(list(map(index, rows)))
        return Columns(
            step=step_numbers(list(map(step, rows))),
            group=[f"{name}/{ids[text]}" if name else "" for name, text in zip(indices, prompts, strict=True)],
            prompts=lambda some: [ids[prompts[at]] for at in some],
            numbers={
                "reward": numbers_of(list(map(reward, rows))),
                "advantage": numbers_of(list(map(advantage, rows))),
                "num_tokens": lengths,
            },
            is_odd=(lengths < 0) | (is_logged & (num_logged != lengths)) | [not ids[text] for text in prompts],
        )

    return LineColumns(row=keys.struct(), take=take)


FORMAT = RowFormat(
    name="open-instruct",
    looks_for="*_rollouts_*.jsonl with prompt_tokens and response_tokens (open-instruct)",
    title="open-instruct traces",
    patterns=("*_rollouts_*.jsonl", "*_rollouts_*.jsonl.gz"),
    recognizes_file=has_keys("step", "prompt_idx", "prompt_tokens", "response_tokens", "reward"),
    survey=_survey,
    records=_records,
    completes=with_logged_metrics,
    columns=_columns,
    missing=(
        hidden_by(
            "open-instruct drops groups of equal rewards before it saves traces, unless filter_zero_std_samples=False"
        ),
        "Traces hold no text and no mask of tool tokens: every token of a response counts.",
    ),
)
