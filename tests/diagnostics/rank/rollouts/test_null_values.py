"""The nulls beside a rank, on rows whose answer is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gradscope.advantages.registry import LOGGED
from gradscope.diagnostics.rank.rollouts.step_rows import StepRows
from gradscope.diagnostics.rank.rollouts.step_spectra import step_spectra
from gradscope.metrics.gram.null_models import NULLS
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
