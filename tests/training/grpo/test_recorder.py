import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradscope.rollouts.groups import Rollout, RolloutGroup
from gradscope.rollouts.run_folder import checkpoint_path, metrics_path, read_metrics
from gradscope.rollouts.store import read_steps
from gradscope.training.config import TrainConfig
from gradscope.training.grpo.recorder import _batch_numbers

MakeRun = Callable[..., Path]


def test_every_step_has_its_groups(short_run: MakeRun) -> None:
    groups = read_steps(short_run())
    assert [group.step for group in groups] == [1] * 4 + [2] * 4 + [3] * 4
    assert [group.group_id for group in groups[4:8]] == ["00002-000", "00002-001", "00002-002", "00002-003"]
    assert all([rollout.sample for rollout in group.rollouts] == [0, 1, 2, 3] for group in groups)
    assert [rollout.row for group in groups[:4] for rollout in group.rollouts] == list(range(16))
    assert len({group.prompt_id for group in groups}) == 8  # each of the eight prompts, twice in 12 groups at most


def test_ids_and_texts_belong_together(short_run: MakeRun) -> None:
    from transformers import AutoTokenizer

    run = short_run()
    tokenizer = AutoTokenizer.from_pretrained(checkpoint_path(run, 0))
    for group in read_steps(run):
        for rollout in group.rollouts:
            assert rollout.prompt_ids is not None
            assert rollout.completion_ids is not None
            assert tokenizer.decode(rollout.prompt_ids) == rollout.prompt == group.prompt_id
            assert tokenizer.decode(rollout.completion_ids, skip_special_tokens=True) == rollout.completion
            ended = rollout.completion_ids[-1] == tokenizer.eos_token_id
            assert rollout.status == ("completed" if ended else "truncated")
            assert tokenizer.eos_token_id not in rollout.completion_ids[:-1]


def test_metrics_have_the_trainers_norm_and_share_of_degenerate_groups(short_run: MakeRun) -> None:
    run = short_run()
    metrics = read_metrics(run)
    assert list(metrics) == [1, 2, 3]
    for step, values in metrics.items():
        rewards = [group.rewards for group in read_steps(run) if group.step == step]
        degenerate = sum(len(set(group)) == 1 for group in rewards)
        assert values["num_groups"] == 4
        assert values["num_degenerate_groups"] == degenerate
        assert values["frac_reward_zero_std"] == degenerate / 4
        assert values["reward"] == pytest.approx(np.mean(rewards))
        assert values["grad_norm"] > 0
        assert values["learning_rate"] == TrainConfig().learning_rate


def test_metrics_lines_are_json(short_run: MakeRun) -> None:
    lines = metrics_path(short_run()).read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3]


def group(number: int, rewards: list[float], lengths: list[int], status: Any = "completed") -> RolloutGroup:
    rollouts = tuple(
        Rollout(
            group_id=str(number),
            sample=sample,
            row=sample,
            prompt="p",
            completion="c",
            completion_ids=(1,) * length,
            reward=reward,
            rewards={"answer": reward},
            status=status,
        )
        for sample, (reward, length) in enumerate(zip(rewards, lengths, strict=True))
    )
    return RolloutGroup(step=1, group_id=str(number), prompt_id="p", rollouts=rollouts)


def test_of_the_batch_by_hand() -> None:
    numbers = _batch_numbers([group(0, [1.0, 1.0], [2, 4]), group(1, [0.0, 1.0, 0.0], [9, 9, 6], "truncated")])
    # 3 of 5 pass: variance 5/4 x 3/5 x 2/5 = 3/10
    assert numbers["reward"] == numbers["rewards/answer/mean"] == pytest.approx(0.6)
    assert numbers["reward_std"] == numbers["rewards/answer/std"] == pytest.approx(0.3**0.5)
    assert numbers["frac_reward_zero_std"] == 0.5  # a group is a group, whatever its size
    assert numbers["completions/clipped_ratio"] == pytest.approx(0.6)
    lengths = [numbers[f"completions/{name}_length"] for name in ("mean", "min", "max")]
    assert lengths == [6.0, 2.0, 9.0]
    assert numbers["completions/mean_terminated_length"] == 3.0


def test_nothing_ended() -> None:
    numbers = _batch_numbers([group(0, [1.0, 0.0], [2, 4], "truncated")])
    assert numbers["completions/max_terminated_length"] == 0.0
    assert numbers["completions/clipped_ratio"] == 1.0
