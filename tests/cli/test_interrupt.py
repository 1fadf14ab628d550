from __future__ import annotations

from pathlib import Path

import pytest

import gradscope.training.trainer
from tests.cli.conftest import Cli


def interrupt(*arguments: object, **options: object) -> None:
    raise KeyboardInterrupt


def test_ctrl_c_in_training_exits_130_and_says_how_to_go_on(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gradscope.training.trainer, "train", interrupt)
    done = cli("train", "--output", tmp_path / "run")
    assert (done.code, done.out) == (130, "")
    assert "--resume" in done.err
    assert done.err.endswith("interrupted\n")


def test_ctrl_c_in_an_analysis_leaves_nothing_behind(
    cli: Cli, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradscope.diagnostics.degeneracy.measure_degeneracy", interrupt)
    done = cli("degeneracy", log, "--output", tmp_path / "out")
    assert done == (130, "", "interrupted\n")
    assert [path.name for path in tmp_path.iterdir()] == [log.name]
