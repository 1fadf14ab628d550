from __future__ import annotations

from fractions import Fraction
from math import comb

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradscope.metrics.outcomes.draws import frac_draws_all


@settings(deadline=None)
@given(st.integers(1, 1000), st.data())
def test_share_equals_exact_fractions(num_samples: int, data: st.DataObject) -> None:
    num_marked = data.draw(st.integers(0, num_samples))
    k = data.draw(st.integers(0, num_samples))
    exact = float(Fraction(comb(num_marked, k), comb(num_samples, k)))
    assert float(frac_draws_all(num_samples, num_marked, k)) == pytest.approx(exact, rel=1e-11, abs=1e-300)


@pytest.mark.parametrize(("num_marked", "num_samples"), [(-1, 4), (5, 4)])
def test_impossible_counts_are_refused(num_marked: int, num_samples: int) -> None:
    with pytest.raises(ValueError, match="lies between 0 and the number of samples"):
        frac_draws_all(num_samples, num_marked, 1)


def test_more_draws_than_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="k = 5 draws need at least 5 samples, the fewest are 4"):
        frac_draws_all([4, 9], [1, 1], 5)


def test_fewer_than_no_draws_are_refused() -> None:
    with pytest.raises(ValueError, match="the number of draws is at least 0, got -1"):
        frac_draws_all([4], [1], -1)
