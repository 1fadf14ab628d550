from __future__ import annotations

from pathlib import Path

import pytest

from gradscope.rollouts.growth import extent_of


def test_extents_change_with_what_is_written(tmp_path: Path) -> None:
    log = tmp_path / "completions" / "1.jsonl"
    log.parent.mkdir()
    log.write_text("a\n")
    before = extent_of(tmp_path)
    assert extent_of(tmp_path) == before
    assert before.keys() == extent_of(log).keys() == extent_of(log.parent / "*.jsonl").keys()
    log.write_text("a\nb\n")
    assert extent_of(tmp_path) != before


def test_a_file_that_vanishes_between_listing_and_looking_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glob.glob", lambda _: [str(tmp_path / "gone.partial")])
    assert extent_of(tmp_path / "*") == {}
