from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest

from gradscope.diagnostics.degeneracy.by_environment import environments_of
from gradscope.diagnostics.degeneracy.measure import degeneracy_of_run, measure_degeneracy
from gradscope.metrics.outcomes.degeneracy import NO_THRESHOLD
from gradscope.rollouts.readers.detect import read_run
from tests.diagnostics.made_up_runs import group_of, run_of
from tests.rollouts.readers.lines import write_lines

REWARDS = {"openai/gsm8k": (1.0, 0.0), "code": (0.0, 0.0)}
"""Two prompts of the one differ, two of the other are dead."""


def rows(*names: str, **further: Any) -> list[dict[str, Any]]:
    """A row a rollout: step, prompt, reward and environment, under these names."""
    return [
        {**dict(zip(names, (1, f"{environment}?{place}", reward, environment), strict=True)), **further}
        for environment, rewards in REWARDS.items()
        for place in range(2)
        for reward in rewards
    ]


def generic(folder: Path, suffix: str) -> Path:
    path, log = folder / f"log.{suffix}", rows("step", "prompt", "reward", "env")
    if suffix == "jsonl":
        return write_lines(path, *log)
    write = pc.write_csv if suffix == "csv" else pq.write_table
    write(pa.Table.from_pylist(log), path)
    return path


def verl(folder: Path) -> Path:
    return write_lines(folder / "1.jsonl", *rows("step", "input", "score", "data_source", output="", gts=""))


def nemo_rl(folder: Path) -> Path:
    log = [
        {"content": [[row["prompt"], "answer"]], "rewards": [row["reward"]], "agent_ref": {"name": row["agent"]}}
        for row in rows("step", "prompt", "reward", "agent")
    ]
    return write_lines(folder / "train_data_step1.jsonl", *log)


def prime_rl(folder: Path) -> Path:
    log = [
        {
            "id": str(at),
            "env": {"id": row["env"]},
            "group": {"id": row["prompt"]},
            "task": {"hash": str(at // 2)},
            "run": {"type": "train", "work": {"type": "train", "step": 1}},
            "ok": True,
            "traces": [{"agent": {"trainable": True}, "nodes": [], "rewards": {"r": {"score": row["reward"]}}}],
        }
        for at, row in enumerate(rows("step", "prompt", "reward", "env"))
    ]
    path = folder / "step_1" / "train" / "all" / "traces.jsonl"
    path.parent.mkdir(parents=True)
    return write_lines(path, *log)


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet", "verl", "nemo-rl", "prime-rl"])
def test_each_environment_that_rows_name_is_judged_alone(tmp_path: Path, kind: str) -> None:
    makers = {"verl": verl, "nemo-rl": nemo_rl, "prime-rl": prime_rl}
    path = makers[kind](tmp_path) if kind in makers else generic(tmp_path, kind)
    for report in (measure_degeneracy(path), degeneracy_of_run(read_run(path))):
        assert [
            (row.environment, row.num_groups, row.num_rollouts, row.frac_reward_zero_std.value, row.pass_rate.value)
            for row in report.by_environment
        ] == [("code", 2, 4, 1.0, 0.0), ("openai/gsm8k", 2, 4, 0.0, 0.5)]


def test_without_a_threshold_shares_stand_alone() -> None:
    groups = [group_of([0.3, at / 10], prompt=f"{env}/{at}") for env in "ab" for at in (3, 4)]
    report = degeneracy_of_run(run_of(*groups))
    assert [row.frac_reward_zero_std.value for row in report.by_environment] == [0.5, 0.5]
    assert {row.pass_rate.undefined for row in report.by_environment} == {NO_THRESHOLD}


@pytest.mark.parametrize(
    "prompts",
    [[], ["a", "b"], ["a/1", "a/2"], ["a/1", "b/1"], ["1/a", "1/b", "2/a", "2/b"], ["a/1", "a/2", "b", "c/1"]],
)
def test_ids_that_name_no_environments_have_none(prompts: list[str]) -> None:
    assert environments_of(prompts) == []


def test_an_environment_without_a_group_to_judge_is_left_out(tmp_path: Path) -> None:
    alone = {"step": 1, "prompt": "x", "reward": 1.0, "env": "math"}
    log = [*rows("step", "prompt", "reward", "env"), alone, {**alone, "prompt": "y"}]
    report = measure_degeneracy(write_lines(tmp_path / "log.jsonl", *log))
    assert [row.environment for row in report.by_environment] == ["code", "openai/gsm8k"]
