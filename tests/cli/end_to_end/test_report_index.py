import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.conftest import LOGS

FIXTURE = LOGS / "trl"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two runs, one of them a folder further down, and a third that cannot be read."""
    for name in ("b", "grid/a", "broken"):
        shutil.copytree(FIXTURE, tmp_path / "runs" / name)
    for file in (tmp_path / "runs/broken/completions").iterdir():
        file.write_bytes(b"no parquet")
    return tmp_path / "runs"


def test_a_folder_of_runs_gives_an_index(cli: Cli, folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "index.html"
    done = cli("report", folder, "--output", page)
    assert done.code == 0
    assert max(len(line) for line in done.out.splitlines() if not line.startswith("$ ")) <= 80
    output = " ".join(done.out.split())
    assert "not read: broken: " in output
    assert "The reward rises beyond chance in" in output
    text = page.read_text(encoding="utf-8")
    assert text.count("<article ") == 2
    assert f"gradscope report {folder / 'grid/a'}" in text
    assert "not read: broken: " in text


def test_strict_refuses_unreadable_runs_and_names_a_single_run(cli: Cli, folder: Path, tmp_path: Path) -> None:
    done = cli("report", folder, "--output", tmp_path / "a.html", "--strict")
    assert (done.code, "cannot be summarized" in done.err) == (2, True)
    assert not (tmp_path / "a.html").exists()
    shutil.rmtree(folder / "broken")
    shutil.rmtree(folder / "grid")
    assert f"{folder / 'b'} is." in cli("report", folder, "--output", tmp_path / "a.html").err
