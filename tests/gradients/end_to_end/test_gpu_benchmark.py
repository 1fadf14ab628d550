"""`benchmarks/gpu.py` on a machine without a GPU: every section runs, and nothing that was measured is lost."""

from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu_sections import SECTIONS
from benchmarks.gpu_setting import Row, Table
from tests.forked import ForkedPython


@pytest.mark.slow
def test_a_dry_run_does_every_section(tmp_path: Path) -> None:
    running = ForkedPython(["-m", "benchmarks.gpu", "--output", str(tmp_path / "gpu.md"), "--dry-run"])
    printed, errors = running.communicate()
    assert running.returncode == 0, printed + errors
    rows = [line.split("|")[1:-1] for line in printed.splitlines() if line.startswith("| ")][1:]
    assert list(dict.fromkeys(row[0].strip() for row in rows)) == [section.name for section in SECTIONS]
    assert {len(row) for row in rows} == {7}
    assert all(any(cell.strip() for cell in row[2:]) for row in rows)
    assert (tmp_path / "gpu.md").read_text() == printed


@pytest.mark.parametrize(
    ("error", "cell"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), "out of memory"),
        (OSError("no space left"), "failed: OSError: no space left"),
        (TimeoutError(), "out of time"),
    ],
)
def test_a_case_that_fails_is_a_row(error: Exception, cell: str, tmp_path: Path, capsys: Any) -> None:
    table = Table(tmp_path / "gpu.md", "heading")
    with table.says_what_went_wrong("steps", "8B"):
        raise error
    table.add("steps", "4B", Row([2.0, 1.0, 4.0], plain=1.0, floor=0.5, peak=3e9))
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].startswith(f"| steps | 8B |  |  |  |  | {cell}")
    assert lines[-1] == "| steps | 4B | 2 (1-4) | 2.00 | 4.00 | 3.00 |  |"
    assert (table.num_rows, table.failed) == (2, 1)
    assert (tmp_path / "gpu.md").read_text().splitlines() == lines
