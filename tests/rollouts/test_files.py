from __future__ import annotations

from pathlib import Path

import pytest

from gradscope.errors import OutputExistsError
from gradscope.rollouts.files import atomic_folder, atomic_write


def test_a_file_appears_whole_and_is_not_overwritten_unasked(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.txt"
    atomic_write(path, "é")
    assert path.read_bytes() == "é".encode()
    with pytest.raises(OutputExistsError, match=r"a\.txt already exists"):
        atomic_write(path, b"other")
    assert path.read_bytes() == "é".encode()
    atomic_write(path, b"other", force=True)
    assert path.read_bytes() == b"other"
    assert list(path.parent.iterdir()) == [path]


def test_a_folder_appears_only_when_complete(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with pytest.raises(RuntimeError, match="halfway"), atomic_folder(path) as aside:
        _stop_halfway(aside)
    assert list(tmp_path.iterdir()) == []
    with atomic_folder(path) as aside:
        (aside / "a").touch()
        assert not path.exists()
    assert [file.name for file in path.iterdir()] == ["a"]


def test_a_folder_is_replaced_only_by_force_and_only_by_a_complete_one(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with atomic_folder(path) as aside:
        (aside / "old").touch()
    with pytest.raises(OutputExistsError, match="run already exists"), atomic_folder(path):
        pass
    with pytest.raises(RuntimeError, match="halfway"), atomic_folder(path, force=True) as aside:
        _stop_halfway(aside)
    assert (path / "old").exists()
    with atomic_folder(path, force=True) as aside:
        (aside / "new").touch()
    assert [file.name for file in path.iterdir()] == ["new"]


def _stop_halfway(aside: Path) -> None:
    (aside / "half").touch()
    raise RuntimeError("halfway")
