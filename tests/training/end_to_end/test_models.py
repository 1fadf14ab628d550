"""Runs on other models than the embedded one: chat templates, GSM8K, LoRA, GPT-2, KL penalty, bfloat16."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gradscope.diagnostics.rank.measure import measure_rank
from gradscope.diagnostics.rank.options import RankOptions
from gradscope.rollouts.run_folder import (
    base_model_path,
    checkpoint_path,
    find_weights,
    heldout_path,
    read_manifest,
    read_metrics,
)
from gradscope.rollouts.store import read_steps
from gradscope.training.config import TrainConfig
from gradscope.training.tasks.load import INSTRUCTION
from gradscope.training.train import train
from tests.training.conftest import SHORT
from tests.training.grpo.test_trainer import assert_logprobs

pytestmark = pytest.mark.slow  # whole runs of TRL

FILE_TASK = {
    "task": "gsm8k",
    "heldout_prompts": 2,
    "heldout_samples": 2,
    "max_completion_length": 16,
    "train_prompts": None,
}


def on_gsm8k(output: Path, data: Path, model: Path, **settings: Any) -> Path:
    values = SHORT | FILE_TASK | settings | {"output": str(output), "data": str(data), "model": str(model)}
    return train(TrainConfig.from_json(values))


def test_gsm8k_with_a_chat_model(tmp_path: Path, gsm8k_file: Path, chat_model: Path) -> None:
    from transformers import AutoTokenizer

    run = on_gsm8k(tmp_path / "run", gsm8k_file, chat_model, temperature=0.9)
    tokenizer = AutoTokenizer.from_pretrained(chat_model)
    groups = read_steps(run)
    assert {group.prompt_id for group in groups} <= {f"train.jsonl:{line}" for line in range(1, 7)}
    for group in groups:
        for rollout in group.rollouts:
            assert rollout.messages == ({"role": "user", "content": rollout.prompt},)
            assert rollout.prompt.endswith(f"\n\n{INSTRUCTION}\n")
            assert rollout.prompt_ids is not None
            assert tokenizer.decode(rollout.prompt_ids) == f"<|user|>{rollout.prompt}<eos><|assistant|>"
            assert rollout.token_rewards is None
            assert list(rollout.rewards) == ["final_answer"]
    statuses = [rollout.status for group in groups for rollout in group.rollouts]
    assert statuses.count("truncated") > len(statuses) / 2  # random weights seldom end a completion
    rows = [json.loads(line) for line in heldout_path(run, "after").read_text().splitlines()]
    assert [row["prompt_id"] for row in rows] == ["train.jsonl:7"] * 2 + ["train.jsonl:8"] * 2
    assert_logprobs(run, steps=(1, 3), temperature=0.9)
    assert_fits_heldout_prompts(run, tmp_path / "solved.jsonl", rows)


def assert_fits_heldout_prompts(run: Path, solved: Path, rows: list[dict[str, Any]]) -> None:
    """Held-out prompts went through the same template as those of a step: their answers can be held against it."""
    solved.write_text("".join(json.dumps(row | {"reward": 1.0, "correct": True}) + "\n" for row in rows))
    report = measure_rank(run, steps=[1], options=RankOptions(heldout=solved))
    assert len(report.heldout) > 0
    assert not any("other token ids" in note for note in report.heldout_notes)


def test_gpt2_with_learned_positions_and_plain_prompts(tmp_path: Path, gsm8k_file: Path, gpt2_model: Path) -> None:
    run = on_gsm8k(tmp_path / "run", gsm8k_file, gpt2_model)
    assert_logprobs(run, steps=(1,), temperature=1.0)
    assert all(rollout.messages is None for group in read_steps(run) for rollout in group.rollouts)
    assert len(read_manifest(run).notes) == 3


def test_adapter_on_gpt2(tmp_path: Path, gsm8k_file: Path, gpt2_model: Path) -> None:
    run = on_gsm8k(tmp_path / "run", gsm8k_file, gpt2_model, lora_rank=2)
    assert {weights.base for weights in find_weights(run)} == {str(gpt2_model)}
    assert not base_model_path(run).exists()


def test_adapter_run(short_run: Callable[..., Path]) -> None:
    run = short_run(lora_rank=2)
    weights = find_weights(run)
    assert [(one.num_updates, one.kind) for one in weights] == [(0, "adapter"), (2, "adapter"), (3, "adapter")]
    assert {one.base for one in weights} == {str(base_model_path(run))}
    config = json.loads((checkpoint_path(run, 0) / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["lora_dropout"]) == (2, 4, 0.0)


def test_adapter_starts_as_nothing_and_then_moves(short_run: Callable[..., Path]) -> None:
    from safetensors.numpy import load_file

    run = short_run(lora_rank=2, lora_alpha=8.0)
    before, after = (load_file(checkpoint_path(run, number) / "adapter_model.safetensors") for number in (0, 3))
    raised = [name for name in before if "lora_B" in name]
    assert raised
    assert not any(before[name].any() for name in raised)
    assert all(after[name].any() for name in raised)


def test_penalty_is_logged_and_leaves_the_first_gradient_alone(short_run: Callable[..., Path]) -> None:
    metrics = read_metrics(short_run(beta=0.1))
    assert metrics[1]["kl"] == pytest.approx(0.0, abs=1e-6)
    assert metrics[3]["kl"] > 0
    assert metrics[1]["grad_norm"] == pytest.approx(read_metrics(short_run())[1]["grad_norm"], rel=1e-4)


@pytest.mark.parametrize("loss_type", ["dr_grpo", "bnpo", "grpo"])
def test_loss_types(short_run: Callable[..., Path], loss_type: str) -> None:
    run = short_run(loss_type=loss_type)
    assert read_manifest(run).trainer_arguments["loss_type"] == loss_type
    norms = [read_metrics(short_run(**settings))[1]["grad_norm"] for settings in ({"loss_type": loss_type}, {})]
    assert norms[0] > 0
    assert (norms[0] == pytest.approx(norms[1], rel=1e-6)) is (loss_type == "bnpo")  # one part: dapo and bnpo agree


@pytest.mark.parametrize("lora_rank", [None, 2])
def test_bfloat16(short_run: Callable[..., Path], lora_rank: int | None) -> None:
    from safetensors import safe_open

    run = short_run(dtype="bfloat16", lora_rank=lora_rank)
    assert read_manifest(run).trainer_arguments["bf16"] is True
    name = "model.safetensors" if lora_rank is None else "adapter_model.safetensors"
    with safe_open(checkpoint_path(run, 3) / name, "numpy") as weights:
        assert {weights.get_slice(key).get_dtype() for key in weights.keys()} == {"F32"}  # noqa: SIM118
    steps = read_metrics(run).values()  # which of them have a live group depends on the processor's rounding
    assert all((values["grad_norm"] > 0) == (values["frac_reward_zero_std"] < 1) for values in steps)
    assert any(values["grad_norm"] > 0 for values in steps)
