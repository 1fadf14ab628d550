from __future__ import annotations

from pathlib import Path

import pytest

from gradscope.errors import InputError
from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.readers.detect import read_run
from tests.rollouts.trl_folder import entry, rows, write_file, write_state

AABB = ["a", "a", "b", "b"]


def test_files_of_steps_with_an_evaluation_are_left_out(tmp_path: Path) -> None:
    write_file(tmp_path, 1, rows(AABB, [1, 0, 0, 0]))
    write_file(tmp_path, 2, rows(["x", "x", "y", "y"], [1, 1, 1, 1]))
    write_state(tmp_path, entry(1), entry(2), {"step": 2, "eval_reward": 1.0})
    run = read_run(tmp_path)
    assert run.steps == (1,)
    assert any(said.endswith("are left out: 2.") for said in run.source.inferred)


def test_an_evaluation_does_not_hide_that_a_batch_was_used_again(tmp_path: Path) -> None:
    """At step 2 the trainer logged no reward of training: its batch is that of step 1, whatever its file holds."""
    for step in (1, 2, 3):
        write_file(tmp_path, step, rows(AABB, [step % 2, 0, 0, 0]))
    write_state(tmp_path, entry(1), {"step": 2, "grad_norm": 0.1}, {"step": 2, "eval_reward": 1.0}, entry(3))
    run = read_run(tmp_path)
    assert run.steps == (1, 3)
    assert any("step 2 repeats 1" in said for said in run.source.inferred)


def test_a_log_of_nothing_but_evaluation_is_refused(tmp_path: Path) -> None:
    write_file(tmp_path, 2, rows(AABB, [1, 1, 1, 1]))
    write_state(tmp_path, {"step": 2, "eval_reward": 1.0})
    with pytest.raises(InputError, match=r"Every file of completions in .* holds evaluation rows"):
        read_run(tmp_path)


def test_a_repeated_batch_counts_once(tmp_path: Path) -> None:
    batch = rows(AABB, [1, 0, 0, 0])
    for step in (1, 2):
        write_file(tmp_path, step, batch)
    write_state(tmp_path, entry(1), {"step": 2, "loss": 0.1})
    run = read_run(tmp_path)
    assert run.steps == (1,)
    assert "also served step 2" in str(run.notes[1])
    assert any("step 2 repeats 1" in said for said in run.source.inferred)


def test_a_batch_that_came_out_equal_again_counts_again(tmp_path: Path) -> None:
    batch = rows(AABB, [1, 0, 0, 0])
    for step in (1, 2):
        write_file(tmp_path, step, batch)
    write_state(tmp_path, entry(1), entry(2))
    assert read_run(tmp_path).steps == (1, 2)


def test_the_run_is_found_from_its_parts(tmp_path: Path) -> None:
    file = write_file(tmp_path, 1, rows(AABB, [1, 0, 0, 0]))
    write_file(tmp_path, 2, rows(AABB, [1, 0, 0, 1]))
    write_state(tmp_path / "checkpoint-2", entry(1, grad_norm=2.0), entry(2))
    for path, steps in ((tmp_path, (1, 2)), (file.parent, (1, 2)), (file, (1,))):
        run = read_run(path)
        assert run.steps == steps
        assert run.metrics[1]["grad_norm"] == 2.0


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    path = write_file(tmp_path, 1, rows(AABB, [1, 0, 0, 0]))
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(InputError, match=r"completions_00001\.parquet is not a readable Parquet file"):
        read_run(tmp_path)


def test_a_file_that_is_not_trls_says_so(tmp_path: Path) -> None:
    content = [{key: value for key, value in row.items() if key != "advantage"} for row in rows(AABB, [1, 0, 0, 0])]
    write_file(tmp_path, 1, content)
    with pytest.raises(InputError, match="lacks the column advantage that TRL writes"):
        read_run(tmp_path)
    write_file(tmp_path, 1, [row | {"step": at} for at, row in enumerate(rows(AABB, [1, 0, 0, 0]))])
    with pytest.raises(InputError, match="does not hold one step, as TRL writes it"):
        read_run(tmp_path)


def test_a_folder_without_completions_says_how_to_log_them(tmp_path: Path) -> None:
    write_state(tmp_path, entry(1))
    with pytest.raises(InputError, match=r"holds no completions/completions_") as caught:
        read_run(tmp_path, ReadOptions(reader="trl"))
    assert "log_completions=True" in (caught.value.hint or "")
