from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from gradscope.metrics.uncertainty import studentized
from gradscope.metrics.uncertainty.bootstrap import bootstrap_mean, bootstrap_means, bootstrap_statistics
from gradscope.metrics.uncertainty.intervals import Resampling
from gradscope.metrics.uncertainty.studentized import cluster_numbers, cluster_sums, influence_values, student_intervals
from tests.metrics.uncertainty.test_bootstrap import draws

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


def test_skewed_pass_rates_are_covered() -> None:
    # Most prompts are nearly hopeless: the percentile and BCa intervals cover 90 to 92 % of the time here.
    rng, hits, trials = np.random.default_rng(0), 0, 400
    for _ in range(trials):
        mean = bootstrap_mean(rng.binomial(8, rng.beta(0.1, 0.9, 30)) / 8, resampling=Resampling(num_resamples=500))
        hits += mean.low <= 0.1 <= mean.high
    assert 0.93 <= hits / trials <= 0.995


def test_intervals_stay_within_the_range_of_each_statistic() -> None:
    units = np.column_stack([draws(0, 12), np.ones(12)])
    free = bootstrap_statistics(lambda sums: sums / 12, units)[0]
    assert free.low < 0.3 < 0.4 < free.high
    cut, constant = bootstrap_statistics(lambda sums: sums / 12, units, within=([0.3, -1.0], 0.4))
    assert (cut.low, cut.value, cut.high) == (min(0.3, free.value), free.value, max(0.4, free.value))
    assert constant.low is None


def test_intervals_over_many_units_are_those_of_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    units = np.random.default_rng(0).beta(0.2, 1.0, size=(2000, 1))
    (expanded,) = bootstrap_means(units)
    monkeypatch.setattr(studentized, "MANY_UNITS", 2000)
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
    assert (together[0][0] is None) == (sizes[0] < studentized.MIN_UNITS or len(sizes) == 1)


def test_resamples_without_a_rare_unit_say_nothing_of_the_error() -> None:
    rare, common = (np.column_stack([column, np.ones(30)]) for column in (np.eye(1, 30)[0], draws(0, 30)))
    resampling = Resampling(num_resamples=500)
    ((alone, _),) = student_intervals(lambda sums: sums / 30, [rare], resampling=resampling)
    ((extra, _), _) = student_intervals(lambda sums: sums / 30, [rare, common], resampling=resampling)
    assert alone is not None
    assert extra == pytest.approx(alone, abs=1e-12)
