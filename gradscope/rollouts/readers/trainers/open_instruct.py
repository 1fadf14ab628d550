"""open-instruct's traces: exact tokens, rewards and advantages, a row for each rollout, shards of ten thousand rows.

``prompt_idx`` is a row's position divided by the group size. Where truncated completions were dropped before it was
computed, it mixes prompts; then, and only then, groups are formed by the prompt's tokens.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from gradscope.rollouts.arrays import to_strings, to_texts
from gradscope.rollouts.groups import RewardTable, Status, Tokens
from gradscope.rollouts.readers.format import LogColumns, LogRow, Reading, RowFormat, has_keys
from gradscope.rollouts.readers.parsing.cells import NOT_ALIGNED, NOT_IDS, digest, numbers, token_ids, whole_number
from gradscope.rollouts.readers.parsing.quarantine import UnusableRowError, counted, hidden_by
from gradscope.rollouts.readers.reduction.columns import (
    Cells,
    Columns,
    flat_lengths,
    ids_digest,
    index_name,
    jsons_of,
    line_columns,
    num_ids,
    nums_ids,
)
from gradscope.rollouts.readers.run_files import with_logged_metrics

_Prompts = defaultdict[tuple[int, str | None], set[str]]  # step and ``prompt_idx`` -> ids of its prompts
_STATUS: dict[str, Status] = {"'stop'": "completed", "'length'": "truncated"}


def _survey(rows: Sequence[LogRow], reading: Reading) -> dict[str, frozenset[int]]:
    """The steps at which an index has several prompts."""
    first: dict[tuple[int, int], Any] = {}
    mixed = set()
    for cells in (row.cells for row in rows):
        step, index = whole_number(cells.get("step")), whole_number(cells.get("prompt_idx"))
        prompt = token_ids(cells.get("prompt_tokens"))
        if step is None or index is None or prompt is None:
            continue
        if first.setdefault((step, index), prompt) != prompt:
            mixed.add(step)
    if mixed:
        reading.inferred.append(
            f"At {counted(len(mixed), 'step')} prompt_idx mixes prompts (truncated completions were dropped first): "
            "there rollouts were grouped by the prompt's tokens."
        )
    return {"mixed": frozenset(mixed)}


def _columns(reading: Reading, mixed: frozenset[int] | None = None) -> LogColumns:
    """The columns of traces, whose group names include the prompt's id until each index is known to have one prompt."""
    if mixed is not None:
        return LogColumns(lines=line_columns(partial(_rows, mixed=mixed), _KEYS, _RAW))
    of_odd_rows: _Prompts = defaultdict(set)

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
        lines=line_columns(partial(_rows, of_odd_rows=of_odd_rows), _KEYS, _RAW),
        read_back=partial(_rows, mixed=frozenset()),
        judged=judged,
    )


_KEYS = ("step", "prompt_idx", "reward", "advantage")
_RAW = ("prompt_tokens", "response_tokens", "logprobs")


def _rows(rows: Cells, *, mixed: frozenset[int] | None = None, of_odd_rows: _Prompts | None = None) -> Columns:
    steps = rows.steps("step")
    indices = [index_name(index) or "" for index in rows.steps("prompt_idx").tolist()]
    prompts, responses, logprobs = (jsons_of(rows.column(key)) for key in _RAW)
    ids = {text: _prompt_id(text) for text in dict.fromkeys(prompts)}
    of_row = [ids[text] for text in prompts]
    lengths = nums_ids(responses)
    is_logged = np.array([text != b"null" for text in logprobs])
    if mixed is None:
        groups = [f"{name}/{prompt}" if name else "" for name, prompt in zip(indices, of_row, strict=True)]
    else:
        pairs = zip(steps.tolist(), indices, of_row, strict=True)
        groups = [prompt or NOT_IDS if step in mixed else name for step, name, prompt in pairs]

    def further(at: int) -> dict[str, Any]:
        if of_odd_rows is not None and of_row[at]:
            of_odd_rows[int(steps[at]), indices[at]].add(of_row[at])
        return {
            "completion": "",
            "status": _STATUS.get(repr(rows.cell("finish_reason", at)), "unknown"),
            "tokens": _tokens({key: rows.cell(key, at) for key in _RAW}),
        }

    return Columns(
        step=steps,
        group=groups,
        no_group="prompt_idx is not a whole number",
        prompts=lambda chosen: [of_row[at] for at in chosen],
        numbers={"reward": rows.numbers("reward"), "advantage": rows.numbers("advantage"), "num_tokens": lengths},
        no_reward=partial(rows.no_reward, "reward"),
        is_odd=(lengths < 0) | (is_logged & (flat_lengths(logprobs) != lengths)) | [not prompt for prompt in of_row],
        further=further,
    )


def _prompt_id(text: bytes) -> str:
    """The id of a prompt from the JSON of its tokens; "" where that is no list of tokens."""
    if num_ids(text) >= 0:
        return ids_digest(text)
    ids = token_ids(json.loads(text))
    return "" if ids is None else digest(ids)


def _tokens(cells: Mapping[str, Any]) -> Tokens:
    prompt, response = token_ids(cells["prompt_tokens"]), token_ids(cells["response_tokens"])
    if prompt is None or response is None:
        raise UnusableRowError(NOT_IDS)
    logprobs = cells["logprobs"]
    if logprobs is not None and not (isinstance(logprobs, list) and len(logprobs) == len(response)):
        raise UnusableRowError(NOT_ALIGNED)
    return Tokens(
        prompt_ids=prompt,
        completion_ids=response,
        mask=(True,) * len(response),
        logprobs=numbers(logprobs, len(response)),
    )


FORMAT = RowFormat(
    name="open-instruct",
    looks_for="*_rollouts_*.jsonl with prompt_tokens and response_tokens (open-instruct)",
    title="open-instruct traces",
    patterns=("*_rollouts_*.jsonl", "*_rollouts_*.jsonl.gz"),
    recognizes_file=has_keys("step", "prompt_idx", "prompt_tokens", "response_tokens", "reward"),
    survey=_survey,
    completes=with_logged_metrics,
    columns=_columns,
    missing=(
        hidden_by(
            "open-instruct drops groups of equal rewards before it saves traces, unless filter_zero_std_samples=False"
        ),
        "Traces hold no text and no mask of tool tokens: every token of a response counts.",
    ),
)
