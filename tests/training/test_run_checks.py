from pathlib import Path
from typing import Any

import pytest

from gradscope.errors import InputError, OutputExistsError, UsageError
from gradscope.rollouts.run_folder import checkpoint_path, read_manifest, step_path
from gradscope.training.train import train
from tests.trained import HELD_OUT, MakeRun
from tests.training.conftest import short_config


def test_existing_folder_is_kept_without_force(short_run: MakeRun, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work")
    with pytest.raises(OutputExistsError, match="mine already exists"):
        train(short_config(folder))
    with pytest.raises(OutputExistsError, match="mine is not a run of gradscope"):
        train(short_config(folder), force=True)
    assert [path.name for path in folder.iterdir()] == ["thesis.txt"]


def test_a_run_is_not_replaced_by_one_that_reads_from_it(short_run: MakeRun) -> None:
    run = short_run()
    with pytest.raises(UsageError, match=r"checkpoint-3 lies in .*, which would be replaced"):
        train(short_config(run, model=str(checkpoint_path(run, 3))), force=True)
    assert step_path(run, 1).is_file()


REFUSED: tuple[tuple[dict[str, Any], str], ...] = (
    ({"advantage": "optimal_baseline"}, "optimal_baseline weighs rewards by the norms of score vectors"),
    ({"advantage": "pass_at_4", "group_size": 3}, "pass_at_4 needs groups of at least 4"),
    (
        {"advantage": "pass_at_4", "sampling": "reallocated"},
        "pass_at_4 needs groups of at least 4, and reallocated sampling leaves 2",
    ),
    (
        {"sampling": "dynamic", "train_prompts": 4},
        "replaces dead groups by those of other prompts, and a step takes all 4",
    ),
    ({"advantage": "grop"}, "no advantage formulation 'grop'"),
    ({"task": "steps", "advantage": "sign"}, "sign is defined for rewards of 0 and 1, and the task steps"),
    ({"model": "/absent"}, "cannot be read"),
    ({"max_completion_length": 60}, "does not fit the model's 64 positions"),
)


@pytest.mark.parametrize(("settings", "reason"), REFUSED)
def test_refused_runs_leave_nothing_behind(tmp_path: Path, settings: dict[str, Any], reason: str) -> None:
    with pytest.raises((InputError, UsageError), match=reason) as caught:
        train(short_config(tmp_path / "run", **settings))
    assert not (tmp_path / "run").exists()
    if "optimal_baseline" in reason:
        assert caught.value.hint == "Ask it of a run: gradscope rank RUN --advantage optimal_baseline"


@pytest.mark.parametrize("sampling", ["dynamic", "reallocated"])
def test_sampling_in_rounds_is_for_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sampling: str) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match=f"{sampling} sampling looks at all groups of a step in one process"):
        train(short_config(tmp_path / "run", sampling=sampling))


def test_step_rewards_need_a_task_that_grades_steps(tmp_path: Path, gsm8k_file: Path, chat_model: Path) -> None:
    task = {"task": "gsm8k", "data": str(gsm8k_file), "heldout_prompts": 2, "train_prompts": None}
    config = short_config(tmp_path / "run", **task, model=str(chat_model), advantage="per_step")
    with pytest.raises(UsageError, match="per_step needs rewards of single steps, and the task gsm8k has none"):
        train(config)
    assert not (tmp_path / "run").exists()


def test_the_manifest_has_what_repeats_the_run(short_run: MakeRun) -> None:
    manifest = read_manifest(short_run(**HELD_OUT))
    sizes = {"num_generations": 4, "per_device_train_batch_size": 16, "gradient_accumulation_steps": 1}
    loss = {"loss_type": "dapo", "beta": 0.0, "temperature": 1.0, "epsilon": 0.2, "num_iterations": 1}
    expected = {**sizes, **loss, "max_completion_length": 16}
    assert {name: manifest.trainer_arguments[name] for name in expected} == expected
    assert manifest.seed == 0
    assert manifest.versions["trl"]
    assert "recomputed" in manifest.notes[0]
