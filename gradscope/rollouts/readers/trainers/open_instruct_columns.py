"""open-instruct's traces as columns.

Names of groups carry the prompt's id until all rows were seen: where one ``prompt_idx`` has several prompts, only the
row reader can tell groups apart.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from gradscope.rollouts.readers.format import LogColumns, Reading
from gradscope.rollouts.readers.scan.line_columns import (
    LineColumns,
    ids_digest,
    is_flat,
    is_list_of_ids,
    member,
    num_numbers,
    numeric,
    step_number,
)
from gradscope.rollouts.readers.scan.parts import grouped
from gradscope.rollouts.reward_table import RewardTable

Prompts = defaultdict[tuple[int, str | None], set[str]]
"""Step and ``prompt_idx`` -> ids of its prompts."""

_KEYS = ("step", "prompt_idx", "reward", "prompt_tokens", "response_tokens", "logprobs")
_STEP, _INDEX, _REWARD, _PROMPT, _RESPONSE, _LOGPROBS = (f"c[{at}]" for at in range(1, len(_KEYS) + 1))
_LINES = LineColumns(
    paths=tuple(map(member, _KEYS)),
    derived={"length": num_numbers(_RESPONSE), "id": ids_digest(_PROMPT)},
    step=step_number(_STEP),
    group=f"{step_number(_INDEX)} || '/' || id",
    prompt=("id",),
    prompt_id="id",
    reward=numeric(_REWARD),
    rewards={},
    further={"num_tokens": "length::BIGINT"},
    plain=(
        f"{is_list_of_ids(_PROMPT)} AND {is_list_of_ids(_RESPONSE)} AND "
        f"{_RESPONSE} <> '[]' AND ({_LOGPROBS} IS NULL OR {is_flat(_LOGPROBS)} AND {num_numbers(_LOGPROBS)} = length)"
    ),
)


def open_instruct_columns(_: Reading) -> LogColumns:
    """How traces are read as columns; a step whose ``prompt_idx`` mixes prompts is for the row reader."""
    of_odd_rows: Prompts = defaultdict(set)

    def judged(table: RewardTable) -> RewardTable | None:
        import pyarrow.compute as pc  # 20 ms that no other log needs

        names = pc.replace_substring_regex(table.names, "/.*", "")
        if len(grouped(table.step, names)[1]) < len(table):
            return None
        if of_odd_rows:
            for step, index, prompt in zip(table.step.tolist(), names.to_pylist(), table.prompt.tolist(), strict=True):
                of_odd_rows[step, index].add(table.prompts[prompt])
            if any(len(prompts) > 1 for prompts in of_odd_rows.values()):
                return None
        return replace(table, names=names)

    return LogColumns(
        names=_LINES.columns,
        of_file=lambda _: _LINES,
        shared={"mixed": frozenset(), "of_odd_rows": of_odd_rows},
        surveyed={"mixed": frozenset()},
        judged=judged,
    )
