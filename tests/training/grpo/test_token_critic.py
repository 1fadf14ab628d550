"""The learned token critic: by hand, its start at grpo, and that it neither steers nor is steered by the policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradscope.advantages.online_advantage import Memory, StepRollouts
from gradscope.advantages.registry import compute_advantages
from gradscope.rollouts.run_folder import checkpoint_path, read_metrics
from gradscope.rollouts.store import read_steps
from gradscope.training.grpo.token_critic import TokenCritic
from gradscope.training.run_training import trained_advantage
from gradscope.training.setup.config import TrainConfig

MakeRun = Callable[..., Path]
STATES = [[[1.0, 0.0], [0.0, 2.0]], [[1.0, 1.0]]]
"""Of two rollouts, of two tokens and of one."""


def step(rewards: Sequence[float] = (1.0, 0.0), states: Any = STATES) -> StepRollouts:
    given = None if states is None else [np.array(rows, dtype=np.float32) for rows in states]
    nothing: list[list[float]] = [[0.0], [0.0]]
    return StepRollouts(
        rewards=[np.array(rewards)], prompt_ids=("p",), logprobs=nothing, max_logprobs=nothing, states=given
    )


def test_two_steps_by_hand() -> None:
    online = trained_advantage(TrainConfig(advantage="token_critic", critic_learning_rate=0.1), width=2)
    assert online.by_token
    assert online.remembers
    plus, minus = compute_advantages("grpo", [1.0, 0.0])
    first = online.advantages(step())
    assert [advantage.tolist() for advantage in first] == [[plus, plus], [minus]]
    assert online.metrics == {"critic_mean_abs": 0.0, "critic_loss": 0.0}
    # gradients: -(plus/3) (1 - 1, 2 - 1) for w, -(plus/3) for c; AdamW's first update is the rate times their signs
    second = online.advantages(step())
    np.testing.assert_allclose(second[0], [plus + 0.1, plus + 2 * 0.1 + 0.1], rtol=1e-6)
    np.testing.assert_allclose(second[1], [minus + 0.1 + 0.1], rtol=1e-6)
    assert online.metrics["critic_mean_abs"] == pytest.approx((0.1 + 0.3 + 0.2) / 3)
    assert online.metrics["critic_loss"] == pytest.approx(-plus * (0.1 + 0.3 - 0.2) / 3)


def test_nothing_bounds_it() -> None:
    online = TokenCritic(2, 0.1)
    seen = [float(np.abs(np.concatenate(online.advantages(step()))).max()) for _ in range(200)]
    assert seen[-1] > 50


def test_a_dead_group_moves_the_head_no_further_than_its_momentum() -> None:
    online = TokenCritic(2, 0.1)
    advantages = online.advantages(step(rewards=(1.0, 1.0)))
    assert not np.concatenate(advantages).any()
    assert not online.memory.arrays["head"].any()


def test_it_goes_on_from_its_memory() -> None:
    online, again = TokenCritic(2, 0.1), TokenCritic(2, 0.1)
    online.advantages(step())
    again.recall(online.memory)
    for rewards in ((0.0, 1.0), (1.0, 0.0)):
        following = [one.advantages(step(rewards)) for one in (online, again)]
        np.testing.assert_array_equal(np.concatenate(following[0]), np.concatenate(following[1]))


def test_memory_of_another_head() -> None:
    online = TokenCritic(2, 0.1)
    online.advantages(step())
    with pytest.raises(ValueError, match="the head that was kept is of another width"):
        TokenCritic(3, 0.1).recall(online.memory)
    with pytest.raises(KeyError, match="head"):
        online.recall(Memory())


def test_without_states() -> None:
    with pytest.raises(ValueError, match="token_critic needs the hidden state of every token"):
        TokenCritic(2, 0.1).advantages(step(states=None))


@pytest.mark.slow
def test_the_first_step_is_that_of_grpo(short_run: MakeRun) -> None:
    runs = [short_run(advantage=name) for name in ("grpo", "token_critic")]
    grpo, critic = ([rollout for group in read_steps(run) for rollout in group.rollouts] for run in runs)
    for plain, ours in list(zip(grpo, critic, strict=True))[:16]:
        assert plain.completion_ids == ours.completion_ids
        assert set(ours.token_advantages or ()) == {plain.advantage}
    for plain, ours in list(zip(grpo, critic, strict=True))[16:32]:  # made by the same weights
        assert plain.logprobs == ours.logprobs
    metrics = [read_metrics(run) for run in runs]
    assert metrics[0][1]["grad_norm"] == metrics[1][1]["grad_norm"]
    assert metrics[1][1]["critic_mean_abs"] == 0.0
    assert metrics[1][3]["critic_mean_abs"] > 0.0
    assert "critic_loss" not in metrics[0][1]


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"lora_rank": 2}, {"gradient_accumulation_steps": 4}], ids=str)
def test_the_head_reads_the_state_at_each_token(short_run: MakeRun, settings: dict[str, Any]) -> None:
    """The second step's bonus, from an update by hand on states that a plain forward of each rollout gives."""
    import torch
    from transformers import AutoModelForCausalLM

    run = short_run(advantage="token_critic", checkpoint_every=1, **settings)
    online = TokenCritic(64, TrainConfig().critic_learning_rate)
    for number in (1, 2):
        model = AutoModelForCausalLM.from_pretrained(checkpoint_path(run, number - 1))
        groups = [group for group in read_steps(run) if group.step == number]
        states = []
        for rollout in (rollout for group in groups for rollout in group.rollouts):
            ids = torch.tensor([[*(rollout.prompt_ids or ()), *(rollout.completion_ids or ())]])
            with torch.no_grad():
                last = model(input_ids=ids, output_hidden_states=True).hidden_states[-1][0]
            states.append(last[len(rollout.prompt_ids or ()) :].numpy())
        expected = online.advantages(
            StepRollouts(
                rewards=[np.array(group.rewards, dtype=np.float64) for group in groups],
                prompt_ids=(),
                logprobs=(),
                max_logprobs=(),
                states=states,
            )
        )
        seen = [rollout.token_advantages for group in groups for rollout in group.rollouts]
        for ours, theirs in zip(expected, seen, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
