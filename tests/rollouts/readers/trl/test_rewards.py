from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gradscope.errors import InputError
from gradscope.rollouts.readers.trl.files import StepFile, read_step_file
from gradscope.rollouts.readers.trl.rewards import reward_weights, scalar_reward
from gradscope.rollouts.readers.trl.state import TrlState
from gradscope.rollouts.run import TrainerSettings
from tests.rollouts.trl_folder import rows, write_file


@pytest.fixture
def file(tmp_path: Path) -> StepFile:
    content = rows(["a", "a"], [1, 0], neat=[1.0, 1.0], parsed=[3, 4], guess=[0.5, 0.5])
    return read_step_file(write_file(tmp_path, 1, content))


def state(*means: tuple[float, float, float]) -> TrlState:
    names = ("rewards/right/mean", "rewards/neat/mean", "reward")
    return TrlState(metrics={step: dict(zip(names, row, strict=True)) for step, row in enumerate(means, start=1)})


def settings(**values: Any) -> TrainerSettings:
    return TrainerSettings(values=values, origin="RUN.json")


def test_given_weights_are_used_in_the_order_of_the_columns(file: StepFile) -> None:
    found = reward_weights([file], state((0, 0, 0)), settings(reward_weights=[1.0, 0.1]))
    assert found.weights == {"right": 1.0, "neat": 0.1}
    assert (found.inferred, found.missing) == ((), ())


@pytest.mark.parametrize("given", [[1.0], "1"])
def test_weights_that_do_not_fit_are_refused(file: StepFile, given: Any) -> None:
    with pytest.raises(
        InputError, match=r"RUN\.json gives reward_weights .*the log has 2 reward functions: right, neat"
    ):
        reward_weights([file], state((0, 0, 0)), settings(reward_weights=given))


@pytest.mark.parametrize(
    ("given", "means", "number"),
    [
        ([1.0, 1.0, 0.5], (0.5, 1.0, 0.6), 3),  # three weights, two columns
        (None, (0.5, 1.0, 2.0), 3),  # 2 * 0.5 + 1.0: two functions are called "right"
    ],
)
def test_functions_that_share_a_name_leave_the_reward_unknown(
    file: StepFile, given: Any, means: tuple[float, float, float], number: int
) -> None:
    found = reward_weights([file], state(means, (0.25, 0.75, 1.25)), settings(reward_weights=given))
    assert f"{number} reward functions have 2 names (right, neat)" in found.missing[0]
    rewards, reward = scalar_reward(file.rows[0], found.weights)
    assert (rewards, reward) == ({"right": 1.0, "neat": 1.0}, None)


def test_weights_are_fitted_to_the_logged_means(file: StepFile) -> None:
    found = reward_weights([file], state((0.5, 1.0, 0.6), (0.25, 0.5, 0.3), (0.75, 0.125, 0.7625)), TrainerSettings())
    assert found.weights == {"right": 1.0, "neat": 0.1}
    assert found.inferred == ("Reward weights fitted to 3 logged steps: right 1, neat 0.1.",)


@pytest.mark.parametrize(
    "means",
    [
        [(0.5, 1.0, 0.6)],  # fewer steps than functions
        [(0.5, 1.0, 0.6), (0.25, 0.5, 0.3)],  # always in the same proportion
        [(0.5, 1.0, 0.6), (0.25, 0.5, 0.9), (0.75, 0.125, 0.1)],  # no weights fit
        [(0.0, 0.0, 0.0), (0.0, 0.0, 0.0)],
    ],
)
def test_weights_that_the_log_does_not_determine_are_one_and_said(file: StepFile, means: list[Any]) -> None:
    found = reward_weights([file], state(*means), TrainerSettings())
    assert found.weights == {"right": 1.0, "neat": 1.0}
    assert f"{len(means)} logged steps do not determine them; 1 each was used" in found.missing[0]


def test_without_a_log_the_leading_doubles_are_the_reward_functions(file: StepFile) -> None:
    found = reward_weights([file], TrlState(), settings(reward_weights=[1.0, 0.1]))
    assert tuple(found.weights) == ("right", "neat")
    assert "right, neat: the columns of type double after the completion" in found.inferred[0]


def test_no_column_of_rewards(tmp_path: Path) -> None:
    content = [{key: value for key, value in row.items() if key != "right"} for row in rows(["a", "a"], [1, 0])]
    with pytest.raises(InputError, match="has no column of rewards"):
        reward_weights([read_step_file(write_file(tmp_path, 1, content))], TrlState(), TrainerSettings())


def test_a_function_that_does_not_apply_is_left_out_of_the_sum() -> None:
    weights = {"right": 1.0, "neat": 0.5}
    assert scalar_reward({"right": 1.0, "neat": 1.0}, weights) == ({"right": 1.0, "neat": 1.0}, 1.5)
    assert scalar_reward({"right": None, "neat": 1.0}, weights) == ({"right": None, "neat": 1.0}, 0.5)
    assert scalar_reward({"right": float("nan"), "neat": None}, weights) == ({"right": None, "neat": None}, None)


def test_the_default_of_the_arguments_is_one_each(file: StepFile) -> None:
    found = reward_weights([file], state((0.5, 1.0, 0.6), (0.25, 0.5, 0.3)), settings(reward_weights=None))
    assert set(found.weights.values()) == {1.0}
    assert (found.inferred, found.missing) == ((), ())


def test_means_over_other_rollouts_tell_no_weights(file: StepFile) -> None:
    name = next(name for name in file.columns if name in ("right", "neat"))
    at = file.cells.column_names.index(name)
    cells = pa.array([None, *file.cells[name].to_pylist()[1:]], type=pa.float64())
    gaps = replace(file, cells=file.cells.set_column(at, name, cells))
    found = reward_weights([gaps], state((0.5, 1.0, 0.6), (0.25, 0.5, 0.3)), TrainerSettings())
    assert set(found.weights.values()) == {1.0}
    (missing,) = found.missing
    assert "--run-config gives them" in missing
