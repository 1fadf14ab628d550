"""`benchmarks/gpu.py` on a machine without a GPU: every section runs, and nothing that was measured is lost."""

from pathlib import Path

import pytest

from benchmarks.gpu_sections import SECTIONS
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
