from __future__ import annotations

import json
from pathlib import Path

import pytest

from gradscope.results.source import Quarantine
from gradscope.rollouts.readers.beside.metric_lines import metric_lines
from gradscope.rollouts.readers.parsing import jsonl
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog


def test_lines_of_one_step_are_joined_under_common_names(tmp_path: Path) -> None:
    lines = [{"step": 1, "x/norm": 0.5}, {"step": 1, "note": "text", "loss": 2}, {"step": None, "loss": 9}]
    file = tmp_path / "metrics.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    quarantine = QuarantineLog()
    assert metric_lines([file], {"x/norm": "grad_norm"}, quarantine) == {1: {"grad_norm": 0.5, "loss": 2.0}}
    assert quarantine.result() == Quarantine()


@pytest.mark.parametrize("damage", ["garbage", "[1]", '{"step": 2, "x": 9', "\x00"])
def test_a_line_that_cannot_be_read_is_lost(tmp_path: Path, damage: str) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1, "x": 1}\n' + f"{damage}\n" * 2 + '\n{"step": 3, "x": 3}\n')
    quarantine = QuarantineLog()
    assert metric_lines([file], {}, quarantine) == {1: {"x": 1.0}, 3: {"x": 3.0}}
    (lost,) = quarantine.result().lost
    assert lost.startswith("2 lines of metrics cannot be used: ")
    assert lost.endswith(f"(first at {file}:2).")


def test_a_last_line_may_be_being_written(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1, "x": 1}\n{"step": 2, "x')
    quarantine = QuarantineLog()
    assert metric_lines([file], {}, quarantine) == {1: {"x": 1.0}}
    assert quarantine.result() == Quarantine()


def test_a_file_that_is_not_read_to_its_end_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "MOST_FLAWED", 5)
    file = tmp_path / "metrics.jsonl"
    file.write_text("garbage\n" * 6)
    quarantine = QuarantineLog()
    assert metric_lines([file], {}, quarantine) == {}
    assert quarantine.result().lost[-1] == f"{file} has no row in 5 lines from line 1 on."
