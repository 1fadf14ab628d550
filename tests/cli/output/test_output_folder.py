from __future__ import annotations

from pathlib import Path

import pytest

from gradscope.cli.output.output_folder import staged_folder
from gradscope.errors import OutputExistsError
from tests.cli.conftest import Cli


def test_a_folder_with_something_in_it_is_refused_before_any_work(cli: Cli, log: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    done = cli("degeneracy", log, "--output", tmp_path / "out")
    assert (done.code, done.out) == (2, "")
    assert "is not empty" in done.err
    assert "--force" in done.err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine.txt"]


def test_force_replaces_its_own_files_and_leaves_the_others(cli: Cli, log: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "mine.txt").write_text("mine")
    (folder / "degeneracy.json").write_text("old")
    assert cli("degeneracy", log, "--output", folder, "--force").code == 0
    assert (folder / "mine.txt").read_text() == "mine"
    assert (folder / "degeneracy.json").read_text() != "old"


def test_an_empty_folder_is_taken(cli: Cli, log: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert cli("degeneracy", log, "--output", tmp_path / "out").code == 0


def test_a_failed_command_leaves_nothing_behind(cli: Cli, tmp_path: Path) -> None:
    assert cli("degeneracy", tmp_path / "absent", "--output", tmp_path / "out").code == 2
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(OutputExistsError, match="is a file"), staged_folder(tmp_path / "out", force=True):
        pass
    assert (tmp_path / "out").read_text() == "mine"


def test_an_exception_removes_what_was_staged(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half.txt").write_text("half")
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"), staged_folder(tmp_path / "out", force=False) as folder:
        fail(folder)
    assert list(tmp_path.iterdir()) == []
