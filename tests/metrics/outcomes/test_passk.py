from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq

from gradscope.metrics.outcomes import passk
from gradscope.metrics.uncertainty.bootstrap import bootstrap_mean
from gradscope.metrics.uncertainty.intervals import Resampling
from tests.work import num_calls


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.data())
def test_both_equal_enumeration(samples: list[bool], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(samples)))
    draws = list(combinations(samples, k))
    n, c = len(samples), sum(samples)
    assert float(passk.pass_at_k(n, c, k)) == pytest.approx(np.mean([any(draw) for draw in draws]))
    assert float(passk.pass_hat_k(n, c, k)) == pytest.approx(np.mean([all(draw) for draw in draws]))


@given(st.integers(1, 1000), st.data())
def test_both_are_monotone_in_k(n: int, data: st.DataObject) -> None:
    c = data.draw(st.integers(0, n))
    ks = sorted(data.draw(st.sets(st.integers(1, n), min_size=1, max_size=5)))
    any_passes = [float(passk.pass_at_k(n, c, k)) for k in ks]
    all_pass = [float(passk.pass_hat_k(n, c, k)) for k in ks]
    assert any_passes == sorted(any_passes)
    assert all_pass == sorted(all_pass, reverse=True)


def test_budget_beyond_the_samples_is_refused_not_one() -> None:
    with pytest.raises(ValueError, match="k = 10 draws need at least 10 samples, the fewest are 1"):
        passk.pass_at_k([1], [0], 10)
    ((first, _),) = passk.estimate_pass_table([1], [0], [10])
    assert first.undefined == "k = 10 exceeds the 1 sample of a prompt"
    ((first, all_of_them),) = passk.estimate_pass_table([9, 4], [0, 4], [8])
    assert first.undefined == all_of_them.undefined == "k exceeds the samples of some prompts, the fewest 4"


def test_no_prompts_have_no_estimate() -> None:
    assert passk.estimate_pass_table([], [], [1])[0][0].undefined == "there are no prompts"


def test_a_table_holds_the_mean_over_prompts_and_bootstraps_interval() -> None:
    n, c = np.full(30, 8), np.random.default_rng(0).integers(0, 9, 30)
    table = passk.estimate_pass_table(n, c, [1, 4, 16])
    single = bootstrap_mean(c / n)  # pass@1 is the pass rate
    assert (table[0][0].value, table[0][0].low) == pytest.approx((single.value, single.low))
    assert table[1][0].value == pytest.approx(passk.pass_at_k(n, c, 4).mean())
    assert table[1][1].value == pytest.approx(passk.pass_hat_k(n, c, 4).mean())
    assert table[2][0].undefined == table[2][1].undefined == "k = 16 exceeds the 8 samples of a prompt"


def test_nobody_ever_right_has_a_sane_interval() -> None:
    ((never, _),) = passk.estimate_pass_table([4] * 30, [0] * 30, [2])
    assert (never.value, never.low) == (0.0, 0.0)
    assert never.high == pytest.approx(0.1135, abs=1e-4)


def test_the_work_of_a_table_grows_with_k_and_not_with_the_prompts() -> None:
    def table(num_prompts: int) -> None:
        n, c = np.full(num_prompts, 64), np.random.default_rng(0).integers(0, 65, num_prompts)
        passk.estimate_pass_table(n, c, [1, 64])

    assert num_calls(lambda: table(5000)) < 1.5 * num_calls(lambda: table(500))


FEW = Resampling(num_resamples=300)
Counts = tuple[np.ndarray, np.ndarray]


def sampled(rates: np.ndarray, n: int, seed: int = 0) -> Counts:
    return np.full(len(rates), n), np.random.default_rng(seed).binomial(n, rates)


def best_of(m: float, num_prompts: int, n: int, seed: int = 0) -> tuple[Counts, Counts]:
    rates = np.random.default_rng(seed).beta(0.3, 1, num_prompts)
    return sampled(rates, n, seed), sampled(1 - (1 - rates) ** m, n, seed + 1000)


def test_best_of_m_has_the_factor_m_at_every_budget() -> None:
    for factor in passk.compression_factors(*best_of(4, 4000, 64), [1, 2, 4, 8]):
        assert factor.factor.value == pytest.approx(4, rel=0.1)
        assert factor.at_least is None


def test_the_factor_is_where_the_curves_meet() -> None:
    """The first policy's curve, straight between whole budgets, is solved by SciPy."""
    first, second = best_of(3, 200, 16)
    curve = [0.0]
    for k in range(1, 17):
        unsolved = [np.prod([(16 - c - i) / (16 - i) for i in range(k)]) for c in first[1]]
        curve.append(1 - np.mean(unsolved))
    target = float(np.mean(second[1] / 16))
    meets = brentq(lambda k: np.interp(k, range(17), curve) - target, 0, 16)
    (factor,) = passk.compression_factors(first, second, [1])
    assert factor.factor.value == pytest.approx(meets)


def test_a_worse_policy_has_a_factor_below_one() -> None:
    first, second = best_of(4, 500, 16)
    (factor,) = passk.compression_factors(second, first, [1])
    assert 0 < factor.factor.low < factor.factor.value < factor.factor.high < 1


def test_the_interval_holds_the_factor() -> None:
    held = 0
    for seed in range(40):
        (factor,) = passk.compression_factors(*best_of(2, 600, 16, seed), [2])
        held += factor.factor.low <= 2 <= factor.factor.high
    assert held >= 34


def test_beyond_the_samples_of_the_first_there_is_a_lower_bound() -> None:
    first, second = best_of(16, 300, 16)
    (factor,) = passk.compression_factors(first, second, [4])
    assert factor.factor.undefined == "the 16 samples of the first may not reach the second's pass@4: m is open upwards"
    assert 3.5 <= factor.at_least <= 4
    few = passk.compression_factors((first[0][:8], first[1][:8] * 0), (first[0][:8], first[1][:8] * 0 + 1), [1])[0]
    assert "open upwards" in few.factor.undefined
    assert few.at_least is None


def test_nothing_to_reach_and_few_prompts() -> None:
    first = (np.full(5, 4), np.array([0, 1, 2, 3, 4]))
    (factor,) = passk.compression_factors(first, (first[0], first[1] * 0), [1])
    assert factor.factor.undefined == "the second solves no prompt at k = 1, so no sample of the first is needed"
    (factor,) = passk.compression_factors(first, first, [1])
    assert (factor.factor.value, factor.factor.interval) == (pytest.approx(1.0), None)
    (factor,) = passk.compression_factors(first, first, [5])
    assert factor.factor.undefined == "k = 5 exceeds the 4 samples of a prompt"


@pytest.mark.slow
@pytest.mark.parametrize("m", [1, 8, 64])
def test_no_sharpening_up_to_the_true_one_is_refuted_too_often(m: int) -> None:
    bounds = [passk.least_sharpening(*best_of(m, 300, 32, seed), resampling=FEW) for seed in range(40)]
    assert sum(factor is not None and factor > m for factor in bounds) <= 4


def test_prompts_solved_anew_refute_every_plausible_sharpening() -> None:
    rates = np.random.default_rng(0).beta(2, 2, 300)
    new = np.arange(300) < 60
    first, second = sampled(np.where(new, 0.0, rates), 64), sampled(np.where(new, 0.4, rates), 64, 1)
    assert passk.least_sharpening(first, second, resampling=FEW) > 64
    assert passk.least_sharpening(second, first, resampling=FEW) is None
    single = (np.ones(300, dtype=np.int64), (second[1] > 25).astype(np.int64))
    assert passk.least_sharpening(first, single, resampling=FEW) > 1


@pytest.mark.parametrize(
    ("passing", "num_first"),
    [
        (["1"] * 6 + ["01"] * 2 + ["000"] * 4, 6),
        (["1"] * 6 + ["01"] * 2 + ["000"] * 4 + ["011"], None),  # one was tried again though it had passed
        (["1"] * 6 + ["0"] + ["01"] * 2 + ["000"] * 4, None),  # one was given up
        (["1"] * 4 + ["01"] * 9, None),  # too few to tell
        (["1"] * 9 + ["01"] * 4, None),
        (["01", "00"] * 9, None),
    ],
)
def test_attempts_that_end_once_one_passes(passing: list[str], num_first: int | None) -> None:
    num_samples, num_correct = (np.array(list(map(count, passing))) for count in (len, lambda row: row.count("1")))
    first = passk.first_attempts(num_samples, num_correct)
    assert (None if first is None else first.sum()) == num_first
