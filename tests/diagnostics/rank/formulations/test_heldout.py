"""What the groups of a step do to held-out prompts under each formulation, against loops over plain vectors."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from gradscope.advantages.registry import LOGGED
from gradscope.diagnostics.rank.formulations.heldout import measure_heldout
from gradscope.gradients.step.heldout import HeldoutGram
from tests.diagnostics.rank.rollouts.test_step_spectra import make_rows

REWARDS = [0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0]
GROUPS = [f"g{group}" for group in range(5) for _ in range(4)]


def gram_of(scores: np.ndarray, heldout: np.ndarray, scales: np.ndarray | None) -> HeldoutGram:
    norms = np.linalg.norm(heldout, axis=1)
    return HeldoutGram(cross=scores @ heldout.T, norms=norms, scales=scales, num_answers=len(heldout), notes=())


def test_every_formulation_is_held_against_the_same_products() -> None:
    rows, scores = make_rows(REWARDS, GROUPS, advantages=[2 * reward - 1 for reward in REWARDS])
    heldout, scales = np.random.default_rng(5).normal(size=(7, scores.shape[1])), np.linspace(2.0, 3.0, 20)
    scales[1] = 0.0  # a correct rollout that the loss leaves out
    steps, prompts = measure_heldout(rows, gram_of(scores, heldout, scales), [LOGGED, "dr_grpo", "sign", "spo"])
    assert [(row.advantage, row.num_groups, row.num_heldout) for row in steps] == [
        (LOGGED, 5, 7),
        ("dr_grpo", 3, 7),
        ("sign", 5, 7),
    ]
    logged, live, sign = steps
    assert (sign.frac_hurt, sign.cosine, sign.transfer) == (logged.frac_hurt, logged.cosine, logged.transfer)
    rewards, group = np.array(REWARDS), np.arange(20) // 4
    pulls = {j: (rewards - rewards[group == j].mean())[group == j] @ scores[group == j] for j in (0, 3, 4)}
    right = {j: (group == j) & (rewards == 1) & (scales > 0) for j in pulls}
    own = {j: (scales[:, None] * scores)[mask].mean(axis=0) for j, mask in right.items()}
    step = sum(pulls.values())
    assert live.frac_hurt.value == pytest.approx(
        np.mean([pull @ one < 0 for pull in pulls.values() for one in heldout])
    )
    ratio = np.mean(heldout @ step) / np.mean([own[j] @ step for j in pulls])
    if live.transfer.is_defined:
        assert live.transfer.value == pytest.approx(ratio)
    else:
        assert np.mean([own[j] @ step for j in pulls]) <= 0 or "single group" in live.transfer.undefined
    assert [(row.group_id, row.pass_rate) for row in prompts] == [
        *(("g0", 0.5), ("g1", 0.0), ("g2", 1.0), ("g3", 0.25), ("g4", 0.75)),
    ]
    _, of_live = measure_heldout(rows, gram_of(scores, heldout, scales), ["dr_grpo"])
    unit = np.mean([np.linalg.norm(one) for one in pulls.values()]) * np.mean(np.linalg.norm(heldout, axis=1))
    assert [row.influence.value for row in of_live] == pytest.approx(
        [np.mean(heldout @ one) / unit for one in pulls.values()]
    )


def test_a_transfer_needs_the_steps_own_answers() -> None:
    rows, scores = make_rows(REWARDS, GROUPS)
    heldout = np.random.default_rng(5).normal(size=(7, scores.shape[1]))
    ((uneven,), prompts) = measure_heldout(rows, gram_of(scores, heldout, None), ["dr_grpo"])
    assert "weighs the tokens of an answer unequally" in uneven.transfer.undefined
    assert uneven.frac_hurt.is_defined
    assert all(row.influence.is_defined for row in prompts)
    graded = dataclasses.replace(rows, rewards=np.array(REWARDS) / 2)
    ((other,), prompts) = measure_heldout(graded, gram_of(scores, heldout, np.ones(20)), ["dr_grpo"])
    assert "rewards other than 0 and 1" in other.transfer.undefined
    assert (other.cosine.is_defined, prompts[0].pass_rate) == (True, 0.25)


def test_a_missing_reward_leaves_its_group_without_a_pass_rate() -> None:
    rows, scores = make_rows(REWARDS, GROUPS, advantages=[2 * reward - 1 for reward in REWARDS])
    lacking = dataclasses.replace(rows, rewards=np.array([np.nan, *REWARDS[1:]]))
    heldout = np.random.default_rng(5).normal(size=(4, scores.shape[1]))
    _, prompts = measure_heldout(lacking, gram_of(scores, heldout, np.ones(20)), [LOGGED])
    assert [row.pass_rate for row in prompts] == [None, 0.0, 1.0, 0.25, 0.75]


def test_without_a_formulation_there_is_nothing() -> None:
    rows, scores = make_rows(REWARDS, GROUPS)
    assert measure_heldout(rows, gram_of(scores, scores[:4], None), ["spo"]) == ([], [])
