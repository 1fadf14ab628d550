from __future__ import annotations

import pytest

from gradscope.diagnostics.check.by_prompt import group_metric_by_prompt
from tests.diagnostics.made_up_runs import group_of, run_of

RUN = run_of(
    group_of([1, 1], step=1, prompt="a"),
    group_of([1, 0], step=2, prompt="a"),
    group_of([0, 0], step=1, prompt="b"),
    group_of([0.5, 0.5], step=1, prompt="c"),
)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("frac_reward_zero_std", {"a": 0.5, "b": 1.0, "c": 1.0}),
        ("frac_all_pass", {"a": 0.5, "b": 0.0, "c": 0.0}),
        ("frac_all_fail", {"a": 0.0, "b": 1.0, "c": 1.0}),
        ("pass_rate", {"a": 0.75, "b": 0.0, "c": 0.0}),
    ],
)
def test_a_prompt_has_the_mean_of_its_groups(name: str, expected: dict[str, float]) -> None:
    assert group_metric_by_prompt(RUN, name, reward=None, threshold=1.0) == expected


def test_without_a_threshold_equal_rewards_are_tied_and_nothing_passes() -> None:
    tied = group_metric_by_prompt(RUN, "frac_tied", reward=None, threshold=None)
    assert tied == {"a": 0.5, "b": 1.0, "c": 1.0}
    assert group_metric_by_prompt(RUN, "pass_rate", reward=None, threshold=None) == {}


def test_one_reward_function_is_looked_at_alone() -> None:
    run = run_of(group_of([1, 0], functions={"format": [1, 1]}))
    assert group_metric_by_prompt(run, "frac_all_pass", reward="format", threshold=1.0) == {"p": 1.0}


def test_what_is_no_mean_over_groups_has_no_prompts() -> None:
    assert group_metric_by_prompt(RUN, "jensen_gap", reward=None, threshold=1.0) == {}
