"""Formulations: the Gram matrix of every one, taken from the one without advantages, equals that of a fresh backward.

The oracle is one float64 backward of the loss with those advantages in it, through the plain model: a rollout at a
time, and a token at a time.
"""

import functools
from typing import Any

import numpy as np
import pytest
import torch

from gradscope.advantages.online import Memory, StepRollouts, online_advantage
from gradscope.advantages.registry import ALL_FORMULATIONS
from gradscope.diagnostics.rank.rows import formulated
from gradscope.diagnostics.rank.tokens.spectra import _token_weights
from gradscope.gradients.plan.prepared_step import prepare_step
from gradscope.gradients.step.step_gram import StepGram
from gradscope.gradients.tokens.measure import TokenGram, measure_tokens
from gradscope.rollouts.groups import RolloutGroup
from gradscope.training.grpo.trainer import HEADS
from tests.gradients.models import (
    DAPO,
    measured_step,
    plain_logprobs,
    plain_model,
    relative,
    rollouts_of,
    tiny_groups,
    tiny_policy,
)

NUM_GROUPS, GROUP_SIZE = 2, 4
BY_ROLLOUT = [name for name, entry in ALL_FORMULATIONS.items() if entry.scope != "token"]


@functools.cache
def measured(lora: bool) -> tuple[list[RolloutGroup], StepGram, tuple[TokenGram, ...]]:
    """One step's Gram matrices, of rollouts and of tokens, computed once for all formulations."""
    policy, groups = tiny_policy("qwen3_gqa_norms", lora=lora), tiny_groups(NUM_GROUPS, GROUP_SIZE, seed=9)
    step = measured_step(policy, groups, DAPO)
    return groups, step, measure_tokens(prepare_step(policy, groups, DAPO), step)


def advantages_of(name: str, groups: list[RolloutGroup], step: StepGram) -> list[np.ndarray]:
    """What a run would be trained with, or `rank` asks: one advantage a token, [R][T]. What remembers has a past."""
    rng = np.random.default_rng(1)
    rewards = np.array([[rollout.reward for rollout in group.rollouts] for group in groups])
    assert set(rewards.ravel()) == {0.0, 1.0}
    seen = StepRollouts(
        rewards=rewards,
        prompt_ids=tuple(group.prompt_id for group in groups),
        logprobs=[logprobs.tolist() for logprobs in step.logprobs],
        max_logprobs=[(logprobs + rng.exponential(size=len(logprobs))).tolist() for logprobs in step.logprobs],
        token_rewards=[rng.integers(0, 2, len(logprobs)).tolist() for logprobs in step.logprobs],
        function_rewards={"half": (rewards.ravel() / 2).tolist(), "other": rng.integers(0, 2, rewards.size).tolist()},
        completion_ids=[rollout.completion_ids or () for group in groups for rollout in group.rollouts],
        states=[rng.normal(size=(1 + len(logprobs), 5)).astype(np.float32) for logprobs in step.logprobs],
    )
    if name == "optimal_baseline":
        norms = np.diag(step.score_gram).reshape(rewards.shape)
        return [
            np.full(len(of), a) for a, of in zip(formulated(name, rewards, norms).ravel(), step.logprobs, strict=True)
        ]
    online = HEADS[name](len(seen.states[0][0]), 0.1) if name in HEADS else online_advantage(name)
    if name == "running_mean":
        online.recall(Memory(numbers={group.prompt_id: 0.3 for group in groups}))
    if name in HEADS:
        online.advantages(seen)
    advantages = online.advantages(seen)
    return [np.broadcast_to(a, len(of)).astype(float) for a, of in zip(advantages, step.logprobs, strict=True)]


@functools.cache
def exact_model(lora: bool) -> tuple[Any, list[torch.nn.Parameter]]:
    return plain_model(tiny_policy("qwen3_gqa_norms", lora=lora))


def fresh_rows(lora: bool, groups: list[RolloutGroup], advantages: list[np.ndarray], *, by_token: bool) -> np.ndarray:
    """Gradient rows of the loss -A log pi / (number of tokens), in float64, one backward each, [R, P] or [N, P]."""
    model, parameters = exact_model(lora)
    num_tokens = sum(len(advantage) for advantage in advantages)
    rows = []
    for rollout, advantage in zip(rollouts_of(groups), advantages, strict=True):
        losses = -torch.tensor(advantage) * plain_logprobs(model, rollout) / num_tokens
        one_each = torch.eye(len(losses), dtype=torch.float64) if by_token else torch.ones(1, len(losses)).double()
        grads = torch.autograd.grad(losses, parameters, one_each, is_grads_batched=True)
        rows.append(torch.cat([part.flatten(1) for part in grads], dim=1).numpy())
    return np.concatenate(rows)


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("name", BY_ROLLOUT)
def test_rollouts_weighed_afterwards_equal_a_fresh_backward(name: str, lora: bool) -> None:
    groups, step, _ = measured(lora)
    advantages = advantages_of(name, groups, step)
    rows = fresh_rows(lora, groups, advantages, by_token=False)
    result = step.gradient_gram(np.array([advantage[0] for advantage in advantages]))
    assert np.any(rows)
    assert relative(result, rows @ rows.T) < 1e-5


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("name", ALL_FORMULATIONS)
def test_tokens_weighed_afterwards_equal_a_fresh_backward(name: str, lora: bool) -> None:
    groups, step, tokens = measured(lora)
    advantages = advantages_of(name, groups, step)
    rows = fresh_rows(lora, groups, advantages, by_token=True)
    for number, of_group in enumerate(tokens):
        table = of_group.table
        members = np.arange(number * GROUP_SIZE, (number + 1) * GROUP_SIZE)
        if name in BY_ROLLOUT:
            scalars = np.array([advantages[rollout][0] for rollout in members])
            weights = _token_weights(table, members, scalars, name)
        else:
            each = [advantages[rollout][index] for rollout, index in zip(table.rollouts, table.positions, strict=True)]
            weights = -np.array(each) * table.score_weights
        start = sum(len(of) for of in advantages[: number * GROUP_SIZE])
        mine = rows[start : start + len(weights)]
        assert relative(weights[:, None] * of_group.gram * weights, mine @ mine.T) < 1e-5
    assert np.any(rows)
