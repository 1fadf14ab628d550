"""Weighted sums of rows beside each other, against the rows themselves."""

from __future__ import annotations

import numpy as np
import pytest

from gradscope.metrics.gram.part_sums import (
    NO_LENGTH,
    norm_ratio,
    products_without,
    ratio_over_groups,
    sum_cosine,
    sum_share,
)


def sums(num_groups: int = 5, seed: int = 0) -> np.ndarray:
    """Three sums of every group, [V, J, P]."""
    return np.random.default_rng(seed).normal(size=(3, num_groups, 7))


def gram(of: np.ndarray) -> np.ndarray:
    return np.einsum("vjp,wkp->vjwk", of, of)


def left_out(of: np.ndarray, group: int | None) -> np.ndarray:
    """The sums over all groups but one, [V, P]."""
    kept = [at for at in range(of.shape[1]) if at != group]
    return of[:, kept].sum(axis=1)


def test_products_without_a_group_are_those_of_the_others() -> None:
    found, of = products_without(gram(sums())), sums()
    for place, group in enumerate([None, *range(5)]):
        rest = left_out(of, group)
        np.testing.assert_allclose(found[place], rest @ rest.T, atol=1e-12)


def test_each_number_is_that_of_the_vectors_and_its_interval_leaves_groups_out() -> None:
    of, first, second = sums(), np.array([1.0, 1.0, 0.0]), np.array([0.0, 0.5, 1.0])
    products = products_without(gram(of))

    def numbers(group: int | None) -> tuple[float, float, float]:
        a, b = first @ left_out(of, group), second @ left_out(of, group)
        lengths = np.linalg.norm(a), np.linalg.norm(b)
        return a @ b / lengths[0] / lengths[1], lengths[0] / lengths[1], a @ b / lengths[1] ** 2

    found = (function(products, first, second) for function in (sum_cosine, norm_ratio, sum_share))
    without = np.array([numbers(group) for group in range(5)])
    for place, estimate in enumerate(found):
        assert estimate.value == pytest.approx(numbers(None)[place])
        error = np.sqrt(4 / 5 * np.sum((without[:, place] - without[:, place].mean()) ** 2))
        low, high = estimate.interval
        assert low == pytest.approx(max(estimate.value - 1.959964 * error, [-1.0, 0.0, -np.inf][place]), rel=1e-5)
        assert high == pytest.approx(min(estimate.value + 1.959964 * error, [1.0, np.inf, np.inf][place]), rel=1e-5)


def test_parts_add_up_to_the_whole() -> None:
    products = products_without(gram(sums()))
    shares = [sum_share(products, part, np.ones(3)).value for part in np.eye(3)]
    assert sum(shares) == pytest.approx(1.0)


def test_a_sum_of_nothing_has_no_direction() -> None:
    of = sums()
    of[0] = 0.0
    products = products_without(gram(of))
    assert sum_cosine(products, [1, 0, 0], [0, 1, 0]).undefined == NO_LENGTH
    assert norm_ratio(products, [0, 1, 0], [1, 0, 0]).undefined == NO_LENGTH
    assert norm_ratio(products, [1, 0, 0], [0, 1, 0]).value == 0.0


def test_what_one_group_alone_has_is_given_without_an_interval() -> None:
    of = sums()
    of[0, 1:] = 0.0
    found = sum_cosine(products_without(gram(of)), [1, 0, 0], [0, 1, 0])
    assert found.is_defined
    assert found.interval is None
    assert sum_cosine(products_without(gram(sums(2))), [1, 0, 0], [0, 1, 0]).interval is None


def test_a_ratio_over_groups_is_that_of_the_totals() -> None:
    found = ratio_over_groups([1.0, 0.0, 5.0], [2.0, 4.0, 6.0])
    assert found.value == 0.5
    without = np.array([5 / 10, 6 / 8, 1 / 6])
    error = np.sqrt(2 / 3 * np.sum((without - without.mean()) ** 2))
    assert found.high == pytest.approx(0.5 + 1.959964 * error, rel=1e-5)
    assert ratio_over_groups([0.0], [0.0]).undefined == "there is nothing to average"
    assert ratio_over_groups([-1.0, -1.0, -2.0], [1.0, 1.0, 1.0], low=-np.inf).value == pytest.approx(-4 / 3)
