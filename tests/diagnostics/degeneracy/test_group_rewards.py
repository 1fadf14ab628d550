from __future__ import annotations

import pytest

from gradscope.diagnostics.degeneracy.group_rewards import group_rewards
from gradscope.diagnostics.degeneracy.measure import degeneracy_of_run
from gradscope.errors import InputError, UsageError
from tests.diagnostics.made_up_runs import group_of, run_of


def test_one_reward_function_alone() -> None:
    functions = {"accuracy": [1.0, 1.0], "format": [0.0, 1.0]}
    run = run_of(group_of([1.0, 1.1], step=1, functions=functions), metrics={1: {"frac_reward_zero_std": 0.0}})
    assert degeneracy_of_run(run).frac_reward_zero_std.value == 0.0
    accuracy = degeneracy_of_run(run, reward="accuracy")
    assert (accuracy.reward, accuracy.frac_all_pass.value, accuracy.by_step[0].logged) == ("accuracy", 1.0, None)


def test_groups_that_cannot_be_judged_are_left_out_and_counted() -> None:
    run = run_of(group_of([1, 1]), group_of([0, None]), group_of([1]), group_of([0, 1]))
    report = degeneracy_of_run(run)
    assert (report.num_groups, report.frac_reward_zero_std.value) == (2, 0.5)
    assert "Groups left out: 1 with a single rollout and 1 with a missing reward." in report.findings


def test_run_without_groups_is_refused() -> None:
    with pytest.raises(InputError, match="has no group to judge: of 2 groups, 1 have one rollout and 1 lack a reward"):
        degeneracy_of_run(run_of(group_of([1]), group_of([None, 1])))


def test_unknown_reward_function_gets_a_suggestion() -> None:
    run = run_of(group_of([1, 1], functions={"accuracy_reward": [1, 1]}))
    with pytest.raises(UsageError, match="has no reward function 'acuracy_reward'") as caught:
        degeneracy_of_run(run, reward="acuracy_reward")
    assert caught.value.hint == "Did you mean 'accuracy_reward'?"
    with pytest.raises(UsageError, match="has no reward function 'x'") as caught:
        degeneracy_of_run(run_of(group_of([1, 1])), reward="x")
    assert caught.value.hint == "It logs no reward per function."


def test_levels_are_the_different_rewards_of_a_log_of_any_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradscope.diagnostics.degeneracy.group_rewards._AT_ONCE", 2)
    chosen = group_rewards(run_of(group_of([0.5, 0.0, 1.0], prompt="p"), group_of([1.0, 0.0], prompt="q")))
    assert chosen.levels.tolist() == [0.0, 0.5, 1.0]
