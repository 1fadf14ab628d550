from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from gradscope.diagnostics.check.metric_values import MetricValues
from gradscope.diagnostics.degeneracy.measure import degeneracy_of_run
from gradscope.diagnostics.degeneracy.reward_functions import NO_ADVANTAGES, judged_groups, side_rewards
from gradscope.results.degeneracy import DegeneracyReport
from gradscope.rollouts.run import Run, TrainerSettings
from tests.diagnostics.made_up_runs import group_of, run_of, with_rewards

RNG = np.random.default_rng(7)
CORRECT = np.array([[1, 1, 1, 1], [0, 0, 0, 0], [1, 0, 1, 0], [0, 0, 0, 0], [1, 1, 1, 0]], dtype=float)
LENGTH = RNG.integers(5, 60, size=CORRECT.shape).astype(float)
TOTAL = CORRECT - 0.01 * LENGTH
"""The main reward is tied in three of five groups, where length alone makes the gradient."""
NOISE = np.resize([1, -1, -1, 1], CORRECT.shape)


def test_a_pass_is_one_of_the_goal_unless_a_threshold_says_otherwise() -> None:
    functions = {"format": [1.0, 0.0], "correct": [0.0, 0.0]}
    run = run_of(group_of([1.0, 0.0], functions=functions), group_of([1.0, 0.0], prompt="q", functions=functions))
    for threshold, reward, num_passing in ((None, None, 0), (1.0, None, 1), (None, "format", 1)):
        assert judged_groups(run, threshold, reward)[1].num_passing.tolist() == [num_passing] * 2
    assert MetricValues(run=run).value("pass_rate").prompts == {"p": 0.0, "q": 0.0}


def deviations(rewards: np.ndarray) -> np.ndarray:
    return rewards - rewards.mean(axis=1, keepdims=True)


def a_run(advantages: np.ndarray | None = None, settings: Mapping[str, Any] | None = None, **functions: Any) -> Run:
    """Two steps, a prompt a group, with the total as reward."""
    logged = [None] * len(TOTAL) if advantages is None else advantages.astype(float).tolist()
    groups = [group_of(list(row), prompt=f"p{n}", step=1 + n // 3, advantages=logged[n]) for n, row in enumerate(TOTAL)]
    run = run_of(*groups)
    run = with_rewards(run, **{name: np.asarray(rows).tolist() for name, rows in functions.items()})
    return run if settings is None else replace(run, settings=TrainerSettings(values=settings, origin="here"))


def shares(report: DegeneracyReport, kind: str = "advantage_share") -> dict[str, float | None]:
    return {function.name: getattr(function, kind).value for function in report.by_reward}


def expected(scale: np.ndarray) -> tuple[float, float]:
    """Shares of the squared advantage by definition: of correct, and of the groups in which it is tied."""
    advantage = scale * deviations(TOTAL)
    part = scale * deviations(CORRECT)
    tied = CORRECT.std(axis=1) == 0
    total = (advantage**2).sum()
    return float((advantage * part).sum() / total), float((advantage[tied] ** 2).sum() / total)


@pytest.mark.parametrize("kind", ["group", "batch", "none"])
@pytest.mark.parametrize("logged", [True, False])
def test_shares_are_of_the_advantage(kind: str, logged: bool) -> None:
    steps = np.array([0, 0, 0, 1, 1])
    batch = np.array([TOTAL[steps == step].std(ddof=1) for step in steps])[:, None]
    scale = {
        "group": 1 / (TOTAL.std(axis=1, ddof=1, keepdims=True) + 1e-4),
        "batch": 1 / (batch + 1e-4),
        "none": np.ones((5, 1)),
    }[kind]
    scale[4] *= not logged  # a group that a trainer masked
    advantages = (0.01 * scale * deviations(TOTAL)).astype(np.float32) if logged else None
    settings = None if logged else {"scale_rewards": kind}
    report = degeneracy_of_run(a_run(advantages, settings, correct=CORRECT, length=LENGTH))
    correct_share, conflict_share = expected(scale)
    assert shares(report) == pytest.approx({"correct": correct_share, "length": 1 - correct_share}, rel=1e-4)
    assert report.advantages_of == ("the logged advantages" if logged else f'the advantages of scale_rewards="{kind}"')
    conflict = report.reward_conflict
    assert conflict.advantage_share.value == pytest.approx(conflict_share, rel=1e-4)
    assert (conflict.main, conflict.deciding, conflict.is_alone, conflict.num_groups) == ("correct", "length", True, 3)
    assert report.frac_reward_conflict.value == pytest.approx(3 / 5)
    assert bool(conflict.remedy) == (kind == "group")
    assert report.findings[0].startswith("'length' alone decides 60.0 %")


def test_a_group_is_divided_by_the_deviation_of_its_own_size() -> None:
    correct, length = [[1.0, 0.0], [1.0, 0.0, 0.0, 0.0, 1.0]], [[50.0, 5.0], [9.0, 30.0, 12.0, 44.0, 5.0]]
    totals = [np.array(right) - 0.01 * np.array(long) for right, long in zip(correct, length, strict=True)]
    run = with_rewards(run_of(*(group_of(list(row)) for row in totals)), correct=correct, length=length)
    settings = TrainerSettings(values={"reward_weights": [1.0, -0.01], "scale_rewards": "group"}, origin="here")
    report = degeneracy_of_run(replace(run, settings=settings))
    advantages = [(row - row.mean()) / (row.std(ddof=1) + 1e-4) for row in totals]
    parts = [(right - np.mean(right)) / (row.std(ddof=1) + 1e-4) for right, row in zip(correct, totals, strict=True)]
    products = [sum(map(np.dot, advantages, other)) for other in (parts, advantages)]
    assert shares(report)["correct"] == pytest.approx(products[0] / products[1], rel=1e-4)


def test_without_advantages_and_arguments_shares_are_of_reward_differences() -> None:
    report = degeneracy_of_run(a_run(correct=CORRECT, length=LENGTH))
    assert {function.advantage_share.undefined for function in report.by_reward} == {NO_ADVANTAGES}
    of_correct = float((deviations(TOTAL) * deviations(CORRECT)).sum() / (deviations(TOTAL) ** 2).sum())
    assert shares(report, "difference_share")["correct"] == pytest.approx(of_correct)
    assert report.reward_conflict.advantage_share.undefined == NO_ADVANTAGES
    pair = np.corrcoef(deviations(CORRECT).ravel(), deviations(LENGTH).ravel())[0, 1]
    assert report.by_reward[0].correlation["length"].value == pytest.approx(pair)


@pytest.mark.parametrize(
    ("advantages", "settings", "reason"),
    [
        (np.zeros_like(TOTAL), None, "every logged advantage is 0"),
        (np.sign(deviations(TOTAL)), None, "no multiple of the reward's deviations"),
        (100 * deviations(TOTAL) * (1 + 0.02 * NOISE), None, "no multiple of the reward's deviations"),
        (100 * deviations(TOTAL) * (1 + 0.005 * NOISE), None, "None"),  # a hundredth is allowed for rounding
        (
            None,
            {"scale_rewards": "group", "multi_objective_aggregation": "normalize_then_sum"},
            "multi_objective_aggregation",
        ),
        (None, {"scale_rewards": "median"}, "scale_rewards = median is not known"),
        (None, {"beta": "0.1"}, NO_ADVANTAGES),
    ],
)
def test_advantages_need_a_rule(advantages: np.ndarray | None, settings: dict[str, str] | None, reason: str) -> None:
    report = degeneracy_of_run(a_run(advantages, settings=settings, correct=CORRECT, length=LENGTH))
    assert reason in str(report.by_reward[0].advantage_share.undefined)


@pytest.mark.parametrize("scaled", [True, False])
def test_verl_names_its_own_argument(scaled: bool) -> None:
    settings = {"trainer": "verl", "algorithm.adv_estimator": "grpo", "algorithm.norm_adv_by_std_in_grpo": scaled}
    report = degeneracy_of_run(a_run(settings=settings, correct=CORRECT, length=LENGTH))
    assert report.advantages_of == f"the advantages of norm_adv_by_std_in_grpo={scaled}"
    assert report.reward_conflict.remedy == ("algorithm.norm_adv_by_std_in_grpo=False" if scaled else "")


def test_weights_of_the_trainer_are_used() -> None:
    settings = {"reward_weights": [1.0, -0.01], "scale_rewards": "group"}
    report = degeneracy_of_run(a_run(settings=settings, correct=CORRECT, length=LENGTH))
    assert {function.name: function.weight for function in report.by_reward} == {"correct": 1.0, "length": -0.01}
    wrong = {"reward_weights": [1.0, 1.0], "scale_rewards": "group"}
    report = degeneracy_of_run(a_run(settings=wrong, correct=CORRECT, length=LENGTH))
    assert {function.weight for function in report.by_reward} == {None}
    assert report.by_reward[0].advantage_share.undefined == "the weights of the functions are not known"
    assert report.frac_reward_conflict.undefined == "the reward is no weighted sum of the functions in the log"


def test_a_function_is_main_by_its_name_or_where_it_alone_is_of_zero_and_one() -> None:
    tidy = (RNG.random(CORRECT.shape) < 0.5).astype(float)
    run = run_of(*(group_of(list(row), prompt=f"p{n}") for n, row in enumerate(CORRECT + tidy)))
    named = degeneracy_of_run(with_rewards(run, accuracy=CORRECT.tolist(), tidy=tidy.tolist()))
    assert named.reward_conflict.main == "accuracy"
    report = degeneracy_of_run(with_rewards(run, one=CORRECT.tolist(), two=tidy.tolist()))
    assert str(report.frac_reward_conflict.undefined).startswith("which of one, two should be learned is not known")
    chosen = degeneracy_of_run(with_rewards(run, one=CORRECT.tolist(), two=tidy.tolist()), reward="one")
    assert chosen.reward_conflict.main == "one"
    graded = with_rewards(run, one=(2 * CORRECT).tolist(), two=(tidy - CORRECT).tolist())
    assert "--reward" in str(degeneracy_of_run(graded).frac_reward_conflict.undefined)
    graded, tidy = 2 * CORRECT, (RNG.random(CORRECT.shape) < 0.9).astype(float)
    run = run_of(*(group_of(list(row), prompt=f"p{n}") for n, row in enumerate(graded + tidy)))
    for names in (("accuracy", "tidiness"), ("quality", "format")):
        report = degeneracy_of_run(with_rewards(run, **dict(zip(names, (graded.tolist(), tidy.tolist()), strict=True))))
        assert (report.frac_reward_conflict.value, report.reward_conflict) == (None, None)
    run = run_of(group_of([1, 0], prompt="a"), group_of([0.5, 0.1], prompt="b"), group_of([0, 1], prompt="c"))
    run = with_rewards(run, correct=[[1, 0], [None, None], [0, 1]], judge=[[None, None], [0.5, 0.1], [None, None]])
    report = degeneracy_of_run(run)
    assert (report.frac_reward_conflict.value, report.reward_conflict) == (0.0, None)
    # a part that was named as the reward is held against the whole
    groups = (group_of(list(row), prompt=f"p{n}", step=1 + n // 3) for n, row in enumerate(CORRECT))
    run = with_rewards(run_of(*groups), reward=TOTAL.tolist(), correct=CORRECT.tolist(), length=LENGTH.tolist())
    report = degeneracy_of_run(run)
    assert report.reward == "correct"
    assert report.reward_conflict.deciding == "length"


def test_reward_functions_tie_or_tell_apart() -> None:
    run = run_of(group_of([1, 1], prompt="a"), group_of([1, 0], prompt="b"), group_of([0, 1], prompt="c"))
    functions = {"exact": [[1, 1], [1, 0], [0, 1]], "dense": [[0.2, 0.3], [0.5, 0.1], [0.4, 0.4]]}
    dense, exact = degeneracy_of_run(with_rewards(run, **functions)).by_reward
    third = pytest.approx(1 / 3)
    assert (dense.name, dense.frac_tied.value, dense.num_alone, dense.num_rescuable) == ("dense", third, 1, 1)
    assert (exact.name, exact.frac_tied.value, exact.num_alone, exact.num_rescuable) == ("exact", third, 1, 0)
    assert (exact.weight, dense.weight) == (1.0, 0.0)
    assert dense.difference_share.undefined == "it is no part of the reward"
    # functions without differences or values have no share
    run = run_of(group_of([1, 1], prompt="a"), group_of([1, 0], prompt="b"))
    report = degeneracy_of_run(with_rewards(run, one=[[1, 1], [1, 0]], two=[[1, None], [0, 1]]))
    assert report.by_reward[1].frac_tied.undefined == "it is missing in 1 of 2 groups"
    run = run_of(group_of([1.5, 1.5], prompt="a"), group_of([2, 2], prompt="b"))
    report = degeneracy_of_run(with_rewards(run, one=[[1, 1], [1, 1]], two=[[0.5, 0.5], [1, 1]]))
    first = report.by_reward[0]
    assert first.difference_share.undefined == "no group has rewards that differ"
    assert first.correlation["two"].undefined == "one of the two never differs within a group"


@pytest.mark.parametrize("large", [1e120, 1e154])
def test_rewards_that_cannot_be_squared_have_no_share_and_no_correlation(large: float) -> None:
    """Of smaller ones the share is that of one function whose differences drown those of the other."""
    report = degeneracy_of_run(a_run(correct=CORRECT, length=-0.01 * LENGTH, beside=large * LENGTH))
    (function,) = [function for function in report.by_reward if function.name == "beside"]
    undefined = "rewards differ by more than can be squared"
    if large < 1e150:
        assert function.correlation["length"].value == pytest.approx(-1)
    else:
        assert function.correlation["length"].undefined == undefined
    assert shares(report, "difference_share")["correct"] is not None


def test_a_comparison_asks_how_often_the_main_reward_differs() -> None:
    weighted = side_rewards(a_run(correct=CORRECT, length=LENGTH), "both")
    single = side_rewards(run_of(*(group_of(list(row), prompt=f"p{n}") for n, row in enumerate(CORRECT))), "alone")
    assert weighted.frac_main_differs.value == single.frac_main_differs.value == pytest.approx(2 / 5)
    assert (weighted.frac_reward_zero_std.value, single.frac_reward_zero_std.value) == (0.0, pytest.approx(3 / 5))
    assert single.conflict is None
    graded = side_rewards(run_of(group_of([0.5, 0.7])), "graded")
    assert graded.frac_main_differs.undefined == "the log has no reward per function"
    assert side_rewards(run_of(group_of([1.0])), "single") is None


def correlations(**functions: np.ndarray) -> dict[str, Any]:
    report = degeneracy_of_run(a_run(correct=CORRECT, **functions), reward="correct")
    return {function.name: function.correlation for function in report.by_reward}


def test_of_many_functions_the_main_one_alone_is_correlated() -> None:
    many = {f"metric_{number}": RNG.random(CORRECT.shape) for number in range(40)}
    by_name = correlations(**many)
    assert by_name["correct"].keys() == many.keys()
    assert all(by_name[name].keys() == {"correct"} for name in many)
    few = {name: many[name] for name in list(many)[:3]}
    few_by_name = correlations(**few)
    assert by_name["correct"]["metric_0"] == few_by_name["correct"]["metric_0"]
    assert few_by_name["metric_0"].keys() == {"correct", "metric_1", "metric_2"}


def test_enormous_rewards_and_functions_that_cancel_decide_nothing_and_stay_finite() -> None:
    neat = np.array([[1.0, 1.0], [0.0, 1.0], [1 << 62, 1 << 62], [1 << 62, 1 << 62]])
    right = np.array([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    groups = [group_of(list(row), prompt=f"p{n}") for n, row in enumerate(right + 0.5 * neat)]
    report = degeneracy_of_run(with_rewards(run_of(*groups), right=right.tolist(), neat=neat.tolist()))
    assert report.reward_conflict is None
    values = np.array([[1.0, 1.0], [1e308, 1e308], [0.0, 0.0], [1.0, 1e308]])
    two = np.array([[0.0, 1.0], [1e16, 0.5], [0.0, -1.0], [1.0, -1e308]])
    totals = enumerate(0.001 * values + 0.001 * two)
    groups = [group_of(list(row), prompt=f"p{n % 3}", step=1 + n // 2) for n, row in totals]
    report = degeneracy_of_run(with_rewards(run_of(*groups), one=values.tolist(), two=two.tolist()))
    shares = [function.difference_share for function in report.by_reward]
    assert all(share.undefined is not None or np.isfinite(share.ends).all() for share in shares)
