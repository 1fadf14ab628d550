"""Spectra from one Gram matrix equal spectra of the rows themselves."""

from __future__ import annotations

import numpy as np
import pytest

from gradscope.advantages.registry import LOGGED, compute_advantages
from gradscope.diagnostics.rank.rollouts.step_rows import StepRows
from gradscope.diagnostics.rank.rollouts.step_spectra import step_spectra
from gradscope.errors import InputError

NUM_PARAMETERS = 40


def make_rows(
    rewards: list[float], group_ids: list[str], *, seed: int = 0, advantages: list[float] | None = None
) -> tuple[StepRows, np.ndarray]:
    scores = np.random.default_rng(seed).normal(size=(len(rewards), NUM_PARAMETERS))
    logged = None if advantages is None else np.array(advantages)
    policy = None if logged is None else np.outer(logged, logged) * (scores @ scores.T)
    seen: dict[str, int] = {}
    samples = [seen.update({name: seen.get(name, -1) + 1}) or seen[name] for name in group_ids]
    rows = StepRows(
        step=3,
        gram=scores @ scores.T,
        policy_gram=policy,
        full_gram=policy,
        rewards=np.array(rewards),
        advantages=logged,
        group_ids=tuple(group_ids),
        samples=tuple(samples),
        num_parameters=NUM_PARAMETERS,
        relative_row_error=1e-7,
    )
    return rows, scores


@pytest.mark.parametrize("advantage", ["grpo", "dr_grpo", "rloo", "sign", "reinforce"])
@pytest.mark.parametrize("size", [2, 4, None])
def test_spectra_equal_those_of_fresh_rows(advantage: str, size: int | None) -> None:
    rewards = [0.0, 1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0]
    rows, scores = make_rows(rewards, ["a"] * 8)
    spectra, _ = step_spectra(rows, advantage, size, by_group=False)
    for spectrum in spectra[1:]:
        index = list(spectrum.label.samples)
        fresh = compute_advantages(advantage, rows.rewards[index])[:, None] * scores[index]
        expected = np.linalg.svd(fresh, compute_uv=False)
        np.testing.assert_allclose(spectrum.singular_values, expected, rtol=1e-6, atol=1e-6 * expected[0] + 1e-12)
        assert spectrum.label.shape == (len(index), NUM_PARAMETERS)


def test_the_whole_step_holds_all_rows() -> None:
    rows, scores = make_rows([0, 1, 1, 0], ["a", "a", "b", "b"])
    whole, *_ = step_spectra(rows, "reinforce", None, by_group=False)[0]
    expected = np.linalg.svd(rows.rewards[:, None] * scores, compute_uv=False)
    assert whole.label.group_id is None
    np.testing.assert_allclose(whole.singular_values, expected, atol=1e-6 * expected[0])


def test_group_rows_are_sums_over_rollouts() -> None:
    rows, scores = make_rows([0, 1, 1, 0], ["a", "a", "b", "b"])
    (spectrum,), curve = step_spectra(rows, "dr_grpo", None, by_group=True)
    gradient = np.array([-0.5, 0.5, 0.5, -0.5])[:, None] * scores
    sums = np.stack([gradient[:2].sum(0), gradient[2:].sum(0)])
    np.testing.assert_allclose(spectrum.singular_values, np.linalg.svd(sums, compute_uv=False), rtol=1e-7)
    assert spectrum.label.rows == "group"
    assert spectrum.label.shape == (2, NUM_PARAMETERS)
    assert curve == []


def test_logged_rows_keep_what_the_optimizer_saw() -> None:
    rows, scores = make_rows([0, 1], ["a", "a"], advantages=[-3.0, 0.25])
    _, part = step_spectra(rows, LOGGED, None, by_group=False)[0]
    expected = np.linalg.svd(np.array([-3.0, 0.25])[:, None] * scores, compute_uv=False)
    np.testing.assert_allclose(part.singular_values, expected, rtol=1e-7)


def test_centering_removes_the_mean_row() -> None:
    rows, scores = make_rows([1, 1, 1, 1], ["a"] * 4)
    _, part = step_spectra(rows, "reinforce", None, by_group=False, centered=True)[0]
    expected = np.linalg.svd(scores - scores.mean(0), compute_uv=False)
    np.testing.assert_allclose(part.singular_values[:3], expected[:3], rtol=1e-6)
    assert part.label.centered
    assert part.ranks.numerical_rank.value == 3
    assert 0 <= (part.ranks.frac_energy_below_floor.value or 0.0) < 1e-14


def test_groups_that_are_too_small_give_nothing() -> None:
    rows, _ = make_rows([0, 1], ["a", "a"])
    assert step_spectra(rows, "dr_grpo", 4, by_group=False) == ([], [])


def test_a_missing_reward_is_named() -> None:
    rows, _ = make_rows([0, float("nan")], ["a", "a"])
    with pytest.raises(InputError, match="group a at step 3 has no reward"):
        step_spectra(rows, "dr_grpo", None, by_group=False)


def test_the_noise_floor_scales_with_the_row_error() -> None:
    rows, scores = make_rows([1, 1, 1], ["a"] * 3)
    _, part = step_spectra(rows, "reinforce", None, by_group=False)[0]
    assert part.noise_floor == pytest.approx(1e-7 * np.linalg.norm(scores), rel=0.9)
