"""TRL's own arithmetic as the oracle, in torch, on random rewards with gaps; and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from gradscope.diagnostics.replay.trl_advantages import trl_batch
from gradscope.reason import Reason
from gradscope.rollouts.run import TrainerSettings
from tests.diagnostics.made_up_runs import group_of

G, WEIGHTS = 4, [1.0, 0.3]


def random_groups(seed: int, *, gaps: bool) -> tuple[list, torch.Tensor]:
    """Groups with two reward functions, and the same as TRL's table [N, F]."""
    rng = np.random.default_rng(seed)
    table = rng.integers(0, 3, (3 * G, 2)).astype(np.float64)
    table[:G] = 1.0  # a dead group
    if gaps:
        table[rng.random(table.shape) < 0.3] = np.nan
        table[G] = np.nan  # a rollout that nothing scored
    groups = []
    for start in range(0, len(table), G):
        part = table[start : start + G]
        scalar = [None if np.isnan(row).all() else float(np.nansum(row * WEIGHTS)) for row in part]
        columns = {f"f{k}": [None if np.isnan(v) else float(v) for v in part[:, k]] for k in range(2)}
        groups.append(group_of(scalar, step=1, prompt=str(start), functions=columns))
    return groups, torch.tensor(table)


def nanstd(values: torch.Tensor, dim=None) -> torch.Tensor:
    mean = torch.nanmean(values, dim=dim, keepdim=True)
    count = (~values.isnan()).sum(dim=dim, keepdim=True)
    correction = torch.where(count > 1, count.double() / (count - 1), torch.nan)
    return (torch.nanmean((values - mean) ** 2, dim=dim, keepdim=True) * correction).sqrt()


def by_trl(table: torch.Tensor, aggregation: str, scale: str) -> tuple[torch.Tensor, float]:
    weights, unscored = torch.tensor(WEIGHTS, dtype=torch.float64), table.isnan().all(dim=1)
    if aggregation == "normalize_then_sum":
        grouped = table.view(-1, G, 2)
        scaled = (grouped - torch.nanmean(grouped, 1, keepdim=True)) / (nanstd(grouped, 1) + 1e-4)
        rewards = (scaled.view(-1, 2) * weights).nansum(dim=1)
        rewards[unscored] = torch.nan
        std = nanstd(rewards).expand_as(rewards)
        advantages = (rewards - torch.nanmean(rewards)) / (std + 1e-4)
    else:
        rewards = (table * weights).nansum(dim=1)
        rewards[unscored] = torch.nan
        grouped = rewards.view(-1, G)
        std = nanstd(grouped, 1).expand_as(grouped).reshape(-1)
        if scale == "batch":
            std = nanstd(rewards).expand_as(rewards)
        advantages = rewards - torch.nanmean(grouped, 1, keepdim=True).expand_as(grouped).reshape(-1)
        if scale != "none":
            advantages = advantages / (std + 1e-4)
    return torch.nan_to_num(advantages, nan=0.0), float(torch.isclose(std, torch.zeros_like(std)).double().mean())


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize(
    ("aggregation", "scale"),
    [
        ("sum_then_normalize", "group"),
        ("sum_then_normalize", "batch"),
        ("sum_then_normalize", "none"),
        ("normalize_then_sum", "group"),
    ],
)
def test_the_numbers_are_trls(aggregation, scale, gaps, seed):
    groups, table = random_groups(seed, gaps=gaps)
    settings = {"scale_rewards": scale, "multi_objective_aggregation": aggregation, "reward_weights": WEIGHTS}
    found = trl_batch(groups, TrainerSettings(values={**settings, "trl_version": "1.16.0"}))
    advantages, share = by_trl(table, aggregation, scale)
    np.testing.assert_allclose(found.advantages, advantages, rtol=1e-9, atol=1e-9)
    assert found.frac_zero_std == share
    rewards = (table * torch.tensor(WEIGHTS)).nansum(dim=1)[~table.isnan().all(dim=1)]
    assert found.reward == pytest.approx(float(rewards.mean()))


def test_before_a_version_no_reward_was_a_reward_of_zero():
    group = group_of([1.0, None], step=1)
    found = trl_batch([group], TrainerSettings(values={"scale_rewards": "none", "trl_version": "1.5.0"}))
    assert found.advantages.tolist() == [0.5, -0.5]
    later = trl_batch([group], TrainerSettings(values={"scale_rewards": "none", "trl_version": "1.6.0"}))
    assert later.advantages.tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("rewards", "values", "cause"),
    [
        ([1.0, 0.0], {"scale_rewards": "odd"}, "loss_unknown"),
        ([1.0, 0.0], {"multi_objective_aggregation": "odd"}, "loss_unknown"),
        ([1.0, None], {}, "settings_unknown"),
        ([1.0, 0.0], {"multi_objective_aggregation": "normalize_then_sum"}, "rewards_missing"),
    ],
)
def test_what_cannot_be_told_has_its_reason(rewards, values, cause):
    found = trl_batch([group_of(rewards, step=1)], TrainerSettings(values=values))
    assert isinstance(found, Reason)
    assert found.cause == cause


def test_weights_of_other_functions_are_no_weights():
    groups, _ = random_groups(0, gaps=False)
    values = {"multi_objective_aggregation": "normalize_then_sum", "reward_weights": [1.0]}
    assert trl_batch(groups, TrainerSettings(values=values)).cause == "rewards_missing"
    unnamed = [replace(group, rollouts=tuple(replace(r, rewards={}) for r in group.rollouts)) for group in groups]
    assert trl_batch(unnamed, TrainerSettings(values={**values, "reward_weights": None})).cause == "rewards_missing"
