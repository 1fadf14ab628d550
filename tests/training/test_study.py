"""The quick version of the study: it runs, its tables hold every cell and pair, and a page takes them in."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

pytestmark = pytest.mark.slow

BEGIN, END = "<!-- tables of benchmarks/study_sign.py -->", "<!-- end of tables -->"


def run_study(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(REPOSITORY / "benchmarks" / "study_sign.py"), *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_the_quick_study_fills_its_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n\n{BEGIN}\n\nold\n\n{END}\n\nafter\n")
    done = run_study("--quick", "--output", tmp_path / "grid", "--page", page)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("wrote ") == 6
    text = page.read_text()
    assert text.startswith("before\n\n")
    assert text.endswith(f"{END}\n\nafter\n")
    assert "old" not in text
    for part in ("| dr_grpo | 2 |", "| sign | 2 |", "| train_reward | sign - grpo |", "One task and one model"):
        assert part in text
    again = run_study("--quick", "--output", tmp_path / "grid", "--page", page)
    assert "wrote " not in again.stdout
    assert page.read_text() == text


def test_a_page_without_the_markers_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing\n")
    done = run_study("--quick", "--output", tmp_path / "grid", "--page", page)
    assert done.returncode == 2
    assert "has no line" in done.stderr
    assert not (tmp_path / "grid").exists()
