from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradscope.metrics.uncertainty.clusters import cluster_numbers, cluster_sums

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
        one = expected.setdefault(label, [0.0, 0.0])
        one[0], one[1] = one[0] + first, one[1] + second
    assert cluster_sums(table, labels).tolist() == list(expected.values())


def test_rows_without_clusters_are_their_own() -> None:
    assert cluster_sums([[1.0], [2.0]], None).tolist() == [[1.0], [2.0]]


def test_each_row_has_a_cluster() -> None:
    with pytest.raises(ValueError, match="2 rows need 2 clusters"):
        cluster_sums([[1.0], [2.0]], ["a"])
