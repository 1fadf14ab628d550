from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradscope.advantages.registry import ALL_FORMULATIONS, compute_advantages
from gradscope.advantages.token import return_to_go
from gradscope.rollouts.run_folder import (
    checkpoint_path,
    read_manifest,
    read_metrics,
)
from gradscope.rollouts.store import read_steps

pytestmark = pytest.mark.slow  # whole runs of TRL

MakeRun = Callable[..., Path]


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


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.7}], ids=["plain", "temperature"])
def test_logprobs_are_those_of_the_weights_before_the_step(short_run: MakeRun, settings: dict[str, Any]) -> None:
    assert_logprobs(short_run(**settings), steps=(1, 3), temperature=settings.get("temperature", 1.0))


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
