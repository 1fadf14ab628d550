"""Logs of text: anybody's, verl's, TRL's and ms-swift's."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

from benchmarks.scale.kind import Kind, file_a_step, groups_of, lines, quoted
from benchmarks.scale.made_up import ALONE, GROUP_SIZE, MadeUpRun, completion, prompt_text, write_lines

_ROWS_A_CALL = 5_000


def generic_rows(run: MadeUpRun, step: int) -> Iterator[dict[str, Any]]:
    """A row a rollout."""
    for rollout in run.rollouts(step):
        yield {
            "step": step,
            "group_id": f"{step}-{rollout.group}",
            "prompt_id": f"p{rollout.prompt}",
            "reward": rollout.reward,
            "completion": completion(step, rollout.row, ALONE),
        }


def scan_generic(folder: Path) -> str:
    """The columns as they are."""
    table = lines(folder / "*.jsonl", "step: 'BIGINT', group_id: 'VARCHAR', prompt_id: 'VARCHAR', reward: 'DOUBLE'")
    return groups_of(f"SELECT step, group_id AS name, prompt_id AS prompt, reward FROM {table}")


def verl_rows(run: MadeUpRun, step: int) -> Iterator[dict[str, Any]]:
    """A file of the dump of verl's V1 trainer."""
    for rollout in run.rollouts(step):
        yield {
            "input": prompt_text(rollout.prompt),
            "output": completion(step, rollout.row),
            "gts": str((rollout.prompt + 10) // 2),
            "score": rollout.reward,
            "step": step,
            "uid": f"{UUID(int=(step << 96) + rollout.group)}_{rollout.row % GROUP_SIZE}_0",
        }


def scan_verl(folder: Path) -> str:
    """A group is the uid without its last two parts."""
    table = lines(folder / "*.jsonl", "step: 'BIGINT', uid: 'VARCHAR', score: 'DOUBLE', input: 'VARCHAR'")
    name = "array_to_string(string_split(uid, '_')[:-3], '_')"
    return groups_of(f"SELECT step, {name} AS name, input AS prompt, score AS reward FROM {table}")


def make_trl(folder: Path, run: MadeUpRun, _: bool) -> None:
    """TRL's ``output_dir``: completions of each step as pandas writes them, and the trainer's log."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    logged = []
    (folder / "completions").mkdir()
    for step in run.steps:
        columns = {"step": [step] * run.size(step), **_columns(run, step, "advantage")}
        pq.write_table(pa.table(columns), folder / "completions" / f"completions_{step:05d}.parquet")
        mean, groups = sum(columns["correct"]) / run.size(step), list(run.groups(step))
        dead = sum(len(set(group.rewards)) == 1 for group in groups) / len(groups)
        log = {"step": step, "loss": 0.0, "reward": mean, "rewards/correct/mean": mean, "frac_reward_zero_std": dead}
        logged.append(log)
    state = {"global_step": run.num_steps, "log_history": logged}
    (folder / "trainer_state.json").write_text(json.dumps(state), encoding="utf-8")


def _columns(run: MadeUpRun, step: int, advantages: str) -> dict[str, list[Any]]:
    """What TRL and ms-swift log of a step's rollouts, with their name of the last column."""
    rollouts = list(run.rollouts(step))
    return {
        "prompt": [prompt_text(rollout.prompt) for rollout in rollouts],
        "completion": [completion(step, rollout.row) for rollout in rollouts],
        "correct": [rollout.reward for rollout in rollouts],
        advantages: [rollout.advantage for rollout in rollouts],
    }


def scan_trl(folder: Path) -> str:
    """A group is a block of 8 rows of a file; the scan is told the 8, and reads no advantages to confirm it."""
    table = f"read_parquet({quoted(folder / 'completions' / '*.parquet')}, file_row_number=true)"
    name = f"file_row_number // {GROUP_SIZE}"
    return groups_of(f"SELECT step, {name} AS name, prompt, correct AS reward FROM {table}")


def make_ms_swift(folder: Path, run: MadeUpRun, with_broken: bool) -> None:
    """One file with a line a log call."""
    calls = ({"step": [str(step)] * run.size(step), **_columns(run, step, "advantages")} for step in run.steps)
    write_lines(folder / "completions.jsonl", calls, run.num_steps // 2 if with_broken else None)


def scan_ms_swift(folder: Path) -> str:
    """A group is a block of 8 elements of a line; the scan is told the 8, and reads no advantages to confirm it."""
    table = lines(folder / "completions.jsonl", "step: 'BIGINT[]', prompt: 'VARCHAR[]', correct: 'DOUBLE[]'")
    rows = (
        f"SELECT unnest(step) AS step, unnest(range(len(step))) // {GROUP_SIZE} AS name, unnest(prompt) AS prompt, "
        f"unnest(correct) AS reward FROM {table}"
    )
    return groups_of(rows)


KINDS = (
    Kind(name="generic", num_rows=3_000_000, make=file_a_step("{step}.jsonl", generic_rows), scan=scan_generic),
    Kind(name="verl", num_rows=3_000_000, make=file_a_step("{step}.jsonl", verl_rows), scan=scan_verl),
    Kind(name="trl", num_rows=3_000_000, make=make_trl, scan=scan_trl, rows_a_step=_ROWS_A_CALL, has_lines=False),
    Kind(name="ms-swift", num_rows=3_000_000, make=make_ms_swift, scan=scan_ms_swift, rows_a_step=_ROWS_A_CALL),
)
