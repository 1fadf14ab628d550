from __future__ import annotations

import time

import numpy as np
import pytest

from gradscope.diagnostics.degeneracy.by_prompt import measure_prompts
from gradscope.diagnostics.degeneracy.group_rewards import GroupRewards
from gradscope.diagnostics.degeneracy.measure import degeneracy_of_run
from gradscope.rollouts.groups import RewardTable
from tests.diagnostics.made_up_runs import group_of, run_of, with_rewards

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
