"""Parts of updates by kind of group, against the rows themselves and against enumeration."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gradscope.advantages.registry import compute_step_advantages
from gradscope.diagnostics.rank.formulations.kinds import kinds_of, measure_kinds
from gradscope.diagnostics.rank.formulations.updates import measure_formulations
from tests.diagnostics.rank.rollouts.test_step_spectra import make_rows

REWARDS = [0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0]
GROUPS = [f"g{group}" for group in range(4) for _ in range(4)]
KIND_OF_GROUP = ["mixed", "all_fail", "all_pass", "mixed"]


@pytest.mark.parametrize("name", ["grpo", "sign", "reinforce", "ngrpo", "pass_at_2", "batch_mean", "opo"])
def test_parts_are_sums_of_fresh_rows(name: str) -> None:
    rows, scores = make_rows(REWARDS, GROUPS)
    rows = replace(rows, lengths=np.ones(16))
    rewards = np.array(REWARDS).reshape(4, 4)
    given = rewards - rewards.mean(1, keepdims=True) if name == "opo" else compute_step_advantages(name, rewards)
    gradient = np.concatenate(list(given))[:, None] * scores
    whole = gradient.sum(0)
    found = {part.kind: part for part in measure_kinds(rows, [name])}
    assert list(found) == ["all_fail", "mixed", "all_pass"]
    for kind, part in found.items():
        mine = np.repeat([of == kind for of in KIND_OF_GROUP], 4)
        total = gradient[mine].sum(0)
        assert part.num_groups == KIND_OF_GROUP.count(kind)
        assert part.norm.value == pytest.approx(np.linalg.norm(total), abs=1e-9)
        if np.any(total):
            cosine = total @ whole / np.linalg.norm(total) / np.linalg.norm(whole)
            assert part.cosine.value == pytest.approx(cosine)
        else:
            assert part.cosine.undefined is not None


def test_the_parts_of_one_kind_alone_are_the_update() -> None:
    rows, scores = make_rows([0.0, 1.0] * 8, GROUPS)
    scores[:, 0] += 3 * (rows.rewards - 0.5)
    rows = replace(rows, gram=scores @ scores.T)
    (part,) = measure_kinds(rows, ["rloo"])
    (update,) = measure_formulations(rows, ["rloo"])
    assert (part.kind, part.norm) == ("mixed", replace(update.update_norm, num_units=part.norm.num_units))
    assert part.cosine.value == pytest.approx(1.0)
    assert part.alignment == update.alignment


def test_the_all_fail_part_of_sign_climbs_pass_at_g() -> None:
    """Of many prompts with one direction that raises the pass rate: its all-fail groups point along it."""
    rng = np.random.default_rng(0)
    rewards = (rng.random(400) < 0.3).astype(float)
    rows, scores = make_rows(rewards.tolist(), [f"g{group}" for group in range(100) for _ in range(4)])
    scores[:, 0] += 4 * (rewards - 0.3)
    parts = {part.kind: part for part in measure_kinds(replace(rows, gram=scores @ scores.T), ["sign"])}
    found = parts["all_fail"].alignment["pass@4"]
    assert found.value > 0.9
    assert found.high == pytest.approx(1.0, abs=0.1)


def test_other_rewards_have_no_kinds() -> None:
    rows, _ = make_rows([0.5, 1.0, 0.0, 1.0], ["a", "a", "b", "b"])
    assert measure_kinds(rows, ["dr_grpo"]) == []
    binary, _ = make_rows([0.0, 1.0, 0.0, 1.0], ["a", "a", "b", "b"])
    assert measure_kinds(binary, ["spo"]) == []


def test_each_rollout_is_of_the_kind_of_its_group() -> None:
    rows, _ = make_rows([0.0, 1.0, 0.0, 1.0, 0.0, 1.0], ["a", "b", "a", "b", "c", "c"])
    masks = {kind: mask.tolist() for kind, mask in kinds_of(rows).items()}
    assert masks == {
        "all_fail": [True, False, True, False, False, False],
        "mixed": [False] * 4 + [True] * 2,
        "all_pass": [False, True, False, True, False, False],
    }
