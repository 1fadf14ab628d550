"""Null models of token rows, against the rows themselves."""

from __future__ import annotations

import numpy as np
import pytest

from gradscope.diagnostics.rank.tokens.null_values import token_nulls
from gradscope.diagnostics.rank.tokens.token_spectra import token_spectra
from gradscope.metrics.gram.null_models import NULLS, num_draws, shuffled_within
from gradscope.metrics.gram.spectrum import effective_rank
from tests.diagnostics.rank.tokens.test_token_spectra import ROWS, TOKENS, rows_of, tokens_of

OWNERS = np.array([0, 0, 1, 1, 1, 2])
ADVANTAGES = np.array([1.0, -2.0, 0.0])
SCORE_WEIGHTS = np.array([0.1, 0.1, 0.2, 0.2, 0.2, 0.3])
ROWS_OF_TOKENS = np.random.default_rng(0).normal(size=(6, 30))


def nulls(advantages: np.ndarray | None = ADVANTAGES, *, centered: bool = False):
    weights = SCORE_WEIGHTS * ADVANTAGES[OWNERS]
    gram = ROWS_OF_TOKENS @ ROWS_OF_TOKENS.T
    return token_nulls(gram, weights, SCORE_WEIGHTS, advantages, OWNERS, num_columns=30, centered=centered)


def rank_of(factors: np.ndarray, *, centered: bool = False) -> float:
    rows = (SCORE_WEIGHTS * factors)[:, None] * ROWS_OF_TOKENS
    rows = rows - rows.mean(axis=0) if centered else rows
    return effective_rank(np.linalg.svd(rows, compute_uv=False)).value or 0.0


@pytest.mark.parametrize("centered", [False, True])
def test_nulls_equal_those_of_fresh_rows(centered: bool) -> None:
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


def test_tokens_without_weight_have_no_null() -> None:
    gram = ROWS_OF_TOKENS @ ROWS_OF_TOKENS.T
    found = token_nulls(gram, np.zeros(6), SCORE_WEIGHTS, np.zeros(3), OWNERS, num_columns=30, centered=False)
    assert set(found) == set(NULLS)
    assert all("zero" in str(estimate.undefined) for estimate in found.values())


def test_every_mean_rank_of_tokens_has_its_nulls() -> None:
    spectra, (point,) = token_spectra(ROWS, TOKENS, "dr_grpo", None, seed=0)
    assert set(spectra[0].nulls) == set(point.nulls) == set(NULLS)
    assert point.nulls["unweighted"].value == pytest.approx(4.0)  # the one live group: four orthogonal tokens
    rows = rows_of([1, 0, 1, 0], ["a"] * 4)
    _, (halves,) = token_spectra(rows, [tokens_of("a", [0, 1, 1, 2, 3, 3])], "dr_grpo", 2, seed=0)
    assert halves.nulls["unweighted"].value == pytest.approx(3.0)
