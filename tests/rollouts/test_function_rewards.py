from __future__ import annotations

import numpy as np
import pytest

from gradscope.rollouts.function_rewards import function_rewards
from gradscope.rollouts.run import TrainerSettings
from gradscope.rollouts.types import Rollout, RolloutGroup


def group(*rewards: dict[str, float | None]) -> RolloutGroup:
    rollouts = tuple(
        Rollout(group_id="g", sample=index, row=index, prompt="?", completion="!", reward=0.0, rewards=own)
        for index, own in enumerate(rewards)
    )
    return RolloutGroup(step=1, group_id="g", prompt_id="p", rollouts=rollouts)


def settings(**values: object) -> TrainerSettings:
    return TrainerSettings(values=values, origin="here")


GROUPS = [group({"right": 1.0, "tidy": 0.5}, {"right": 0.0, "tidy": None}), group({"right": 1.0})]


def test_each_function_is_a_column() -> None:
    found = function_rewards(GROUPS, settings())
    assert found is not None
    np.testing.assert_array_equal(found.table, [[1.0, 0.5], [0.0, np.nan], [1.0, np.nan]])
    assert found.weights.tolist() == [1.0, 1.0]


def test_weights_are_the_trainers() -> None:
    found = function_rewards(GROUPS, settings(reward_weights=[2, 0.5]))
    assert found is not None
    assert found.weights.tolist() == [2.0, 0.5]


@pytest.mark.parametrize(
    ("groups", "weights"), [(GROUPS, [1.0]), ([group({}, {})], None)], ids=["misfit", "no function"]
)
def test_without_them_there_is_nothing(groups: list[RolloutGroup], weights: list[float] | None) -> None:
    assert function_rewards(groups, settings(reward_weights=weights)) is None
