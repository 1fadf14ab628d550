"""Whole runs on the embedded task: what lies in the folder, and that it is what was trained on."""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradscope.advantages.registry import ALL_FORMULATIONS, compute_advantages
from gradscope.advantages.token import return_to_go
from gradscope.rollouts.run_folder import (
    checkpoint_path,
    find_weights,
    heldout_path,
    metrics_path,
    read_manifest,
    read_metrics,
    step_path,
)
from gradscope.rollouts.store import read_steps
from gradscope.training.setup.config import TrainConfig, read_config
from gradscope.training.tasks.running_sums import grade_answer, grade_steps
from gradscope.training.train import train
from tests.training.conftest import SHORT

MakeRun = Callable[..., Path]


def short(output: Path, **settings: Any) -> TrainConfig:
    return TrainConfig.from_json(SHORT | settings | {"output": str(output)})


def test_every_step_has_its_groups(short_run: MakeRun) -> None:
    groups = read_steps(short_run())
    assert [group.step for group in groups] == [1] * 4 + [2] * 4 + [3] * 4
    assert [group.group_id for group in groups[4:8]] == ["00002-000", "00002-001", "00002-002", "00002-003"]
    assert all([rollout.sample for rollout in group.rollouts] == [0, 1, 2, 3] for group in groups)
    assert [rollout.row for group in groups[:4] for rollout in group.rollouts] == list(range(16))
    assert len({group.prompt_id for group in groups}) == 8  # each of the eight prompts, twice in 12 groups at most


def test_ids_and_texts_belong_together(short_run: MakeRun) -> None:
    from transformers import AutoTokenizer

    run = short_run()
    tokenizer = AutoTokenizer.from_pretrained(checkpoint_path(run, 0))
    for group in read_steps(run):
        for rollout in group.rollouts:
            assert rollout.prompt_ids is not None
            assert rollout.completion_ids is not None
            assert tokenizer.decode(rollout.prompt_ids) == rollout.prompt == group.prompt_id
            assert tokenizer.decode(rollout.completion_ids, skip_special_tokens=True) == rollout.completion
            ended = rollout.completion_ids[-1] == tokenizer.eos_token_id
            assert rollout.status == ("completed" if ended else "truncated")
            assert tokenizer.eos_token_id not in rollout.completion_ids[:-1]


def test_rewards_are_the_graders(short_run: MakeRun) -> None:
    for group in read_steps(short_run()):
        answer = str(sum(int(character) for character in group.prompt_id if character.isdigit()))
        for rollout in group.rollouts:
            assert rollout.reward == rollout.rewards["answer"] == grade_answer(rollout.completion, answer)
            assert rollout.token_rewards is not None
            assert rollout.completion_ids is not None
            assert len(rollout.token_rewards) == len(rollout.completion_ids)
            assert sum(rollout.token_rewards) == sum(grade_steps(rollout.prompt, list(rollout.completion)))


@pytest.mark.parametrize(
    "name",
    [name for name, entry in ALL_FORMULATIONS.items() if entry.function is not None],
)
def test_every_formulation_trains_and_its_advantages_are_recorded(short_run: MakeRun, name: str) -> None:
    run = short_run(advantage=name)
    groups = read_steps(run)
    for step in (1, 2, 3):
        of_step = [group for group in groups if group.step == step]
        rewards = np.array([group.rewards for group in of_step], dtype=np.float64)
        recorded = [[rollout.advantage for rollout in group.rollouts] for group in of_step]
        np.testing.assert_allclose(recorded, compute_advantages(name, rewards), rtol=1e-6, atol=1e-7)
    assert read_manifest(run).advantage == name
    assert all(values["grad_norm"] >= 0 for values in read_metrics(run).values())


def test_advantages_of_tokens_are_recorded_one_a_token(short_run: MakeRun) -> None:
    for group in read_steps(short_run(advantage="per_step")):
        expected = return_to_go([rollout.token_rewards or () for rollout in group.rollouts])
        for rollout, advantage in zip(group.rollouts, expected, strict=True):
            assert rollout.advantage is None
            np.testing.assert_allclose(rollout.token_advantages, advantage, rtol=1e-6, atol=1e-7)


def test_compensation_weighs_up_what_was_not_most_likely(short_run: MakeRun) -> None:
    limits = {"compensation": 2.0, "compensation_clipped": 1.5}
    for name, limit in limits.items():
        factors = []
        for group in read_steps(short_run(advantage=name)):
            base = compute_advantages("grpo", np.array(group.rewards, dtype=np.float64))
            for rollout, advantage in zip(group.rollouts, base, strict=True):
                assert len(rollout.token_advantages or ()) == len(rollout.completion_ids or ())
                factors += [value / advantage for value in rollout.token_advantages or () if advantage]
        assert min(factors) == pytest.approx(1.0)
        assert 1.2 < max(factors) <= limit + 1e-6


def test_formulations_share_the_first_rollouts_and_then_part(short_run: MakeRun) -> None:
    def logprobs(name: str, step: int) -> list[Any]:
        groups = read_steps(short_run(advantage=name))
        return [rollout.logprobs for group in groups if group.step == step for rollout in group.rollouts]

    assert logprobs("grpo", 1) == logprobs("sign", 1)
    assert logprobs("grpo", 2) != logprobs("sign", 2)


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.7}], ids=["plain", "temperature"])
def test_logprobs_are_those_of_the_weights_before_the_step(short_run: MakeRun, settings: dict[str, Any]) -> None:
    assert_logprobs(short_run(**settings), steps=(1, 3), temperature=settings.get("temperature", 1.0))


def assert_logprobs(run: Path, *, steps: tuple[int, ...], temperature: float) -> None:
    """Row by row, without any padding, from the checkpoint before each step."""
    import torch
    from transformers import AutoModelForCausalLM

    for step in steps:
        model = AutoModelForCausalLM.from_pretrained(checkpoint_path(run, step - 1))
        for group in read_steps(run):
            for rollout in group.rollouts if group.step == step else ():
                assert rollout.prompt_ids is not None
                assert rollout.completion_ids is not None
                ids = torch.tensor([*rollout.prompt_ids, *rollout.completion_ids])
                with torch.no_grad():
                    scores = torch.log_softmax(model(input_ids=ids[None]).logits[0, :-1] / temperature, -1)
                start = len(rollout.prompt_ids) - 1
                expected = scores[start:].gather(-1, ids[start + 1 :, None])[:, 0]
                np.testing.assert_allclose(rollout.logprobs, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["grpo", "sign", "reinforce"])
def test_logged_norm_is_that_of_the_recorded_rollouts_and_advantages(short_run: MakeRun, name: str) -> None:
    """One ordinary backward pass over the record, with the loss that the manifest states (dapo: mean over tokens)."""
    import torch
    from transformers import AutoModelForCausalLM

    run = short_run(advantage=name)
    for step in (1, 3):
        model = AutoModelForCausalLM.from_pretrained(checkpoint_path(run, step - 1), dtype=torch.float64)
        rollouts = [rollout for group in read_steps(run) if group.step == step for rollout in group.rollouts]
        num_tokens = sum(len(rollout.completion_ids or ()) for rollout in rollouts)
        for rollout in rollouts:
            ids = torch.tensor([*(rollout.prompt_ids or ()), *(rollout.completion_ids or ())])
            scores = torch.log_softmax(model(input_ids=ids[None]).logits[0, :-1], -1).gather(-1, ids[1:, None])
            ((rollout.advantage or 0.0) * scores[len(rollout.prompt_ids or ()) - 1 :].sum() / -num_tokens).backward()
        norm = torch.sqrt(
            sum((p.grad.square().sum() for p in model.parameters()), torch.zeros((), dtype=torch.float64))
        )
        assert norm.item() == pytest.approx(read_metrics(run)[step]["grad_norm"], rel=1e-5)


def test_metrics_have_the_trainers_norm_and_share_of_degenerate_groups(short_run: MakeRun) -> None:
    run = short_run()
    metrics = read_metrics(run)
    assert list(metrics) == [1, 2, 3]
    for step, values in metrics.items():
        rewards = [group.rewards for group in read_steps(run) if group.step == step]
        degenerate = sum(len(set(group)) == 1 for group in rewards)
        assert values["num_groups"] == 4
        assert values["num_degenerate_groups"] == degenerate
        assert values["frac_reward_zero_std"] == degenerate / 4
        assert values["reward"] == pytest.approx(np.mean(rewards))
        assert values["grad_norm"] > 0
        assert values["learning_rate"] == TrainConfig().learning_rate


def test_checkpoints_begin_before_the_first_update(short_run: MakeRun) -> None:
    from safetensors.numpy import load_file

    from gradscope.training.grpo.policy import EMBEDDED_FOLDER

    run = short_run()
    assert [weights.num_updates for weights in find_weights(run)] == [0, 2, 3]
    packaged, before = (
        load_file(folder / "model.safetensors") for folder in (EMBEDDED_FOLDER, checkpoint_path(run, 0))
    )
    after = load_file(checkpoint_path(run, 3) / "model.safetensors")
    assert packaged.keys() == before.keys() == after.keys()
    assert all(np.array_equal(packaged[name], before[name]) for name in packaged)
    assert not any(np.array_equal(before[name], after[name]) for name in packaged)


def test_nothing_pickled_but_the_newest_state(short_run: MakeRun) -> None:
    run = short_run()
    pickles = {
        path.relative_to(run).as_posix() for kind in ("*.pt", "*.pth", "*.bin", "*.pkl") for path in run.rglob(kind)
    }
    assert pickles == {f"checkpoints/checkpoint-3/{name}" for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth")}
    assert not list(run.rglob("README.md"))


def test_heldout_samples_before_and_after(short_run: MakeRun) -> None:
    run = short_run()
    for when in ("before", "after"):
        rows = [json.loads(line) for line in heldout_path(run, when).read_text().splitlines()]  # type: ignore[arg-type]
        assert len(rows) == 16
        assert [rows[i]["prompt_id"] for i in range(0, 16, 4)] == list(dict.fromkeys(row["prompt_id"] for row in rows))
        assert {row["prompt_id"] for row in rows}.isdisjoint(group.prompt_id for group in read_steps(run))
        assert all(row["reward"] == grade_answer(row["completion"], row["answer"]) for row in rows)
        assert all(row["correct"] is (row["reward"] == 1.0) for row in rows)


def test_manifest_repeats_the_run(short_run: MakeRun, tmp_path: Path) -> None:
    run = short_run()
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
    again = train(dataclasses.replace(read_config(run), output=str(tmp_path / "again")))
    for step in (1, 2, 3):
        assert step_path(run, step).read_bytes() == step_path(again, step).read_bytes()
    weights = [checkpoint_path(folder, 3) / "model.safetensors" for folder in (run, again)]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    assert heldout_path(run, "after").read_bytes() == heldout_path(again, "after").read_bytes()


def test_another_seed_is_another_run(short_run: MakeRun) -> None:
    assert step_path(short_run(), 1).read_bytes() != step_path(short_run(seed=1), 1).read_bytes()


def test_heldout_sampling_does_not_touch_the_training(short_run: MakeRun) -> None:
    run = short_run(heldout_prompts=0)
    assert not heldout_path(run, "before").exists()
    assert step_path(run, 3).read_bytes() == step_path(short_run(), 3).read_bytes()


def test_accumulated_gradient_is_the_same_gradient(short_run: MakeRun) -> None:
    whole, parts = short_run(), short_run(gradient_accumulation_steps=4)
    assert step_path(whole, 1).read_bytes() != b""
    norms = [read_metrics(run)[1]["grad_norm"] for run in (whole, parts)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)


def test_nothing_is_printed_and_the_process_is_left_as_it_was(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    import random

    import torch
    from transformers.utils import logging

    before = (torch.get_num_threads(), logging.get_verbosity(), random.getstate(), torch.get_rng_state().tolist())
    filters = list(warnings.filters)
    seen: list[tuple[int, int, str]] = []
    train(short(tmp_path / "run", steps=2), progress=lambda *report: seen.append(report))
    after = (torch.get_num_threads(), logging.get_verbosity(), random.getstate(), torch.get_rng_state().tolist())
    assert before == after
    assert warnings.filters == filters
    assert seen == [
        (4, 4, "held-out prompts before"),
        (1, 2, "steps"),
        (2, 2, "steps"),
        (4, 4, "held-out prompts after"),
    ]
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_metrics_lines_are_json(short_run: MakeRun) -> None:
    lines = metrics_path(short_run()).read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3]
