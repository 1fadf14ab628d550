"""Paper cases of who is sampled and how often."""

from __future__ import annotations

import numpy as np
import pytest

from gradscope.training.sampling.allocation import live_groups, remaining_budget, replacements

RIGHT, WRONG, MIXED = np.ones(3), np.zeros(3), np.array([1.0, 0.0, 0.0])


def test_live_groups_may_differ_in_size() -> None:
    assert live_groups([np.array([0.3, 0.3 + 1e-9]), np.array([0.3, 0.4, 0.4]), np.array([1.0])]) == [
        False,
        True,
        False,
    ]


def test_replacements_are_the_other_prompts_each_once() -> None:
    prompts = [f"p{number}" for number in range(20)]
    order = replacements(prompts, {"p3", "p7"}, seed=5, step=9)
    assert sorted(order) == sorted(set(prompts) - {"p3", "p7"})
    assert order == replacements(prompts, ["p7", "p3"], seed=5, step=9)
    assert order != replacements(prompts, {"p3", "p7"}, seed=5, step=10)
    assert order != replacements(prompts, {"p3", "p7"}, seed=6, step=9)
    assert replacements(["a"], {"a"}, seed=0, step=1) == []


@pytest.mark.parametrize(
    ("probe", "budget"),
    [
        ([RIGHT, WRONG], [0, 6]),
        ([WRONG, RIGHT, MIXED], [6, 0, 3]),
        # six to share among four: two each, one more to the first two
        ([WRONG, RIGHT, WRONG, WRONG, RIGHT, WRONG], [5, 0, 5, 4, 0, 4]),
        ([RIGHT, RIGHT, WRONG], [0, 0, 9]),
        # nobody takes, nobody gives, nobody does either
        ([RIGHT, RIGHT, MIXED], [3, 3, 3]),
        ([WRONG, MIXED, WRONG], [3, 3, 3]),
        ([MIXED, MIXED], [3, 3]),
    ],
)
def test_who_gives_and_who_takes(probe: list[np.ndarray], budget: list[int]) -> None:
    found = remaining_budget(probe, size=3, highest=1.0)
    assert found == budget
    assert sum(found) == 3 * len(probe)


def test_right_is_the_most_and_wrong_is_nothing() -> None:
    """With two reward functions a rollout can earn 2: half of that is neither right nor wrong."""
    half, full, none = np.array([1.0, 1.0]), np.array([2.0, 2.0]), np.array([0.0, -1.0])
    assert remaining_budget([half, full, none], size=2, highest=2.0) == [2, 0, 4]
    assert remaining_budget([np.array([0.9, 0.8]), none], size=2, highest=1.0) == [2, 2]
