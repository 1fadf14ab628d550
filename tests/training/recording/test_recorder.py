"""Two lines in somebody's own script: the run they leave can be read, and the training does not notice them."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

from gradscope import measure_degeneracy, measure_rank, read_run, replay_run
from gradscope.errors import GradscopeError, InputError, OutputExistsError, UsageError
from gradscope.results.replay import ReplayReport
from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.run_folder import checkpoint_path, find_weights, read_manifest, read_metrics, step_path
from gradscope.rollouts.store import read_steps
from gradscope.training import RolloutRecorder
from gradscope.training.grpo.policy import EMBEDDED_FOLDER
from gradscope.training.setup.config import read_config
from tests.conftest import REPOSITORY
from tests.training.conftest import save_model
from tests.training.stock import answer, graded, short, stock_trainer, train


def record(tmp_path: Path, *, weights_every: int | None = 1, **arguments: Any) -> tuple[Any, Path]:
    """A stock trainer that was trained under the recorder, and the run."""
    kept = {name: arguments.pop(name) for name in ("gradients_every", "success_threshold") if name in arguments}
    trainer = stock_trainer(tmp_path / "trl", **arguments)
    RolloutRecorder(trainer, tmp_path / "run", weights_every=weights_every, **kept)
    train(trainer)
    return trainer, tmp_path / "run"


def assert_reproduced(report: ReplayReport, steps: tuple[int, ...] = (1, 2, 3)) -> None:
    assert tuple(step.step for step in report.steps) == steps
    assert report.verdict == "match"
    assert all(step.logged["grad_norm"] > 0.001 for step in report.steps)
    assert all(step.relative_error["grad_norm"] < 1e-5 for step in report.steps)


def lora(**settings: Any) -> Any:
    from peft import LoraConfig

    return LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM", **settings)


SETTINGS: tuple[dict[str, Any], ...] = (
    {"loss_type": "dr_grpo", "scale_rewards": "none"},
    {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4},
    {"beta": 0.1, "temperature": 0.7},
    {"loss_type": "grpo", "epsilon": 0.1},
    {"rewards": [answer, short], "reward_weights": [1.0, 0.5]},
    {"mask_truncated_completions": True, "max_completion_length": 12, "loss_type": "grpo"},
    pytest.param(
        {"mask_truncated_completions": True, "max_completion_length": 12},
        marks=pytest.mark.skipif(
            int(metadata.version("trl").split(".")[1]) < 12, reason="this TRL divides dapo by truncated tokens too"
        ),
    ),
)


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: "-".join(settings))
def test_what_trl_logged_is_reproduced_from_the_folder(tmp_path: Path, settings: dict[str, Any]) -> None:
    report = replay_run(record(tmp_path, **settings)[1])
    assert_reproduced(report)
    assert {quantity.verdict for step in report.steps for quantity in step.quantities} == {"match"}


def test_rewards_scaled_by_the_batch_are_trls_own(tmp_path: Path) -> None:
    _, run = record(tmp_path, scale_rewards="batch")
    assert read_manifest(run).advantage == "trl"
    for step in replay_run(run).steps:
        assert {q.name for q in step.quantities if q.verdict == "match"} == {"reward", "advantage", "grad_norm"}


def test_an_adapter_is_reproduced_on_its_base(tmp_path: Path) -> None:
    _, run = record(tmp_path, peft_config=lora(), beta=0.05)
    assert [weights.kind for weights in find_weights(run)] == ["adapter"] * 3
    assert_reproduced(replay_run(run))


def test_conversations_keep_their_messages_and_the_models_name(tmp_path: Path, chat_model: Path) -> None:
    rows = [{"prompt": [{"role": "user", "content": f"{n} and {n}?"}], "answer": str(2 * n)} for n in range(4)]
    trainer, run = record(tmp_path, model=chat_model, rows=rows, rewards=_spread, max_completion_length=8)
    assert_reproduced(replay_run(run))
    groups = read_steps(run)
    assert all(list(group.rollouts[0].messages or ()) in [row["prompt"] for row in rows] for group in groups)
    assert groups[0].rollouts[0].prompt.endswith("?")
    assert read_manifest(run).model == str(chat_model)
    tokenizer = trainer.processing_class
    for rollout in groups[0].rollouts:
        assert tokenizer.decode(list(rollout.prompt_ids or ())).endswith("<|assistant|>")
        assert rollout.status == ("completed" if (rollout.completion_ids or ())[-1] in (0, 1) else "truncated")


def _spread(completions: list[Any], **_: Any) -> list[float]:
    return [float(row % 2) for row, _ in enumerate(completions)]


@pytest.mark.parametrize(
    "arguments",
    [
        {"rewards": [answer, short]},
        {"num_iterations": 2, "max_steps": 4},
        {"peft_config": 0.3, "beta": 0.05},
        {"per_device_train_batch_size": 8, "steps_per_generation": 2},
        {"bf16": True},
    ],
    ids=["plain", "reused", "dropout", "shared", "bf16"],
)
def test_the_training_does_not_notice(tmp_path: Path, arguments: dict[str, Any]) -> None:
    if "peft_config" in arguments:
        arguments = arguments | {"peft_config": lora(lora_dropout=arguments["peft_config"])}
    bare = stock_trainer(tmp_path / "bare", **arguments)
    expected = train(bare)
    trainer = stock_trainer(tmp_path / "trl", **arguments)
    padding = trainer.model.config.pad_token_id
    shared = "steps_per_generation" in arguments
    RolloutRecorder(trainer, tmp_path / "run", weights_every=1, gradients_every=None if shared else 1)
    found = train(trainer)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert trainer.model.config.pad_token_id == padding
    assert [entry.get("grad_norm") for entry in trainer.state.log_history] == [
        entry.get("grad_norm") for entry in bare.state.log_history
    ]


def test_dead_groups_and_gradients_are_in_the_trainers_own_log(tmp_path: Path) -> None:
    trainer, run = record(tmp_path, gradients_every=2, rewards=answer, per_device_train_batch_size=48)
    entries = trainer.state.log_history[:3]
    groups = [[group for group in read_steps(run) if group.step == step] for step in (1, 2, 3)]
    for entry, of_step in zip(entries, groups, strict=True):
        rates = [sum(reward or 0 for reward in group.rewards) / group.size for group in of_step]
        assert entry["gradscope/frac_all_fail"] == rates.count(0) / 12
        assert entry["gradscope/frac_all_pass"] == rates.count(1) / 12
        share = entry["frac_reward_zero_std"]  # TRL's is float32
        assert entry["gradscope/frac_reward_zero_std"] == pytest.approx(share)
    assert "gradscope/effective_rank" not in entries[1]
    report = measure_rank(run, steps=[1, 3], advantages=["logged"])
    for entry, step in zip((entries[0], entries[2]), (1, 3), strict=True):
        assert entry["gradscope/grad_norm"] == pytest.approx(entry["grad_norm"], rel=1e-5)
        (point,) = [p for p in report.curve if p.step == step and p.group_size == 4]
        (geometry,) = [s for s in report.steps if s.step == step]
        (update,) = [u for u in report.formulations if u.step == step]
        assert entry["gradscope/effective_rank"] == pytest.approx(point.effective_rank.value, rel=1e-4)
        assert entry["gradscope/cancellation"] == pytest.approx(geometry.cancellation.value, rel=1e-4)
        ratio = update.signal_to_noise.value  # undefined where one group alone has a gradient
        assert entry.get("gradscope/signal_to_noise") == (None if ratio is None else pytest.approx(ratio, rel=1e-3))
    assert "gradscope/signal_to_noise" in entries[0] | entries[2]
    assert read_metrics(run)[3]["gradscope/effective_rank"] == entries[2]["gradscope/effective_rank"]


def test_which_groups_pass_is_told_where_rewards_or_a_threshold_tell_it(tmp_path: Path) -> None:
    trainer, _ = record(tmp_path, rewards=_thirds, weights_every=None)
    assert all("gradscope/frac_all_pass" not in entry for entry in trainer.state.log_history)
    assert trainer.state.log_history[0]["gradscope/frac_reward_zero_std"] == 0.0
    trainer, _ = record(tmp_path / "given", rewards=_thirds, success_threshold=0.2, weights_every=None)
    assert trainer.state.log_history[0]["gradscope/frac_all_pass"] == 0.0


def _thirds(completions: list[Any], **_: Any) -> list[float]:
    return [row % 3 / 3 for row, _ in enumerate(completions)]


def test_a_reward_that_is_none_is_missing_and_one_that_all_lack_leaves_no_reward(tmp_path: Path) -> None:
    _, run = record(tmp_path, rewards=[short, _some], reward_weights=[1.0, 2.0], max_steps=1)
    rollouts = [rollout for group in read_steps(run) for rollout in group.rollouts]
    assert {row for row, rollout in enumerate(rollouts) if rollout.rewards["short"] is None} == set(range(0, 16, 3))
    assert {row for row, rollout in enumerate(rollouts) if rollout.reward is None} == {0, 6, 12}
    for rollout in rollouts:
        first, second = rollout.rewards["short"], rollout.rewards["_some"]
        expected = None if first is None and second is None else (first or 0.0) + 2.0 * (second or 0.0)
        assert rollout.reward == (None if expected is None else pytest.approx(expected))


def _some(completions: list[Any], **_: Any) -> list[float | None]:
    return [None if row % 2 == 0 else 1.0 for row, _ in enumerate(completions)]


def test_two_functions_of_one_name_are_told_apart(tmp_path: Path) -> None:
    _, run = record(tmp_path, rewards=[answer, answer], max_steps=1, weights_every=None)
    assert list(read_steps(run)[0].rollouts[0].rewards) == ["answer", "answer_2"]


def test_a_batch_of_two_iterations_is_recorded_once_with_the_samplers_logprobs(tmp_path: Path) -> None:
    _, run = record(tmp_path, num_iterations=2, max_steps=4)
    report = replay_run(run)
    assert_reproduced(report, steps=(1, 3))
    assert all(step.logprob_difference is not None for step in report.steps)
    assert all(step.logprob_difference.max < 1e-5 for step in report.steps if step.logprob_difference)
    assert sorted(read_metrics(run)) == [1, 2, 3, 4]
    assert measure_degeneracy(run).num_groups == 8
    assert "A generation batch that feeds several updates is recorded once, at the first of them." in (
        read_manifest(run).notes
    )


def test_a_batch_that_is_shared_out_says_why_its_norm_cannot_be_formed(tmp_path: Path) -> None:
    _, run = record(tmp_path, per_device_train_batch_size=8, steps_per_generation=2, max_steps=4)
    report = replay_run(run)
    assert [step.step for step in report.steps] == [1, 3]
    assert {step.cause for step in report.steps} == {
        "each update sees a shuffled part of the logged batch, and which is not logged"
    }
    groups = read_steps(run)
    assert [group.size for group in groups] == [4] * 8
    assert all(rollout.logprobs is not None for group in groups for rollout in group.rollouts)


def test_an_update_of_several_batches_has_all_of_them(tmp_path: Path) -> None:
    arguments = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "steps_per_generation": 1}
    _, run = record(tmp_path, loss_type="grpo", max_steps=2, **arguments)
    assert [group.group_id for group in read_steps(run)[:4]] == [f"00001-{place:03d}" for place in range(4)]
    (first, _) = replay_run(run).steps
    assert first.cause is not None
    assert first.cause.startswith("an update covers several generation batches")


def test_evaluations_are_not_recorded(tmp_path: Path) -> None:
    from datasets import Dataset

    rows = Dataset.from_list([{"prompt": "a1b2=", "answer": "3"}] * 2)
    arguments = {"eval_dataset": rows, "eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 4}
    trainer, run = record(tmp_path, **arguments)
    assert any("eval_reward" in entry for entry in trainer.state.log_history)
    assert all(group.rollouts[0].prompt != "a1b2=" for group in read_steps(run))
    assert not [name for values in read_metrics(run).values() for name in values if name.startswith("eval_")]
    assert_reproduced(replay_run(run))


def test_an_entry_for_several_steps_keeps_what_is_of_its_step(tmp_path: Path) -> None:
    _, run = record(tmp_path, logging_steps=3)
    assert {step: sorted(values) for step, values in read_metrics(run).items()} == {3: ["grad_norm", "learning_rate"]}
    (last,) = replay_run(run, steps=[3]).steps
    assert last.relative_error["grad_norm"] < 1e-5


def test_the_trainers_own_checkpoints_serve_where_none_are_kept(tmp_path: Path) -> None:
    _, run = record(tmp_path, weights_every=None, save_strategy="steps", save_steps=1)
    assert [weights.num_updates for weights in find_weights(run)] == [1, 2, 3]
    report = replay_run(run, read=ReadOptions(initial_weights=EMBEDDED_FOLDER))
    assert_reproduced(report)


def test_no_weights_are_kept_unasked(tmp_path: Path) -> None:
    _, run = record(tmp_path, weights_every=None, max_steps=1)
    assert read_run(run).weights == ()
    assert not checkpoint_path(run, 0).exists()
    with pytest.raises(InputError, match="recorded from a script"):
        read_config(run)


def test_advantages_of_a_subclass_are_recorded_as_they_are(tmp_path: Path) -> None:
    from trl import GRPOTrainer

    class Doubled(GRPOTrainer):  # type: ignore[misc]
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            output = super()._generate_and_score_completions(inputs)
            ones = torch.ones_like(output["completion_ids"], dtype=torch.float32)
            output["advantages"] = 2 * output["advantages"][:, None] * ones
            return output

    _, run = record(tmp_path, trainer=Doubled)
    assert read_manifest(run).advantage == "custom"
    report = replay_run(run)
    assert all(step.relative_error["grad_norm"] < 1e-5 for step in report.steps)
    causes = {quantity.cause for step in report.steps for quantity in step.quantities if quantity.name == "advantage"}
    assert causes == {"the advantages were not logged, or are one per token"}


def test_advantages_that_nobody_here_can_make_are_not_judged(tmp_path: Path) -> None:
    _, run = record(tmp_path, multi_objective_aggregation="normalize_then_sum", max_steps=1)
    (step,) = replay_run(run).steps
    assert step.relative_error["grad_norm"] < 1e-5
    assert "a subclass of the trainer made them, and how is not recorded" in {q.cause for q in step.quantities}


def test_an_interrupted_run_keeps_its_steps_and_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"max_steps": 5, "save_strategy": "steps", "save_steps": 2}
    whole = stock_trainer(tmp_path / "whole" / "trl", **arguments)
    RolloutRecorder(whole, tmp_path / "whole" / "run", weights_every=1)
    train(whole)
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
    for step in range(1, 6):
        assert step_path(run, step).read_bytes() == step_path(tmp_path / "whole" / "run", step).read_bytes()
    assert sorted(read_metrics(run)) == [1, 2, 3, 4, 5]
    assert_reproduced(replay_run(run), steps=(1, 2, 3, 4, 5))
    changed = stock_trainer(tmp_path / "trl", beta=0.1, **arguments)
    RolloutRecorder(changed, run)
    with pytest.raises(UsageError, match=r"run was recorded with other arguments: beta \(0.0, now 0.1\)"):
        train(changed, resume_from_checkpoint=str(tmp_path / "trl" / "checkpoint-4"))


def test_recording_may_begin_at_a_checkpoint(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"max_steps": 3, "save_strategy": "steps", "save_steps": 2}
    train(stock_trainer(tmp_path / "trl", **arguments))
    trainer = stock_trainer(tmp_path / "trl", **arguments)
    RolloutRecorder(trainer, tmp_path / "run", weights_every=1)
    train(trainer, resume_from_checkpoint=str(tmp_path / "trl" / "checkpoint-2"))
    assert [path.name for path in (tmp_path / "run" / "rollouts").iterdir()] == ["step_00003.parquet"]
    assert "Recording began after 2 updates." in read_manifest(tmp_path / "run").notes
    assert_reproduced(replay_run(tmp_path / "run"), steps=(3,))


def test_a_folder_that_is_there_is_kept_without_force(tmp_path: Path) -> None:
    trainer, run = record(tmp_path, max_steps=1)
    before = step_path(run, 1).read_bytes()
    trainer = stock_trainer(tmp_path / "trl", max_steps=1, seed=7)
    RolloutRecorder(trainer, run)
    with pytest.raises(OutputExistsError, match="run already exists") as caught:
        train(trainer)
    assert "force=True" in str(caught.value.hint)
    assert step_path(run, 1).read_bytes() == before
    trainer = stock_trainer(tmp_path / "trl", max_steps=1, seed=7)
    RolloutRecorder(trainer, run, force=True)
    train(trainer)
    assert step_path(run, 1).read_bytes() != before
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years of work")
    trainer = stock_trainer(tmp_path / "trl")
    RolloutRecorder(trainer, mine, force=True)
    with pytest.raises(OutputExistsError, match="mine is not a run of gradscope; force replaces runs only"):
        train(trainer)


def test_what_makes_no_sense_is_refused_at_once(tmp_path: Path) -> None:
    trainer = stock_trainer(tmp_path / "trl", per_device_train_batch_size=8, steps_per_generation=2)
    with pytest.raises(UsageError, match="records a GRPOTrainer of TRL, not a str"):
        RolloutRecorder("trainer", tmp_path / "run")
    with pytest.raises(UsageError, match="weights_every is 0; the least is 1"):
        RolloutRecorder(trainer, tmp_path / "run", weights_every=0)
    with pytest.raises(UsageError, match="gradients_every cannot form this trainer's gradient: each update sees"):
        RolloutRecorder(trainer, tmp_path / "run", gradients_every=1)
    with pytest.raises(UsageError, match=r"The trainer's own output_dir, .*trl, is or lies in"):
        RolloutRecorder(trainer, tmp_path / "trl")


def test_images_are_refused(tmp_path: Path) -> None:
    from trl import GRPOTrainer

    class Seeing(GRPOTrainer):  # type: ignore[misc]
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            return super()._generate_and_score_completions(inputs) | {"pixel_values": torch.zeros(1)}

    trainer = stock_trainer(tmp_path / "trl", trainer=Seeing)
    RolloutRecorder(trainer, tmp_path / "run")
    with pytest.raises(InputError, match="RolloutRecorder records text, and this batch has images"):
        train(trainer)


def test_a_measurement_that_fails_does_not_end_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        raise GradscopeError("the batch does not fit.")

    monkeypatch.setattr("gradscope.training.recording.recorder.measure_live", fail)
    with caplog.at_level(logging.WARNING, logger="gradscope"):
        _, run = record(tmp_path, gradients_every=2, weights_every=None)
    assert [entry.getMessage() for entry in caplog.records] == [
        f"step {step}: no gradient was measured: the batch does not fit." for step in (1, 3)
    ]
    assert sorted(read_metrics(run)) == [1, 2, 3]


def test_a_model_whose_tokenizer_pads_with_a_token_of_its_own(tmp_path: Path) -> None:
    """TRL names that token in the model's configuration; its embedding was made to learn it all the same."""
    model = save_model(tmp_path / "model", chat=False)
    rows = [{"prompt": f"{n}<pad> and {n}?", "answer": "0"} for n in range(4)]
    _, run = record(tmp_path, model=model, rows=rows, rewards=_spread, max_completion_length=8)
    assert_reproduced(replay_run(run))


def test_the_lines_of_the_readme_work_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = re.findall(r"^    (.*RolloutRecorder.*)$", (REPOSITORY / "README.md").read_text(), flags=re.MULTILINE)
    trainer = stock_trainer(tmp_path / "trl")
    exec("\n".join(lines), {"trainer": trainer})
    train(trainer)
    assert len(lines) == 2
    assert replay_run("my-run", steps=[1]).verdict == "match"
    assert trainer.state.log_history[0]["gradscope/effective_rank"] >= 1


def test_the_package_stays_light() -> None:
    code = "import sys, gradscope.training; print(*{n.split('.')[0] for n in sys.modules} & {'torch', 'trl', 'numpy'})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
    import gradscope.training

    with pytest.raises(AttributeError, match="no attribute 'Recorder'"):
        _ = gradscope.training.Recorder
