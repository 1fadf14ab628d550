from __future__ import annotations

import json
from pathlib import Path

import pytest

from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.readers.detect import read_run
from tests.rollouts.trl_folder import entry, rows, write_file, write_state

AABB = ["a", "a", "b", "b"]


@pytest.mark.parametrize(("per_generation", "note"), [(4, None), (8, "serves 8 micro-batches and an update takes 4")])
def test_the_arguments_say_whether_an_update_saw_the_whole_batch(
    tmp_path: Path, per_generation: int, note: str | None
) -> None:
    batch = rows(AABB, [1, 0, 0, 0])
    for step in (1, 2):
        write_file(tmp_path / "run", step, batch)
    write_state(tmp_path / "run", entry(1), {"step": 2, "loss": 0.1})
    config = tmp_path / "RUN.json"
    config.write_text(json.dumps({"steps_per_generation": per_generation, "gradient_accumulation_steps": 4}))
    notes = read_run(tmp_path / "run", ReadOptions(trainer_args=config)).notes
    assert (1 in notes) == (note is not None)
    assert note is None or note in notes[1]


def test_a_batch_that_was_sampled_for_an_earlier_update_is_noted(tmp_path: Path) -> None:
    write_file(tmp_path / "run", 2, rows(AABB, [1, 0, 0, 0]))
    write_state(tmp_path / "run", {"step": 1, "reward": 0.5}, {"step": 2, "loss": 0.1})
    assert "logged no reward at this step" in read_run(tmp_path / "run").notes[2]
    config = tmp_path / "RUN.json"
    config.write_text(json.dumps({"steps_per_generation": 2, "gradient_accumulation_steps": 2, "num_iterations": 2}))
    assert (
        read_run(tmp_path / "run", ReadOptions(trainer_args=config)).notes[2]
        == "The batch was sampled for update 1 and served again."
    )


def test_a_logging_window_is_noted(tmp_path: Path) -> None:
    for step in (3, 6, 7):
        write_file(tmp_path, step, rows(AABB, [1, 0, 0, step % 2]))
    write_state(tmp_path, entry(3), entry(6), entry(7))
    run = read_run(tmp_path)
    assert sorted(run.notes) == [3, 6]
    assert run.notes[3] == "The trainer logged the mean of 3 steps; the file holds the rollouts of the last only."
