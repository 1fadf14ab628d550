from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gradscope.rollouts.growth import log_extent


def test_extents_change_with_what_is_written(tmp_path: Path) -> None:
    log = tmp_path / "completions" / "1.jsonl"
    log.parent.mkdir()
    log.write_text("a\n")
    before = log_extent(tmp_path)
    assert log_extent(tmp_path) == before
    assert before.keys() == log_extent(log).keys() == log_extent(log.parent / "*.jsonl").keys()
    log.write_text("a\nb\n")
    assert log_extent(tmp_path) != before


def test_a_log_at_a_url_has_an_extent_too(memory: Any) -> None:
    memory.pipe("/run/1.jsonl", b"a\n")
    before = log_extent("memory://run")
    assert log_extent("memory://run") == before
    memory.pipe("/run/1.jsonl", b"a\nb\n")
    assert log_extent("memory://run") != before


def test_a_url_of_a_local_folder_is_that_folder(tmp_path: Path) -> None:
    (tmp_path / "1.jsonl").write_text("a\n")
    assert log_extent(tmp_path.as_uri()) == log_extent(tmp_path)


def test_a_file_that_vanishes_between_listing_and_looking_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glob.glob", lambda _: [str(tmp_path / "gone.partial")])
    assert log_extent(tmp_path / "*") == {}
