from __future__ import annotations

import numpy as np
import pytest

from gradscope.metrics.gram.row_shares import cosine_of_updates, cosines_to_sum, projection_shares, top_share

RNG = np.random.default_rng(3)
ROWS = RNG.normal(size=(7, 40)) + 0.3
GRAM = ROWS @ ROWS.T


def test_shares_and_cosines_are_those_of_the_rows_themselves() -> None:
    total = ROWS.sum(axis=0)
    length = np.linalg.norm(total)
    assert projection_shares(GRAM) == pytest.approx(ROWS @ total / length**2)
    assert projection_shares(GRAM).sum() == pytest.approx(1.0)
    assert cosines_to_sum(GRAM) == pytest.approx(ROWS @ total / length / np.linalg.norm(ROWS, axis=1))


def test_cosine_of_updates_is_that_of_the_summed_rows() -> None:
    first, second = RNG.normal(size=7), RNG.normal(size=7)
    one, two = first @ ROWS, second @ ROWS
    expected = one @ two / np.linalg.norm(one) / np.linalg.norm(two)
    assert cosine_of_updates(GRAM, first, second).value == pytest.approx(expected)
    assert "without length" in str(cosine_of_updates(GRAM, first, np.zeros(7)).undefined)


def test_a_zero_row_has_no_direction_and_a_zero_sum_no_parts() -> None:
    assert np.isnan(cosines_to_sum([[0.0, 0.0], [0.0, 4.0]])[0])
    assert np.isnan(projection_shares(np.zeros((2, 2)))).all()


@pytest.mark.parametrize(("norms", "share"), [([1.0] * 10, 0.1), ([1.0] + [0.0] * 9, 1.0), ([3.0, 1.0], 0.75)])
def test_top_share_of_known_norms(norms: list[float], share: float) -> None:
    assert top_share(np.diag(np.square(norms))).value == pytest.approx(share)


def test_top_share_of_nothing_is_undefined() -> None:
    assert top_share(np.zeros((3, 3))).undefined
