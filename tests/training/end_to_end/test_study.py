"""The quick version of each study: it runs, its tables hold every arm, its figures are drawn, a page takes them in."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

pytestmark = pytest.mark.slow

END = "<!-- end of tables -->"
STUDIES = {"study_sign": 6, "study_steps": 6, "study_five": 16}
"""Study -> runs of its quick version."""


def run_study(name: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", str(REPOSITORY / "benchmarks" / f"{name}.py"), *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def begin(name: str) -> str:
    return f"<!-- tables of benchmarks/{name}.py -->"


@pytest.mark.parametrize(("name", "num_runs"), STUDIES.items(), ids=STUDIES)
def test_the_quick_study_fills_its_page(tmp_path: Path, name: str, num_runs: int) -> None:
    page, images = tmp_path / "page.md", tmp_path / "images"
    page.write_text(f"before\n\n{begin(name)}\n\na table of yesterday\n\n{END}\n\nafter\n")
    arguments = ("--quick", "--output", tmp_path / "runs", "--page", page, "--images", images)
    done = run_study(name, *arguments)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("wrote ") == num_runs
    text = page.read_text()
    assert text.startswith("before\n\n")
    assert text.endswith(f"{END}\n\nafter\n")
    assert "yesterday" not in text
    assert "paired t tests, 2 seeds each" in text
    if name == "study_sign":  # the others measure or train for longer, and go on the same way
        again = run_study(name, *arguments)
        assert "wrote " not in again.stdout
        assert page.read_text() == text
    published = (REPOSITORY / "docs" / f"{name}.md").read_text()
    assert begin(name) in published
    shown = {word.split(")")[0] for word in published.split("](images/")[1:]}
    assert {path.name for path in images.glob("*.svg")} == shown
    assert text.count("### ") == published.count("### ") == 1  # the first table; the others are files beside the page
    for file in tmp_path.glob("*.csv"):
        head, *rows = csv.reader(file.read_text().splitlines())
        assert f"({file.name})" in published
        assert rows
        assert all(len(row) == len(head) for row in rows)
        known = next(csv.reader((REPOSITORY / "docs" / file.name).read_text().splitlines()))
        assert set(head) <= set(known)  # an interval may be missing where seeds are few
    assert len(list(tmp_path.glob("*.csv"))) == published.count(".csv)")


def test_a_page_without_the_markers_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing\n")
    done = run_study("study_sign", "--quick", "--output", tmp_path / "runs", "--page", page)
    assert done.returncode == 2
    assert "has no line" in done.stderr
    assert not (tmp_path / "runs").exists()
