import numpy as np
import pytest
from scipy import stats

from gradscope.metrics.gram.part_sums import (
    ANY,
    NO_LENGTH,
    POSITIVE,
    SHARE,
    jackknifed_on,
    left_out_sums,
    norm_ratio,
    over_steps,
    products_without,
    ratio_over_groups,
    sum_cosine,
    sum_share,
    weight_estimates,
)


def sums(num_groups: int = 5, seed: int = 0) -> np.ndarray:
    """Three sums of every group, [V, J, P]."""
    return np.random.default_rng(seed).normal(size=(3, num_groups, 7))


def gram(vectors: np.ndarray) -> np.ndarray:
    return np.einsum("vjp,wkp->vjwk", vectors, vectors)


def left_out(vectors: np.ndarray, group: int | None) -> np.ndarray:
    """The sums over all groups but one, [V, P]."""
    remaining = [index for index in range(vectors.shape[1]) if index != group]
    return vectors[:, remaining].sum(axis=1)


def test_products_without_a_group_are_those_of_the_others() -> None:
    result, vectors = products_without(gram(sums())), sums()
    for index, group in enumerate([None, *range(5)]):
        rest = left_out(vectors, group)
        np.testing.assert_allclose(result[index], rest @ rest.T, atol=1e-12)


def test_each_number_is_that_of_the_vectors_and_its_interval_leaves_groups_out() -> None:
    vectors, first, second = sums(), np.array([1.0, 1.0, 0.0]), np.array([0.0, 0.5, 1.0])
    products = products_without(gram(vectors))

    def numbers(group: int | None) -> tuple[float, float, float]:
        a, b = first @ left_out(vectors, group), second @ left_out(vectors, group)
        lengths = np.linalg.norm(a), np.linalg.norm(b)
        return a @ b / lengths[0] / lengths[1], lengths[0] / lengths[1], a @ b / lengths[1] ** 2

    results = (function(products, first, second) for function in (sum_cosine, norm_ratio, sum_share))
    replicates = np.array([numbers(group) for group in (None, *range(5))])
    ways = ((np.arctanh, np.tanh), (np.log, np.exp), (np.array, np.array))
    for index, (estimate, (forward, back)) in enumerate(zip(results, ways, strict=True)):
        assert estimate.value == pytest.approx(numbers(None)[index])
        assert estimate.interval == pytest.approx(interval(forward(replicates[:, index]), back))


def interval(values: np.ndarray, back) -> tuple[float, float]:
    """Student's interval of the jackknife, with Satterthwaite's degrees of freedom."""
    deviations = values[1:] - values[1:].mean()
    count = len(deviations)
    freedom = min(count - 1, 3 * np.sum(deviations**2) ** 2 / np.sum(deviations**4))
    half = stats.t.ppf(0.975, freedom) * np.sqrt((count - 1) / count * np.sum(deviations**2))
    return float(back(values[0] - half)), float(back(values[0] + half))


def test_shares_of_parts_add_up() -> None:
    products = products_without(gram(sums()))
    shares = [sum_share(products, part, np.ones(3)).value for part in np.eye(3)]
    assert sum(shares) == pytest.approx(1.0)


def test_a_sum_of_nothing_has_no_direction() -> None:
    vectors = sums()
    vectors[0] = 0.0
    products = products_without(gram(vectors))
    assert sum_cosine(products, [1, 0, 0], [0, 1, 0]).undefined == NO_LENGTH
    assert norm_ratio(products, [0, 1, 0], [1, 0, 0]).undefined == NO_LENGTH
    assert norm_ratio(products, [1, 0, 0], [0, 1, 0]).value == 0.0


def test_what_only_one_group_has_comes_without_an_interval() -> None:
    vectors = sums()
    vectors[0, 1:] = 0.0
    cosine = sum_cosine(products_without(gram(vectors)), [1, 0, 0], [0, 1, 0])
    assert cosine.is_defined
    assert cosine.interval is None
    assert sum_cosine(products_without(gram(sums(2))), [1, 0, 0], [0, 1, 0]).interval is None


def test_a_ratio_over_groups_is_that_of_the_totals() -> None:
    ratio = ratio_over_groups([1.0, 0.0, 5.0], [2.0, 4.0, 6.0])
    assert ratio.value == 0.5
    rest = np.array([6 / 12, 5 / 10, 6 / 8, 1 / 6])
    assert ratio.interval == pytest.approx(interval(np.log(rest / (1 - rest)), lambda v: 1 / (1 + np.exp(-v))))
    assert ratio_over_groups([0.0], [0.0]).undefined == "there is nothing to average"
    assert ratio_over_groups([-1.0, -1.0, -2.0], [1.0, 1.0, 1.0], ANY).value == pytest.approx(-4 / 3)


def test_there_is_no_interval_at_an_end_or_where_no_group_makes_a_difference() -> None:
    assert ratio_over_groups([1.0, 1.0, 2.0], [1.0, 1.0, 2.0]).interval is None
    assert ratio_over_groups([1.0, 1.0, 2.0], [2.0, 2.0, 4.0]).interval is None
    assert ratio_over_groups([1.0, 0.0, 0.0, 0.0], [2.0, 2.0, 4.0, 1.0]).interval is None  # one group has all of it


def test_an_interval_of_large_numbers_is_around_them_and_finite() -> None:
    estimate = jackknifed_on([1e100, 1e-100, 1e100, 1e100], POSITIVE)
    assert np.isfinite(estimate.interval or np.nan).all()
    estimate = jackknifed_on([3000.0, 2900.0, 3000.0, 3100.0], ANY)
    assert estimate.low < 3000.0 < estimate.high
    assert estimate.low + estimate.high == pytest.approx(6000.0)


def test_groups_of_several_steps_are_left_out_one_by_one() -> None:
    steps = [sums(num_groups, seed) for seed, num_groups in enumerate((4, 3))]
    result = over_steps([products_without(gram(step)) for step in steps])
    assert result.shape == (8, 3, 3)
    for index, (left, group) in enumerate([(0, None), *((0, i) for i in range(4)), *((1, i) for i in range(3))]):
        parts = [left_out(step, group if number == left else None) for number, step in enumerate(steps)]
        np.testing.assert_allclose(result[index], sum(part @ part.T for part in parts), atol=1e-12)
    assert over_steps([left_out_sums([1.0, 2.0])]).tolist() == [3.0, 2.0, 1.0]


def estimates_of_a_step(rng: np.random.Generator, mean: np.ndarray, groups: int, tail: float) -> tuple | None:
    """Cosine, norm, share along the gradient and share of the energy of one of two parts; None if few groups live."""
    live = rng.random(groups) >= 0.4
    if live.sum() < 3:
        return None
    scale = np.exp(tail * rng.normal(size=groups)) * live
    drawn = (mean[:, None] + rng.normal(size=(2, groups, 20))) * scale[:, None]
    products, energies = products_without(np.einsum("vjp,wkp->vjwk", drawn, drawn)), np.square(drawn).sum(axis=2)
    ratios = (ratio(products, [1.0, 0.0], [1.0, 1.0]) for ratio in (sum_cosine, norm_ratio, sum_share))
    return *ratios, ratio_over_groups(energies[0], energies.sum(axis=0))


@pytest.mark.slow
@pytest.mark.parametrize(("groups", "tail"), [(8, 0.5), (16, 1.0)])
def test_intervals_hold_the_mean_over_steps_as_often_as_is_said(groups: int, tail: float) -> None:
    rng = np.random.default_rng(0)
    mean = 0.3 * rng.normal(size=(2, 20))
    steps = [step for step in (estimates_of_a_step(rng, mean, groups, tail) for _ in range(250)) if step is not None]
    for estimates, bound in zip(zip(*steps, strict=True), (0.9, 0.9, 0.9, 0.83), strict=True):
        truth = np.mean([estimate.value for estimate in estimates])
        assert np.mean([estimate.ends[0] <= truth <= estimate.ends[1] for estimate in estimates]) >= bound


def test_equal_weights_are_worth_every_unit() -> None:
    estimates = weight_estimates(np.full(8, 1.0), [0, 0, 1, 1, 2, 2, 3, 3])
    assert [estimate.value for estimate in estimates.values()] == [1.0, 1.0, 0.0]


def test_intervals_leave_groups_out() -> None:
    weights, groups = np.array([1.0, 2.0, 0.0, 1.0, 0.5, 0.5]), np.array([0, 0, 1, 1, 2, 2])
    estimates = weight_estimates(weights, groups)
    assert estimates["kept"].value == pytest.approx(5 / 6)
    assert estimates["ess"].value == pytest.approx(5.0**2 / (6 * 6.5))
    assert estimates["chi2"].value == pytest.approx(6.5 / 6 - 1)
    replicates = [weights[groups != group] for group in range(3)]
    values = [sample.sum() ** 2 / len(sample) / np.square(sample).sum() for sample in (weights, *replicates)]
    assert estimates["ess"].interval == pytest.approx(jackknifed_on(values, SHARE).interval)
    moments = [np.square(sample).mean() for sample in (weights, *replicates)]
    assert estimates["chi2"].interval == pytest.approx(np.array(jackknifed_on(moments, POSITIVE).interval) - 1)


def test_nothing_is_left_where_all_are_masked() -> None:
    estimates = weight_estimates(np.zeros(6), [0, 0, 1, 1, 2, 2])
    assert estimates["kept"].value == 0.0
    assert estimates["ess"].undefined == "every weight is zero"
    assert estimates["chi2"].value == -1.0
    assert weight_estimates([1.0, 2.0], [0, 1])["ess"].interval is None  # two groups are too few
