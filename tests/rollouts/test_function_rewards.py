import numpy as np
import pytest

from gradscope.rollouts.function_rewards import adds_up, function_rewards, reward_terms
from gradscope.rollouts.groups import RolloutGroup
from gradscope.rollouts.run import TrainerSettings
from tests.diagnostics.made_up_runs import group_of, with_fields


def group(*rewards: dict[str, float | None]) -> RolloutGroup:
    return with_fields(group_of([0.0] * len(rewards)), rewards=list(rewards))


def settings(**values: object) -> TrainerSettings:
    return TrainerSettings(values=values, origin="here")


GROUPS = [group({"right": 1.0, "tidy": 0.5}, {"right": 0.0, "tidy": None}), group({"right": 1.0})]


def test_each_function_is_a_column_with_the_trainers_weight() -> None:
    rewards = function_rewards(GROUPS, settings())
    assert rewards is not None
    np.testing.assert_array_equal(rewards.table, [[1.0, 0.5], [0.0, np.nan], [1.0, np.nan]])
    assert rewards.weights.tolist() == [1.0, 1.0]
    weighted = function_rewards(GROUPS, settings(reward_weights=[2, 0.5]))
    assert weighted is not None
    assert weighted.weights.tolist() == [2.0, 0.5]


@pytest.mark.parametrize(
    ("groups", "weights"), [(GROUPS, [1.0]), ([group({}, {})], None)], ids=["misfit", "no function"]
)
def test_without_them_there_is_nothing(groups: list[RolloutGroup], weights: list[float] | None) -> None:
    assert function_rewards(groups, settings(reward_weights=weights)) is None


RNG = np.random.default_rng(11)
CORRECT, LENGTH, STYLE = (RNG.random(40) < 0.5).astype(float), RNG.integers(5, 900, 40).astype(float), RNG.random(40)
COLUMNS = {"correct": CORRECT, "length": LENGTH, "style": STYLE}


@pytest.mark.parametrize(
    "weights",
    [
        {"correct": 1.0, "length": -0.01},
        {"correct": 1.0, "length": -0.0001},
        {"correct": 2.0, "length": -0.001, "style": 0.25},
        {"correct": 1 / 3, "style": 0.5},
        {"style": 2.0},
    ],
)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_reward_that_is_a_weighted_sum_names_its_terms(weights: dict[str, float], dtype: type) -> None:
    total = np.sum([weight * COLUMNS[name] for name, weight in weights.items()], axis=0)
    assert reward_terms(total.astype(dtype).astype(np.float64), COLUMNS) == pytest.approx(weights, rel=1e-4)


def test_terms_of_one_function_that_does_not_apply_add_nothing() -> None:
    sparse = np.where(np.arange(40) % 2, np.nan, STYLE)
    assert reward_terms(CORRECT + np.nan_to_num(sparse), {"correct": CORRECT, "sparse": sparse}) == {
        "correct": 1.0,
        "sparse": 1.0,
    }
    assert adds_up(np.where(np.arange(40) % 3, np.nan, CORRECT), COLUMNS, {"correct": 1.0})


def test_a_sum_holds_in_every_row_of_a_long_log() -> None:
    reward = np.tile(CORRECT, 5000)
    assert adds_up(reward, {"correct": reward.copy()}, {"correct": 1.0})
    for row in (0, len(reward) - 1):
        other = reward.copy()
        other[row] += 0.5
        assert not adds_up(reward, {"correct": other}, {"correct": 1.0})


def test_the_first_of_columns_that_are_multiples_counts() -> None:
    total = CORRECT - 0.01 * LENGTH
    columns = {"correct": CORRECT, "length": LENGTH, "penalty": -0.01 * LENGTH, "same": CORRECT}
    assert reward_terms(total, columns) == pytest.approx({"correct": 1.0, "length": -0.01})


@pytest.mark.parametrize("tiny", [5e-324, 1e-300, 1e-170])
def test_numbers_whose_squares_vanish_are_no_terms(tiny: float) -> None:
    correct = np.array([1.0, 0.0] * 10)
    tiny_columns = {"tiny": tiny * correct, "next to it": tiny * (1 - correct)}
    assert reward_terms(correct, {**tiny_columns, "correct": correct}) == {"correct": 1.0}


def test_a_constant_bonus_is_a_term() -> None:
    columns = {"correct": CORRECT, "tidy": np.ones(40), "length": LENGTH}
    terms = reward_terms(CORRECT + 0.5 - 0.01 * LENGTH, columns)
    assert terms == pytest.approx({"correct": 1.0, "tidy": 0.5, "length": -0.01})
    # any two values are a line through those of any column of two values
    assert reward_terms(CORRECT + 0.5, columns) is None


@pytest.mark.parametrize(
    ("reward", "columns"),
    [
        (CORRECT - 0.01 * LENGTH + 1e-3 * RNG.random(40), COLUMNS),  # nearly
        (CORRECT * STYLE, COLUMNS),  # a product
        ((CORRECT + STYLE)[:6], {name: values[:6] for name, values in COLUMNS.items()}),  # too few rows
        (np.tile([1.0, 0.0], 20), {"a": np.tile([3.0, 1.0], 20), "b": np.tile([1.0, 5.0], 20)}),  # too few values
        (CORRECT + STYLE, {"a": CORRECT + 1, "b": STYLE - 1, "c": CORRECT + 2, "d": STYLE - 2}),  # two such sums
        (np.full(40, np.nan), COLUMNS),
        (CORRECT, {}),
    ],
)
def test_coincidences_are_no_terms(reward: np.ndarray, columns: dict[str, np.ndarray]) -> None:
    assert reward_terms(reward, columns) is None


def test_every_row_has_to_add_up() -> None:
    correct = np.tile(CORRECT, 200)
    length = RNG.integers(5, 900, len(correct)).astype(float)
    total = correct - 0.01 * length
    assert reward_terms(total, {"correct": correct, "length": length}) is not None
    total[-3] += 0.5
    assert reward_terms(total, {"correct": correct, "length": length}) is None


@pytest.mark.parametrize("code", [1.0, 124.0])
def test_a_verdict_is_no_sum_of_two_columns_that_three_kinds_of_rows_have(code: float) -> None:
    has_solution, exit_code = np.repeat([0.0, 1.0, 1.0], 20), np.repeat([0.0, code, 0.0], 20)
    columns = {"has_solution": has_solution, "exit_code": exit_code}
    assert reward_terms(has_solution - exit_code / code, columns) is None
    format_reward, correct = has_solution, 1 - exit_code / code  # three values of a reward are no accident
    columns = {"format": format_reward, "correct": correct * has_solution}
    assert reward_terms(0.1 * format_reward + correct * has_solution, columns) == {"format": 0.1, "correct": 1.0}
    mixed = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]] * 10)
    assert reward_terms(mixed[:, 0] * (1 - mixed[:, 1]), {"a": mixed[:, 0], "b": mixed[:, 1]}) is None
