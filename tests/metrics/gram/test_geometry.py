from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from gradscope.metrics.gram import geometry

Array = NDArray[np.float64]
seeds = st.integers(0, 10_000)


def rows(seed: int, num_rows: int = 6, num_columns: int = 9) -> Array:
    return np.random.default_rng(seed).normal(size=(num_rows, num_columns))


@given(seeds)
def test_every_answer_equals_the_one_from_the_rows_themselves(seed: int) -> None:
    scores = rows(seed)
    advantages = np.random.default_rng(seed + 1).normal(size=6)
    matrix = advantages[:, None] * scores
    gram = geometry.gradient_gram(scores @ scores.T, advantages)
    norms = np.linalg.norm(matrix, axis=1)
    np.testing.assert_allclose(gram, matrix @ matrix.T, atol=1e-12)
    np.testing.assert_allclose(geometry.row_norms(gram), norms)
    np.testing.assert_allclose(geometry.batch_norm(gram), np.linalg.norm(matrix.sum(axis=0)))
    np.testing.assert_allclose(geometry.cosines(gram), matrix @ matrix.T / norms[:, None] / norms[None, :], atol=1e-12)
    assert geometry.cancellation(gram).value == pytest.approx(np.linalg.norm(matrix.sum(axis=0)) / norms.sum())


@pytest.mark.parametrize(("norm", "met"), [(3.0, True), (3.00002, True), (3.0001, False), (2.9999, False)])
def test_a_norm_is_met_to_one_in_a_hundred_thousand(norm: float, met: bool) -> None:
    assert geometry.meets_logged(norm, 3.0) == met


@given(seeds, st.integers(1, 5), st.floats(-8, 8))
def test_class_subspace_energy_is_the_projection_on_both_means(seed: int, num_passed: int, exponent: float) -> None:
    matrix = rows(seed) * 10.0**exponent
    passed = np.arange(6) < num_passed
    basis = np.linalg.qr(np.stack([matrix[passed].mean(axis=0), matrix[~passed].mean(axis=0)]).T)[0]
    expected = np.linalg.norm(matrix @ basis) ** 2 / np.linalg.norm(matrix) ** 2
    assert geometry.class_subspace_energy(matrix @ matrix.T, passed).value == pytest.approx(expected, rel=1e-6)


def test_collinear_class_means_span_one_direction_and_a_short_one_still_counts() -> None:
    matrix = np.outer([2.0, 2.0, -1.0], [1.0, 0.0, 0.0]) + np.array([[0, 1, 0], [0, -1, 0], [0, 0, 0]])
    assert geometry.class_subspace_energy(matrix @ matrix.T, [True, True, False]).value == pytest.approx(9 / 11)
    assert geometry.class_subspace_energy(np.diag([1.0, 1e-8]), [True, False]).value == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("gram", "passed", "reason"),
    [
        (np.eye(2), [True, True], "no rollout failed, so there is no second class"),
        (np.eye(2), [False, False], "no rollout passed, so there is no second class"),
        (np.zeros((2, 2)), [True, False], "the matrix is zero: no row carries a gradient"),
    ],
)
def test_class_subspace_energy_without_two_classes_is_undefined(gram: Array, passed: list[bool], reason: str) -> None:
    assert geometry.class_subspace_energy(gram, passed).undefined == reason


def test_weights_of_zero_sum_take_a_direction_away_only_where_rows_share_it() -> None:
    weights = np.array([3.0, -1.0, -1.0, -1.0])
    orthogonal = geometry.gradient_gram(np.eye(4), weights)  # orthonormal rows keep all four directions
    np.testing.assert_allclose(orthogonal, np.diag([9.0, 1.0, 1.0, 1.0]))
    assert geometry.batch_norm(orthogonal) == pytest.approx(12**0.5)
    collinear = geometry.gradient_gram(np.ones((4, 4)), weights)  # one row four times: the batch gradient vanishes
    assert np.linalg.matrix_rank(collinear) == 1
    assert geometry.batch_norm(collinear) == pytest.approx(0.0, abs=1e-7)
    assert geometry.cancellation(collinear).value == pytest.approx(0.0, abs=1e-7)


def test_group_sums_keep_the_batch_norm() -> None:
    matrix = rows(2)
    index = [0, 2, 1, 0, 2, 2]
    sums = geometry.group_sums(matrix @ matrix.T, index)
    expected = np.stack([matrix[np.equal(index, group)].sum(axis=0) for group in range(3)])
    np.testing.assert_allclose(sums, expected @ expected.T, atol=1e-12)
    assert geometry.batch_norm(sums) == pytest.approx(geometry.batch_norm(matrix @ matrix.T))


@pytest.mark.parametrize(
    ("measure", "values", "message"),
    [
        *(
            (geometry.gradient_gram, advantages, "2 finite advantages are needed")
            for advantages in ([1.0], [1.0, np.nan])
        ),
        (geometry.class_subspace_energy, [True], "2 flags are needed"),
        *((geometry.group_sums, numbers, "2 group numbers from 0 are needed") for numbers in ([0], [0, -1])),
        *(
            (geometry.update_gram, advantages, r"rows of 2 advantages are needed, got shape \(")
            for advantages in ([1.0, 2.0], [[1.0, 2.0, 3.0]], [[[1.0, 2.0]]])
        ),
    ],
)
def test_what_belongs_to_rows_must_fit_them(measure: Callable[..., object], values: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        measure(np.eye(2), values)


def channels_of_rows(gradients: Array) -> list[float]:
    """The same from the rows themselves: singular directions of the unit rows, and a projection on some of them."""
    units = gradients / np.linalg.norm(gradients, axis=1, keepdims=True)
    _, values, directions = np.linalg.svd(units, full_matrices=False)
    inside = gradients @ directions[values > 1].T @ directions[values > 1]
    outside = gradients - inside
    return [
        float(np.sum(values > 1)),
        np.sum(inside**2) / np.sum(gradients**2),
        np.sum(inside.sum(axis=0) ** 2) / np.sum(gradients.sum(axis=0) ** 2),
        np.sum(inside.sum(axis=0) ** 2) / np.sum(inside**2),
        np.sum(outside.sum(axis=0) ** 2) / np.sum(outside**2),
    ]


@given(seeds)
def test_channels_are_those_of_the_rows_themselves(seed: int) -> None:
    rng = np.random.default_rng(seed)
    gradients = (rows(seed) + rng.normal(size=9)) * rng.lognormal(0.0, 2.0, size=(6, 1)) * rng.choice([-1, 1], (6, 1))
    gram = gradients @ gradients.T
    np.testing.assert_allclose(geometry.channels(gram), channels_of_rows(gradients), rtol=1e-5)
    np.testing.assert_allclose(geometry.channels(1e-9 * gram), geometry.channels(gram), rtol=1e-6)
    count, energy, sum_share, kept_of_sum, rest = geometry.channels(np.stack([gram, np.eye(6)]))[0]
    ratio = gram.sum() / np.trace(gram)
    assert energy * kept_of_sum + (1 - energy) * rest == pytest.approx(ratio)
    assert sum_share * ratio == pytest.approx(energy * kept_of_sum)
    assert 1 <= count <= 5


@settings(max_examples=20)
@given(seeds)
def test_under_all_signs_of_the_rows_either_channel_keeps_its_energy_on_average(seed: int) -> None:
    gradients = rows(seed, 4) + 1.0
    signed = np.array(list(product((-1.0, 1.0), repeat=4)))[:, :, None] * gradients
    channels = geometry.channels(signed @ signed.swapaxes(1, 2))
    np.testing.assert_allclose(channels[:, 3:].mean(axis=0), 1.0)
    np.testing.assert_allclose(channels[:, :2], np.tile(channels[0, :2], (16, 1)), rtol=1e-6)  # blind to signs


def test_channels_that_are_empty_and_sums_that_cancel_have_no_number() -> None:
    pulls = np.array([1.0, -1.0, 2.0, -2.0])
    np.testing.assert_equal(geometry.channels(np.eye(3)), [0, 0, 0, np.nan, 1])
    np.testing.assert_allclose(geometry.channels(np.ones((3, 3))), [1, 1, 1, 3, np.nan])
    np.testing.assert_allclose(geometry.channels(np.outer(pulls, pulls)), [1, 1, np.nan, 0, np.nan], atol=1e-12)
    np.testing.assert_equal(geometry.channels(np.zeros((2, 2))), [np.nan] * 5)


def test_a_rollout_without_a_gradient_changes_no_channel() -> None:
    gradients = rows(3, 4) + 0.5
    with_zero = np.vstack([gradients, np.zeros((1, 9))])
    np.testing.assert_allclose(geometry.channels(with_zero @ with_zero.T), geometry.channels(gradients @ gradients.T))


RNG = np.random.default_rng(3)
ROWS = RNG.normal(size=(7, 40)) + 0.3
GRAM = ROWS @ ROWS.T


def test_shares_and_cosines_are_those_of_the_rows_themselves() -> None:
    total = ROWS.sum(axis=0)
    length = np.linalg.norm(total)
    assert geometry.projection_shares(GRAM) == pytest.approx(ROWS @ total / length**2)
    assert geometry.projection_shares(GRAM).sum() == pytest.approx(1.0)
    assert geometry.cosines_to_sum(GRAM) == pytest.approx(ROWS @ total / length / np.linalg.norm(ROWS, axis=1))


def test_cosine_of_updates_is_that_of_the_summed_rows() -> None:
    first, second = RNG.normal(size=7), RNG.normal(size=7)
    left, right = first @ ROWS, second @ ROWS
    expected = left @ right / np.linalg.norm(left) / np.linalg.norm(right)
    assert geometry.cosine_of_updates(GRAM, first, second).value == pytest.approx(expected)
    assert "without length" in str(geometry.cosine_of_updates(GRAM, first, np.zeros(7)).undefined)


def test_a_zero_row_has_no_direction_and_a_zero_sum_no_parts() -> None:
    angles = geometry.cosines([[1.0, 0.0], [0.0, 0.0]])
    assert angles[0, 0] == 1.0
    assert np.isnan(angles[1]).all()
    assert geometry.top_share(np.zeros((3, 3))).undefined
    assert geometry.cancellation(np.zeros((2, 2))).undefined == "the matrix is zero: no row carries a gradient"
    assert np.isnan(geometry.cosines_to_sum([[0.0, 0.0], [0.0, 4.0]])[0])
    assert np.isnan(geometry.projection_shares(np.zeros((2, 2)))).all()


@pytest.mark.parametrize(("norms", "share"), [([1.0] * 10, 0.1), ([1.0] + [0.0] * 9, 1.0), ([3.0, 1.0], 0.75)])
def test_top_share_of_known_norms(norms: list[float], share: float) -> None:
    assert geometry.top_share(np.diag(np.square(norms))).value == pytest.approx(share)


@pytest.mark.parametrize("seed", range(2))
def test_norms_without_each_row_are_those_of_the_rows_themselves(seed: int) -> None:
    rows = np.random.default_rng(seed).normal(size=(7, 4))
    expected = [np.linalg.norm(np.delete(rows, left, axis=0).sum(axis=0)) for left in range(7)]
    np.testing.assert_allclose(geometry.norms_without(rows @ rows.T), expected, rtol=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_each_removal_is_the_best_of_all(seed: int) -> None:
    rows = np.random.default_rng(seed).normal(size=(6, 3)) + 0.5
    order, norms = geometry.removal_order(rows @ rows.T, max_rows=3)
    remaining = list(range(6))
    for index, norm in zip(order, norms, strict=True):
        shortest = min(np.linalg.norm(rows[[i for i in remaining if i != left]].sum(axis=0)) for left in remaining)
        remaining.remove(index)
        assert norm == pytest.approx(shortest) == pytest.approx(np.linalg.norm(rows[remaining].sum(axis=0)))


def test_it_ends_where_no_row_makes_the_sum_shorter() -> None:
    rows = np.array([[1.0], [-1.0], [5.0]])
    order, norms = geometry.removal_order(rows @ rows.T, max_rows=3)
    assert (order, norms) == ([2], [0.0])
    assert geometry.removal_order(np.zeros((2, 2)), max_rows=2) == ([], [])


norm_lists = st.lists(st.just(0.0) | st.floats(1e-6, 1e6), min_size=2, max_size=20)


@given(norm_lists.filter(any))
def test_gini_is_the_mean_absolute_difference(norms: list[float]) -> None:
    values = np.array(norms)
    differences = np.abs(values[:, None] - values[None, :]).sum()
    expected = differences / (2 * len(norms) * values.sum())
    assert geometry.row_sparsity(norms)["gini"].value == pytest.approx(expected, abs=1e-9)


@given(norm_lists.filter(any), st.sampled_from([2.0**-100, 2.0**100]))  # exact: thresholds are hit alike
def test_no_definition_depends_on_scale(norms: list[float], scale: float) -> None:
    before, after = geometry.row_sparsity(norms), geometry.row_sparsity([norm * scale for norm in norms])
    assert [after[name].value for name in after] == pytest.approx([before[name].value for name in before], abs=1e-9)


@pytest.mark.parametrize("size", [2, 5, 64])
def test_ends_of_the_scales(size: int) -> None:
    equal, single = np.ones(size), np.eye(size)[0]
    assert (geometry.row_sparsity(equal)["hoyer"].value, geometry.row_sparsity(equal)["gini"].value) == (
        pytest.approx(0.0),
        pytest.approx(0.0),
    )
    assert (geometry.row_sparsity(single)["hoyer"].value, geometry.row_sparsity(single)["gini"].value) == (
        pytest.approx(1.0),
        pytest.approx((size - 1) / size),
    )
    assert geometry.row_sparsity(single)["zero_rows"].value == pytest.approx((size - 1) / size)


def test_small_rows_are_measured_against_the_largest() -> None:
    assert geometry.row_sparsity([100.0, 1.0, 0.99, 0.0])["small_rows"].value == 0.5


def test_what_has_no_largest_row_is_undefined() -> None:
    assert geometry.row_sparsity([0.0, 0.0])["zero_rows"].value == 1.0
    zero = geometry.row_sparsity([0.0, 0.0])
    assert [zero[name].undefined for name in ("small_rows", "hoyer", "gini")] == ["every row is zero"] * 3
    assert geometry.row_sparsity([1.0])["hoyer"].undefined == "one row has nothing to be compared with"
    assert geometry.row_sparsity([])["zero_rows"].undefined == "there are no rows"


@pytest.mark.parametrize("norms", [[-1.0], [np.nan], [[1.0]]])
def test_what_is_no_norm_is_refused(norms: object) -> None:
    with pytest.raises(ValueError, match="row norms are finite, non-negative numbers in one dimension"):
        geometry.row_sparsity(np.asarray(norms))["zero_rows"]


def test_dead_groups_are_counted_whole() -> None:
    assert geometry.zero_groups([0.0, 0.0, 1.0, 0.0, 0.0], [3, 3, 1, 1, 2]).value == pytest.approx(2 / 3)
    assert geometry.zero_groups([], []).undefined == "there are no rows"


def test_rows_that_cancel_but_for_rounding_have_no_sum() -> None:
    """As the gradients of equal completions do, whose advantages add up to zero."""
    row = np.random.default_rng(0).normal(size=40).astype(np.float32)
    equal = np.stack([row * np.float32(1 + 1e-7 * index) for index in range(4)]).astype(np.float64)
    gram, advantages = equal @ equal.T, np.array([[0.1, 0.2, 0.3, -0.6], [1.0, 1.0, 1.0, 1.0]])
    sums = geometry.update_gram(gram, advantages)
    assert sums[0].tolist() == sums[:, 0].tolist() == [0.0, 0.0]
    assert sums[1, 1] == pytest.approx(16 * float(row @ row), rel=1e-5)
    weighed = geometry.gradient_gram(gram, advantages[0])
    assert geometry.group_sums(weighed, [0] * 4).tolist() == [[0.0]]
    orthogonal = geometry.gradient_gram(np.eye(4), advantages[0])
    assert geometry.group_sums(orthogonal, [0] * 4).item() == pytest.approx(0.5)
