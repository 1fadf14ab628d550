from __future__ import annotations

from pathlib import Path

import pytest

from gradscope.errors import OutputExistsError
from gradscope.rollouts.files import atomic_write


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
