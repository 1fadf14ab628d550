"""SkyRL's dumps of evaluations: a row a response; a group is a prompt of a data source, at the folder's step."""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from gradscope.errors import InputError
from gradscope.rollouts.groups import RewardTable
from gradscope.rollouts.readers.format import IfNoted, Reading, RowFormat, has_keys
from gradscope.rollouts.readers.parsing import cells as parse
from gradscope.rollouts.readers.parsing.quarantine import TEXT_ONLY
from gradscope.rollouts.readers.parsing.tables import Row
from gradscope.rollouts.readers.reduction.columns import Cells, Columns

_STEP = re.compile(r"^global_step_([0-9]+)(?:_evals$|\.|$)")
_SUMMED = IfNoted(
    "Scores that are lists hold a reward a token, and count as their sum, as SkyRL's own mean reward does."
)


def _if_apart(table: RewardTable) -> RewardTable | None:
    """A table of prompts none of which begins with another, as that of a later turn does."""
    prompts = sorted(table.prompt_texts or ())
    return None if any(second.startswith(first) for first, second in pairwise(prompts)) else table


def _refuse_turns(rows: Sequence[Row], reading: Reading) -> dict[str, Any]:
    """Refuse rows that are turns: the prompt of one continues the response of another."""
    texts = [
        (parse.text_of(cells.get("input_prompt")), parse.text_of(cells.get("output_response"))) for _, cells in rows
    ]
    prompts = sorted({prompt for prompt, _ in texts})
    for (location, _), (prompt, response) in zip(rows, texts, strict=True):
        so_far = prompt + response
        at = bisect_left(prompts, so_far)
        if response and at < len(prompts) and prompts[at].startswith(so_far):
            raise InputError(
                f"{location} is a turn of a trajectory that another row continues: which rows belong together is "
                "not logged.",
                hint="Evaluate with generator.step_wise_trajectories off, so that a row is a whole trajectory.",
            )
    return {"needs_texts": False}


def _to_columns(rows: Cells) -> Columns:
    step = parse.number_in_name(_STEP, rows.path.resolve()) or 0
    sums = [isinstance(cell, list) for cell in rows.column("score")]
    scored = rows.changed("score", lambda cells: list(map(_total, cells))) if any(sums) else rows
    prompts, sources = rows.prompt_ids("input_prompt"), rows.names("data_source")
    return Columns(
        step=np.full(len(rows), step, dtype=np.int64),
        group=[prompt and f"{source}/{prompt}" for source, prompt in zip(sources, prompts, strict=True)],
        no_group="input_prompt is missing",
        texts=lambda chosen: list(map(parse.text_of, rows.cells("input_prompt", chosen))),
        numbers={"reward": scored.numbers("score"), "truncated": rows.truncated("stop_reason")},
        no_reward=partial(scored.no_reward, "score"),
        noted={_SUMMED: np.array(sums)},
        details=lambda at: {"completion": parse.text_of(rows.cell("output_response", at))},
    )


def _total(score: Any) -> Any:
    """The sum of a list of numbers; its first element that is no number, or a cell that is no list, as it is."""
    if not isinstance(score, list) or not score:
        return score
    try:
        total = math.fsum(score)
    except (OverflowError, TypeError, ValueError):
        total = math.inf
    if math.isfinite(total):
        return total
    return next((cell for cell in score if isinstance(parse.parse_reward(cell), str)), total)


FORMAT = RowFormat(
    name="skyrl-eval",
    looks_for="dumped_evals/*/*.jsonl with input_prompt, output_response and score (SkyRL)",
    title="SkyRL evaluation",
    patterns=("dumped_evals/*/*.jsonl", "*_evals/*.jsonl", "eval_only/*.jsonl", "*.jsonl"),
    keeps_file=lambda file: file.name != "aggregated_results.jsonl",
    recognizes_file=has_keys("input_prompt", "output_response", "score"),
    survey=_refuse_turns,
    columns=lambda reading, **until_surveyed: reading.log(
        to_columns=_to_columns,
        keys=("score", "data_source", "stop_reason"),
        raw=("input_prompt", "output_response"),
        looks_at_path=True,
        **(until_surveyed or {"needs_texts": True, "validate": _if_apart}),
    ),
    inferred=("Responses to one prompt of one data source are a group; equal prompts merge.", _SUMMED),
    missing=(TEXT_ONLY,),
)
