from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from gradscope.errors import InputError
from gradscope.rollouts.readers.detect import read_run
from tests.conftest import REPOSITORY

TRL = REPOSITORY / "fixtures" / "logs" / "trl"


@pytest.mark.parametrize(
    ("files", "given", "message", "instead"),
    [
        (
            ["checkpoint-5/config.json", "checkpoint-5/model.safetensors"],
            "checkpoint-5",
            "a checkpoint",
            "above it: RUN",
        ),
        (["checkpoint-5/adapter_config.json"], "checkpoint-5", "a checkpoint", "above it: RUN"),
        (["global_step_5/actor/0.distcp"], "global_step_5", "a checkpoint", "above it: RUN"),
        (["qwen/config.json", "qwen/model.safetensors"], "qwen", "a model folder", "--initial"),
        (["a/adapter_config.json", "a/adapter_model.safetensors"], "a", "a model folder", "--model"),
        (["checkpoint-5/trainer_state.json"], "checkpoint-5", "a checkpoint", "above it: RUN"),
        (["checkpoint-5/trainer_state.json"], ".", "holds no completions", "log_completions=True"),
        (["global_step_5/actor/0.distcp"], ".", "checkpoints and without rollouts", "rollout_data_dir"),
        (["run-1-ab/files/wandb-summary.json"], "run-1-ab", "what wandb keeps", "log_completions=True"),
        (["run-1-ab/files/wandb-summary.json"], "run-1-ab/files", "what wandb keeps", "log_completions=True"),
        (["run-1-ab/files/wandb-summary.json"], ".", "what wandb keeps", "log_completions=True"),
        (["run-1-ab/run-ab.wandb"], "run-1-ab", "what wandb keeps", "log_completions=True"),
        (["run-1-ab/run-ab.wandb"], "run-1-ab/run-ab.wandb", "what wandb keeps", "log_completions=True"),
        (["my-project.db"], "my-project.db", "a database as trackio keeps", "trackio query"),
        (["my-project.db"], ".", "a database as trackio keeps", "trackio query"),
        (["runs/events.out.tfevents.1.host"], ".", "what TensorBoard reads", "log_completions=True"),
        (["events.out.tfevents.1.host"], "events.out.tfevents.1.host", "what TensorBoard reads", "rollout_data_dir"),
    ],
)
@pytest.mark.parametrize("is_remote", [False, True], ids=["here", "at a URL"])
def test_what_is_no_log_is_recognized(
    tmp_path: Path, memory: Any, files: list[str], given: str, message: str, instead: str, is_remote: bool
) -> None:
    for name in files:
        file = tmp_path / "run" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("{}")
    run = str(tmp_path / "run")
    if is_remote:
        memory.put(f"{run}/", "/runs/run", recursive=True)
        run = "memory://runs/run"
    with pytest.raises(InputError, match=message) as caught:
        read_run(run if given == "." else f"{run}/{given}")
    assert instead.replace("RUN", run) in (caught.value.hint or "")


def test_who_stands_in_a_checkpoint_is_told_where_the_run_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "checkpoint-5").mkdir()
    (tmp_path / "checkpoint-5" / "trainer_state.json").write_text("{}")
    monkeypatch.chdir(tmp_path / "checkpoint-5")
    with pytest.raises(InputError, match=r"\. is a checkpoint") as caught:
        read_run(".")
    assert caught.value.hint == f"Name the run folder above it: {tmp_path}"


def test_a_folder_of_runs_lists_them_with_commands(tmp_path: Path) -> None:
    for number in range(7):
        shutil.copytree(TRL, tmp_path / "my runs" / f"seed{number}")
    folder = tmp_path / "my runs"
    with pytest.raises(
        InputError, match=r"is a folder of 7 runs: seed0, seed1, seed2, seed3, seed4 and 2 more\."
    ) as caught:
        read_run(folder)
    assert caught.value.hint == (
        f"One: gradscope degeneracy '{folder}/seed0'; all, on one page: gradscope report '{folder}'"
    )


def test_a_run_two_folders_down_is_named(tmp_path: Path) -> None:
    shutil.copytree(TRL, tmp_path / "a" / "run")
    with pytest.raises(InputError, match=r"is not a run itself, but .*run is"):
        read_run(tmp_path)
