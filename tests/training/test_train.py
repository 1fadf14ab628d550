"""The front door of training: a configuration becomes a run, or is refused before anything is written."""

import json
import shutil
import sys
import types
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from gradscope.errors import InputError, MissingDependencyError, UsageError
from gradscope.rollouts.run_folder import manifest_path, read_metrics, step_path
from gradscope.training.train import train
from tests.trained import MakeRun
from tests.training.conftest import short_config
from tests.training.interrupted import LONG, config_for


def test_force_replaces_a_run(short_run: MakeRun, tmp_path: Path) -> None:
    run = shutil.copytree(short_run(), tmp_path / "run")
    train(short_config(tmp_path / "run", steps=1), force=True)
    assert list(read_metrics(run)) == [1]
    assert not step_path(run, 2).exists()


def test_resume_with_force_or_without_trl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="--resume goes on with a run and --force replaces it"):
        train(short_config(tmp_path / "run"), resume=True, force=True)
    monkeypatch.setattr("gradscope.training.train.util.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match="Training needs TRL") as caught:
        train(short_config(tmp_path / "run"))
    assert caught.value.hint == "pip install 'gradscope[train]'"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "error"),
    [("probability tensor contains either `inf`, `nan` or element < 0", InputError), ("anything else", RuntimeError)],
)
def test_weights_that_diverged_are_no_bug(
    text: str, error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fit(*_: object, **__: object) -> None:
        raise RuntimeError(text)

    monkeypatch.setattr("gradscope.training.run_training.fit", fit)
    with pytest.raises(error, match="Training diverged" if error is InputError else text):
        train(short_config(tmp_path / "run"))


@pytest.mark.slow
def test_trl_that_does_not_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = types.ModuleType("trl")
    broken.__spec__ = ModuleSpec("trl", None)
    monkeypatch.setitem(sys.modules, "trl", broken)
    with pytest.raises(MissingDependencyError, match="TRL is installed but does not load: cannot import name"):
        train(short_config(tmp_path / "run"))


@pytest.mark.slow
def test_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="There is no CUDA device"):
        train(short_config(tmp_path / "run", device="cuda"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(UsageError, match="2 GPUs are visible, and one process uses one") as caught:
        train(short_config(tmp_path / "run", device="auto"))
    assert "accelerate launch --multi_gpu -m gradscope train" in str(caught.value.hint)


def test_a_run_that_was_ended_when_it_was_finished_is_tidied(short_run: MakeRun, tmp_path: Path) -> None:
    run = shutil.copytree(short_run(**LONG), tmp_path / "run")
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    assert train(config_for(run), resume=True) == run
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before
    left = [tmp_path / ".run.lock", run / "checkpoints" / "checkpoint-0" / "rng_state.pth"]
    for file in left:
        file.touch()
    train(config_for(run), resume=True)
    assert [file for file in left if file.exists()] == []


def test_resume_without_a_run_or_with_other_settings(short_run: MakeRun, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no readable manifest\.json"):
        train(config_for(tmp_path / "none"), resume=True)
    run, different = short_run(**LONG), r"other settings: advantage \('grpo', now 'sign'\), steps \(5, now 9\)"
    with pytest.raises(UsageError, match=different) as caught:
        train(config_for(run, advantage="sign", steps=9), resume=True)
    assert caught.value.hint == f"gradscope train --resume --config {run}/manifest.json --output {run}"


def test_a_setting_that_an_older_manifest_lacks_means_its_default(short_run: MakeRun, tmp_path: Path) -> None:
    run = shutil.copytree(short_run(**LONG), tmp_path / "run")
    document = json.loads(manifest_path(run).read_text())
    del document["config"]["match_grad_norm"]
    manifest_path(run).write_text(json.dumps(document))
    train(config_for(run), resume=True)
    with pytest.raises(UsageError, match=r"other settings: match_grad_norm \(None, now 1.0\)"):
        train(config_for(run, match_grad_norm=1.0), resume=True)
