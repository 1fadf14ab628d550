from pathlib import Path

import pytest

from gradscope import copies
from gradscope.copies import as_named, copy_of, note_copy


@pytest.fixture(autouse=True)
def _no_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "_NAMES", {})


def test_a_text_names_the_url_and_the_folder_above_it(tmp_path: Path) -> None:
    copy = tmp_path / "ab12" / "run"
    note_copy(copy, "s3://bucket/runs/run")
    assert as_named(f"{copy}/1.jsonl:3 is broken") == "s3://bucket/runs/run/1.jsonl:3 is broken"
    assert as_named(f"Name {copy.parent}.") == "Name s3://bucket/runs."
    assert as_named("/elsewhere/run") == "/elsewhere/run"


def test_a_file_is_opened_where_its_copy_lies(tmp_path: Path) -> None:
    copy = tmp_path / "run"
    copy.mkdir()
    (copy / "1.jsonl").write_text("{}\n")
    note_copy(copy, "s3://bucket/run")
    assert copy_of("s3://bucket/run/1.jsonl") == copy / "1.jsonl"
    assert copy_of("s3://bucket/run/gone.jsonl") == Path("s3://bucket/run/gone.jsonl")
    assert copy_of("s3://bucket/running") == Path("s3://bucket/running")
    assert copy_of(tmp_path) == tmp_path
