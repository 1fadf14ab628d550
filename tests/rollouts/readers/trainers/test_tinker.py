from __future__ import annotations

from pathlib import Path

from gradscope.rollouts.readers.detect import read_run
from tests.conftest import REPOSITORY
from tests.rollouts.readers.lines import rewards_of, set_aside, write_lines

LOGS = REPOSITORY / "fixtures" / "logs"


def test_tinker_summaries_hold_rewards_only() -> None:
    run = read_run(LOGS / "tinker")
    assert rewards_of(run) == {"0": (1.0, 0.0), "1": (0.0, 0.0), "1:0": (1.0, 0.0), "1:1": (1.0, 1.0)}
    assert len({group.prompt_id for group in run.groups}) == 4
    assert "remove_constant_reward_groups" in run.source.missing[0]


def test_tinker_rows_that_cannot_be_used_are_set_aside(tmp_path: Path) -> None:
    row = {"iteration": 2, "group_idx": 0, "traj_idx": 0, "total_reward": 1.0}
    rows = [row, {**row, "iteration": "x"}, {**row, "group_idx": None}, {**row, "total_reward": [1.0]}]
    run = read_run(write_lines(tmp_path / "train_rollout_summaries.jsonl", *rows))
    assert rewards_of(run) == {"2:0": (1.0, None)}
    assert set_aside(run) == {
        "iteration is not a whole number": 1,
        "group_idx is not a whole number": 1,
        "the reward is a list, not a number": 1,
    }


def test_tinker_names_the_weights_that_sampled(tmp_path: Path) -> None:
    rollouts = [rollout for group in read_run(LOGS / "tinker").groups for rollout in group.rollouts]
    assert {rollout.policy_versions for rollout in rollouts} == {(0, 0), (1, 1)}
    row = {"iteration": 1, "group_idx": 0, "traj_idx": 0, "total_reward": 1.0}
    rows = [{**row, "sampling_client_step": cell} for cell in (None, -1, "new", 1)]
    run = read_run(write_lines(tmp_path / "train_rollout_summaries.jsonl", *rows))
    assert [rollout.policy_versions for rollout in run.groups[0].rollouts] == [None, None, None, (1, 1)]
