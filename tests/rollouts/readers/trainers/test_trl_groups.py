import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from gradscope.errors import InputError
from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.readers.trainers.trl_files import StepFile, TrlState, read_step_file
from gradscope.rollouts.readers.trainers.trl_groups import reward_weights, scalar_rewards
from gradscope.rollouts.run import TrainerSettings
from tests.rollouts.readers.lines import refusal
from tests.rollouts.trl_folder import entry, rows, write_file, write_state

AABB = ["a", "a", "b", "b"]


def test_neighboring_groups_of_one_prompt_are_cut_where_advantages_center(tmp_path: Path) -> None:
    write_file(tmp_path, 1, rows(["a"] * 4, [1, 0, 1, 1]))
    run = read_run(tmp_path)
    assert [group.size for group in run.groups] == [2, 2]
    assert "runs of 4 equal prompts, cut by the logged advantages" in run.source.inferred[-1]


def test_two_dead_groups_of_one_prompt_are_not_one_live_group(tmp_path: Path) -> None:
    write_file(tmp_path, 1, rows(["a"] * 4, [1, 1, 0, 0]))
    assert [group.rewards for group in read_run(tmp_path).groups] == [(1.0, 1.0), (0.0, 0.0)]


def test_the_logged_share_of_dead_groups_decides_where_advantages_are_of_another_kind(tmp_path: Path) -> None:
    content = [
        row | {"advantage": 2 * row["right"] - 1.0} for row in rows(["a"] * 4 + ["b"] * 4, [1, 1, 0, 1, 0, 0, 1, 0])
    ]
    write_file(tmp_path, 1, content)
    write_state(tmp_path, entry(1, frac_reward_zero_std=0.5))
    run = read_run(tmp_path)
    assert [group.size for group in run.groups] == [2, 2, 2, 2]
    assert "cut by the logged frac_reward_zero_std" in run.source.inferred[-1]


def test_advantages_that_are_not_centered_confirm_no_size(tmp_path: Path) -> None:
    write_file(tmp_path, 1, [row | {"advantage": 1.0} for row in rows(AABB, [1, 0, 1, 0])])
    run = read_run(tmp_path)
    assert [group.size for group in run.groups] == [2, 2]
    assert "nothing in the log confirms it" in run.source.inferred[-1]


def test_the_given_size_counts_and_must_fit(tmp_path: Path) -> None:
    write_file(tmp_path / "run", 1, rows(["a"] * 4, [0, 0, 0, 0]))
    config = tmp_path / "RUN.json"
    config.write_text(json.dumps({"args": {"num_generations": 2}}))
    run = read_run(tmp_path / "run", ReadOptions(trainer_args=config))
    assert [group.size for group in run.groups] == [2, 2]
    assert run.settings.origin == str(config)
    for wrong in (3, "2", 0):
        config.write_text(json.dumps({"num_generations": wrong}))
        refusal(tmp_path / "run", r"num_generations", ReadOptions(trainer_args=config))


@pytest.mark.parametrize("has_size", [True, False])
@pytest.mark.parametrize("order", [[0, 1, 3], [0, 1, 2, 3, 3], [0, 2, 1, 3]])
def test_rows_lost_doubled_or_exchanged_cost_their_step(tmp_path: Path, order: list[int], has_size: bool) -> None:
    for step in (1, 2, 4):
        write_file(tmp_path / "run", step, rows(AABB, [1, 0, 0, step]))
    intact = rows(AABB, [1, 0, 0, 3])
    write_file(tmp_path / "run", 3, [intact[row] for row in order])
    config = tmp_path / "RUN.json"
    config.write_text(json.dumps({"num_generations": 2}))
    run = read_run(tmp_path / "run", ReadOptions(trainer_args=config if has_size else None))
    assert run.steps == (1, 2, 4)
    assert {group.size for group in run.groups} == {2}
    (lost,) = run.source.quarantined.lost
    assert "completions_00003.parquet is left out: its rows do not come in groups of one prompt" in lost


def test_steps_of_which_neighbors_share_a_prompt_are_cut_as_the_others(tmp_path: Path) -> None:
    for step, prompts in enumerate(("aaaabbbb", "bbbbaaaa", "aabbccdd"), start=1):
        write_file(tmp_path, step, rows(list(prompts), [1, 0, step, 0, 1, 1, 0, step]))
    run = read_run(tmp_path)
    assert (run.steps, {group.size for group in run.groups}, run.source.quarantined.lost) == ((1, 2, 3), {2}, ())


def test_a_group_size_that_changes_is_read_from_prompts_and_advantages(tmp_path: Path) -> None:
    dead, live = [0.0] * 8, [1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0]
    for step, (size, rewards) in enumerate([(4, dead), (4, live), (4, dead), (2, live), (2, dead)], start=1):
        write_file(tmp_path, step, rows([str(index // size) for index in range(8)], rewards, size))
    run = read_run(tmp_path)
    assert [group.size for group in run.groups] == [4] * 6 + [2] * 8
    assert "The group size changes: groups are blocks of 4 and 2 rows" in run.source.inferred[-1]


@pytest.fixture
def file(tmp_path: Path) -> StepFile:
    content = rows(["a", "a"], [1, 0], neat=[1.0, 1.0], parsed=[3, 4], guess=[0.5, 0.5])
    return read_step_file(write_file(tmp_path, 1, content))


def state(*means: tuple[float, float, float]) -> TrlState:
    names = ("rewards/right/mean", "rewards/neat/mean", "reward")
    return TrlState(metrics={step: dict(zip(names, row, strict=True)) for step, row in enumerate(means, start=1)})


def settings(**values: Any) -> TrainerSettings:
    return TrainerSettings(values=values, origin="RUN.json")


@pytest.mark.parametrize(("named", "neat"), [([1.0, 0.1], 0.1), (None, 1.0)])
def test_given_weights_are_used_in_the_order_of_the_columns_else_one_each(
    file: StepFile, named: Any, neat: float
) -> None:
    weights = reward_weights([file], state((0.5, 1.0, 0.6), (0.25, 0.5, 0.3)), settings(reward_weights=named))
    assert weights.weights == {"right": 1.0, "neat": neat}
    assert (weights.inferred, weights.missing) == ((), ())


@pytest.mark.parametrize("named", [[1.0], "1"])
def test_weights_that_do_not_fit_are_refused(file: StepFile, named: Any) -> None:
    with pytest.raises(
        InputError, match=r"RUN\.json gives reward_weights .*the log has 2 reward functions: right, neat"
    ):
        reward_weights([file], state((0, 0, 0)), settings(reward_weights=named))


@pytest.mark.parametrize(
    ("named", "means", "number"),
    [
        ([1.0, 1.0, 0.5], (0.5, 1.0, 0.6), 3),  # three weights, two columns
        (None, (0.5, 1.0, 2.0), 3),  # 2 * 0.5 + 1.0: two functions are called "right"
    ],
)
def test_equal_names_hide_rewards(file: StepFile, named: Any, means: tuple[float, float, float], number: int) -> None:
    weights = reward_weights([file], state(means, (0.25, 0.75, 1.25)), settings(reward_weights=named))
    assert f"{number} reward functions have 2 names (right, neat)" in weights.missing[0]
    assert np.isnan(scalar_rewards({name: file.numbers_of(name) for name in weights.weights}, weights.weights)).all()


def test_weights_are_fitted_to_the_logged_means(file: StepFile) -> None:
    weights = reward_weights([file], state((0.5, 1.0, 0.6), (0.25, 0.5, 0.3), (0.75, 0.125, 0.7625)), TrainerSettings())
    assert weights.weights == {"right": 1.0, "neat": 0.1}
    assert weights.inferred == ("Reward weights fitted to 3 logged steps: right 1, neat 0.1.",)


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
    weights = reward_weights([file], state(*means), TrainerSettings())
    assert weights.weights == {"right": 1.0, "neat": 1.0}
    assert f"{len(means)} logged steps do not determine them; 1 each was used" in weights.missing[0]


def test_without_a_log_the_leading_doubles_are_the_reward_functions(file: StepFile) -> None:
    weights = reward_weights([file], TrlState(), settings(reward_weights=[1.0, 0.1]))
    assert tuple(weights.weights) == ("right", "neat")
    assert "right, neat: the columns of type double after the completion" in weights.inferred[0]


def test_no_column_of_rewards(tmp_path: Path) -> None:
    content = [{key: value for key, value in row.items() if key != "right"} for row in rows(["a", "a"], [1, 0])]
    with pytest.raises(InputError, match="has no column of rewards"):
        reward_weights([read_step_file(write_file(tmp_path, 1, content))], TrlState(), TrainerSettings())


def test_a_function_that_does_not_apply_is_left_out_of_the_sum() -> None:
    weights = {"right": 1.0, "neat": 0.5}
    rewards = {"right": np.array([1.0, np.nan, np.nan]), "neat": np.array([1.0, 1.0, np.nan])}
    np.testing.assert_array_equal(scalar_rewards(rewards, weights), [1.5, 0.5, np.nan])


def test_means_over_other_rollouts_tell_no_weights(file: StepFile) -> None:
    gaps = replace(file, lacking=frozenset({"right"}))
    weights = reward_weights([gaps], state((0.5, 1.0, 0.6), (0.25, 0.5, 0.3)), TrainerSettings())
    assert set(weights.weights.values()) == {1.0}
    (missing,) = weights.missing
    assert "--run-config gives them" in missing
