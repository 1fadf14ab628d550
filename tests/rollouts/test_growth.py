from __future__ import annotations

from pathlib import Path

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


def test_a_file_that_vanishes_between_listing_and_looking_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glob.glob", lambda _: [str(tmp_path / "gone.partial")])
    assert log_extent(tmp_path / "*") == {}
