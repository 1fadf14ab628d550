"""Runs on other models than the embedded one: chat templates, GSM8K, GPT-2, bfloat16."""

import json
from pathlib import Path
from typing import Any

import pytest

from gradscope.diagnostics.rank.measure import measure_rank
from gradscope.diagnostics.rank.options import RankOptions
from gradscope.rollouts import run_folder
from gradscope.rollouts.store import read_steps
from gradscope.training.tasks.load import INSTRUCTION
from gradscope.training.train import train
from tests.rollouts.readers.lines import write_lines
from tests.trained import MakeRun
from tests.training.conftest import short_config
from tests.training.grpo.test_trainer import assert_logprobs

pytestmark = pytest.mark.slow  # whole runs of TRL


def on_gsm8k(output: Path, data: Path, model: Path, **settings: Any) -> Path:
    task = {"task": "gsm8k", "data": str(data), "heldout_prompts": 2, "heldout_samples": 2, "train_prompts": None}
    return train(short_config(output, model=str(model), max_completion_length=16, **task, **settings))


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

            assert tokenizer.decode(rollout.prompt_ids) == f"<|user|>{rollout.prompt}<eos><|assistant|>"
            assert rollout.token_rewards is None
            assert list(rollout.rewards) == ["final_answer"]
    statuses = [rollout.status for group in groups for rollout in group.rollouts]
    assert statuses.count("truncated") > len(statuses) / 2  # random weights seldom end a completion
    rows = [json.loads(line) for line in run_folder.heldout_path(run, "after").read_text().splitlines()]
    assert [row["prompt_id"] for row in rows] == ["train.jsonl:7"] * 2 + ["train.jsonl:8"] * 2
    assert_logprobs(run, steps=(1, 3), temperature=0.9)
    # held-out prompts went through the same template as those of a step: their answers can be held against it
    solved = write_lines(tmp_path / "solved.jsonl", *(row | {"reward": 1.0, "correct": True} for row in rows))
    report = measure_rank(run, steps=[1], options=RankOptions(heldout=solved))
    assert len(report.heldout) > 0
    assert not any("other token ids" in note for note in report.heldout_notes)


def test_gpt2_with_learned_positions_and_plain_prompts(tmp_path: Path, gsm8k_file: Path, gpt2_model: Path) -> None:
    run = on_gsm8k(tmp_path / "run", gsm8k_file, gpt2_model)
    assert_logprobs(run, steps=(1,), temperature=1.0)
    assert all(rollout.messages is None for group in read_steps(run) for rollout in group.rollouts)
    assert len(run_folder.read_manifest(run).notes) == 3
    adapted = on_gsm8k(tmp_path / "adapted", gsm8k_file, gpt2_model, lora_rank=2, steps=1)
    assert {weights.base for weights in run_folder.find_weights(adapted)} == {str(gpt2_model)}
    assert not run_folder.base_model_path(adapted).exists()


@pytest.mark.parametrize("lora_rank", [None, 2])
def test_bfloat16(short_run: MakeRun, lora_rank: int | None) -> None:
    from safetensors import safe_open

    run = short_run(dtype="bfloat16", lora_rank=lora_rank)
    assert run_folder.read_manifest(run).trainer_arguments["bf16"] is True
    name = "model.safetensors" if lora_rank is None else "adapter_model.safetensors"
    with safe_open(run_folder.checkpoint_path(run, 3) / name, "numpy") as weights:
        assert {weights.get_slice(key).get_dtype() for key in weights.keys()} == {"F32"}  # noqa: SIM118
    steps = run_folder.read_metrics(run).values()  # which of them have a live group depends on the processor's rounding
    assert all((values["grad_norm"] > 0) == (values["frac_reward_zero_std"] < 1) for values in steps)
    assert any(values["grad_norm"] > 0 for values in steps)
