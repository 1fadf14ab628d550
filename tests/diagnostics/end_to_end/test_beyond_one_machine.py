"""What docs/logs.md says of many machines, run: a cluster of two workers, and some jobs of an array."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from gradscope.diagnostics.degeneracy.measure import measure_degeneracy
from gradscope.render.files import document_of

pytestmark = pytest.mark.slow

PAGE = Path(__file__).resolve().parents[3] / "docs/logs.md"


def example(language: str) -> str:
    """The code of the section in some language."""
    section = PAGE.read_text(encoding="utf-8").partition("## Beyond one machine")[2]
    (code,) = re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)
    return str(code)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a run of three files, of which groups go on in the next."""
    rollouts = tmp_path / "outputs/my-run/rollouts"
    rollouts.mkdir(parents=True)
    rows = [
        {
            "step": step,
            "group_id": f"g{group}",
            "prompt": f"q{group}",
            "reward": float((step + group * sample) % 3 == 0),
        }
        for step in range(1, 4)
        for group in range(7)
        for sample in range(4)
    ]
    for file in range(3):
        chunk = rows[file * 28 - 2 * (file > 0) : (file + 1) * 28 - 2 * (file < 2)]
        text = "".join(f"{json.dumps(row)}\n" for row in chunk)
        (rollouts / f"{file}.jsonl").write_text(text, encoding="utf-8")
    return tmp_path


def assert_parts_are_the_log(folder: Path, num_parts: int) -> None:
    assert len(list((folder / "parts").iterdir())) == num_parts
    parts, log = folder / "parts", folder / "outputs/my-run/rollouts"
    merged, wanted = (document_of(measure_degeneracy(path)) for path in (parts, log))
    files = [str(path) for path in sorted(log.iterdir())]
    assert [file["sha256"] for file in merged["inputs"]] == [file["sha256"] for file in wanted["inputs"]]
    for document, names in ((merged, [str(Path(file).relative_to(folder)) for file in files]), (wanted, files)):
        assert document["result"]["source"].pop("files") == names
        assert document["result"]["source"].pop("path")
    assert merged["result"] == wanted["result"]


def run(command: Sequence[str], folder: Path, **environment: str) -> str:
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_two_workers_of_a_cluster(folder: Path) -> None:
    pytest.importorskip("distributed", reason="needs Dask: pip install 'gradscope[engine]'")
    (folder / "reduce.py").write_text(example("python"), encoding="utf-8")
    output = run([sys.executable, "reduce.py"], folder)
    assert "DegeneracyReport" in output or "degeneracy" in output
    assert_parts_are_the_log(folder, 3)


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash, which runs the jobs")
def test_jobs_of_an_array(folder: Path) -> None:
    (folder / "gradscope").write_text(f'#!/bin/bash\nexec "{sys.executable}" -m gradscope "$@"\n', encoding="utf-8")
    (folder / "gradscope").chmod(0o755)
    (folder / "job").write_text(example("bash"), encoding="utf-8")
    for job in (0, 1, 2, 3):
        run(["bash", "job"], folder, SLURM_ARRAY_TASK_ID=str(job), PATH=f"{folder}:{os.environ['PATH']}")
    assert_parts_are_the_log(folder, 3)
