from __future__ import annotations

import itertools

import numpy as np
import pytest

from gradscope.metrics.gram.removal import norms_without, removal_order


@pytest.mark.parametrize("seed", range(5))
def test_norms_without_each_row_are_those_of_the_rows_themselves(seed: int) -> None:
    rows = np.random.default_rng(seed).normal(size=(7, 4))
    expected = [np.linalg.norm(np.delete(rows, left, axis=0).sum(axis=0)) for left in range(7)]
    np.testing.assert_allclose(norms_without(rows @ rows.T), expected, rtol=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_each_removal_is_the_best_of_all(seed: int) -> None:
    rows = np.random.default_rng(seed).normal(size=(6, 3)) + 0.5
    order, norms = removal_order(rows @ rows.T, most=3)
    kept = list(range(6))
    for index, norm in zip(order, norms, strict=True):
        shortest = min(np.linalg.norm(rows[[i for i in kept if i != left]].sum(axis=0)) for left in kept)
        kept.remove(index)
        assert norm == pytest.approx(shortest) == pytest.approx(np.linalg.norm(rows[kept].sum(axis=0)))


def test_it_ends_where_no_row_makes_the_sum_shorter() -> None:
    rows = np.array([[1.0], [-1.0], [5.0]])
    order, norms = removal_order(rows @ rows.T, most=3)
    assert (order, norms) == ([2], [0.0])
    assert removal_order(np.zeros((2, 2)), most=2) == ([], [])


def test_greedy_is_said_to_be_greedy() -> None:
    """Two rows that are worse together than the one that is worst alone."""
    rows = np.array([[4.0, 0.0], [3.0, 3.0], [3.0, -3.0], [-2.0, 0.0]])
    order, norms = removal_order(rows @ rows.T, most=2)
    best = min(
        np.linalg.norm(np.delete(rows, left, axis=0).sum(axis=0))
        for left in itertools.combinations(range(4), len(order))
    )
    assert norms[-1] >= best
