from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gradscope.advantages.formulation import Formulation


def made_up(**fields: Any) -> Formulation:
    defaults: dict[str, Any] = {
        "name": "made_up",
        "formula": "r",
        "source": "nobody",
        "needs_binary": False,
        "min_group_size": 1,
        "zero_sum": False,
    }
    return Formulation(**defaults | fields)


def test_what_has_an_advantage_has_no_reason_against_it() -> None:
    assert made_up().why_not([0.3, 7.0]) is None
    assert made_up(needs_binary=True).why_not([[0.0, 1.0], [1.0, 1.0]]) is None
    assert made_up(scope="step").why_not(np.zeros((3, 2))) is None


@pytest.mark.parametrize(
    ("fields", "rewards", "reason"),
    [
        ({"min_group_size": 3}, [1.0, 0.0], "made_up needs groups of at least 3, this one has 2"),
        ({"needs_binary": True}, [1.0, 0.5, 7.0], "it is defined for rewards of 0 and 1, and there is a reward of 0.5"),
        ({"scope": "step"}, [1.0, 0.0], "it is relative to all groups of a step, and this is one group"),
    ],
)
def test_the_reason_names_what_does_not_fit(fields: dict[str, Any], rewards: list[float], reason: str) -> None:
    assert made_up(**fields).why_not(rewards) == reason


@pytest.mark.parametrize(
    ("scope", "words"),
    [("run", "earlier steps of the run"), ("token", "one advantage per token"), ("gram", "norms of score vectors")],
)
def test_what_rewards_do_not_decide_comes_before_everything_else(scope: str, words: str) -> None:
    assert words in str(made_up(scope=scope, min_group_size=9, needs_binary=True).why_not([0.5]))
