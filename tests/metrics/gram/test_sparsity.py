import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradscope.metrics.gram.sparsity import gini, hoyer, row_sparsity, small_rows, zero_groups, zero_rows

norm_lists = st.lists(st.just(0.0) | st.floats(1e-6, 1e6), min_size=2, max_size=20)


@settings(deadline=None)
@given(norm_lists.filter(any))
def test_gini_is_the_mean_absolute_difference(norms: list[float]) -> None:
    values = np.array(norms)
    differences = np.abs(values[:, None] - values[None, :]).sum()
    assert gini(norms).value == pytest.approx(differences / (2 * len(norms) * values.sum()), abs=1e-9)


@settings(deadline=None)
@given(norm_lists.filter(any), st.sampled_from([2.0**-100, 2.0**100]))  # exact: thresholds are hit alike
def test_no_definition_depends_on_scale(norms: list[float], scale: float) -> None:
    before, after = row_sparsity(norms), row_sparsity([norm * scale for norm in norms])
    assert [after[name].value for name in after] == pytest.approx([before[name].value for name in before], abs=1e-9)


@pytest.mark.parametrize("size", [2, 5, 64])
def test_ends_of_the_scales(size: int) -> None:
    equal, single = np.ones(size), np.eye(size)[0]
    assert (hoyer(equal).value, gini(equal).value) == (pytest.approx(0.0), pytest.approx(0.0))
    assert (hoyer(single).value, gini(single).value) == (pytest.approx(1.0), pytest.approx((size - 1) / size))
    assert zero_rows(single).value == pytest.approx((size - 1) / size)


def test_small_rows_are_measured_against_the_largest() -> None:
    assert small_rows([100.0, 1.0, 0.99, 0.0]).value == 0.5


def test_what_has_no_largest_row_is_undefined() -> None:
    assert zero_rows([0.0, 0.0]).value == 1.0
    assert [definition([0.0, 0.0]).undefined for definition in (small_rows, hoyer, gini)] == ["every row is zero"] * 3
    assert hoyer([1.0]).undefined == "one row has nothing to be compared with"
    assert zero_rows([]).undefined == "there are no rows"


@pytest.mark.parametrize("norms", [[-1.0], [np.nan], [[1.0]]])
def test_what_is_no_norm_is_refused(norms: object) -> None:
    with pytest.raises(ValueError, match="row norms are finite, non-negative numbers in one dimension"):
        zero_rows(np.asarray(norms))


def test_dead_groups_are_counted_whole() -> None:
    assert zero_groups([0.0, 0.0, 1.0, 0.0, 0.0], [3, 3, 1, 1, 2]).value == pytest.approx(2 / 3)
    assert zero_groups([], []).undefined == "there are no rows"
