from __future__ import annotations

import pytest

from gradscope.diagnostics.degeneracy.measure import degeneracy_of_run
from tests.diagnostics.made_up_runs import group_of, run_of, said, with_rewards


def test_reward_functions_tie_or_tell_apart() -> None:
    run = run_of(group_of([1, 1], prompt="a"), group_of([1, 0], prompt="b"), group_of([0, 1], prompt="c"))
    functions = {"exact": [[1, 1], [1, 0], [0, 1]], "dense": [[0.2, 0.3], [0.5, 0.1], [0.4, 0.4]]}
    report = degeneracy_of_run(with_rewards(run, **functions))
    dense, exact = report.by_reward
    assert (dense.reward, dense.frac_zero_std.value, dense.num_alone, dense.num_rescuable) == (
        "dense",
        pytest.approx(1 / 3),
        1,
        1,
    )
    assert (exact.reward, exact.frac_zero_std.value, exact.num_alone, exact.num_rescuable) == (
        "exact",
        pytest.approx(1 / 3),
        1,
        0,
    )
    assert "'dense' differs within 1 groups that 'reward' leaves equal" in said(report)


def test_reward_function_that_is_missing_somewhere_has_no_share() -> None:
    run = run_of(group_of([1, 1], prompt="a"), group_of([1, 0], prompt="b"))
    report = degeneracy_of_run(with_rewards(run, one=[[1, 1], [1, 0]], two=[[1, None], [0, 1]]))
    assert report.by_reward[1].frac_zero_std.undefined == "it is missing in 1 of 2 groups"
