from __future__ import annotations

import json
from pathlib import Path

import pytest

from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.readers.detect import read_run
from tests.rollouts.trl_folder import entry, rows, write_file, write_state

AABB = ["a", "a", "b", "b"]


def config(folder: Path, **values: int) -> ReadOptions:
    (folder / "RUN.json").write_text(json.dumps(values))
    return ReadOptions(trainer_args=folder / "RUN.json")


def used_twice(folder: Path) -> Path:
    for step in (1, 2):
        write_file(folder / "run", step, rows(AABB, [1, 0, 0, 0]))
    write_state(folder / "run", entry(1), {"step": 2, "loss": 0.1})
    return folder / "run"


@pytest.mark.parametrize(
    ("per_generation", "cause", "text"),
    [
        (8, "batch_split", "serves 8 micro-batches and an update takes 4"),
        (2, "rollouts_missing", "An update takes 4 micro-batches and one generation serves 2"),
    ],
)
def test_the_arguments_say_why_a_file_is_not_its_update(
    tmp_path: Path, per_generation: int, cause: str, text: str
) -> None:
    run = used_twice(tmp_path)
    options = config(tmp_path, steps_per_generation=per_generation, gradient_accumulation_steps=4)
    found = read_run(run, options)
    assert found.notes[1].cause == cause
    assert text in str(found.notes[1])
    assert found.repeats == {}
    assert found.updates == (1,)


def test_a_batch_that_is_used_again_whole_serves_each_of_its_updates(tmp_path: Path) -> None:
    options = config(tmp_path, steps_per_generation=4, gradient_accumulation_steps=4, num_iterations=2)
    run = read_run(used_twice(tmp_path), options)
    assert (run.notes, run.repeats) == ({}, {2: 1})
    assert (run.steps, run.updates) == ((1,), (1, 2))
    assert {group.step for group in run.groups_at(2)} == {2}
    assert [group.rollouts for group in run.groups_at(2)] == [group.rollouts for group in run.groups_at(1)]


def test_without_arguments_a_batch_that_serves_several_updates_may_be_split(tmp_path: Path) -> None:
    run = read_run(used_twice(tmp_path))
    assert run.notes[1].cause == "settings_unknown"
    assert "also served step 2" in str(run.notes[1])
    write_file(tmp_path / "late", 2, rows(AABB, [1, 0, 0, 0]))
    write_state(tmp_path / "late", {"step": 1, "reward": 0.5}, {"step": 2, "loss": 0.1})
    assert "logged no reward at this step" in str(read_run(tmp_path / "late").notes[2])


def test_a_logging_window_is_no_reservation_against_the_rollouts(tmp_path: Path) -> None:
    for step in (3, 6, 7):
        write_file(tmp_path, step, rows(AABB, [1, 0, 0, step % 2]))
    write_state(tmp_path, entry(3), entry(6), entry(7))
    run = read_run(tmp_path)
    assert (run.notes, run.windows) == ({}, {3: 3, 6: 3})
    assert [run.is_means(step) for step in (3, 6, 7)] == [True, True, False]
