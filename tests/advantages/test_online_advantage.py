"""What a formulation is given while a run is trained, and what it is when it asks for nothing."""

from __future__ import annotations

import numpy as np
import pytest

from gradscope.advantages.online_advantage import Memory, OnlineAdvantage
from tests.advantages.steps import ragged, step


@pytest.mark.parametrize("rewards", [[[np.nan, 1.0]], [1.0, 0.0]])
def test_rewards_of_a_step_are_finite_and_by_group(rewards: list[list[float]]) -> None:
    with pytest.raises(ValueError, match="the rewards of a step are finite and one row a group"):
        step(rewards, ("p",))


def test_rewards_alone_are_enough_for_most() -> None:
    online = OnlineAdvantage("dr_grpo")
    found = online.advantages(ragged([[1.0, 0.0], [1.0, 0.0, 0.5, 0.5]]))
    assert np.concatenate(found).tolist() == [0.5, -0.5, 0.5, -0.5, 0.0, 0.0]
    assert (online.by_token, online.remembers, online.reads_states, online.metrics) == (False, False, False, {})
    online.recall(Memory())
    assert online.memory == Memory()
