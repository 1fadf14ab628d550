import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradscope.metrics.gram.alignment import expected_updates, group_cosine, noise_within, pass_at_k_weights

seeds = st.integers(0, 10_000)


@pytest.mark.parametrize("k", [1, 2, 4])
@pytest.mark.parametrize("p", [0.2, 0.7])
def test_the_pass_at_k_gradient_is_unbiased(k: int, p: float) -> None:
    """One parameter theta with p = sigmoid(theta): the score is r - p, the gradient k (1-p)^(k-1) p (1-p)."""
    size, expected = 4, 0.0
    for outcome in itertools.product([0.0, 1.0], repeat=size):
        rewards = np.array(outcome)
        chance = math.prod(p if reward else 1 - p for reward in outcome)
        expected += chance * float(pass_at_k_weights(rewards, k) @ (rewards - p))
    assert expected == pytest.approx(k * (1 - p) ** (k - 1) * p * (1 - p))


def test_at_k_1_the_weights_are_leave_one_out_and_at_k_n_only_a_lone_success_counts() -> None:
    assert pass_at_k_weights([1.0, 0.0, 0.0], 1).tolist() == pytest.approx([1 / 3, -1 / 6, -1 / 6])
    assert pass_at_k_weights([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]], 3).tolist() == [[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]


def test_rewards_between_pass_and_fail_are_refused() -> None:
    with pytest.raises(ValueError, match="pass@k is defined for rewards of 0 and 1"):
        pass_at_k_weights([0.5, 1.0], 1)


@pytest.mark.parametrize(("size", "k"), [(4, 0), (4, 5), (1, 1)])
def test_k_beyond_the_group_is_refused(size: int, k: int) -> None:
    with pytest.raises(ValueError, match=f"k lies from 1 to the {size} rollouts of a group of two or more, got {k}"):
        pass_at_k_weights(np.zeros(size), k)


@given(seeds)
def test_products_equal_those_of_the_rows_and_leaving_out_is_leaving_out(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores, weights = rng.normal(size=(12, 7)), rng.normal(size=(2, 12))
    index = np.repeat(np.arange(4), 3)
    updates = expected_updates(scores @ scores.T, weights, index)

    def products(remaining: list[int]) -> tuple[np.ndarray, np.ndarray]:
        """Of sums of different groups, and of a group with itself, [formulation, formulation]."""
        sums = np.stack([[w[index == g] @ scores[index == g] for g in remaining] for w in weights])
        own = np.einsum("vgp,wgp->vw", sums, sums)
        return sums.sum(axis=1) @ sums.sum(axis=1).T - own, own

    np.testing.assert_allclose(updates.cross[0], products([0, 1, 2, 3])[0], atol=1e-9)
    np.testing.assert_allclose(updates.cross[2], products([0, 2, 3])[0], atol=1e-9)
    np.testing.assert_allclose(updates.own[0], np.diag(products([0, 1, 2, 3])[1]))


def simulated(seed: int, num_groups: int = 200) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two formulations whose expected updates are 60 degrees apart, under a lot of shared noise."""
    rng = np.random.default_rng(seed)
    scores = np.concatenate([np.tile(np.eye(2), (num_groups, 1)), np.zeros((2 * num_groups, 30))], axis=1)
    scores[:, 2:] = np.repeat(rng.normal(size=(num_groups, 30)), 2, axis=0)
    weights = np.stack([np.tile([1.0, 0.0], num_groups), np.tile([0.5, np.sqrt(0.75)], num_groups)])
    return scores @ scores.T, weights, np.repeat(np.arange(num_groups), 2)


def test_shared_noise_does_not_pass_for_agreement() -> None:
    gram, weights, index = simulated(0)
    plain = weights @ gram @ weights.T
    assert expected_updates(gram, weights, index).cosine(0, 1).value == pytest.approx(0.5, abs=0.1)
    assert abs(plain[0, 1] / np.sqrt(plain[0, 0] * plain[1, 1]) - 0.5) > 0.02


def test_the_signal_to_noise_ratio_is_that_of_the_simulation() -> None:
    gram, weights, index = simulated(1)
    ratio = expected_updates(gram, weights, index).signal_to_noise(0)
    # |E u|^2 = 1, one group's variance 30, so the mean of 200 groups has 200/30
    assert ratio.low < 200 / 30 < ratio.high


def test_identical_groups_have_no_noise_noise_alone_no_direction_and_few_groups_neither() -> None:
    alike, noise = (expected_updates(gram, np.ones((1, 4)), range(4)) for gram in (np.ones((4, 4)), np.eye(4)))
    assert alike.signal_to_noise(0).undefined == "at most one group of this step has a gradient"
    assert "not above its own noise" in str(noise.cosine(0, 0).undefined)
    few = expected_updates(np.eye(2), np.ones((1, 2)), [0, 1])
    assert few.cosine(0, 0).undefined == few.signal_to_noise(0).undefined == "2 groups are too few"
    assert few.critical_batch_size(0).undefined == "2 groups are too few"


def test_a_direction_that_rests_on_one_group_is_none() -> None:
    rows = np.array([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [0.0, -1.0, 0.3], [0.0, 0.1, -0.3]])
    updates = expected_updates(rows @ rows.T, np.ones((1, 4)), [0, 1, 2, 3])
    assert (updates.cross[:, 0, 0] <= 0).any()
    assert updates.cosine(0, 0).value is None


def test_an_estimate_beyond_1_keeps_the_width_of_its_interval() -> None:
    rng = np.random.default_rng(7)
    scores = rng.normal(size=(40, 30))
    scores[:, 0] += 3.0
    weights = np.stack([np.ones(40), np.ones(40) + 0.3 * rng.normal(size=40)])
    cosine = expected_updates(scores @ scores.T, weights, np.arange(40)).cosine(0, 1)
    assert cosine.low < cosine.value <= cosine.high <= 1.0


def population(rng: np.random.Generator, num: int, *, between: float, within: float, width: int = 40) -> np.ndarray:
    """Halves a_1, b_1, ... around a common mean of length 1: variance ``between`` prompts and ``within`` of a half."""
    mean = np.zeros(width)
    mean[0] = 1.0
    own = mean + rng.normal(size=(num, width)) * np.sqrt(between / width)
    return np.repeat(own, 2, axis=0) + rng.normal(size=(2 * num, width)) * np.sqrt(within / width)


@given(seeds, st.integers(3, 9))
def test_the_cosine_is_the_mean_over_pairs_of_vectors(seed: int, num: int) -> None:
    sums = np.random.default_rng(seed).normal(size=(num, 5))
    units = sums / np.linalg.norm(sums, axis=1, keepdims=True)
    pairs = [units[j] @ units[k] for j, k in itertools.permutations(range(num), 2)]
    cosine = group_cosine(sums @ sums.T)
    assert cosine.value == pytest.approx(np.mean(pairs))
    assert cosine.num_units == num
    # a group without a gradient has no direction and does not count
    padded = np.vstack([sums, np.zeros(5)])
    assert group_cosine(padded @ padded.T) == cosine
    assert group_cosine(np.diag([1.0, 1.0, 0.0, 0.0])).undefined == "2 groups with a gradient are too few"


def test_unrelated_prompts_have_cosine_zero_within_the_interval() -> None:
    rng, inside = np.random.default_rng(0), 0
    for _ in range(200):
        sums = rng.normal(size=(12, 60))
        cosine = group_cosine(sums @ sums.T)
        inside += cosine.low <= 0.0 <= cosine.high
    assert inside >= 175


@given(seeds, st.integers(3, 8))
def test_the_share_within_prompts_is_that_of_the_vectors(seed: int, num: int) -> None:
    halves = population(np.random.default_rng(seed), num, between=1.0, within=2.0)
    first, second = halves[::2], halves[1::2]
    means = (first + second) / 2
    other = np.mean([means[j] @ means[k] for j, k in itertools.permutations(range(num), 2)])
    within = np.mean(np.sum((first - second) ** 2, axis=1)) / 2
    variance = np.mean(np.sum(first**2 + second**2, axis=1)) / 2 - other
    assert noise_within(halves @ halves.T).value == pytest.approx(within / variance)


@pytest.mark.parametrize(("between", "within", "share"), [(0.0, 1.0, 1.0), (1.0, 3.0, 0.75), (2.0, 0.0, 0.0)])
def test_the_share_of_a_large_sample_is_that_of_its_population(between: float, within: float, share: float) -> None:
    halves = population(np.random.default_rng(1), 400, between=between, within=within)
    noise = noise_within(halves @ halves.T)
    assert noise.value == pytest.approx(share, abs=0.03)
    assert noise.low - 1e-9 <= share <= noise.high + 1e-9


@pytest.mark.parametrize(
    ("gram", "reason"),
    [(np.eye(4), "2 groups are too few"), (np.zeros((8, 8)), "at most one group of this step has a gradient")],
)
def test_where_there_is_no_share(gram: np.ndarray, reason: str) -> None:
    assert noise_within(gram).undefined == reason


def test_the_critical_batch_is_where_noise_equals_signal() -> None:
    """Of groups with mean 1 and total variance 5: five groups."""
    sums = population(np.random.default_rng(2), 300, between=5.0, within=0.0)[::2]
    result = expected_updates(sums @ sums.T, np.ones((1, 300)), np.arange(300)).critical_batch_size(0)
    assert result.value == pytest.approx(5.0, rel=0.15)
    assert result.low < 5.0 < result.high


def test_without_a_sure_signal_there_is_no_critical_batch() -> None:
    sums = np.random.default_rng(3).normal(size=(6, 50))
    updates = expected_updates(sums @ sums.T, np.ones((1, 6)), np.arange(6))
    ratio, result = updates.signal_to_noise(0), updates.critical_batch_size(0)
    assert ratio.low <= 0 < ratio.high
    assert result.undefined == "the signal may be zero, so no number of groups is too large"
    against = np.array([[1.0, 0.0], [-0.5, 3**0.5 / 2], [-0.5, -(3**0.5) / 2]])
    none = expected_updates(against @ against.T, np.ones((1, 3)), [0, 1, 2]).critical_batch_size(0)
    assert none.undefined is not None
