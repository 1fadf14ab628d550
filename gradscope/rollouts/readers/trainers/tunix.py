"""Tunix's trajectories as its logger writes them by default: a folder for each, with its ``metadata.json``.

The other files beside it, a turn or the times of the inference, are not needed. The logger's older CSV is read as any
table with a row a rollout.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from msgspec import UNSET

from gradscope.rollouts.groups import UNKNOWN, Status, Tokens
from gradscope.rollouts.readers.format import RowFormat, has_keys
from gradscope.rollouts.readers.parsing import cells as parse
from gradscope.rollouts.readers.parsing.quarantine import TEXT_ONLY
from gradscope.rollouts.readers.reduction.columns import Cells, Columns, index_names
from gradscope.rollouts.readers.run_files import with_run_files

_BY_PROMPT = "Trajectories of one prompt_id at one global_step are a group."
_STATUS: Mapping[str, Status] = {"succeeded": "completed", "truncated": "truncated", "failed": "error"}


_KEYS = ("global_step", "prompt_id", "group_index", "reward")
_LONG = ("prompt", "prompt_tokens", "completion_tokens")


def _to_columns(rows: Cells) -> Columns:
    versions = [rows.steps(key).tolist() for key in ("rollout_policy_version", "consumed_policy_version")]
    num_prompt, num_tokens = (parse.nums_ids(parse.jsons_of(rows.column(key))) for key in _LONG[1:])

    def details(at: int) -> dict[str, Any]:
        first, last = (of_rows[at] for of_rows in versions)
        return {
            "completion": parse.text_of(rows.cell("completion", at)),
            "status": _STATUS.get(parse.text_of(rows.cell("status", at)).rpartition(".")[2].lower(), "unknown"),
            "policy_versions": (first, last) if 0 <= first <= last else None,
            "tokens": _tokens(*(parse.token_ids(rows.cell(f"{part}_tokens", at)) for part in ("prompt", "completion"))),
        }

    return Columns(
        step=rows.steps("global_step"),
        no_step="global_step is not a whole number",
        group=rows.names("prompt_id"),
        no_group="prompt_id is missing",
        texts=lambda chosen: list(map(parse.text_of, rows.cells("prompt", chosen))),
        numbers={"reward": rows.numbers("reward"), "num_tokens": np.where(num_prompt < 0, UNKNOWN, num_tokens)},
        no_reward=partial(rows.no_reward, "reward"),
        noted={TEXT_ONLY: np.array([cell is UNSET for cell in rows.column("completion_tokens")], dtype=np.bool_)},
        samples=[name or None for name in index_names(rows.steps("group_index"))],
        details=details,
    )


def _tokens(prompt_ids: tuple[int, ...] | None, completion_ids: tuple[int, ...] | None) -> Tokens | None:
    if prompt_ids is None or completion_ids is None:
        return None
    return Tokens(prompt_ids=prompt_ids, completion_ids=completion_ids, mask=(True,) * len(completion_ids))


FORMAT = RowFormat(
    name="tunix",
    looks_for="step<N>/<worker>/<trajectory>/metadata.json (Tunix)",
    title="Tunix trajectories",
    patterns=("step[0-9]*/*/*/metadata.json", "trajectories/step[0-9]*/*/*/metadata.json"),
    recognizes_file=has_keys("global_step", "traj_id", "prompt_id", "group_index"),
    columns=lambda reading: reading.log(to_columns=_to_columns, keys=_KEYS, raw=_LONG),
    inferred=(_BY_PROMPT,),
    missing=(TEXT_ONLY,),
    if_noted=frozenset({TEXT_ONLY}),
    completes=with_run_files,
)
