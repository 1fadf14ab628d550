"""Reduced summaries of the Tinker cookbook have the answers of the row reader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.rollouts.readers.reduced import assert_same, in_small_blocks, mutated, write_lines


@pytest.fixture(autouse=True)
def reduced(monkeypatch: pytest.MonkeyPatch) -> None:
    in_small_blocks(monkeypatch)


def row(step: int = 0, group: int = 0, sample: int = 0, **cells: Any) -> dict[str, Any]:
    usual = {"iteration": step, "group_idx": group, "traj_idx": sample, "total_reward": float(sample)}
    return usual | {"trajectory_metrics": {"correct": sample / 3, "for'mat": sample > 0, "note": "x"}} | cells


ROWS = [row(step, group, sample) for step in (0, 1) for group in (0, 1) for sample in range(3)]


def write(folder: Path, step: int, *lines: str, ended: bool = True) -> None:
    write_lines(folder / f"iteration_00000{step}" / "train_rollout_summaries.jsonl", lines, ended=ended)


@pytest.mark.slow
def test_damaged_summaries_have_the_answers_of_the_row_reader(tmp_path: Path) -> None:
    for seed in range(20):
        folder = tmp_path / str(seed)
        for step in range(1 + seed % 2):
            lines = mutated(ROWS, 10 * seed + step, within=("trajectory_metrics",))
            write(folder, step, json.dumps(row()), *lines, ended=seed % 2 == 0)
        assert_same(folder, is_reduced=True)


def test_a_row_without_an_iteration_has_that_of_its_folder(tmp_path: Path) -> None:
    bare = {name: cell for name, cell in row().items() if name != "iteration"}
    write(tmp_path, 5, json.dumps(bare), json.dumps(row(5)))
    run = assert_same(tmp_path, is_reduced=True)
    assert run is not None
    assert [(group.group_id, group.size) for group in run.groups] == [("5:0", 2)]


@pytest.mark.parametrize("value", [1.0, True, float("nan"), "x"])
def test_metrics_that_come_late_are_seen(tmp_path: Path, value: Any) -> None:
    late = row(trajectory_metrics={"late": value})
    write(tmp_path, 0, *(json.dumps(cells) for cells in (*[row()] * 20, late)))
    assert_same(tmp_path, is_reduced=True)


def test_summaries_without_metrics(tmp_path: Path) -> None:
    write(tmp_path, 0, *(json.dumps(row(trajectory_metrics=metrics)) for metrics in ({}, None, {"note": "x"})))
    assert_same(tmp_path, is_reduced=True)
