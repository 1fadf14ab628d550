from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradscope.metrics.outcomes.passk import estimate_pass_table, pass_at_k, pass_hat_k
from gradscope.metrics.uncertainty.bootstrap import bootstrap_mean
from tests.work import num_calls


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
    ((one, _),) = estimate_pass_table([1], [0], [10])
    assert one.undefined == "k = 10 exceeds the 1 samples of a prompt"
    ((one, all_of_them),) = estimate_pass_table([9, 4], [0, 4], [8])
    assert one.undefined == all_of_them.undefined == "k = 8 exceeds the samples of 1 of 2 prompts (fewest 4)"


def test_no_prompts_have_no_estimate() -> None:
    assert estimate_pass_table([], [], [1])[0][0].undefined == "there are no prompts"


def test_a_table_holds_the_mean_over_prompts_and_bootstraps_interval() -> None:
    n, c = np.full(30, 8), np.random.default_rng(0).integers(0, 9, 30)
    table = estimate_pass_table(n, c, [1, 4, 16])
    alone = bootstrap_mean(c / n)  # pass@1 is the pass rate
    assert (table[0][0].value, table[0][0].low) == pytest.approx((alone.value, alone.low))
    assert table[1][0].value == pytest.approx(pass_at_k(n, c, 4).mean())
    assert table[1][1].value == pytest.approx(pass_hat_k(n, c, 4).mean())
    assert table[2][0].undefined == table[2][1].undefined == "k = 16 exceeds the 8 samples of a prompt"


def test_nobody_ever_right_has_a_sane_interval() -> None:
    ((never, _),) = estimate_pass_table([4] * 30, [0] * 30, [2])
    assert (never.value, never.low) == (0.0, 0.0)
    assert never.high == pytest.approx(0.1135, abs=1e-4)


def test_the_work_of_a_table_grows_with_k_and_not_with_the_prompts() -> None:
    def table(num_prompts: int) -> None:
        n, c = np.full(num_prompts, 64), np.random.default_rng(0).integers(0, 65, num_prompts)
        estimate_pass_table(n, c, [1, 64])

    assert num_calls(lambda: table(5000)) < 1.5 * num_calls(lambda: table(500))
