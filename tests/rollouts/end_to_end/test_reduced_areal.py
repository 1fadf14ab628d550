"""Reduced trajectories of AReaL have the answers of the row reader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.rollouts.readers.reduced import assert_same, in_small_blocks, mutated, write_lines


@pytest.fixture(autouse=True)
def reduced(monkeypatch: pytest.MonkeyPatch) -> None:
    in_small_blocks(monkeypatch)


def row(step: int = 1, task: Any = 0, sample: Any = 0, **cells: Any) -> dict[str, Any]:
    usual = {"task_id": task, "sample_idx": sample, "head_version": step, "tail_version": step}
    return usual | {"reward": float(sample == 0), "prompt": f"{task}?", "completion": f"{sample}"} | cells


ROWS = [row(step, task, sample) for step in (1, 2) for task in (0, "t", 10) for sample in range(3)]


@pytest.mark.slow
def test_damaged_trajectories_have_the_answers_of_the_row_reader(tmp_path: Path) -> None:
    for seed in range(20):
        folder = tmp_path / str(seed)
        for number in range(1 + seed % 3):
            lines = mutated(ROWS, 10 * seed + number)
            write_lines(folder / f"rollout/{number}/0.jsonl", [json.dumps(row()), *lines], ended=seed % 2 == 0)
        assert_same(folder, is_reduced=True)


@pytest.mark.parametrize("begun", [0, "0", 1, 1.0, None, True, "x", "1_0", " 0", [0], 0.5])
def test_samples_that_were_begun_earlier_are_noted(tmp_path: Path, begun: Any) -> None:
    cells = [json.dumps(cells) for cells in (row(), row(1, 0, 1, head_version=begun), row(1, 0, 2))]
    write_lines(tmp_path / "rollout/1/0.jsonl", cells)
    run = assert_same(tmp_path, is_reduced=True)
    assert run is not None
    assert ("head_version" in run.source.inferred[-1]) == (begun in (0, "0", " 0") and begun is not False)
    assert run.groups[0].rollouts[0].rewards == {}
