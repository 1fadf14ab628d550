from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gradscope.errors import OutputExistsError, UsageError
from gradscope.rollouts.run_folder import checkpoint_path, heldout_path, read_manifest, step_path
from gradscope.training.config import TrainConfig, read_config
from gradscope.training.train import train
from tests.training.conftest import HELD_OUT, SHORT

MakeRun = Callable[..., Path]


def short(output: Path, **settings: Any) -> TrainConfig:
    return TrainConfig.from_json(SHORT | settings | {"output": str(output)})


def test_existing_folder_is_kept_without_force(short_run: MakeRun, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work")
    with pytest.raises(OutputExistsError, match="mine already exists"):
        train(short(folder))
    with pytest.raises(OutputExistsError, match="mine is not a run of gradscope"):
        train(short(folder), force=True)
    assert [path.name for path in folder.iterdir()] == ["thesis.txt"]


def test_a_run_is_not_replaced_by_one_that_reads_from_it(short_run: MakeRun) -> None:
    run = short_run()
    with pytest.raises(UsageError, match=r"checkpoint-3 lies in .*, which would be replaced"):
        train(short(run, model=str(checkpoint_path(run, 3))), force=True)
    assert step_path(run, 1).is_file()


def test_formulation_that_needs_larger_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gradscope.advantages.registry import ALL_FORMULATIONS

    wide = replace(ALL_FORMULATIONS["rloo"], min_group_size=5)
    monkeypatch.setitem(ALL_FORMULATIONS, "rloo", wide)
    with pytest.raises(UsageError, match="rloo needs groups of at least 5"):
        train(short(tmp_path / "run", advantage="rloo"))


def test_a_formulation_of_the_gram_is_none_to_train_with(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="optimal_baseline weighs rewards by the norms of score vectors") as caught:
        train(short(tmp_path / "run", advantage="optimal_baseline"))
    assert caught.value.hint == "Ask it of a run: gradscope rank RUN --advantage optimal_baseline"


def test_solved_prompts_keep_half_a_group(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="pass_at_4 needs groups of at least 4, and reallocated sampling leaves 2"):
        train(short(tmp_path / "run", advantage="pass_at_4", sampling="reallocated"))


@pytest.mark.parametrize("sampling", ["dynamic", "reallocated"])
def test_sampling_in_rounds_is_for_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sampling: str) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match=f"{sampling} sampling looks at all groups of a step in one process"):
        train(short(tmp_path / "run", sampling=sampling))


def test_dead_groups_need_other_prompts(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="replaces dead groups by those of other prompts, and a step takes all 4"):
        train(short(tmp_path / "run", sampling="dynamic", train_prompts=4))
    assert not (tmp_path / "run").exists()


def test_step_rewards_need_a_task_that_grades_steps(tmp_path: Path, gsm8k_file: Path, chat_model: Path) -> None:
    config = short(
        tmp_path / "run",
        task="gsm8k",
        data=str(gsm8k_file),
        model=str(chat_model),
        advantage="per_step",
        heldout_prompts=2,
        train_prompts=None,
    )
    with pytest.raises(UsageError, match="per_step needs rewards of single steps, and the task gsm8k has none"):
        train(config)
    assert not (tmp_path / "run").exists()


def test_manifest_repeats_the_run(short_run: MakeRun, tmp_path: Path) -> None:
    run = short_run(**HELD_OUT)
    manifest = read_manifest(run)
    arguments = manifest.trainer_arguments
    assert [
        arguments[name] for name in ("num_generations", "per_device_train_batch_size", "gradient_accumulation_steps")
    ] == [4, 16, 1]
    assert [arguments[name] for name in ("loss_type", "beta", "temperature", "epsilon", "num_iterations")] == [
        "dapo",
        0.0,
        1.0,
        0.2,
        1,
    ]
    assert arguments["max_completion_length"] == 27
    assert manifest.seed == 0
    assert manifest.versions["trl"]
    assert "recomputed" in manifest.notes[0]
    again = train(replace(read_config(run), output=str(tmp_path / "again")))
    for step in (1, 2, 3):
        assert step_path(run, step).read_bytes() == step_path(again, step).read_bytes()
    weights = [checkpoint_path(folder, 3) / "model.safetensors" for folder in (run, again)]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    assert heldout_path(run, "after").read_bytes() == heldout_path(again, "after").read_bytes()
