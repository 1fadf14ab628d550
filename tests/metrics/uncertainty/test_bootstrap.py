from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from gradscope.estimate import Estimate
from gradscope.metrics.outcomes.passk import pass_at_k
from gradscope.metrics.uncertainty import bootstrap
from gradscope.metrics.uncertainty.bootstrap import (
    bootstrap_difference,
    bootstrap_mean,
    bootstrap_means,
    bootstrap_statistics,
    bounded_means,
    cluster_numbers,
    cluster_sums,
    influence_values,
    student_intervals,
)
from gradscope.metrics.uncertainty.intervals import Resampling, wilson_interval
from tests.work import num_calls

LABELS = st.one_of(
    st.lists(st.integers(0, 5), min_size=1, max_size=20),
    st.lists(st.integers(-3, 10**6), min_size=1, max_size=20),
    st.lists(st.sampled_from(["p", "q", "r"]), min_size=1, max_size=20),
)


@given(LABELS)
def test_clusters_have_numbers_without_a_gap_in_the_order_of_their_names(labels: Sequence[Any]) -> None:
    names = sorted(set(labels))
    assert cluster_numbers(labels).tolist() == [names.index(label) for label in labels]


@given(LABELS)
def test_rows_are_summed_in_the_order_of_first_rows(labels: Sequence[Any]) -> None:
    table = np.arange(2.0 * len(labels)).reshape(-1, 2)
    expected: dict[Any, list[float]] = {}
    for label, (first, second) in zip(labels, table.tolist(), strict=True):
        single = expected.setdefault(label, [0.0, 0.0])
        single[0], single[1] = single[0] + first, single[1] + second
    assert cluster_sums(table, labels).tolist() == list(expected.values())


def test_each_row_has_a_cluster_or_is_its_own() -> None:
    assert cluster_sums([[1.0], [2.0]], None).tolist() == [[1.0], [2.0]]
    with pytest.raises(ValueError, match="2 rows need 2 clusters"):
        cluster_sums([[1.0], [2.0]], ["a"])


Array = NDArray[np.float64]


@pytest.mark.slow
@pytest.mark.parametrize(("a", "size", "lower"), [(0.1, 30, 0.93), (0.4, 50, 0.91)])
def test_pass_rates_are_covered_as_often_as_an_interval_says(a: float, size: int, lower: float) -> None:
    """Where most prompts are nearly hopeless, at a = 0.1, percentile and BCa intervals cover 90 to 92 % of the time."""
    rng, hits, trials = np.random.default_rng(0), 0, 400
    for _ in range(trials):
        rates = rng.beta(a, 0.9, size)
        mean = bootstrap_mean(rng.binomial(8, rates) / 8, resampling=Resampling(num_resamples=500))
        hits += mean.low <= a / (a + 0.9) <= mean.high
    assert lower <= hits / trials <= 0.995


def test_intervals_stay_within_the_range_of_each_statistic() -> None:
    units = np.column_stack([draws(0, 12), np.ones(12)])
    free = bootstrap_statistics(lambda sums: sums / 12, units)[0]
    assert free.low < 0.3 < 0.4 < free.high
    cut, constant = bootstrap_statistics(lambda sums: sums / 12, units, bounds=([0.3, -1.0], 0.4))
    assert (cut.low, cut.value, cut.high) == (min(0.3, free.value), free.value, max(0.4, free.value))
    assert constant.low is None


def test_intervals_over_many_units_are_those_of_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    units = np.random.default_rng(0).beta(0.2, 1.0, size=(2000, 1))
    (expanded,) = bootstrap_means(units)
    monkeypatch.setattr(bootstrap, "MANY_UNITS", 2000)
    (resampled,) = bootstrap_means(units)
    assert expanded.num_units == resampled.num_units == 2000
    assert expanded.value == resampled.value
    width = resampled.ends[1] - resampled.ends[0]
    assert expanded.ends == pytest.approx(resampled.ends, abs=0.05 * width)
    # to the right, as the values are
    assert expanded.ends[1] - (expanded.value or 0.0) > (expanded.value or 0.0) - expanded.ends[0]


def test_resampling_bias_is_taken_out() -> None:
    # The variance of 8 means of equal truth: resampling adds noise to each, so nearly all resamples are too large.
    table = np.zeros((64, 16))
    table[np.arange(64), np.arange(64) // 8] = np.random.default_rng(1).integers(0, 2, 64)
    table[np.arange(64), 8 + np.arange(64) // 8] = 1.0

    def between(sums: Array) -> Array:
        return np.var(sums[..., :8] / np.maximum(sums[..., 8:], 1), axis=-1)[..., None]

    (variance,) = bootstrap_statistics(between, table)
    assert variance.low <= 0.0 < variance.value


def test_influence_of_a_mean_is_the_deviation_from_it() -> None:
    values = draws(0, 12)
    units = np.column_stack([values, np.ones(12)])
    influence = influence_values(lambda sums: sums[..., :1] / sums[..., 1:], units)
    assert influence[:, 0] == pytest.approx(values - values.mean())


@pytest.mark.parametrize("sizes", [[12] * 20, [4, 12, 9, 12, 1100, 4, 1100], [30]])
def test_tables_together_have_the_intervals_of_each(sizes: list[int]) -> None:
    resampling = Resampling(num_resamples=300, seed=3)
    tables = [np.column_stack([draws(seed, size), np.ones(size)]) for seed, size in enumerate(sizes)]
    tables[-1][:, 0] = 0.5

    def statistic(sums: Array) -> Array:
        return np.asarray(sums / sums[..., 1:])

    together = student_intervals(statistic, tables, resampling=resampling)
    for table, intervals in zip(tables, together, strict=True):
        ((mean, first),) = student_intervals(statistic, [table], resampling=resampling)
        assert first is None
        assert intervals == [mean and pytest.approx(mean, abs=1e-12), None]
    assert together[-1] == [None, None]
    assert (together[0][0] is None) == (sizes[0] < bootstrap.MIN_UNITS or len(sizes) == 1)


def test_resamples_without_a_rare_unit_say_nothing_of_the_error() -> None:
    rare, common = (np.column_stack([column, np.ones(30)]) for column in (np.eye(1, 30)[0], draws(0, 30)))
    resampling = Resampling(num_resamples=500)
    ((single, _),) = student_intervals(lambda sums: sums / 30, [rare], resampling=resampling)
    ((extra, _), _) = student_intervals(lambda sums: sums / 30, [rare, common], resampling=resampling)
    assert single is not None
    assert extra == pytest.approx(single, abs=1e-12)


def draws(seed: int, size: int) -> Array:
    return np.random.default_rng(seed).beta(0.4, 0.8, size)


@pytest.mark.parametrize("number", [1, 2, 4])
def test_a_few_odd_units_leave_both_sides_open(number: int) -> None:
    """One rank of 6 among nine of 1.2: the interval ended at their mean, 1.68."""
    units = np.repeat([1.2, 6.0], [16 - number, number])[:, None]
    for (mean,) in (bounded_means(units, low=1.0, high=8.0), bootstrap.bootstrap_means(units, share=False)):
        (low, high), value = mean.ends, float(units.mean())
        assert low < value - 0.2
        assert high > value + 0.5


def test_rare_units_away_from_the_ends_are_covered() -> None:
    """Resamples that drew none of them were left out, and 62 % of such intervals held the truth."""
    drawn = np.random.default_rng(0).binomial(1, 0.15, (200, 12, 1))
    means = [bootstrap.bootstrap_means(units, share=False, resampling=QUICK)[0] for units in drawn if np.ptp(units)]
    assert np.mean([mean.ends[0] <= 0.15 <= mean.ends[1] for mean in means]) > 0.9


def test_interval_is_near_another_second_order_one() -> None:
    values = draws(0, 60)
    ours = bootstrap_mean(values, resampling=Resampling(num_resamples=20_000))
    theirs = stats.bootstrap((values,), np.mean, n_resamples=20_000, method="BCa", rng=np.random.default_rng(1))
    assert ours.value == pytest.approx(values.mean())
    assert (ours.low, ours.high) == pytest.approx(tuple(theirs.confidence_interval), abs=0.015)


def test_same_seed_same_interval() -> None:
    first, same, other = (bootstrap_mean(draws(3, 40), resampling=Resampling(seed=seed)) for seed in (5, 5, 6))
    assert first == same != other


def test_rows_of_one_prompt_are_one_unit() -> None:
    values = draws(4, 30)
    repeated, clusters = np.repeat(values, 10), np.repeat(np.arange(30), 10)
    clustered, single = bootstrap_mean(repeated, clusters), bootstrap_mean(values)
    assert clustered.num_units == 30
    assert (clustered.low, clustered.high) == pytest.approx((single.low, single.high))
    naive = bootstrap_mean(repeated)
    assert naive.high - naive.low < 0.5 * (clustered.high - clustered.low)


@pytest.mark.parametrize(("value", "low", "high"), [(0.0, 0.0, 0.1135), (1.0, 0.8865, 1.0)])
def test_certain_shares_keep_an_interval(value: float, low: float, high: float) -> None:
    mean = bootstrap_mean([value] * 30)
    assert (mean.value, mean.low, mean.high) == pytest.approx((value, low, high), abs=1e-4)
    assert bootstrap_mean([value] * 30, share=False).interval is None  # a constant that is no share


def test_few_units_have_no_bootstrap_interval_but_wilsons_or_students() -> None:
    assert bootstrap_mean([0.2, 0.9, 0.4], share=False).low is None
    assert bootstrap_mean([0.0, 1.0, 1.0]).low == pytest.approx(wilson_interval(2 / 3, 3)[0])
    values = draws(0, 8)
    mean = bootstrap_mean(values, share=False)
    theirs = stats.ttest_1samp(values, 0).confidence_interval()
    assert (mean.low, mean.high) == pytest.approx((theirs.low, theirs.high))


def test_rare_share_gets_wilsons_interval() -> None:
    values = [0.0] * 40 + [0.25, 0.5]
    mean = bootstrap_mean(values)
    assert (mean.low, mean.high) == pytest.approx(wilson_interval(0.75 / 42, 42))


def test_a_few_heavy_units_are_known_as_a_few() -> None:
    weights = np.array([5.0] * 3 + [1.0] * 57)
    ((share,),) = bootstrap.bootstrap_shares([np.column_stack([weights * (weights > 1), weights])])
    high = wilson_interval(3 / 60, 72**2 / 132)[1]  # Kish's effective number of units
    assert (share.value, share.high) == (pytest.approx(15 / 72), pytest.approx(5 * high / (1 + 4 * high)))


def test_a_share_is_never_less_certain_than_wilsons_interval() -> None:
    # pass@10 of 64 prompts: three never solved, five nearly always; resamples without the three have hardly any error
    values = [0.0] * 3 + [0.875] * 2 + [0.964, 0.9986, 0.9999] + [1.0] * 56
    mean = bootstrap_mean(values)
    low, high = wilson_interval(float(np.mean(values)), 64)
    assert mean.low == pytest.approx(low)
    assert mean.high is not None
    assert mean.high <= high
    assert bootstrap_mean(values, share=False).low < 0.7  # the studentized end by itself


def test_difference_is_paired() -> None:
    first = draws(1, 50)
    shifted = bootstrap_difference(first, first + 0.1 * (draws(2, 50) > 0.5))
    assert shifted.low > 0.0
    unpaired = bootstrap_mean(first)
    assert shifted.high - shifted.low < 0.5 * (unpaired.high - unpaired.low)


def test_policies_that_agree_or_hardly_differ_keep_both_signs_open() -> None:
    same = bootstrap_difference([0.0, 1.0] * 15, [0.0, 1.0] * 15)
    assert (same.low, same.value, same.high) == pytest.approx((-0.1135, 0.0, 0.1135), abs=1e-4)
    after = [1.0] + [0.0] * 29
    rare = bootstrap_difference([0.0] * 30, after)
    assert rare.low < 0.0 < rare.value < rare.high < 0.2


def test_nothing_to_average_is_undefined() -> None:
    assert bootstrap_mean([]).undefined == "there is nothing to average"


def test_resampling_is_arithmetic_on_arrays_whatever_the_number_of_units() -> None:
    few, many = num_calls(lambda: bootstrap_mean(draws(0, 20))), num_calls(lambda: bootstrap_mean(draws(0, 160)))
    assert many < 1.5 * few


@pytest.mark.parametrize(
    ("measure", "message"),
    [
        (lambda: bootstrap_statistics(lambda sums: sums, np.zeros((0, 2))), "units are a non-empty table"),
        (lambda: bootstrap_statistics(lambda sums: sums, [[np.nan]]), "units and their statistics are finite numbers"),
        (lambda: bootstrap_means([[1.5]]), r"shares lie in \[0, 1\]"),
        (lambda: bootstrap_difference([1.0], [1.0, 2.0]), "paired values have one shape"),
    ],
)
def test_what_has_no_interval_is_refused(measure: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        measure()


QUICK = Resampling(num_resamples=100)


def mean_of(values: list[float], clusters: list[str] | None = None, *, high: float = 16.0) -> Estimate:
    (mean,) = bounded_means(np.array(values)[:, None], clusters, low=1.0, high=high, resampling=QUICK)
    return mean


def test_few_close_ranks_get_students_interval_and_not_wilsons() -> None:
    values = np.random.default_rng(0).normal(6.0, 0.8, 8)
    mean = mean_of(values.tolist())
    theirs = stats.ttest_1samp(values, 0).confidence_interval()
    assert (mean.low, mean.high) == pytest.approx((theirs.low, theirs.high), rel=0.03)
    wilson = bootstrap_mean((values - 1) / 15)
    assert mean.high - mean.low < 0.2 * 15 * (wilson.high - wilson.low)


@pytest.mark.parametrize(("value", "number"), [(1.0, 8), (4.0, 1), (4.0, 30), (16.0, 2)])
def test_equal_ranks_tell_nothing_of_their_spread(number: int, value: float) -> None:
    mean = mean_of([value] * number)
    assert (mean.value, mean.interval, mean.num_units) == (pytest.approx(value), None, number)
    assert mean_of([1.0] * number, high=1.0).value == 1.0  # one row has one rank


def test_ranks_that_differ_from_one_by_rounding_are_one() -> None:
    """One group of sixteen with a second direction is a rare event, and says so, whatever the others' last digits."""
    exact, rounded = ([1.0 + noise * step for step in range(15)] + [1.99] for noise in (0.0, 1e-7))
    assert mean_of(rounded, high=8.0).interval == mean_of(exact, high=8.0).interval
    assert mean_of(rounded, high=8.0).ends[1] > 2.0


def test_sub_groups_of_one_group_are_one_unit() -> None:
    mean = mean_of([2.0, 4.0, 5.0, 5.0], ["a", "a", "b", "b"])
    assert (mean.value, mean.num_units) == (4.0, 2)
    assert mean.interval == pytest.approx(mean_of([3.0, 5.0]).interval)


@given(st.integers(2, 20).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.floats(1, n), min_size=1, max_size=14))))
def test_no_interval_leaves_the_range(case: tuple[int, list[float]]) -> None:
    rows, values = case
    low, high = mean_of(values, high=rows).ends
    equal = 1e-6 * rows
    assert 1.0 - 1e-12 <= low <= np.mean(values) + equal
    assert np.mean(values) - equal <= high <= rows * (1 + 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "number"), [((2, 2), 2), ((0.5, 3), 4), ((6, 1), 4), ((0.5, 3), 8)])
def test_intervals_of_few_groups_hold_the_truth(shape: tuple[float, float], number: int) -> None:
    ranks = 1 + 15 * np.random.default_rng(number).beta(*shape, size=(2000, number))
    truth = 1 + 15 * shape[0] / sum(shape)
    held = [low <= truth <= high for low, high in (mean_of(row.tolist()).ends for row in ranks)]
    assert np.mean(held) > 0.92


@pytest.mark.slow
def test_ranks_that_are_rarely_more_than_one_are_held_although_they_are_rounded() -> None:
    """Sixteen groups of 8 rollouts: rank 2 with a chance of 0.15, else 1 up to the rounding of float32."""
    rng, held = np.random.default_rng(0), 0
    for _ in range(400):
        ranks = np.where(rng.random(16) < 0.15, 2.0, 1.0 + 1e-7 * rng.random(16))
        low, high = mean_of(ranks.tolist(), high=8.0).ends
        held += low - 1e-6 <= 1.15 <= high + 1e-6 or np.ptp(ranks) < 1e-6
    assert held >= 0.93 * 400


@pytest.mark.parametrize(("num_prompts", "rare"), [(64, 0.01), (150, 0.01), (64, 0.03)])
def test_a_rare_unit_at_the_far_end_is_in_the_interval_though_none_was_drawn(num_prompts: int, rare: float) -> None:
    """A prompt in a hundred never passes, the others half of the time: 62 % of intervals of pass@8 held it, 80, 85."""
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(100):
        passes = rng.binomial(16, np.where(rng.random(num_prompts) < rare, 0.0, 0.5))
        mean = bootstrap_mean(pass_at_k([16] * num_prompts, passes, 8), resampling=Resampling(num_resamples=300))
        held += mean.low <= (1 - rare) * (1 - 0.5**8) <= mean.high
    assert held >= 92
