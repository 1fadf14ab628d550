"""Agreement and noise of prompts' gradients, against the vectors themselves and against made-up populations."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradscope.metrics.gram.alignment import expected_updates
from gradscope.metrics.gram.prompt_noise import group_cosine, noise_within

seeds = st.integers(0, 10_000)


def population(rng: np.random.Generator, num: int, *, between: float, within: float, width: int = 40) -> np.ndarray:
    """Halves a_1, b_1, ... around a common mean of length 1: variance ``between`` prompts and ``within`` of a half."""
    mean = np.zeros(width)
    mean[0] = 1.0
    own = mean + rng.normal(size=(num, width)) * np.sqrt(between / width)
    return np.repeat(own, 2, axis=0) + rng.normal(size=(2 * num, width)) * np.sqrt(within / width)


@settings(deadline=None)
@given(seeds, st.integers(3, 9))
def test_the_cosine_is_the_mean_over_pairs_of_vectors(seed: int, num: int) -> None:
    sums = np.random.default_rng(seed).normal(size=(num, 5))
    pairs = [
        sums[j] @ sums[k] / np.linalg.norm(sums[j]) / np.linalg.norm(sums[k])
        for j in range(num)
        for k in range(num)
        if j != k
    ]
    found = group_cosine(sums @ sums.T)
    assert found.value == pytest.approx(np.mean(pairs))
    assert found.num_units == num
    # a group without a gradient has no direction and does not count
    padded = np.vstack([sums, np.zeros(5)])
    assert group_cosine(padded @ padded.T) == found


def test_unrelated_prompts_have_cosine_zero_within_the_interval() -> None:
    rng, inside = np.random.default_rng(0), 0
    for _ in range(200):
        sums = rng.normal(size=(12, 60))
        found = group_cosine(sums @ sums.T)
        inside += found.low <= 0.0 <= found.high
    assert inside >= 175


@settings(deadline=None)
@given(seeds, st.integers(3, 8))
def test_the_share_within_prompts_is_that_of_the_vectors(seed: int, num: int) -> None:
    halves = population(np.random.default_rng(seed), num, between=1.0, within=2.0)
    first, second = halves[::2], halves[1::2]
    means = (first + second) / 2
    other = np.mean([means[j] @ means[k] for j in range(num) for k in range(num) if j != k])
    within = np.mean(np.sum((first - second) ** 2, axis=1)) / 2
    variance = np.mean(np.sum(first**2 + second**2, axis=1)) / 2 - other
    assert noise_within(halves @ halves.T).value == pytest.approx(within / variance)


@pytest.mark.parametrize(("between", "within", "share"), [(0.0, 1.0, 1.0), (1.0, 3.0, 0.75), (2.0, 0.0, 0.0)])
def test_the_share_of_a_large_sample_is_that_of_its_population(between: float, within: float, share: float) -> None:
    halves = population(np.random.default_rng(1), 400, between=between, within=within)
    found = noise_within(halves @ halves.T)
    assert found.value == pytest.approx(share, abs=0.03)
    assert found.low - 1e-9 <= share <= found.high + 1e-9


@pytest.mark.parametrize(
    ("gram", "reason"),
    [(np.eye(4), "2 groups are too few"), (np.zeros((8, 8)), "at most one group of this step has a gradient")],
)
def test_where_there_is_no_share(gram: np.ndarray, reason: str) -> None:
    assert noise_within(gram).undefined == reason


def test_two_live_groups_are_too_few_for_a_cosine() -> None:
    assert group_cosine(np.diag([1.0, 1.0, 0.0, 0.0])).undefined == "2 groups with a gradient are too few"


def test_the_critical_batch_is_where_noise_equals_signal() -> None:
    """Of groups with mean 1 and total variance 5: five groups."""
    sums = population(np.random.default_rng(2), 300, between=5.0, within=0.0)[::2]
    found = expected_updates(sums @ sums.T, np.ones((1, 300)), np.arange(300)).critical_batch_size(0)
    assert found.value == pytest.approx(5.0, rel=0.15)
    assert found.low < 5.0 < found.high


def test_without_a_sure_signal_there_is_no_critical_batch() -> None:
    sums = np.random.default_rng(3).normal(size=(6, 50))
    updates = expected_updates(sums @ sums.T, np.ones((1, 6)), np.arange(6))
    ratio, found = updates.signal_to_noise(0), updates.critical_batch_size(0)
    assert ratio.low <= 0 < ratio.high
    assert found.undefined == "the signal may be zero, so no number of groups is too large"
    few = expected_updates(np.eye(2), np.ones((1, 2)), [0, 1]).critical_batch_size(0)
    assert few.undefined == "2 groups are too few"
    against = np.array([[1.0, 0.0], [-0.5, 3**0.5 / 2], [-0.5, -(3**0.5) / 2]])
    none = expected_updates(against @ against.T, np.ones((1, 3)), [0, 1, 2]).critical_batch_size(0)
    assert none.undefined is not None
