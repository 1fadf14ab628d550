from __future__ import annotations

import time
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradscope.metrics.outcomes.passk import estimate_pass_at_k, estimate_pass_table, pass_at_k, pass_hat_k


@settings(deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=8), st.data())
def test_both_equal_enumeration(samples: list[bool], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(samples)))
    draws = list(combinations(samples, k))
    n, c = len(samples), sum(samples)
    assert float(pass_at_k(n, c, k)) == pytest.approx(np.mean([any(draw) for draw in draws]))
    assert float(pass_hat_k(n, c, k)) == pytest.approx(np.mean([all(draw) for draw in draws]))


@settings(deadline=None)
@given(st.integers(1, 1000), st.data())
def test_both_are_monotone_in_k(n: int, data: st.DataObject) -> None:
    c = data.draw(st.integers(0, n))
    ks = sorted(data.draw(st.sets(st.integers(1, n), min_size=1, max_size=5)))
    at = [float(pass_at_k(n, c, k)) for k in ks]
    hat = [float(pass_hat_k(n, c, k)) for k in ks]
    assert at == sorted(at)
    assert hat == sorted(hat, reverse=True)


def test_budget_beyond_the_samples_is_refused_not_one() -> None:
    with pytest.raises(ValueError, match="k = 10 draws need at least 10 samples, the fewest are 1"):
        pass_at_k([1], [0], 10)
    assert estimate_pass_at_k([1], [0], 10).undefined == "k = 10 exceeds the 1 samples of a prompt"
    assert estimate_pass_at_k([9, 4], [0, 4], 8).undefined == "k = 8 exceeds the samples of 1 of 2 prompts (fewest 4)"


def test_no_prompts_have_no_estimate() -> None:
    assert estimate_pass_at_k([], [], 1).undefined == "there are no prompts"
    assert estimate_pass_table([], [], [1])[0][0].undefined == "there are no prompts"


def test_table_equals_single_estimates() -> None:
    n, c = np.full(30, 8), np.random.default_rng(0).integers(0, 9, 30)
    table = estimate_pass_table(n, c, [1, 4, 16])
    single = estimate_pass_at_k(n, c, 1)
    assert (table[0][0].value, table[0][0].low) == pytest.approx((single.value, single.low))
    assert table[1][0].value == pytest.approx(estimate_pass_at_k(n, c, 4).value)
    assert table[1][1].value == pytest.approx(pass_hat_k(n, c, 4).mean())
    assert table[2][0].undefined == table[2][1].undefined == "k = 16 exceeds the 8 samples of a prompt"


def test_nobody_ever_right_has_a_sane_interval() -> None:
    never = estimate_pass_at_k([4] * 30, [0] * 30, 2)
    assert (never.value, never.low) == (0.0, 0.0)
    assert never.high == pytest.approx(0.1135, abs=1e-4)


@pytest.mark.slow
def test_thousands_of_prompts_take_well_under_a_second() -> None:
    n, c = np.full(5000, 256), np.random.default_rng(0).integers(0, 257, 5000)
    start = time.perf_counter()
    estimate_pass_table(n, c, [1, 2, 4, 8, 16, 32, 64, 128, 256])
    assert time.perf_counter() - start < 1.0
