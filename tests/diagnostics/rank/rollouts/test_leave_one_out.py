"""Mean ranks of the same prompts with other rollouts, against leaving each one out of the rows themselves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gradscope.diagnostics.rank.rollouts.step_spectra import step_spectra
from gradscope.diagnostics.rank.rollouts.sub_groups import formulated
from gradscope.estimate import Estimate
from gradscope.metrics.gram.spectrum import effective_rank
from gradscope.metrics.uncertainty.jackknife import jackknife
from tests.diagnostics.rank.rollouts.test_step_spectra import make_rows

REWARDS = [0.0, 1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 1.0]
GROUPS = ["a"] * 6 + ["b"] * 6


def given_prompts(advantage: str, rewards: list[float], groups: list[str], size: int | None = None) -> Estimate:
    rows, _ = make_rows(rewards, groups, advantages=[1.0, -1.0] * (len(rewards) // 2))
    _, (point,) = step_spectra(rows, advantage, size, by_group=False)
    return point.given_prompts


@pytest.mark.parametrize("advantage", ["dr_grpo", "optimal_baseline", "opo"])
def test_it_is_the_jackknife_of_fresh_rows(advantage: str) -> None:
    rows, scores = make_rows(REWARDS, GROUPS)
    rows = replace(rows, lengths=np.arange(1.0, 13.0))
    found = step_spectra(rows, advantage, None, by_group=False)[1][0].given_prompts

    def rank(index: list[int]) -> float:
        weights = (np.arange(1.0, 13.0) if advantage == "opo" else np.diag(rows.gram))[index]
        fresh = formulated(advantage, rows.rewards[None, index], weights[None])[0][:, None] * scores[index]
        return effective_rank(np.linalg.svd(fresh, compute_uv=False)).value or 0.0

    both = [list(range(6)), list(range(6, 12))]
    own = [rank(index) for index in both]
    left_out = [
        [(rank([other for other in index if other != row]) + own[1 - place]) / 2 for row in index]
        for place, index in enumerate(both)
    ]
    expected = jackknife(float(np.mean(own)), left_out, low=1.0, high=6.0)
    assert found.value == pytest.approx(expected.value)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-5)


def test_a_lone_success_that_carries_the_only_live_group_is_said() -> None:
    found = given_prompts("dr_grpo", [1.0, 0.0, 0.0, 0.0, 0.0, 0.0], ["a"] * 6)
    assert found.undefined == "it hangs on a single unit, without which it does not exist"


def test_beside_other_live_groups_a_lone_success_widens_the_interval() -> None:
    found = given_prompts("dr_grpo", [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, *REWARDS[:6]], GROUPS)
    assert found.low is not None


@pytest.mark.parametrize(
    ("advantage", "size", "reason"),
    [
        ("logged", None, "the logged advantages are relative to all rollouts of a group; name their formulation"),
        ("batch_mean", None, "batch_mean is relative to more than a group"),
        ("pass_at_2", 2, "pass_at_2 needs groups of at least 2, and leaving one out leaves 1"),
        ("dr_grpo", 2, "leaving one of 2 out leaves too little"),
    ],
)
def test_what_has_no_such_interval_says_why(advantage: str, size: int | None, reason: str) -> None:
    assert reason in str(given_prompts(advantage, REWARDS, GROUPS, size).undefined)
