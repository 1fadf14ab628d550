import functools
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gradscope import measure_degeneracy, read_run, replay_run
from gradscope.errors import InputError, OutputExistsError, UsageError
from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.run_folder import checkpoint_path, find_weights, read_manifest, read_metrics, step_path
from gradscope.rollouts.store import read_steps
from gradscope.training import GradscopeCallback, RolloutRecorder
from gradscope.training.config import read_config
from gradscope.training.grpo.policy import EMBEDDED_FOLDER
from gradscope.training.libraries import quiet_libraries
from tests.conftest import REPOSITORY
from tests.training.conftest import save_model
from tests.training.interrupted import assert_same_run
from tests.training.stock import answer, assert_reproduced, graded, record, short, stock_trainer, train

pytestmark = pytest.mark.slow  # whole runs of TRL


def lora(**settings: Any) -> Any:
    from peft import LoraConfig

    return LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM", **settings)


SETTINGS: tuple[dict[str, Any], ...] = (
    {
        **{"loss_type": "dr_grpo", "scale_rewards": "none", "beta": 0.1, "temperature": 0.7},
        **{"rewards": [answer, short], "reward_weights": [1.0, 0.5]},
    },
    {"scale_rewards": "batch", "per_device_train_batch_size": 4, "gradient_accumulation_steps": 4},
    {"mask_truncated_completions": True, "max_completion_length": 20, "loss_type": "grpo"},
    {"trainer": "rloo", "beta": 0.0},
)


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: "-".join(settings))
def test_what_trl_logged_is_reproduced_from_the_folder(tmp_path: Path, settings: dict[str, Any]) -> None:
    _, run = record(tmp_path, **settings)
    report = replay_run(run)
    assert_reproduced(report)
    assert {quantity.verdict for step in report.steps for quantity in step.quantities} == {"match"}
    assert (read_manifest(run).advantage == "trl") == bool(
        {"trainer", "scale_rewards"} & {*settings} and settings.get("scale_rewards") != "none"
    )


NOTICED: dict[str, dict[str, Any]] = {
    "reused": {"num_iterations": 2, "max_steps": 4},
    "dropout in bfloat16": {"beta": 0.05, "bf16": True, "rewards": [answer, short]},
    "shared": {"per_device_train_batch_size": 8, "steps_per_generation": 2, "max_steps": 4},
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Any, int | None, Any, Path]]:
    """A trainer under the recorder, the padding token before, the weights after, and the run; made once a case."""

    @functools.cache
    def make(case: str) -> tuple[Any, int | None, Any, Path]:
        folder = tmp_path_factory.mktemp("recorded")
        trainer = stock_trainer(folder / "trl", **arguments_of(case))
        padding = trainer.model.config.pad_token_id
        RolloutRecorder(trainer, folder / "run", weights_every=1, gradients_every=None if case == "shared" else 1)
        return trainer, padding, train(trainer), folder / "run"

    return make


def arguments_of(case: str) -> dict[str, Any]:
    return NOTICED[case] | ({"peft_config": lora(lora_dropout=0.3)} if "dropout" in case else {})


@pytest.mark.parametrize("case", NOTICED)
def test_the_training_does_not_notice(tmp_path: Path, recorded: Any, case: str) -> None:
    bare = stock_trainer(tmp_path / "bare", **arguments_of(case))
    expected = train(bare)
    trainer, padding, result, _ = recorded(case)
    assert all(torch.equal(result[name], expected[name]) for name in expected)
    assert trainer.model.config.pad_token_id == padding
    norms, recorded_norms = ([entry.get("grad_norm") for entry in run.state.log_history] for run in (bare, trainer))
    assert norms == recorded_norms


def test_which_groups_pass_is_logged_where_rewards_or_a_threshold_decide_it(tmp_path: Path) -> None:
    for threshold in (None, 0.2):
        arguments = {"rewards": _thirds, "success_threshold": threshold, "weights_every": None, "max_steps": 1}
        trainer, _ = record(tmp_path / str(threshold), **arguments)
        entry = trainer.state.log_history[0]
        assert entry.get("gradscope/frac_all_pass") == (None if threshold is None else 0.0)
        assert entry["gradscope/frac_reward_zero_std"] == 0.0


def _thirds(completions: list[Any], **_: Any) -> list[float]:
    return [row % 3 / 3 for row, _ in enumerate(completions)]


def test_evaluations_are_not_recorded(tmp_path: Path) -> None:
    from datasets import Dataset

    rows = Dataset.from_list([{"prompt": "a1b2=", "answer": "3"}] * 2)
    arguments = {"eval_dataset": rows, "eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 4}
    trainer, run = record(tmp_path, **arguments)
    assert any("eval_reward" in entry for entry in trainer.state.log_history)
    assert all(group.rollouts[0].prompt != "a1b2=" for group in read_steps(run))
    assert not [name for values in read_metrics(run).values() for name in values if name.startswith("eval_")]
    assert_reproduced(replay_run(run))


def test_an_entry_for_several_steps_keeps_the_numbers_of_its_step(tmp_path: Path) -> None:
    _, run = record(tmp_path, logging_steps=3)
    assert {step: sorted(values) for step, values in read_metrics(run).items()} == {3: ["grad_norm", "learning_rate"]}
    (last,) = replay_run(run, steps=[3]).steps
    assert last.relative_error["grad_norm"] < 1e-5


def test_an_interrupted_run_keeps_its_steps_and_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2}
    _, full = record(tmp_path / "full", **arguments)
    calls = []

    def interrupting(completions: list[Any], **columns: Any) -> Any:
        calls.append(0)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return graded(completions, **columns)

    interrupting.__name__ = "graded"
    run = tmp_path / "run"
    trainer = stock_trainer(tmp_path / "trl", rewards=interrupting, **arguments)
    RolloutRecorder(trainer, run, weights_every=1)
    with pytest.raises(KeyboardInterrupt):
        train(trainer)
    assert sorted(read_metrics(run)) == [1, 2, 3]
    assert not step_path(run, 4).exists()
    trainer = stock_trainer(tmp_path / "trl", **arguments)
    RolloutRecorder(trainer, run, weights_every=1)
    train(trainer, resume_from_checkpoint=True)
    assert_same_run(run, full)
    assert_reproduced(replay_run(run), steps=(1, 2, 3, 4))
    changed = stock_trainer(tmp_path / "trl", beta=0.1, **arguments)
    RolloutRecorder(changed, run)
    with pytest.raises(UsageError, match=r"run was recorded with other arguments: beta \(0.0, now 0.1\)"):
        train(changed, resume_from_checkpoint=str(tmp_path / "trl" / "checkpoint-4"))


def test_a_folder_is_replaced_only_by_force_and_only_if_it_is_a_run(tmp_path: Path) -> None:
    def rerun(folder: Path, **options: Any) -> None:
        trainer = stock_trainer(tmp_path / "trl", max_steps=1, seed=7)
        RolloutRecorder(trainer, folder, **options)
        train(trainer)

    _, run = record(tmp_path, max_steps=1)
    before = step_path(run, 1).read_bytes()
    with pytest.raises(OutputExistsError, match="run already exists") as caught:
        rerun(run)
    assert "force=True" in str(caught.value.hint)
    assert step_path(run, 1).read_bytes() == before
    rerun(run, force=True)
    assert step_path(run, 1).read_bytes() != before
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years of work")
    with pytest.raises(OutputExistsError, match="mine is not a run of gradscope; force replaces runs only"):
        rerun(mine, force=True)


def test_what_makes_no_sense_is_refused_at_once(tmp_path: Path) -> None:
    trainer = stock_trainer(tmp_path / "trl", per_device_train_batch_size=8, steps_per_generation=2)
    with pytest.raises(UsageError, match="records a GRPOTrainer or an RLOOTrainer of TRL, not a str"):
        RolloutRecorder("trainer", tmp_path / "run")
    with pytest.raises(UsageError, match="weights_every is 0; the least is 1"):
        RolloutRecorder(trainer, tmp_path / "run", weights_every=0)
    with pytest.raises(UsageError, match="gradients_every cannot form this trainer's gradient: each update sees"):
        RolloutRecorder(trainer, tmp_path / "run", gradients_every=1)
    with pytest.raises(UsageError, match=r"The trainer's own output_dir, .*trl, is or lies in"):
        RolloutRecorder(trainer, tmp_path / "trl")


def test_sharding_that_cannot_be_gathered_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = stock_trainer(tmp_path / "trl", beta=0.1)
    plugin = SimpleNamespace(state_dict_type="StateDictType.SHARDED_STATE_DICT")
    monkeypatch.setattr(trainer, "is_fsdp_enabled", True)
    monkeypatch.setattr(trainer.accelerator, "state", SimpleNamespace(fsdp_plugin=plugin))
    RolloutRecorder(trainer, tmp_path / "rollouts-alone")
    with pytest.raises(UsageError, match="FSDP is told to save a piece of the model in each process"):
        RolloutRecorder(trainer, tmp_path / "run", weights_every=1)
    plugin.state_dict_type = "StateDictType.FULL_STATE_DICT"
    RolloutRecorder(trainer, tmp_path / "with-weights", weights_every=1)
    with pytest.raises(UsageError, match="needs the reference of the KL term, which is sharded too"):
        RolloutRecorder(trainer, tmp_path / "run", gradients_every=1)


def test_images_are_refused(tmp_path: Path) -> None:
    from trl import GRPOTrainer

    class Seeing(GRPOTrainer):  # type: ignore[misc]
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            return super()._generate_and_score_completions(inputs) | {"pixel_values": torch.zeros(1)}

    trainer = stock_trainer(tmp_path / "trl", trainer=Seeing)
    RolloutRecorder(trainer, tmp_path / "run")
    with pytest.raises(InputError, match="RolloutRecorder records text, and this batch has images"):
        train(trainer)


def test_the_lines_of_the_readme_work_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = re.findall(r"^    (.*GradscopeCallback.*)$", (REPOSITORY / "README.md").read_text(), flags=re.MULTILINE)
    trainer = stock_trainer(tmp_path / "trl")
    exec("\n".join(lines), {"trainer": trainer})
    train(trainer)
    assert len(lines) == 2
    assert replay_run("my-run", steps=[1]).verdict == "match"
    assert trainer.state.log_history[0]["gradscope/effective_rank"] >= 1


def test_the_recipe_trains_as_printed_and_is_reproduced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for where it reports to, and how small it is."""
    monkeypatch.chdir(tmp_path)
    recipe = (REPOSITORY / "docs" / "recipes.md").read_text().split("```python\n")[1].split("```")[0]
    assert "callbacks=[recorder]" in recipe
    stock = stock_trainer(tmp_path / "stock")
    copied = ("max_steps", "max_completion_length", "use_cpu", "bf16", "gradient_checkpointing")
    sizes = {name: getattr(stock.args, name) for name in (*copied, "per_device_train_batch_size", "num_generations")}
    arguments = {**sizes, "report_to": "none"}
    names: dict[str, Any] = {"model": stock.model, "reward": graded, "prompts": stock.train_dataset}
    names |= {"arguments": arguments}
    small = recipe.replace('report_to=["wandb"]', "**arguments").replace("args=", "processing_class=tokenizer, args=")
    with quiet_libraries():
        exec(small, names | {"tokenizer": stock.processing_class})
    assert replay_run("my-run", steps=[1]).verdict == "match"


def test_a_callback_of_no_trainer_and_an_unknown_option_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'weights'"):
        GradscopeCallback(tmp_path / "run", weights=1)
    with pytest.raises(UsageError, match="GradscopeCallback is called by no trainer") as refused:
        GradscopeCallback(tmp_path / "run").on_train_begin(None, None, None)
    assert "RolloutRecorder(trainer" in str(refused.value.hint)


def test_the_package_stays_light() -> None:
    code = "import sys, gradscope.training; print(*{n.split('.')[0] for n in sys.modules} & {'torch', 'trl', 'numpy'})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
    import gradscope.training

    with pytest.raises(AttributeError, match="no attribute 'Recorder'"):
        _ = gradscope.training.Recorder


def test_a_batch_of_two_iterations_is_recorded_once_with_the_samplers_logprobs(recorded: Any) -> None:
    *_, run = recorded("reused")
    report = replay_run(run)
    assert_reproduced(report, steps=(1, 3))
    assert all(step.logprob_difference is not None for step in report.steps)
    assert all(step.logprob_difference.max < 1e-5 for step in report.steps if step.logprob_difference)
    assert sorted(read_metrics(run)) == [1, 2, 3, 4]
    assert measure_degeneracy(run).num_groups == 8
    note = "A generation batch that feeds several updates is recorded once, at the first of them."
    assert note in read_manifest(run).notes


def test_a_batch_that_is_shared_out_says_why_its_norm_cannot_be_formed(recorded: Any) -> None:
    *_, run = recorded("shared")
    report = replay_run(run)
    assert [step.step for step in report.steps] == [1, 3]
    assert {step.cause for step in report.steps} == {
        "each update sees a shuffled part of the logged batch, and which is not logged"
    }
    groups = read_steps(run)
    assert [group.size for group in groups] == [4] * 8
    assert all(rollout.logprobs is not None for group in groups for rollout in group.rollouts)


def test_advantages_of_a_subclass_are_recorded_as_they_are(tmp_path: Path) -> None:
    from trl import GRPOTrainer

    class Doubled(GRPOTrainer):  # type: ignore[misc]
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            output = super()._generate_and_score_completions(inputs)
            output["advantages"] = 2 * output["advantages"][:, None].expand_as(output["completion_ids"])
            return output

    _, run = record(tmp_path, trainer=Doubled)
    assert read_manifest(run).advantage == "custom"
    report = replay_run(run)
    assert all(step.relative_error["grad_norm"] < 1e-5 for step in report.steps)
    causes = {quantity.cause for step in report.steps for quantity in step.quantities if quantity.name == "advantage"}
    assert causes == {"no advantages were logged, or one per token"}


def test_advantages_that_nobody_here_can_make_are_not_judged(tmp_path: Path) -> None:
    _, run = record(tmp_path, multi_objective_aggregation="normalize_then_sum", max_steps=1)
    (step,) = replay_run(run).steps
    assert step.relative_error["grad_norm"] < 1e-5
    assert "a subclass of the trainer made them, and how is not recorded" in {q.cause for q in step.quantities}


def test_the_trainers_own_checkpoints_serve_where_none_are_written(tmp_path: Path) -> None:
    _, run = record(tmp_path, weights_every=None, save_strategy="steps", save_steps=1)
    assert [weights.num_updates for weights in find_weights(run)] == [1, 2, 3]
    assert_reproduced(replay_run(run, read=ReadOptions(initial_weights=EMBEDDED_FOLDER)))


def test_no_weights_are_written_unasked(tmp_path: Path) -> None:
    _, run = record(tmp_path, weights_every=None, max_steps=1)
    assert read_run(run).weights == ()
    assert not checkpoint_path(run, 0).exists()
    with pytest.raises(InputError, match="recorded from a script"):
        read_config(run)


def test_recording_may_begin_at_a_checkpoint(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"max_steps": 3, "save_strategy": "steps", "save_steps": 2}
    train(stock_trainer(tmp_path / "trl", **arguments))
    trainer = stock_trainer(tmp_path / "trl", **arguments)
    RolloutRecorder(trainer, tmp_path / "run", weights_every=1)
    train(trainer, resume_from_checkpoint=str(tmp_path / "trl" / "checkpoint-2"))
    assert [path.name for path in (tmp_path / "run" / "rollouts").glob("*.parquet")] == ["step_00003.parquet"]
    assert "Recording began after 2 updates." in read_manifest(tmp_path / "run").notes
    assert_reproduced(replay_run(tmp_path / "run"), steps=(3,))


def test_a_model_whose_tokenizer_pads_with_a_token_of_its_own(tmp_path: Path) -> None:
    """TRL names that token in the model's configuration; its embedding was made to learn it all the same."""
    model = save_model(tmp_path / "model", chat=False)
    rows = [{"prompt": f"{n}<pad> and {n}?", "answer": "0"} for n in range(4)]
    _, run = record(tmp_path, model=model, rows=rows, rewards=_thirds, max_completion_length=8)
    assert_reproduced(replay_run(run))
