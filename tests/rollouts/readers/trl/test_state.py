from __future__ import annotations

from pathlib import Path

import pytest

from gradscope.rollouts.readers.trl.state import TrlState, read_state
from tests.rollouts.trl_folder import entry, write_state


def test_the_state_that_reaches_furthest_counts(tmp_path: Path) -> None:
    write_state(tmp_path / "checkpoint-10", entry(5), entry(10))
    newest = write_state(tmp_path / "checkpoint-20", entry(5), entry(10), entry(20))
    write_state(tmp_path, entry(5))
    found = read_state(tmp_path)
    assert (found.path, found.last_step, sorted(found.metrics)) == (newest, 20, [5, 10, 20])
    assert found.reward_names == ("right",)


def test_evaluation_and_summary_do_not_replace_what_training_logged(tmp_path: Path) -> None:
    write_state(
        tmp_path, entry(2, loss=0.1), {"step": 2, "eval_loss": 9.0}, {"step": 2, "loss": 7.0, "train_runtime": 1.0}
    )
    found = read_state(tmp_path)
    assert found.metrics[2]["loss"] == 0.1
    assert found.metrics[2]["train_runtime"] == 1.0
    assert found.eval_steps == {2}


def test_windows_run_from_entry_to_entry(tmp_path: Path) -> None:
    write_state(tmp_path, entry(3), entry(6), entry(7))
    found = read_state(tmp_path)
    assert [found.window(step) for step in (3, 5, 6, 7)] == [3, 0, 3, 1]


@pytest.mark.parametrize("content", ["{", "[]", '{"global_step": 1}', '{"global_step": 1, "log_history": [1]}'])
def test_a_damaged_state_is_named_and_the_next_one_read(tmp_path: Path, content: str) -> None:
    (tmp_path / "trainer_state.json").write_text(content)
    assert read_state(tmp_path) == TrlState(damaged=(tmp_path / "trainer_state.json",))
    write_state(tmp_path / "checkpoint-1", entry(1))
    found = read_state(tmp_path)
    assert found.last_step == 1
    assert found.damaged == (tmp_path / "trainer_state.json",)


def test_a_damaged_state_that_a_sound_one_reaches_beyond_costs_nothing(tmp_path: Path) -> None:
    for name in ("checkpoint-1", "checkpoint-3"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "trainer_state.json").write_text("{")
    write_state(tmp_path, entry(1), entry(2))
    assert read_state(tmp_path).damaged == (tmp_path / "checkpoint-3" / "trainer_state.json",)
    write_state(tmp_path, entry(1), entry(3))
    assert read_state(tmp_path).damaged == ()


def test_a_number_that_is_not_finite_is_a_metric_and_text_is_none(tmp_path: Path) -> None:
    write_state(tmp_path, {"step": 1, "kl": float("inf"), "grad_norm": float("nan"), "note": "x", "loss": 10**400})
    (values,) = read_state(tmp_path).metrics.values()
    assert {name: str(value) for name, value in values.items()} == {"kl": "inf", "grad_norm": "nan", "loss": "inf"}
