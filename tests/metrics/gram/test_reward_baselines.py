import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradscope.metrics.gram.reward_baselines import baselines, optimal_baselines, reward_norm_correlation, second_moment

seeds = st.integers(0, 10_000)


def group(seed: int, size: int = 6) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(2, size=(1, size)).astype(float), rng.gamma(1.0, size=(1, size))


@given(seeds)
def test_no_constant_beats_the_optimal_one(seed: int) -> None:
    rewards, norms = group(seed)
    best = second_moment(rewards, norms, baselines(rewards, norms)["optimal"])
    for constant in np.linspace(-0.5, 1.5, 41):
        assert best <= second_moment(rewards, norms, np.full(rewards.shape, constant)) + 1e-12


@given(seeds)
def test_centering_is_leave_one_out_up_to_a_factor(seed: int) -> None:
    rewards, norms = group(seed)
    by_name = baselines(rewards, norms)
    centered, rest = (second_moment(rewards, norms, by_name[name]) for name in ("group_mean", "leave_one_out"))
    np.testing.assert_allclose(centered, rest * (5 / 6) ** 2)


def test_leave_one_out_looks_at_the_others_alone() -> None:
    rewards, norms = np.array([[1.0, 0.0, 1.0]]), np.array([[1.0, 2.0, 3.0]])
    by_name = baselines(rewards, norms)
    assert by_name["leave_one_out"].tolist() == [[0.5, 1.0, 0.5]]
    assert by_name["optimal_leave_one_out"][0].tolist() == pytest.approx([3 / 5, 1.0, 1 / 3])
    assert by_name["zero"].tolist() == [[0.0, 0.0, 0.0]]


def test_equal_norms_make_the_mean_optimal() -> None:
    assert optimal_baselines([1.0, 0.0, 0.0], [2.0, 2.0, 2.0]).item() == pytest.approx(1 / 3)


def test_without_gradients_there_is_no_optimal_baseline() -> None:
    by_name = baselines([[1.0, 0.0, 0.0]], [[0.0, 0.0, 0.0]])
    assert by_name["optimal"].tolist() == by_name["group_mean"].tolist()
    assert by_name["optimal_leave_one_out"].tolist() == by_name["leave_one_out"].tolist()


def test_the_correlation_is_pooled_within_groups() -> None:
    rewards, norms = np.array([[1.0, 0.0], [0.0, 0.0]]), np.array([[3.0, 1.0], [9.0, 9.0]])
    assert reward_norm_correlation(rewards, norms).value == pytest.approx(1.0)
    assert "do not vary" in str(reward_norm_correlation(np.ones((2, 2)), norms).undefined)


@pytest.mark.parametrize("slope", [0.0, 0.8])
def test_the_interval_of_the_correlation_holds_the_truth(slope: float) -> None:
    """50 draws of 24 groups of 8, rewards uniform, norms slope * reward plus noise of the same variance at slope 1."""
    rng, held = np.random.default_rng(0), 0
    truth = slope / np.sqrt(slope**2 + 1)
    for _ in range(50):
        rewards = rng.random((24, 8))
        norms = 10 + slope * rewards + rng.random((24, 8))
        low, high = reward_norm_correlation(rewards, norms).ends
        held += low <= truth <= high
    assert held >= 44


def test_shapes_must_go_together() -> None:
    with pytest.raises(ValueError, match="rewards and squared norms go together"):
        baselines([[1.0, 0.0]], [[1.0]])
