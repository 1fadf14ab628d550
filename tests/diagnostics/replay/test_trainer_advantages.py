from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gradscope.diagnostics.replay.trainer_advantages import trainer_batch
from gradscope.rollouts.run import TrainerSettings
from gradscope.rollouts.types import Rollout, RolloutGroup


def group(*rewards: float, name: str = "g") -> RolloutGroup:
    rollouts = tuple(
        Rollout(group_id=name, sample=at, row=at, prompt="", completion="", reward=reward)
        for at, reward in enumerate(rewards)
    )
    return RolloutGroup(step=1, group_id=name, prompt_id=name, rollouts=rollouts)


def batch(trainer: str, *groups: RolloutGroup, **values: Any):
    named = {name.replace("__", "."): value for name, value in values.items()}
    return trainer_batch(groups, TrainerSettings(values={**named, "trainer": trainer}))


def test_verls_grpo_by_hand() -> None:
    given = batch("verl", group(1.0, 0.0), group(3.0), algorithm__adv_estimator="grpo")
    assert given.advantages == pytest.approx([0.5 / (np.sqrt(0.5) + 1e-6), -0.5 / (np.sqrt(0.5) + 1e-6), 3.0], rel=1e-5)
    plain = {"algorithm__adv_estimator": "grpo", "algorithm__norm_adv_by_std_in_grpo": False}
    assert batch("verl", group(1.0, 0.0), **plain).advantages.tolist() == [0.5, -0.5]
    assert (given.reward, given.frac_zero_std) == (pytest.approx(4 / 3), pytest.approx(1 / 3))


def test_prime_rl_centres_and_nemo_rl_leaves_the_rollout_out() -> None:
    assert batch("prime-rl", group(1.0, 0.0, 0.0, 0.0)).advantages.tolist() == [0.75, -0.25, -0.25, -0.25]
    left_out = batch("nemo-rl", group(1.0, 0.0, 1.0)).advantages
    spread = np.std([0.0, 1.0], ddof=1) + 1e-6
    assert left_out == pytest.approx([0.5 / spread, -1.0, 0.5 / spread])
    whole = {"grpo__use_leave_one_out_baseline": False, "grpo__normalize_rewards": False}
    assert batch("nemo-rl", group(1.0, 0.0), **whole).advantages.tolist() == [0.5, -0.5]
    assert batch("nemo-rl", group(1.0)).advantages.tolist() == [0.0]


@pytest.mark.parametrize(
    ("trainer", "values"),
    [
        ("verl", {"algorithm__adv_estimator": "gae"}),
        ("verl", {"algorithm__use_kl_in_reward": True}),
        ("prime-rl", {"orchestrator__algo__length_penalty": 1.0}),
        ("nemo-rl", {"grpo__adv_estimator__name": "gdpo"}),
        ("nemo-rl", {"grpo__reward_shaping__enabled": True}),
    ],
)
def test_formulas_without_a_rule_are_told_and_rewards_stay(trainer: str, values: dict[str, Any]) -> None:
    given = batch(trainer, group(1.0, 0.0), **values)
    assert given.unknown is not None
    assert given.reward == 0.5
