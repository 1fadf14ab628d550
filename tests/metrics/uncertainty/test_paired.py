import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.stats import t as student

from gradscope.estimate import Estimate
from gradscope.metrics.uncertainty import paired

samples = st.lists(st.floats(-5, 5).map(lambda value: round(value, 3)), min_size=2, max_size=8)


@given(samples)
def test_mean_and_p_value_are_students(values: list[float]) -> None:
    mean, p_value = paired.student_mean(values), paired.paired_t_p_value(values)
    assert mean.value == pytest.approx(np.mean(values))
    if np.ptp(values) == 0:
        assert mean.low is None
        assert p_value == (1.0 if values[0] == 0 else None)
        return
    expected = stats.ttest_1samp(values, 0.0)
    interval = expected.confidence_interval()
    assert p_value == pytest.approx(expected.pvalue, rel=1e-6, abs=1e-12)
    assert (mean.low, mean.high) == pytest.approx((interval.low, interval.high), abs=1e-9)


def test_one_run_and_none() -> None:
    assert (paired.student_mean([0.5]).value, paired.student_mean([0.5]).low) == (0.5, None)
    assert paired.student_mean([]).undefined == "there is no run"
    assert paired.paired_t_p_value([0.5]) is None
    assert paired.sign_flip_p_value([]) is None


@given(samples)
def test_sign_flips_are_all_gone_through(values: list[float]) -> None:
    flips = [np.dot(signs, values) for signs in itertools.product([1, -1], repeat=len(values))]
    expected = np.mean([abs(flip) >= abs(sum(values)) - 1e-9 for flip in flips])
    assert paired.sign_flip_p_value(values) == pytest.approx(expected)
    assert expected >= 2 / 2 ** len(values) or sum(values) == 0


def test_twenty_pairs_are_exact() -> None:
    values = np.random.default_rng(1).normal(0.4, 1.0, size=20)
    indices = np.arange(2**20)
    sums = np.zeros(2**20)
    for bit, value in enumerate(values):
        sums += np.where(indices >> bit & 1, -value, value)
    assert paired.sign_flip_p_value(values) == np.mean(np.abs(sums) >= abs(values.sum()) - 1e-9)


@pytest.mark.parametrize(("number", "level"), [(10, 0.05), (20, 0.05 / 18), (12, 0.05 / 3)])
def test_the_least_detectable_mean_has_the_power_of_the_t_test(number: int, level: float) -> None:
    mean = paired.least_detectable_mean(number, level, 0.8)
    cut = stats.t.ppf(1 - level / 2, number - 1)
    assert stats.nct(number - 1, mean * number**0.5).sf(cut) == pytest.approx(0.8, abs=1e-6)


def test_signs_that_must_all_agree_ask_for_more() -> None:
    mean = paired.least_detectable_mean(8, 2 / 2**8, 0.8)
    assert stats.norm.cdf(mean) ** 8 == pytest.approx(0.8)
    assert mean > paired.least_detectable_mean(8, 4 / 2**8, 0.8)


def test_holm_by_hand() -> None:
    # sorted .005 .011 .02 .04: times 4, 3, 2, 1 = .02 .033 .04 .04
    assert paired.holm([0.04, 0.005, 0.02, 0.011]) == pytest.approx([0.04, 0.02, 0.04, 0.033])
    assert paired.holm([0.9, 0.8]) == [1.0, 1.0]
    assert paired.holm([None, 0.01]) == [None, 0.01]
    assert paired.holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=10))
def test_holm_never_lowers_and_keeps_the_order(p_values: list[float]) -> None:
    corrected = paired.holm(p_values)
    assert all(after is not None and before <= after <= 1 for before, after in zip(p_values, corrected, strict=True))
    assert np.all(np.diff([corrected[index] or 0.0 for index in np.argsort(p_values, kind="stable")]) >= 0)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=8))
def test_the_interval_of_a_share_stays_a_share(values: list[float]) -> None:
    mean = paired.student_mean(values, bounds=(0.0, 1.0))
    assert mean.value == pytest.approx(np.mean(values))
    if mean.interval is not None:
        assert 0.0 <= mean.low <= mean.value <= mean.high <= 1.0


def test_an_interval_in_the_middle_of_its_range_is_nearly_students() -> None:
    values = [0.49, 0.5, 0.5, 0.52]
    assert paired.student_mean(values, bounds=(0.0, 1.0)).interval == pytest.approx(
        paired.student_mean(values).interval, abs=1e-3
    )
    assert paired.student_mean([2 * value for value in values], bounds=(0.0, 2.0)).high == pytest.approx(
        2 * paired.student_mean(values, bounds=(0.0, 1.0)).high
    )
    assert paired.student_mean([0.1, 0.2, 2.0], bounds=(0.0, np.inf)).low == 0.0  # a range with one end cuts
    with pytest.raises(ValueError, match=r"a value lies outside \[0, 1\]"):
        paired.student_mean([0.5, 1.2], bounds=(0.0, 1.0))


def test_the_interval_of_a_share_near_its_end_covers() -> None:
    """Five runs whose pass rates vary around 0.95, each measured on 64 prompts."""
    rng = np.random.default_rng(0)
    held = [
        mean.ends[0] <= 0.95 <= mean.ends[1]
        for runs in rng.binomial(64, rng.beta(28, 28 / 19, (500, 5))) / 64
        if (mean := paired.student_mean(runs, bounds=(0.0, 1.0))).interval
    ]
    assert np.mean(held) >= 0.94


@pytest.mark.parametrize("num_pairs", [5, 40])
def test_flips_have_the_p_values_of_scipys_and_a_margin_is_taken_off_each_pair(num_pairs: int) -> None:
    values = np.random.default_rng(num_pairs).normal(0.3, 1, num_pairs)
    found = {"greater": paired.rise_by_flips(values, 0.0), "two-sided": paired.sign_flip_p_value(values)}
    for side, p_value in found.items():
        options = {"permutation_type": "samples", "n_resamples": 20_000, "rng": 0}
        expected = stats.permutation_test((values,), np.mean, alternative=side, **options)
        assert p_value == pytest.approx(expected.pvalue, abs=0.01)
    assert paired.sign_flip_p_value(values) == found["two-sided"]
    assert paired.rise_by_flips(values, 0.4) == paired.rise_by_flips(values - 0.4, 0.0)


def test_pairs_that_do_not_differ_say_nothing() -> None:
    assert paired.rise_by_flips([0.0, 0.0], 0.0) == 1.0
    assert paired.rise_by_flips([0.0] * 50 + [1.0], 0.0) == 0.5


def test_a_p_value_of_an_interval_is_students() -> None:
    half = float(student.ppf(0.975, 11)) * 0.2
    change = Estimate(value=0.5, low=0.5 - half, high=0.5 + half, num_units=12)
    assert paired.rise_by_interval(change, 0.1) == pytest.approx(float(student.sf(0.4 / 0.2, 11)))
    sure = Estimate(value=0.5, low=0.5, high=0.5, num_units=3)
    assert (paired.rise_by_interval(sure, 0.4), paired.rise_by_interval(sure, 0.5)) == (0.0, 1.0)
    with pytest.raises(ValueError, match="a p-value needs an interval"):
        paired.rise_by_interval(Estimate.exact(0.5), 0.0)
