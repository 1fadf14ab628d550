from __future__ import annotations

from typing import Any

import pytest

from gradscope.rollouts.types import Rollout, RolloutGroup
from gradscope.training.grpo.batch_metrics import batch_numbers


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
    numbers = batch_numbers([group(0, [1.0, 1.0], [2, 4]), group(1, [0.0, 1.0, 0.0], [9, 9, 6], "truncated")])
    # 3 of 5 pass: variance 5/4 x 3/5 x 2/5 = 3/10
    assert numbers["reward"] == numbers["rewards/answer/mean"] == pytest.approx(0.6)
    assert numbers["reward_std"] == numbers["rewards/answer/std"] == pytest.approx(0.3**0.5)
    assert numbers["frac_reward_zero_std"] == 0.5  # a group is a group, whatever its size
    assert numbers["completions/clipped_ratio"] == pytest.approx(0.6)
    lengths = [numbers[f"completions/{name}_length"] for name in ("mean", "min", "max")]
    assert lengths == [6.0, 2.0, 9.0]
    assert numbers["completions/mean_terminated_length"] == 3.0


def test_nothing_ended() -> None:
    numbers = batch_numbers([group(0, [1.0, 0.0], [2, 4], "truncated")])
    assert numbers["completions/max_terminated_length"] == 0.0
    assert numbers["completions/clipped_ratio"] == 1.0
