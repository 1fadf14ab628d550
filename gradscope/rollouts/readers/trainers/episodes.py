"""Trainers that write a JSON document an episode: rLLM and Tunix."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any

import msgspec
import numpy as np
from msgspec import UNSET, Raw, Struct

from gradscope.outside.plain_json import parse_json
from gradscope.rollouts.arrays import index_names, to_floats
from gradscope.rollouts.groups import UNKNOWN, Tokens
from gradscope.rollouts.readers.format import RowFormat, has_keys
from gradscope.rollouts.readers.parsing import cells as parse
from gradscope.rollouts.readers.parsing.endings import status_in
from gradscope.rollouts.readers.parsing.quarantine import TEXT_ONLY
from gradscope.rollouts.readers.reduction.columns import (
    Cells,
    Columns,
    numbers_of,
    rewards_of,
    texts_in,
    texts_of,
)
from gradscope.rollouts.readers.run_files import with_run_files

_BY_TASK_HASH = "Rollouts of one task_hash at one step are a group; equal tasks at one step merge."
_RLLM_KEYS = ("training_step", "task_hash", "is_correct", "timing")
_NO_ROWS = np.zeros(0, dtype=np.int64)
_SEVERAL = "Episodes with several trajectories: those of one name form a group."


class _Trajectory(Struct):
    name: Any = UNSET
    reward: Any = parse.ABSENT


_TRAJECTORIES = msgspec.json.Decoder(list[_Trajectory])


def _trajectories_in(cell: Any) -> list[_Trajectory]:
    """The trajectories of an episode, none where the cell is no list of objects."""
    if isinstance(cell, Raw):
        with suppress(msgspec.MsgspecError):
            return _TRAJECTORIES.decode(cell)
        cell = parse_json(bytes(cell))
    each = map(parse.mapping_of, parse.list_of(cell))
    return [_Trajectory(name=one.get("name", UNSET), reward=one.get("reward", parse.ABSENT)) for one in each]


def _rllm_rows(episodes: Cells) -> Columns:
    of_episodes = list(map(_trajectories_in, episodes.column("trajectories")))
    sizes = np.array(list(map(len, of_episodes)), dtype=np.int64)
    row, number = np.repeat(np.arange(len(sizes)), sizes), np.concatenate([_NO_ROWS, *map(np.arange, sizes)])
    rows, is_one_of_several = row.tolist(), (sizes > 1)[row]
    trajectories = list(chain.from_iterable(of_episodes))
    rewards = [trajectory.reward for trajectory in trajectories]
    hashes = [parse.text_of(cell or None) for cell in episodes.cells("task_hash")]
    names = texts_of([trajectory.name for trajectory in trajectories])
    tasks = [hashes[at] for at in rows]
    # The episode's time: where it holds several trajectories, each repeats it.
    timings = ({"timing": cell} for cell in episodes.cells("timing"))
    seconds = np.where(is_one_of_several, np.nan, to_floats(map(parse.generation_seconds, timings))[row])
    passed = rewards_of([{"is_correct": cell} for cell in episodes.cells("is_correct")])

    def conversation(at: int) -> parse.Conversation:
        trajectory = parse.mapping_of(parse.list_of(episodes.cell("trajectories", rows[at]))[number[at]])
        last_step = [{}, *parse.list_of(trajectory.get("steps"))][-1]
        parts = parse.cut_conversation(parse.mapping_of(last_step).get("chat_completions"))
        return parts._replace(prompt=parts.prompt or parse.text_of(episodes.cell("task", rows[at])))

    return Columns(
        row=row,
        flaws=[(at, "the episode has no trajectory") for at in np.flatnonzero(sizes == 0).tolist()],
        step=episodes.steps("training_step")[row],
        group=[
            f"{task}/{name}" if task and several else task
            for task, name, several in zip(tasks, names, is_one_of_several.tolist(), strict=True)
        ],
        no_group="task_hash is missing",
        prompts=partial(texts_in, tasks),
        texts=lambda chosen: [conversation(at).prompt for at in chosen],
        numbers={"reward": numbers_of(rewards), "seconds": seconds, **{name: of[row] for name, of in passed.items()}},
        has_all_functions=True,
        no_reward=lambda at: str(parse.parse_reward(rewards[at])),
        noted={_SEVERAL: is_one_of_several},
        details=lambda at: conversation(at)._asdict(),
    )


RLLM = RowFormat(
    name="rllm",
    looks_for="episodes/train_step_*/episode_*.json (rLLM)",
    title="rLLM training episodes",
    patterns=("episodes/train_step_*/episode_*.json", "train_step_*/episode_*.json", "episode_*.json"),
    recognizes_file=has_keys("training_step", "task_hash", "trajectories"),
    columns=lambda reading: reading.log(to_columns=_rllm_rows, keys=_RLLM_KEYS, raw=("trajectories", "task")),
    inferred=(_BY_TASK_HASH, _SEVERAL),
    if_noted=frozenset({_SEVERAL}),
    missing=(TEXT_ONLY,),
)
"""rLLM's episodes of training: a JSON file for each, in a folder for each step."""


_BY_PROMPT = "Trajectories of one prompt_id at one global_step are a group."
_TUNIX_KEYS = ("global_step", "prompt_id", "group_index", "reward", "status")
_LONG = ("prompt", "prompt_tokens", "completion_tokens")


def _tunix_rows(rows: Cells) -> Columns:
    versions = [rows.steps(key).tolist() for key in ("rollout_policy_version", "consumed_policy_version")]
    num_prompt, num_tokens = (parse.nums_ids(rows.column(key)) for key in _LONG[1:])
    lengths = np.where(num_prompt < 0, UNKNOWN, num_tokens)

    def details(at: int) -> dict[str, Any]:
        first, last = (of_rows[at] for of_rows in versions)
        prompt, ids = (parse.token_ids(rows.cell(key, at)) for key in _LONG[1:])
        tokens = None
        if prompt is not None and ids is not None:
            tokens = Tokens(prompt_ids=prompt, completion_ids=ids, mask=(True,) * len(ids))
        return {
            "completion": parse.text_of(rows.cell("completion", at)),
            "status": status_in(rows.cell("status", at)),
            "policy_versions": (first, last) if 0 <= first <= last else None,
            "tokens": tokens,
        }

    return Columns(
        step=rows.steps("global_step"),
        no_step="global_step is not a whole number",
        group=rows.names("prompt_id"),
        no_group="prompt_id is missing",
        texts=lambda chosen: list(map(parse.text_of, rows.cells("prompt", chosen))),
        numbers={"reward": rows.numbers("reward"), "num_tokens": lengths, "truncated": rows.truncated("status")},
        no_reward=partial(rows.no_reward, "reward"),
        noted={TEXT_ONLY: np.array([cell is UNSET for cell in rows.column("completion_tokens")], dtype=np.bool_)},
        samples=[name or None for name in index_names(rows.steps("group_index"))],
        details=details,
    )


TUNIX = RowFormat(
    name="tunix",
    looks_for="step<N>/<worker>/<trajectory>/metadata.json (Tunix)",
    title="Tunix trajectories",
    patterns=("step[0-9]*/*/*/metadata.json", "trajectories/step[0-9]*/*/*/metadata.json"),
    recognizes_file=has_keys("global_step", "traj_id", "prompt_id", "group_index"),
    columns=lambda reading: reading.log(to_columns=_tunix_rows, keys=_TUNIX_KEYS, raw=_LONG),
    inferred=(_BY_PROMPT,),
    missing=(TEXT_ONLY,),
    if_noted=frozenset({TEXT_ONLY}),
    completes=with_run_files,
)
"""Tunix's trajectories as its logger writes them by default: a folder for each. Turns and times beside the metadata are
not needed, and the logger's older CSV is read as any table with a row a rollout."""
