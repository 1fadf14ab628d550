from pathlib import Path

import pytest

from gradscope.training import train
from tests.cli.conftest import Cli


def interrupt(*arguments: object, **options: object) -> None:
    raise KeyboardInterrupt


def test_ctrl_c_in_training_says_how_to_resume(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"

    def interrupt_later(*arguments: object, **options: object) -> None:
        run.mkdir()
        (run / "manifest.json").write_text("{}")
        raise KeyboardInterrupt

    monkeypatch.setattr(train, "train", interrupt_later)
    done = cli("train", "--output", run)
    assert (done.code, done.out) == (130, "")
    assert done.err == (
        f"stopped; continue with `gradscope train --resume --config {run}/manifest.json --output {run}`\ninterrupted\n"
    )


def test_an_early_ctrl_c_leaves_nothing_to_resume(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "train", interrupt)
    assert cli("train", "--output", tmp_path / "run") == (130, "", "interrupted\n")


def test_ctrl_c_in_a_grid_says_how_to_go_on(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradscope.training.grid.train_grid", interrupt)
    done = cli("train", "--seeds", "0-1", "--output", tmp_path / "grid")
    assert done == (130, "", "stopped; the same command with --resume makes what is missing\ninterrupted\n")
