from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from gradscope.rollouts.readers.detect import read_run
from tests.conftest import REPOSITORY
from tests.rollouts.readers.test_beside import write_model

LOG = REPOSITORY / "fixtures" / "logs" / "prime_rl"


def test_metrics_and_weights_of_the_run_folder(tmp_path: Path) -> None:
    run_folder = shutil.copytree(LOG, tmp_path / "run")
    (run_folder / "metrics.jsonl").write_text(json.dumps({"step": 3, "optim/grad_norm": 0.5}) + "\n")
    write_model(run_folder / "weights" / "step_2")
    bare = write_model(run_folder / "broadcasts" / "step_3")
    (bare / "config.json").unlink()
    for path in (run_folder, run_folder / "rollouts", run_folder / "rollouts" / "step_3" / "train"):
        run = read_run(path)
        assert run.metrics == {3: {"grad_norm": 0.5}}
        assert [weights.num_updates for weights in run.weights] == [2]
        assert "Copy config.json" in run.unmerged_weights[3].advice


@pytest.mark.parametrize(
    "files",
    [
        {"rl.json": {"trainer": {"loss": {"kl_tau": 0.5}}, "orchestrator": {"n": 2}}},
        {"trainer.json": {"loss": {"kl_tau": 0.5}}, "orchestrator.json": {"n": 2}},
    ],
)
def test_configurations_of_the_run_or_of_its_parts(files: dict[str, object], tmp_path: Path) -> None:
    run_folder = shutil.copytree(LOG, tmp_path / "run")
    (run_folder / "configs").mkdir()
    for name, document in files.items():
        (run_folder / "configs" / name).write_text(json.dumps(document))
    settings = read_run(run_folder).settings
    assert (settings.at("trainer.loss.kl_tau"), settings.at("orchestrator.n")) == (0.5, 2)
    assert (settings.get("trainer"), settings.get("casts_weights")) == ("prime-rl", True)
    assert settings.origin is not None


def test_a_damaged_part_of_the_configuration_is_left_out(tmp_path: Path) -> None:
    run_folder = shutil.copytree(LOG, tmp_path / "run")
    (run_folder / "configs").mkdir()
    (run_folder / "configs" / "trainer.toml").write_text("loss = [")
    (run_folder / "configs" / "orchestrator.toml").write_text("n = 2\n")
    settings = read_run(run_folder).settings
    assert (settings.at("orchestrator.n"), settings.at("trainer.loss.kl_tau")) == (2, None)
    assert settings.origin == str(run_folder / "configs" / "orchestrator.toml")
