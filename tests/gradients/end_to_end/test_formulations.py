"""Formulations: the Gram matrix of each, from that without advantages, equals that of backward passes in float64."""

import functools

import numpy as np
import pytest
import torch

from gradscope.advantages.online import Memory, StepRollouts, online_advantage
from gradscope.advantages.registry import ALL_FORMULATIONS
from gradscope.diagnostics.rank.rollout_spectra import _token_weights
from gradscope.diagnostics.rank.rows import formulated
from gradscope.gradients.plan.prepared_step import prepare_step
from gradscope.gradients.step.step_gram import StepGram
from gradscope.gradients.tokens.measure import TokenGram, measure_tokens
from gradscope.rollouts.groups import RolloutGroup
from gradscope.training.grpo.trainer import HEADS
from tests.gradients import models

MODEL, NUM_GROUPS, GROUP_SIZE = "qwen3_gqa_norms", 2, 4
BY_ROLLOUT = [name for name, entry in ALL_FORMULATIONS.items() if entry.scope != "token"]


@functools.cache
def measured() -> tuple[list[RolloutGroup], StepGram, tuple[TokenGram, ...]]:
    """One step's Gram matrices, of rollouts and of tokens, computed once for all formulations."""
    policy, groups = models.tiny_policy(MODEL), models.tiny_groups(NUM_GROUPS, GROUP_SIZE, seed=9)
    step = models.measured_step(policy, groups, models.DAPO)
    return groups, step, measure_tokens(prepare_step(policy, groups, models.DAPO), step)


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
            np.full(len(row), a) for a, row in zip(formulated(name, rewards, norms).ravel(), step.logprobs, strict=True)
        ]
    online = HEADS[name](len(seen.states[0][0]), 0.1) if name in HEADS else online_advantage(name)
    if name == "running_mean":
        online.recall(Memory(numbers={group.prompt_id: 0.3 for group in groups}))
    if name in HEADS:
        online.advantages(seen)
    advantages = online.advantages(seen)
    return [np.broadcast_to(a, len(row)).astype(float) for a, row in zip(advantages, step.logprobs, strict=True)]


@functools.cache
def score_rows() -> list[np.ndarray]:
    """The gradient of every token's log-probability in float64, one backward each; one array [T, P] a rollout."""
    model, parameters = models.plain_model(models.tiny_policy(MODEL))
    rows = []
    for rollout in models.rollouts_of(measured()[0]):
        logprobs = models.plain_logprobs(model, rollout)
        one_each = torch.eye(len(logprobs), dtype=torch.float64)
        grads = torch.autograd.grad(logprobs, parameters, one_each, is_grads_batched=True)
        rows.append(torch.cat([part.flatten(1) for part in grads], dim=1).numpy())
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL_FORMULATIONS)
def test_gradients_weighed_afterwards_are_those_of_a_loss_with_the_advantages_in_it(name: str) -> None:
    groups, step, tokens = measured()
    advantages = advantages_of(name, groups, step)
    num_tokens = sum(map(len, advantages))
    rows = [-by_token[:, None] / num_tokens * scores for by_token, scores in zip(advantages, score_rows(), strict=True)]
    assert any(map(np.any, rows))
    if name in BY_ROLLOUT:
        sums = np.stack([scores.sum(axis=0) for scores in rows])
        assert models.relative_gram(step.gradient_gram(np.array([by_token[0] for by_token in advantages])), sums) < 1e-5
    for number, group_tokens in enumerate(tokens):
        table = group_tokens.table
        members = np.arange(number * GROUP_SIZE, (number + 1) * GROUP_SIZE)
        if name in BY_ROLLOUT:
            weights = _token_weights(table, members, np.array([advantages[rollout][0] for rollout in members]), name)
        else:
            values = [advantages[rollout][i] for rollout, i in zip(table.rollouts, table.positions, strict=True)]
            weights = -np.array(values) * table.score_weights
        group_rows = np.concatenate([rows[rollout] for rollout in members])
        assert models.relative_gram(weights[:, None] * group_tokens.gram * weights, group_rows) < 1e-5
