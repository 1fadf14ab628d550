"""Files written by hand, and what is said where one is not what it should be."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradscope.diagnostics.inputs.toml_file import read_toml
from gradscope.errors import InputError


def test_tables_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('[check]\nrequire = ["pass@8 >= 0.4"]\n')
    assert read_toml(tmp_path / "a.toml") == {"check": {"require": ["pass@8 >= 0.4"]}}


@pytest.mark.parametrize(("text", "words"), [(None, "cannot be read"), ("[check", "is not TOML")])
def test_an_unusable_file_is_named(tmp_path: Path, text: str | None, words: str) -> None:
    if text is not None:
        (tmp_path / "a.toml").write_text(text)
    with pytest.raises(InputError, match=f"a.toml {words}"):
        read_toml(tmp_path / "a.toml")
