"""The nulls beside a rank, of rollouts, groups and tokens, on rows whose answer is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gradscope.advantages.registry import LOGGED
from gradscope.diagnostics.rank.null_values import mean_null_ranks, null_values
from gradscope.diagnostics.rank.rollouts.step_rows import StepRows
from gradscope.diagnostics.rank.rollouts.step_spectra import step_spectra
from gradscope.metrics.gram.null_models import NULLS, num_draws, shuffled_within
from gradscope.metrics.gram.spectrum import ZERO_MATRIX, effective_rank
from tests.diagnostics.rank.rollouts.test_step_spectra import NUM_PARAMETERS, make_rows

REWARDS = [0.0, 1.0, 1.0, 0.0] * 6
GROUPS = [f"g{group}" for group in range(6) for _ in range(4)]


def with_scores(rows: StepRows, scores: np.ndarray) -> StepRows:
    return replace(rows, gram=scores @ scores.T, num_parameters=scores.shape[1])


def test_identical_rows_have_rank_one_under_every_null_but_gaussian_rows() -> None:
    rows = with_scores(make_rows(REWARDS, GROUPS)[0], np.ones((24, NUM_PARAMETERS)))
    (point,) = step_spectra(rows, "dr_grpo", None, by_group=False)[1]
    assert point.effective_rank.value == pytest.approx(1.0, abs=1e-6)
    for name in ("unweighted", "shuffled", "signs"):
        assert point.nulls[name].effective_rank.value == pytest.approx(1.0, abs=1e-6)
        assert point.nulls[name].difference.value == pytest.approx(0.0, abs=1e-6)
    assert point.nulls["gaussian"].effective_rank.value > 3.8


def test_orthonormal_rows_of_equal_advantage_size_are_full_under_every_null() -> None:
    rows = with_scores(make_rows(REWARDS, GROUPS)[0], np.eye(24))
    (point,) = step_spectra(rows, "dr_grpo", None, by_group=False)[1]
    assert point.effective_rank.value == pytest.approx(4.0)
    for name in ("unweighted", "shuffled", "signs"):
        assert point.nulls[name].effective_rank.value == pytest.approx(4.0)


def test_two_clusters_have_rank_two_and_shuffling_keeps_it() -> None:
    scores = np.zeros((24, NUM_PARAMETERS))
    scores[np.arange(24), np.array(REWARDS, dtype=int)] = 1.0
    rows = with_scores(make_rows(REWARDS, GROUPS)[0], scores)
    (point,) = step_spectra(rows, "dr_grpo", None, by_group=False)[1]
    assert point.effective_rank.value == pytest.approx(2.0)
    assert point.nulls["shuffled"].effective_rank.value == pytest.approx(2.0)
    assert point.nulls["gaussian"].difference.value < -1.5


@pytest.mark.parametrize("size", [2, 4])
def test_signs_only_rotate_the_scores(size: int) -> None:
    rows, _ = make_rows(REWARDS, GROUPS)
    (point,) = step_spectra(rows, "sign", size, by_group=False)[1]
    assert point.nulls["signs"].effective_rank.value == pytest.approx(point.nulls["unweighted"].effective_rank.value)
    assert point.effective_rank.value == pytest.approx(point.nulls["signs"].effective_rank.value)


def test_nulls_equal_those_of_fresh_rows() -> None:
    rows, scores = make_rows(REWARDS, GROUPS)
    advantages = np.array(REWARDS) - 0.5
    (whole, *_), _ = step_spectra(rows, "dr_grpo", None, by_group=False)
    values = np.linalg.svd(np.sign(advantages)[:, None] * scores, compute_uv=False)
    shares = values / values.sum()
    assert whole.nulls["signs"].value == pytest.approx(np.exp(-np.sum(shares * np.log(shares))), rel=1e-6)


def test_the_profile_adds_up_to_one_and_falls() -> None:
    (point,) = step_spectra(make_rows(REWARDS, GROUPS)[0], "dr_grpo", None, by_group=False)[1]
    for profile in (point.profile, *(null.profile for null in point.nulls.values())):
        assert sum(profile) == pytest.approx(1.0)
        assert list(profile) == sorted(profile, reverse=True)


def test_differences_are_paired_by_group_and_have_intervals() -> None:
    (point,) = step_spectra(make_rows(REWARDS, GROUPS)[0], "dr_grpo", None, by_group=False)[1]
    for null in point.nulls.values():
        assert null.difference.value == pytest.approx(point.effective_rank.value - null.effective_rank.value)
    assert point.nulls["gaussian"].difference.low is not None


def test_dead_groups_take_no_part_in_a_null() -> None:
    rows, _ = make_rows([0, 1, 1, 1], ["a", "a", "b", "b"])
    whole = step_spectra(rows, "dr_grpo", None, by_group=False)[0][0]
    assert whole.nulls["unweighted"].value <= 2
    assert whole.nulls["unweighted"].num_units == 1


def test_a_dead_step_has_no_nulls() -> None:
    (whole, *_), (point,) = step_spectra(make_rows([1, 1], ["a", "a"])[0], "dr_grpo", None, by_group=False)
    assert point.nulls == {}
    assert all("zero" in str(null.undefined) for null in whole.nulls.values())


def test_sums_of_groups_have_nulls_too() -> None:
    (whole,), _ = step_spectra(make_rows(REWARDS, GROUPS)[0], "dr_grpo", None, by_group=True)
    assert set(whole.nulls) == set(NULLS)
    assert whole.nulls["gaussian"].value <= 6


def test_token_advantages_have_no_shuffle() -> None:
    rows, _ = make_rows(REWARDS, GROUPS, advantages=REWARDS)
    (whole, *_), (point,) = step_spectra(replace(rows, advantages=None), LOGGED, None, by_group=False)
    for null in (whole.nulls["shuffled"], point.nulls["shuffled"].effective_rank, point.nulls["signs"].difference):
        assert "each token has its own advantage" in str(null.undefined)
    assert point.nulls["unweighted"].effective_rank.value is not None


def test_centering_centers_the_nulls() -> None:
    rows = with_scores(make_rows(REWARDS, GROUPS)[0], np.eye(24))
    (point,) = step_spectra(rows, "sign", None, by_group=False, centered=True)[1]
    assert point.nulls["unweighted"].effective_rank.value == pytest.approx(3.0)


OWNERS = np.array([0, 0, 1, 1, 1, 2])
ADVANTAGES = np.array([1.0, -2.0, 0.0])
SCORE_WEIGHTS = np.array([0.1, 0.1, 0.2, 0.2, 0.2, 0.3])
ROWS_OF_TOKENS = np.random.default_rng(0).normal(size=(6, 30))


def nulls(advantages: np.ndarray | None = ADVANTAGES, *, centered: bool = False):
    """The nulls of six token rows of three rollouts."""
    norms = np.abs(SCORE_WEIGHTS * ADVANTAGES[OWNERS]) * np.linalg.norm(ROWS_OF_TOKENS, axis=1)
    values = null_values(
        (ROWS_OF_TOKENS @ ROWS_OF_TOKENS.T)[None],
        norms[None],
        None if advantages is None else advantages[None],
        np.zeros((1, 3), dtype=np.int64),
        num_columns=30,
        centered=centered,
        spread=np.eye(3)[OWNERS] * SCORE_WEIGHTS[:, None],
    )
    return mean_null_ranks(values)


def rank_of(factors: np.ndarray, *, centered: bool = False) -> float:
    rows = (SCORE_WEIGHTS * factors)[:, None] * ROWS_OF_TOKENS
    rows = rows - rows.mean(axis=0) if centered else rows
    return effective_rank(np.linalg.svd(rows, compute_uv=False)).value or 0.0


@pytest.mark.parametrize("centered", [False, True])
def test_nulls_of_tokens_equal_those_of_fresh_rows(centered: bool) -> None:
    found = nulls(centered=centered)
    dealt = shuffled_within(ADVANTAGES, np.zeros(3, dtype=np.int64), num_draws(6))
    shuffled = np.mean([rank_of(draw[OWNERS], centered=centered) for draw in dealt])
    assert found["unweighted"].value == pytest.approx(rank_of(np.ones(6), centered=centered), rel=1e-5)
    assert found["signs"].value == pytest.approx(rank_of(np.sign(ADVANTAGES)[OWNERS], centered=centered), rel=1e-5)
    assert found["shuffled"].value == pytest.approx(shuffled, rel=1e-5)


def test_unrelated_tokens_are_the_ceiling_that_their_norms_leave() -> None:
    found = nulls()
    assert 1.0 < (found["gaussian"].value or 0.0) <= 5.0  # five tokens have a weight


def test_without_scalars_there_is_nothing_to_deal() -> None:
    found = nulls(None)
    assert "each token has its own advantage" in str(found["shuffled"].undefined)
    assert "each token has its own advantage" in str(found["signs"].undefined)
    assert found["unweighted"].value is not None


def test_a_zero_matrix_has_no_null() -> None:
    ranks = mean_null_ranks({}, num_units=4)
    assert set(ranks) == set(NULLS)
    assert all(rank.undefined == ZERO_MATRIX for rank in ranks.values())


def test_a_draw_that_left_no_row_takes_no_part_in_the_mean() -> None:
    values = {name: np.array([[[1.0, 1.0]], [[0.0, 0.0]]]) for name in NULLS} | {"gaussian": np.zeros((1, 1, 2))}
    ranks = mean_null_ranks(values, num_units=4)
    assert (ranks["shuffled"].value, ranks["shuffled"].num_units) == (pytest.approx(2.0), 4)
    assert ranks["gaussian"].undefined == ZERO_MATRIX
