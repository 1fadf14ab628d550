from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest

from gradscope.diagnostics.degeneracy.breakdowns import environments_of, measure_prompts
from gradscope.diagnostics.degeneracy.group_rewards import GroupRewards
from gradscope.diagnostics.degeneracy.measure import degeneracy_of_run, measure_degeneracy
from gradscope.metrics.outcomes.degeneracy import NO_THRESHOLD
from gradscope.metrics.uncertainty.intervals import Resampling
from gradscope.rollouts.groups import RewardTable, RolloutGroup
from gradscope.rollouts.read_options import ColumnNames, ReadOptions
from gradscope.rollouts.readers.detect import read_run
from tests.diagnostics.made_up_runs import group_of, run_of, with_rewards
from tests.rollouts.readers.lines import write_lines

RUN = run_of(
    group_of([0, 0], prompt="never", step=1),
    group_of([1, 1], prompt="always", step=1),
    group_of([1, 0], prompt="live", step=1),
    group_of([0, 0], prompt="never", step=2),
    group_of([0, 0], prompt="never", step=3),
    group_of([0, 1], prompt="live", step=2),
    group_of([1, 1], prompt="live", step=3),
    group_of([0, 0], prompt="turned", step=2),
    group_of([1, 1], prompt="turned", step=3),
)


def test_each_prompt_is_a_row_and_those_that_cost_most_come_first() -> None:
    report = degeneracy_of_run(RUN)
    rows = {row["prompt_id"]: row for row in report.by_prompt}
    assert [row["prompt_id"] for row in report.by_prompt] == ["never", "always", "live", "turned"]
    assert rows["never"] == {
        "prompt_id": "never",
        "prompt": "never",
        "num_groups": 3,
        "num_rollouts": 6,
        "pass_rate": 0.0,
        "status": "never",
        "first_step": 1,
        "last_live_step": None,
    }
    assert (rows["always"]["status"], rows["always"]["pass_rate"]) == ("always", 1.0)
    assert (rows["live"]["status"], rows["live"]["last_live_step"]) == ("live", 2)
    assert rows["live"]["pass_rate"] == pytest.approx(4 / 6)
    assert (rows["turned"]["status"], rows["turned"]["last_live_step"]) == ("live", None)
    counts = report.prompts
    assert (counts.never, counts.always, counts.live, counts.reward) == (1, 1, 2, "reward")
    assert counts.frac_rollouts == pytest.approx(8 / 18)


def test_where_passing_is_not_known_only_live_prompts_are() -> None:
    report = degeneracy_of_run(run_of(group_of([0.5, 0.5], prompt="a"), group_of([0.5, 0.7], prompt="b")))
    assert {row["prompt_id"]: (row["status"], row["pass_rate"]) for row in report.by_prompt} == {
        "a": (None, None),
        "b": ("live", None),
    }
    assert (report.prompts.never, report.prompts.always, report.prompts.live) == (None, None, 1)


def test_the_main_reward_tells_which_prompts_are_solved() -> None:
    run = run_of(group_of([0.1, 0.2], prompt="a"), group_of([1.1, 0.2], prompt="b"))
    run = with_rewards(run, correct=[[0, 0], [1, 0]], short=[[0.1, 0.2], [0.1, 0.2]])
    report = degeneracy_of_run(run)
    assert report.prompts.reward == "correct"
    assert {row["prompt_id"]: row["status"] for row in report.by_prompt} == {"a": "never", "b": "live"}


@pytest.mark.slow
def test_a_million_prompts_are_arrays() -> None:
    number = 1_000_000
    table = RewardTable(
        step=np.repeat([1, 2], number // 2),
        names=(),
        prompt=np.arange(number),
        prompts=range(number),  # type: ignore[arg-type]
        size=np.full(number, 2),
        reward=np.tile([0.0, 1.0, 1.0, 1.0], number // 2),
    )
    start = time.process_time()
    found = measure_prompts(
        GroupRewards(table=table, values=table.reward, num_singletons=0, num_incomplete=0), 1.0, None
    )
    seconds = time.process_time() - start
    assert (found.counts.never, found.counts.always, found.counts.live) == (0, number // 2, number // 2)
    assert len(found.rows) == number
    assert seconds < 20, "a second or two: rows are made when somebody asks for them"


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


def sampled_by(group: RolloutGroup, *policies: str) -> RolloutGroup:
    named = policies * group.size if len(policies) == 1 else policies
    rollouts = tuple(replace(r, policy=name) for r, name in zip(group.rollouts, named[: group.size], strict=True))
    return replace(group, rollouts=rollouts)


def test_policies_of_unequal_strength_make_a_gap_of_their_own() -> None:
    groups = [sampled_by(group_of([1, 1], prompt=f"p{i}"), "strong") for i in range(6)]
    groups += [sampled_by(group_of([0, 0], prompt=f"q{i}"), "weak") for i in range(6)]
    report = degeneracy_of_run(run_of(*groups))
    assert report.jensen_gap.value == pytest.approx(0.5)
    assert report.policy_gap.between_policies.value == pytest.approx(0.5)
    assert report.policy_gap.between_prompts.value == pytest.approx(0.0)
    assert [(row.policy, row.num_groups, row.pass_rate.value) for row in report.by_policy] == [
        ("strong", 6, 1.0),
        ("weak", 6, 0.0),
    ]
    assert "The log pools 2 policies" in " ".join(report.findings)


def test_unequal_coins_in_one_group_agree_less_often() -> None:
    groups = [sampled_by(group_of([1, i % 4 == 0], prompt=f"p{i}"), "strong", "weak") for i in range(8)]
    report = degeneracy_of_run(run_of(*groups))
    # p is 1 and 1/4: agreement 1/4, the pooled 5/8 predicts (25 + 9) / 64.
    assert report.policy_gap.between_prompts.value == pytest.approx(0.0)
    assert report.policy_gap.between_policies.value == pytest.approx(1 / 4 - 34 / 64)
    assert report.by_policy[0].frac_reward_zero_std.undefined == "no group is of this policy alone"


def test_log_of_one_policy_has_no_split() -> None:
    report = degeneracy_of_run(run_of(group_of([1, 0])))
    assert (report.by_policy, report.policy_gap) == ((), None)


def test_gsm8k_models_and_their_gap(shared_data: Path) -> None:
    report = measure_degeneracy(
        shared_data / "gsm8k" / "example_model_solutions.jsonl", resampling=Resampling(num_resamples=50)
    )
    rates = [row.pass_rate.value for row in report.by_policy]
    assert rates == pytest.approx([0.2168, 0.3904, 0.3472, 0.5625], abs=5e-5)
    assert report.frac_reward_zero_std.value == pytest.approx(0.44579, abs=5e-6)
    assert report.iid_prediction.value == pytest.approx(0.16916, abs=5e-6)
    parts = report.policy_gap.between_prompts.value + report.policy_gap.between_policies.value
    assert parts == pytest.approx(report.jensen_gap.value, abs=1e-12)
    assert report.policy_gap.between_policies.value < 0


@pytest.mark.slow
def test_reasoning_gym_by_model(shared_data: Path) -> None:
    path = shared_data / "reasoning_gym" / "rg_easy_n3_scores.jsonl.gz"
    read = ReadOptions(columns=ColumnNames(reward="scores"))  # a list of scores alone, without the responses
    report = measure_degeneracy(path, resampling=Resampling(num_resamples=20), read=read)
    assert report.policy_gap is None
    assert all(row.pass_rate.undefined == NO_THRESHOLD for row in report.by_policy)
    shares = [row.frac_reward_zero_std.value for row in report.by_policy]
    assert sum(row.num_groups for row in report.by_policy) == report.num_groups
    assert (round(min(shares), 2), round(max(shares), 2)) == (0.74, 0.87)
