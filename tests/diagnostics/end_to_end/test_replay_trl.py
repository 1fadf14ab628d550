"""Runs of TRL through the front door: what the loss looks at beside the step's own rollouts and weights is found."""

import functools
import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, GPTNeoXConfig, GPTNeoXForCausalLM

from gradscope.advantages.group import gdpo
from gradscope.advantages.registry import compute_step_advantages
from gradscope.rollouts.function_rewards import function_rewards
from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.readers.detect import read_run
from tests.diagnostics.end_to_end.trl_output import digit_sum, replayed, trl_output, verdicts
from tests.gradients.end_to_end.test_trl_losses import MODEL
from tests.gradients.models import VOCAB, tiny_model

pytestmark = pytest.mark.slow  # each trains

ONE_MICRO_BATCH = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1}
BONUS = {"use_adaptive_entropy": True, "entropy_coef": 0.1, "entropy_coef_delta": 0.05, "entropy_target": 2.9}
SYNCED = {"beta": 0.4, "sync_ref_model": True, "ref_model_sync_steps": 2}
TARGETS = ["q_proj", "v_proj", "down_proj"]


def length(completion_ids: list, **_: Any) -> list[float]:
    return [float(len(ids)) for ids in completion_ids]


def now_and_then(completion_ids: list, log_extra: Any, **_: Any) -> list[float | None]:
    """A reward function that does not apply to every rollout."""
    rewards = digit_sum(completion_ids, log_extra)
    return [None if sum(ids) % 4 == 0 else reward for ids, reward in zip(completion_ids, rewards, strict=True)]


COMPLETE = {
    "the mean of two functions, scaled one by one": {
        "rewards": [digit_sum, length],
        "multi_objective_aggregation": "normalize_then_sum",
        "reward_weights": [1.0, 0.3],
    },
    "scaled by the batch": {"scale_rewards": "batch"},
    "gaps, scaled one by one": {"rewards": [now_and_then, length], "multi_objective_aggregation": "normalize_then_sum"},
    "masked truncation": {"mask_truncated_completions": True},
    "a reference replaced every two steps": {**SYNCED, "ref_model_mixup_alpha": 1.0, "max_steps": 4},
    "an adaptive bonus of tokens of high entropy": {**ONE_MICRO_BATCH, **BONUS, "top_entropy_quantile": 0.5},
}


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a case, trained once; nobody may write into it."""

    @functools.cache
    def make(case: str) -> Path:
        return trl_output(tmp_path_factory.mktemp("case"), **{"max_steps": 3, **COMPLETE[case]})

    return make


@pytest.mark.parametrize("case", COMPLETE)
def test_every_number_of_a_run_is_reproduced(case: str, output: Callable[[str], Path]) -> None:
    report = replayed(output(case))
    assert {step.verdict for step in report.steps} == {"match"}
    assert len(report.steps) >= 3
    assert max(step.relative_error["grad_norm"] for step in report.steps) < 2e-6


@pytest.mark.parametrize(
    ("name", "case"), [("batch_std", "scaled by the batch"), ("gdpo", "the mean of two functions, scaled one by one")]
)
def test_our_formulation_is_what_the_trainer_logs(name: str, case: str, output: Callable[[str], Path]) -> None:
    folder = output(case)
    run = read_run(folder / "run", ReadOptions(trainer_args=folder / "args.json"))
    for step in run.steps:
        groups = run.groups_at(step)
        logged = [rollout.advantage for group in groups for rollout in group.rollouts]
        if name == "gdpo":
            functions = function_rewards(groups, run.settings)
            advantages = gdpo(np.split(functions.table, len(groups)), functions.weights)
        else:
            advantages = compute_step_advantages(name, [np.array(group.rewards) for group in groups])
        assert np.ptp(logged) > 0.1
        np.testing.assert_allclose(np.concatenate(advantages), logged, rtol=1e-5, atol=1e-6)


def test_a_batch_that_is_used_again_is_weighed_by_the_weights_that_sampled_it(tmp_path: Path) -> None:
    report = replayed(trl_output(tmp_path, num_iterations=3, max_steps=4, loss_type="vespo", beta=0.3))
    assert [step.step for step in report.steps] == [1, 2, 3, 4]
    assert set(verdicts(report, "grad_norm")) == {"match"}
    assert verdicts(report, "reward") == ["match", "match"]  # the trainer logs it where the batch is sampled


def test_a_logging_window_has_a_norm_of_its_last_step_and_means_of_all(tmp_path: Path) -> None:
    report = replayed(trl_output(tmp_path, logging_steps=2))
    assert [step.step for step in report.steps] == [2, 4]
    assert set(verdicts(report, "grad_norm") + verdicts(report, "advantage")) == {"match"}
    assert {row.reason for step in report.steps for row in step.quantities if row.name == "reward"} == {"window"}


def test_a_reference_that_is_mixed_is_mixed_again(tmp_path: Path) -> None:
    folder = trl_output(tmp_path, **SYNCED)
    assert verdicts(replayed(folder), "grad_norm") == ["match"] * 4
    shutil.rmtree(folder / "run" / "checkpoint-2")  # which the reference holds from then on
    assert verdicts(replayed(folder), "grad_norm") == ["match", "match", "cannot", "cannot"]


@pytest.mark.parametrize("values", [SYNCED, {"num_iterations": 2, "logging_steps": 2}])
def test_a_run_that_was_resumed_began_with_a_new_reference_and_new_rollouts(values: dict, tmp_path: Path) -> None:
    """After three updates, between two that change the reference or sample."""
    report = replayed(trl_output(tmp_path, **values, resumed=3))
    last = report.steps[-1]
    assert (last.step, {step.verdict_on("grad_norm") for step in report.steps if step.logged}) == (4, {"match"})
    assert last.quantities[-1].cause == "training was resumed before this step, as no file says and the norm shows"


def test_a_resumed_run_may_have_lost_what_its_checkpoint_has_under_other_names(tmp_path: Path) -> None:
    """GPT-NeoX has an ``lm_head``, saved as ``embed_out``, which Transformers 5.23 does not read on resuming."""
    sizes = {"vocab_size": VOCAB, "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2}
    start = GPTNeoXForCausalLM(GPTNeoXConfig(**sizes, num_hidden_layers=1, max_position_embeddings=32, bos_token_id=1))
    report = replayed(trl_output(tmp_path, start=start, resumed=2))
    assert set(verdicts(report, "grad_norm")) == {"match"}
    causes = [step.quantities[-1].cause or "" for step in report.steps]
    assert ["training was resumed from checkpoint-2 without the tensors" in cause for cause in causes] == [0, 0, 1, 0]


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"beta": 0.3}, "beta"),
        ({"beta": 0.3, "num_iterations": 2, "use_bias_correction_kl": False, "loss_type": "grpo"}, "beta"),
        ({**ONE_MICRO_BATCH, "entropy_coef": 0.3, "beta": 0.1}, "entropy_coef"),
    ],
)
def test_the_coefficient_that_the_trainer_had_is_named(values: dict[str, Any], name: str, tmp_path: Path) -> None:
    folder = trl_output(tmp_path, **values)
    arguments = json.loads((folder / "args.json").read_text())["args"]
    for stated, words in ((0.36, "fit {} = 0.3 at each of"), (0.15, "fit {} = 0.3 at each of"), (0.0, "{} = 0.3")):
        (folder / "args.json").write_text(json.dumps({**arguments, name: stated}))
        report = replayed(folder)
        norm = report.steps[-1].quantities[-1]
        assert norm.verdict == "mismatch"
        assert words.format(name) in norm.cause
        assert "--run-config" in norm.advice


REUSED = {"num_iterations": 3, "max_steps": 6}


@pytest.mark.parametrize(
    ("values", "name", "stated", "fits"),
    [
        ({"loss_type": "dr_grpo"}, "loss_type", "dapo", "dr_grpo"),
        ({"mask_truncated_completions": True}, "mask_truncated_completions", False, "True"),
        ({**REUSED, "epsilon_high": 0.28}, "epsilon_high", 0.2, "0.25 or 0.28 or 0.3"),  # no ratio is in between
        ({**REUSED, "importance_sampling_level": "sequence"}, "importance_sampling_level", "token", "sequence"),
    ],
)
def test_the_choice_that_the_trainer_had_is_named(
    values: dict[str, Any], name: str, stated: Any, fits: str, tmp_path: Path
) -> None:
    folder = trl_output(tmp_path, **values)
    arguments = json.loads((folder / "args.json").read_text())["args"]
    for others in ({name: stated}, {}):  # named, and not
        kept = {key: value for key, value in arguments.items() if key != name}
        (folder / "args.json").write_text(json.dumps({**kept, **others}))
        causes = [step.quantities[-1].cause or "" for step in replayed(folder).steps]
        assert sum(f"fit {name} = {fits} at each of" in cause for cause in causes) >= 3


def test_a_step_whose_rollouts_an_evaluation_overwrote_counts(tmp_path: Path) -> None:
    folder = trl_output(tmp_path, max_steps=2, eval_strategy="steps", eval_steps=2)
    report = replayed(folder)
    assert report.headline == "match at 1 of 2 steps; 1 cannot"
    assert {row.reason for row in report.steps[1].quantities} == {"rollouts_missing"}


@pytest.mark.parametrize(
    ("values", "cause"),
    [
        ({"gradient_accumulation_steps": 4, "steps_per_generation": 2}, "rollouts_missing"),
        ({"gradient_accumulation_steps": 1, "steps_per_generation": 2}, "batch_split"),
    ],
)
def test_rollouts_of_another_batch_are_no_mismatch(values: dict, cause: str, tmp_path: Path) -> None:
    report = replayed(trl_output(tmp_path, **values))
    assert set(verdicts(report, "advantage")) == {"match"}
    reasons = {row.name: row.reason for step in report.steps for row in step.quantities if row.name != "advantage"}
    assert reasons.pop("grad_norm") == cause
    # TRL logs these numbers of the batch that it samples, all of which is in the log where updates split it
    assert reasons == dict.fromkeys(("reward", "frac_reward_zero_std"), cause if cause == "rollouts_missing" else None)
    assert set(verdicts(report, "reward")) == {"cannot" if cause == "rollouts_missing" else "match"}


def test_without_a_model_card_what_depends_on_the_version_is_refused(
    output: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(output("masked truncation"), tmp_path / "copy")
    (folder / "run" / "README.md").unlink()
    report = replayed(folder)
    assert {row.reason for step in report.steps for row in step.quantities if row.name == "grad_norm"} <= {
        None,
        "settings_unknown",
    }
    assert "cannot" in verdicts(report, "grad_norm")
    arguments = json.loads((folder / "args.json").read_text())
    (folder / "args.json").write_text(json.dumps({**arguments, "trl_version": "1.16.0"}))
    assert set(verdicts(replayed(folder), "grad_norm")) == {"match"}


@pytest.mark.parametrize("start", [True, "pissa_niter_2", False])
def test_the_reference_of_an_adapter_that_trl_made_is_its_base(start: bool | str, tmp_path: Path) -> None:
    adapter = LoraConfig(r=2, target_modules=TARGETS, init_lora_weights=start)
    report = replayed(trl_output(tmp_path, peft_config=adapter, beta=0.3, learning_rate=0.05), initial="adapter")
    assert {step.verdict for step in report.steps} == {"match"}


def test_the_reference_of_an_adapter_that_was_given_is_its_copy(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft and transformers of different ages deprecate each other's names
        tiny_model(MODEL).save_pretrained(tmp_path / "initial")
        first, second = (
            AutoModelForCausalLM.from_pretrained(tmp_path / "initial", dtype=torch.float32) for _ in range(2)
        )
        adapter = get_peft_model(first, LoraConfig(r=2, target_modules=TARGETS, init_lora_weights=False))
        adapter.save_pretrained(tmp_path / "adapter")
        model = PeftModel.from_pretrained(second, tmp_path / "adapter", is_trainable=True)
    folder = trl_output(tmp_path, model=model, beta=0.3, learning_rate=0.05)
    assert {step.verdict for step in replayed(folder, initial="adapter").steps} == {"match"}
