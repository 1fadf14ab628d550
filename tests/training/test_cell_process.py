"""Processes of cells: how they start and what is known of one that died."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest

from gradscope.training.cell_process import CellProcess, start_cell, stop_cells
from gradscope.training.setup.config import TrainConfig
from tests.training.conftest import SHORT

pytestmark = pytest.mark.slow  # each cell is a process that imports TRL


def start(folder: Path, **settings: Any) -> CellProcess:
    cell = TrainConfig.from_json(SHORT | settings | {"output": str(folder)})
    return start_cell(cell, ["train"], resume=False, force=False, on_gpu=settings.get("device") == "auto")


def wait(cell: CellProcess) -> None:
    cell.process.join()
    assert cell.has_ended


def test_a_killed_cell_is_a_failure_with_its_exit_code(tmp_path: Path) -> None:
    cell = start(tmp_path / "run", steps=500)
    while not (tmp_path / "run" / "manifest.json").exists():
        assert not cell.has_ended
        time.sleep(0.05)
    cell.process.kill()
    wait(cell)
    assert cell.failure == f"exit code -{signal.SIGKILL.value}"
    stop_cells([cell])


def test_where_there_is_a_gpu_a_cell_is_not_forked(tmp_path: Path) -> None:
    cell = start(tmp_path / "run", device="auto", model=str(tmp_path / "none"))
    wait(cell)
    assert cell.failure is not None
    assert "none' cannot be read" in cell.failure
    stop_cells([cell])
