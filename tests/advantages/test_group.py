import itertools
import statistics
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradscope.advantages.group import (
    compensation,
    gdpo,
    krpo,
    leave_one_out_weights,
    ngrpo,
    optimal_advantages,
    own_rewards,
    pass_weights,
    return_to_go,
)
from gradscope.advantages.registry import compute_advantages, compute_step_advantages, formulation


def test_equal_fractional_rewards_are_exactly_zero() -> None:
    for name in ("grpo", "dr_grpo", "rloo", "max_rl"):
        assert not compute_advantages(name, [0.1] * 3).any()
    assert [compute_advantages(name, [1.0]).tolist() for name in ("grpo", "ngrpo")] == [[0.0], [0.0]]
    assert compute_advantages("ngrpo", [0.0])[0] == pytest.approx(-0.5 / 0.5**0.5, rel=1e-5)


def test_grpo_is_what_trl_logs_in_float32() -> None:
    rewards = np.random.default_rng(0).choice([0.0, 0.1, 1.0, 1.1], size=(50, 8)).astype(np.float32)
    mean = rewards.mean(axis=1, keepdims=True, dtype=np.float32)
    expected = (rewards - mean) / (rewards.std(axis=1, ddof=1, keepdims=True) + np.float32(1e-4))
    np.testing.assert_allclose(compute_advantages("grpo", rewards), expected, atol=2e-6)


rewards_of_groups = st.lists(st.sampled_from([0.0, 0.1, 0.5, 1.0, 1.3]), min_size=4, max_size=7)


@given(rewards_of_groups, st.integers(2, 4))
def test_leave_one_out_weights_are_what_a_rollout_adds_to_the_others(rewards: list[float], k: int) -> None:
    """Over all sets of k - 1 others, one by one."""
    expected = []
    for i, reward in enumerate(rewards):
        bests = [max(rest) for rest in itertools.combinations(rewards[:i] + rewards[i + 1 :], k - 1)]
        expected.append(k * np.mean([max(reward, best) - best for best in bests]))
    np.testing.assert_allclose(leave_one_out_weights(k)(np.array(rewards)), expected, atol=1e-12)


@given(st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=9))
def test_ngrpo_is_grpo_with_one_more_success(rewards: list[float]) -> None:
    values = [*rewards, 1.0]
    mean = sum(values) / len(values)
    std = (sum((value - mean) ** 2 for value in values) / (len(values) - 1)) ** 0.5
    np.testing.assert_allclose(ngrpo(np.array(rewards)), [(r - mean) / (std + 1e-6) for r in rewards], atol=1e-12)


@pytest.mark.parametrize(("num_pass", "passes", "fails"), [(1, 1.76, -0.50), (0, None, -0.33)])
def test_ngrpo_has_the_figures_of_its_paper(num_pass: int, passes: float | None, fails: float) -> None:
    advantages = ngrpo(np.array([1.0] * num_pass + [0.0] * (8 - num_pass)))
    assert advantages[-1] == pytest.approx(fails, abs=0.005)
    assert passes is None or advantages[0] == pytest.approx(passes, abs=0.005)


@given(st.lists(st.floats(-2, 2), min_size=1, max_size=8))
def test_krpo_is_the_filter_in_its_other_form(rewards: list[float]) -> None:
    """Precisions add up: the prediction's and the reward's."""
    state, variance, expected = 0.0, 1.0, []
    for reward in rewards:
        before, precision = 1 / (variance + 1e-5), 1 / 1e-2
        state = (state * before + reward * precision) / (before + precision)
        variance = 1 / (before + precision)
        expected.append((reward - state) / (variance**0.5 + 1e-8))
    np.testing.assert_allclose(krpo(np.array(rewards)), expected, rtol=1e-9, atol=1e-9)


def expected_update(weights: Callable[[np.ndarray], np.ndarray], size: int, p: float) -> float:
    """Mean over all 2^G outcomes of the mean over rollouts of A_i s_i, s_i = d log P(r_i) / dp of a coin."""
    update = 0.0
    for outcome in itertools.product((0.0, 1.0), repeat=size):
        rewards = np.array(outcome)
        scores = np.where(rewards == 1.0, 1 / p, -1 / (1 - p))
        chance = np.prod(np.where(rewards == 1.0, p, 1 - p))
        update += float(chance * np.mean(weights(rewards) * scores))
    return update


@pytest.mark.parametrize(("size", "k"), [(2, 1), (2, 2), (4, 2), (5, 3), (6, 4), (6, 6)])
@pytest.mark.parametrize("p", [0.05, 0.3, 0.7])
def test_the_mean_over_rollouts_is_the_gradient_of_pass_at_k_whatever_the_baseline(size: int, k: int, p: float) -> None:
    for weights in (pass_weights(k), *([leave_one_out_weights(k)] if k > 1 else [])):
        assert expected_update(weights, size, p) == pytest.approx(k * (1 - p) ** (k - 1), rel=1e-9)


numbers = st.lists(st.floats(0.1, 5.0), min_size=4, max_size=4)


def test_baselines_of_norms_by_hand() -> None:
    # b = (1 x 1 + 2 x 0 + 5 x 1) / 8 = 3/4, and where the first has all the norm, its own reward
    rewards, norms = np.array([[1.0, 0.0, 1.0], [0.5, 0.0, 1.0]]), np.array([[1.0, 2.0, 5.0], [4.0, 0, 0]])
    np.testing.assert_allclose(optimal_advantages(rewards, norms), [[0.25, -0.75, 0.25], [0.0, -0.5, 0.5]])
    # without score vectors it is the mean; equal rewards and a group of one are exactly zero
    assert optimal_advantages(np.array([[1.0, 0.0]]), np.zeros((1, 2))).tolist() == [[0.5, -0.5]]
    assert not optimal_advantages(np.full((2, 3), 0.1), np.array([[0.3, 0.7, 0.11]] * 2)).any()
    assert optimal_advantages(np.array([[0.7]]), np.array([[3.0]])).tolist() == [[0.0]]


steps = st.lists(
    st.lists(st.sampled_from([0.0, 0.1, 0.5, 1.0]), min_size=1, max_size=5).map(np.array), min_size=1, max_size=4
)


@given(steps)
def test_batch_std_is_what_trl_computes(groups: list[np.ndarray]) -> None:
    rewards = np.concatenate(groups)
    std = statistics.stdev(rewards) if len(rewards) > 1 else 0.0
    expected = np.concatenate([group - group.mean() for group in groups]) / (std + 1e-4)
    advantages = compute_step_advantages("batch_std", groups)
    np.testing.assert_allclose(np.concatenate(advantages), expected, atol=1e-9)
    assert all(not np.any(advantage) for advantage, group in zip(advantages, groups, strict=True) if np.ptp(group) == 0)


@given(steps)
def test_reinforce_plus_plus_is_the_standard_score_over_the_step(groups: list[np.ndarray]) -> None:
    rewards = np.concatenate(groups)
    variance = statistics.variance(rewards) if len(rewards) > 1 else 0.0
    result = np.concatenate(compute_step_advantages("reinforce_plus_plus", groups))
    np.testing.assert_allclose(result, (rewards - rewards.mean()) / (variance + 1e-8) ** 0.5, atol=1e-9)
    assert np.ptp(rewards) > 0 or not np.any(result)


@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(1, 4))
def test_gdpo_is_what_trl_computes(seed: int, num_functions: int, num_groups: int) -> None:
    """Its lines for ``normalize_then_sum``, on torch's float64."""
    draw = np.random.default_rng(seed)
    grouped = torch.tensor(draw.choice([0.0, 0.1, 1.0], size=(num_groups, 4, num_functions)))
    weights = torch.tensor(draw.normal(size=num_functions))
    scaled = (grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + 1e-4)
    summed = (scaled * weights).sum(-1)
    expected = (summed - summed.mean()) / (summed.std() + 1e-4)
    np.testing.assert_allclose(np.stack(gdpo(list(grouped.numpy()), weights.numpy())), expected, atol=1e-7)


def test_gdpo_hears_a_function_whatever_its_scale_and_nothing_of_dead_groups() -> None:
    rewards = np.array([[1.0, 0.0], [0.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    dead = np.full((3, 2), 0.1)
    whole, tenth = (gdpo([rewards * [1.0, scale], dead], [1.0, 1.0])[0] for scale in (1.0, 0.1))
    np.testing.assert_allclose(whole, tenth, rtol=2e-3)
    assert whole[0] == pytest.approx(whole[2])
    assert not gdpo([rewards, dead], [1.0, 1.0])[1].any()
    assert formulation("gdpo").zero_sum == (abs(whole.sum()) < 1e-9)
    assert [advantages.tolist() for advantages in gdpo([dead[:1], dead], [1.0, 1.0])] == [[0.0], [0.0, 0.0, 0.0]]


def test_ragged_steps_by_hand() -> None:
    groups = [[1.0, 0.0], [1.0, 1.0, 0.0, 0.0], [1.0, 1.0]]
    # five of eight rollouts pass
    success, fail = 3 / 8, -5 / 8
    advantages = [group.tolist() for group in compute_step_advantages("batch_mean", groups)]
    assert advantages == [[success, fail], [success, success, fail, fail], [success, success]]
    # Others of group 1: means 1/2 and 1, sampling variances (1/3) / 4 and 0: v = 1/24, s = 1/16, l = 2/3 * 2/5 = 4/15.
    first = compute_step_advantages("shrinkage", groups)[0]
    np.testing.assert_allclose(first, [1.0 - 0.75 * 4 / 15, -(11 / 15 + 0.75 * 4 / 15)])


@given(
    st.lists(st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.9, 1.0]), min_size=3, max_size=3), min_size=1, max_size=5),
    st.floats(0.1, 10),
)
def test_shrinkage_scales_and_its_baseline_does_not_see_its_own_reward(groups: list[list[float]], scale: float) -> None:
    rewards = np.array(groups)
    advantages = compute_advantages("shrinkage", rewards)
    np.testing.assert_allclose(compute_advantages("shrinkage", scale * rewards), scale * advantages, atol=1e-6)
    changed = rewards.copy()
    changed[0, 0] += 1.0
    assert compute_advantages("shrinkage", changed)[0, 0] == pytest.approx(advantages[0, 0] + 1.0, abs=1e-9)


def test_shrinkage_of_one_group_or_of_groups_without_noise_is_rloo() -> None:
    steps = ([[1.0, 0.0, 0.0]], [[1.0, 1.0], [0.0, 0.0], [1.0, 1.0]], [[1.0, 1.0], [1.0, 1.0]], [[0.0] * 3, [0.1] * 3])
    for step in steps:
        expected = [compute_advantages("rloo", group) for group in step]
        np.testing.assert_allclose(compute_advantages("shrinkage", step), expected, atol=1e-15)


rewards = st.lists(st.lists(st.floats(-2, 2), min_size=1, max_size=6), min_size=1, max_size=5)


@pytest.mark.parametrize(("credited", "last"), [(return_to_go, None), (own_rewards, 1)])
@given(group=rewards)
def test_what_a_token_earns_or_is_still_to_come_is_credited_minus_the_mean_of_the_group(credited, last, group) -> None:
    for row, advantages in zip(group, credited(group), strict=True):
        for position in range(len(row)):
            mean = sum(sum(other[position:][:last]) for other in group) / len(
                group
            )  # one that has ended has nothing to come
            assert advantages[position] == pytest.approx(sum(row[position:][:last]) - mean, abs=1e-12)


@given(st.lists(st.tuples(st.floats(-20, 0), st.floats(0, 20)), min_size=1, max_size=8), st.floats(1, 2))
def test_compensation_lies_between_one_and_its_limit(tokens: list[tuple[float, float]], limit: float) -> None:
    sampled = np.array([logprob for logprob, _ in tokens])
    top = sampled + np.array([lead for _, lead in tokens])
    factors = compensation(sampled, top, limit=limit)
    assert np.all((factors >= 1.0) & (factors <= limit))
    assert factors == pytest.approx(np.minimum(2.0 - np.exp(sampled) / np.exp(top), limit))
    assert compensation([-0.5], [-0.5 - 1e-9]).tolist() == [1.0]  # rounding above the most likely
