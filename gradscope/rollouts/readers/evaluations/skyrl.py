"""SkyRL's dumps of evaluations: a row a response, whose score is a number or a list with one a token.

A group is a prompt of a data source, at the step in the folder's name, 0 without one.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gradscope.errors import InputError
from gradscope.rollouts.readers.format import LogRow, Reading, RowFormat, has_keys
from gradscope.rollouts.readers.parsing.counted import TEXT_ONLY
from gradscope.rollouts.readers.parsing.grouping import Record
from gradscope.rollouts.readers.parsing.nested_cells import number_in_name
from gradscope.rollouts.readers.parsing.quarantine import UnusableRowError
from gradscope.rollouts.readers.parsing.scalars import ABSENT, digest, parse_reward, text_of
from gradscope.rollouts.types import Status

_STEP = re.compile(r"^global_step_([0-9]+)_evals$")
_STATUS: dict[str, Status] = {"stop": "completed", "length": "truncated"}
_BY_PROMPT = "Responses to one prompt of one data source are a group; equal prompts merge."
_SUMMED = "Scores that are lists hold a reward a token, and count as their sum, as SkyRL's own mean reward does."


def _refuse_turns(rows: Sequence[LogRow], reading: Reading) -> dict[str, Any]:
    """Refuse rows that are turns: the prompt of one goes on where the response of another ends.

    Returns:
        Nothing that rows need.

    Raises:
        InputError: There are such rows.
    """
    texts = [(text_of(row.cells.get("input_prompt")), text_of(row.cells.get("output_response"))) for row in rows]
    prompts = sorted({prompt for prompt, _ in texts})
    for row, (prompt, response) in zip(rows, texts, strict=True):
        so_far = prompt + response
        at = bisect_left(prompts, so_far)
        if response and at < len(prompts) and prompts[at].startswith(so_far):
            raise InputError(
                f"{row.location} is a turn of a trajectory that another row continues: which rows belong together is "
                "not logged.",
                hint="Evaluate with generator.step_wise_trajectories off, so that a row is a whole trajectory.",
            )
    return {}


def _records(row: LogRow) -> Iterator[Record]:
    cells = row.cells
    prompt = text_of(cells.get("input_prompt"))
    if not prompt:
        raise UnusableRowError("input_prompt is missing")
    name = f"{text_of(cells.get('data_source'))}/{digest(prompt)}"
    yield Record(
        step=number_in_name(_STEP, row.file.resolve()) or 0,
        group=name,
        prompt_id=name,
        prompt=prompt,
        completion=text_of(cells.get("output_response")),
        reward=row.reward(_total(cells.get("score", ABSENT), row)),
        status=_STATUS.get(text_of(cells.get("stop_reason")), "unknown"),
    )


def _total(score: Any, row: LogRow) -> Any:
    """The sum of a list of numbers; what is none among them, or no list, stays as it is, to be judged as a reward."""
    if not isinstance(score, list) or not score:
        return score
    row.reading.noted.add(_SUMMED)
    broken = [cell for cell in score if isinstance(parse_reward(cell), str)]
    return broken[0] if broken else math.fsum(score)


def _holds_responses(file: Path) -> bool:
    return file.name != "aggregated_results.jsonl"


FORMAT = RowFormat(
    name="skyrl-eval",
    looks_for="dumped_evals/*/*.jsonl with input_prompt, output_response and score (SkyRL)",
    title="SkyRL evaluation",
    patterns=("dumped_evals/*/*.jsonl", "*_evals/*.jsonl", "eval_only/*.jsonl", "*.jsonl"),
    keeps_file=_holds_responses,
    recognizes_file=has_keys("input_prompt", "output_response", "score"),
    survey=_refuse_turns,
    records=_records,
    inferred=(_BY_PROMPT, _SUMMED),
    if_noted=frozenset({_SUMMED}),
    missing=(TEXT_ONLY,),
)
