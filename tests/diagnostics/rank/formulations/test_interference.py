"""Interference under formulations: of the rows that a step has, and of which groups."""

from __future__ import annotations

import numpy as np
import pytest

from gradscope.advantages.registry import LOGGED
from gradscope.diagnostics.rank.formulations.interference import measure_interference
from tests.diagnostics.rank.rollouts.test_step_spectra import make_rows

REWARDS = [0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0]
GROUPS = [f"g{group}" for group in range(4) for _ in range(4)]


def test_a_formulation_that_moves_dead_groups_has_their_influence_too() -> None:
    rows, scores = make_rows(REWARDS, GROUPS, advantages=[2 * reward - 1 for reward in REWARDS])
    steps, prompts = measure_interference(rows, [LOGGED, "dr_grpo", "sign"])
    assert [(row.step, row.advantage) for row in steps] == [(rows.step, name) for name in (LOGGED, "dr_grpo", "sign")]
    assert [(row.group_id, row.pass_rate) for row in prompts] == [("g0", 0.5), ("g1", 0.0), ("g2", 1.0), ("g3", 0.25)]
    assert {row.advantage for row in prompts} == {LOGGED}
    logged, live, sign = steps
    assert (sign.frac_hurt, sign.transfer) == (logged.frac_hurt, logged.transfer)  # they are the same numbers
    rewards = np.array(REWARDS)
    group = np.arange(16) // 4
    pulls = [(rewards - rewards[group == g].mean())[group == g] @ scores[group == g] for g in (0, 3)]
    right = {g: scores[(group == g) & (rewards == 1)].mean(axis=0) for g in (0, 2, 3)}
    hurt = [pull @ right[k] < 0 for j, pull in zip((0, 3), pulls, strict=True) for k in right if k != j]
    assert live.frac_hurt.value == pytest.approx(np.mean(hurt))
    _, of_live = measure_interference(rows, ["dr_grpo"])
    assert [row.group_id for row in of_live] == ["g0", "g3"]


def test_other_rewards_and_formulations_have_none() -> None:
    rows, _ = make_rows([0.5, 1.0, 0.0, 1.0], ["a", "a", "b", "b"])
    assert measure_interference(rows, ["dr_grpo"]) == ([], [])
    binary, _ = make_rows([0.0, 1.0, 0.0, 1.0], ["a", "a", "b", "b"])
    assert measure_interference(binary, ["spo"]) == ([], [])
