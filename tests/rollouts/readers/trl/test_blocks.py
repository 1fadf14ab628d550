from __future__ import annotations

import json
from pathlib import Path

import pytest

from gradscope.errors import InputError
from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.readers.detect import read_run
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
    content = [row | {"advantage": 1.0} for row in rows(AABB, [1, 0, 1, 0])]
    write_file(tmp_path, 1, content)
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
        with pytest.raises(InputError, match=r"num_generations"):
            read_run(tmp_path / "run", ReadOptions(trainer_args=config))


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("order", [[0, 1, 3], [0, 1, 2, 3, 3], [0, 2, 1, 3]])
def test_a_step_with_rows_lost_doubled_or_exchanged_costs_that_step(
    tmp_path: Path, order: list[int], given: bool
) -> None:
    for step in (1, 2, 4):
        write_file(tmp_path / "run", step, rows(AABB, [1, 0, 0, step]))
    whole = rows(AABB, [1, 0, 0, 3])
    write_file(tmp_path / "run", 3, [whole[row] for row in order])
    config = tmp_path / "RUN.json"
    config.write_text(json.dumps({"num_generations": 2}))
    run = read_run(tmp_path / "run", ReadOptions(trainer_args=config if given else None))
    assert run.steps == (1, 2, 4)
    assert {group.size for group in run.groups} == {2}
    (lost,) = run.source.quarantined.lost
    assert "completions_00003.parquet is left out: its rows do not come in groups of one prompt" in lost


def test_steps_of_which_neighbors_share_a_prompt_are_cut_as_the_others(tmp_path: Path) -> None:
    for step, prompts in enumerate(("aaaabbbb", "bbbbaaaa", "aabbccdd"), start=1):
        write_file(tmp_path, step, rows(list(prompts), [1, 0, step, 0, 1, 1, 0, step]))
    run = read_run(tmp_path)
    assert (run.steps, {group.size for group in run.groups}, run.source.quarantined.lost) == ((1, 2, 3), {2}, ())
