import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from gradscope.metrics.gram.alignment import (
    HeldoutEffects,
    PromptEffects,
    baselines,
    expected_updates,
    group_cosine,
    heldout_effects,
    noise_within,
    optimal_baselines,
    pass_at_k_weights,
    prompt_effects,
    reward_norm_correlation,
    second_moment,
)

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
        squared = np.einsum("vgp,wgp->vw", sums, sums)
        return sums.sum(axis=1) @ sums.sum(axis=1).T - squared, squared

    np.testing.assert_allclose(updates.cross[0], products([0, 1, 2, 3])[0], atol=1e-9)
    np.testing.assert_allclose(updates.cross[2], products([0, 2, 3])[0], atol=1e-9)
    np.testing.assert_allclose(updates.squared_norms[0], np.diag(products([0, 1, 2, 3])[1]))


def simulated(seed: int, num_groups: int = 200) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two formulations whose expected updates are 60 degrees apart, under a lot of shared noise."""
    rng = np.random.default_rng(seed)
    scores = np.concatenate([np.tile(np.eye(2), (num_groups, 1)), np.zeros((2 * num_groups, 30))], axis=1)
    scores[:, 2:] = np.repeat(rng.normal(size=(num_groups, 30)), 2, axis=0)
    weights = np.stack([np.tile([1.0, 0.0], num_groups), np.tile([0.5, np.sqrt(0.75)], num_groups)])
    return scores @ scores.T, weights, np.repeat(np.arange(num_groups), 2)


def test_shared_noise_does_not_pass_for_agreement() -> None:
    gram, weights, index = simulated(0)
    products = weights @ gram @ weights.T
    assert expected_updates(gram, weights, index).cosine(0, 1).value == pytest.approx(0.5, abs=0.1)
    assert abs(products[0, 1] / np.sqrt(products[0, 0] * products[1, 1]) - 0.5) > 0.02


def test_the_signal_to_noise_ratio_is_that_of_the_simulation() -> None:
    gram, weights, index = simulated(1)
    ratio = expected_updates(gram, weights, index).signal_to_noise(0)
    # |E u|^2 = 1, one group's variance 30, so the mean of 200 groups has 200/30
    assert ratio.low < 200 / 30 < ratio.high


def test_identical_groups_have_no_noise_noise_alone_no_direction_and_few_groups_neither() -> None:
    identical, noise = (expected_updates(gram, np.ones((1, 4)), range(4)) for gram in (np.ones((4, 4)), np.eye(4)))
    assert identical.signal_to_noise(0).undefined == "at most one group of this step has a gradient"
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


def population(rng: np.random.Generator, num: int, *, between: float, inside: float, width: int = 40) -> np.ndarray:
    """Halves a_1, b_1, ... around a common mean of length 1: variance ``between`` prompts and ``inside`` a half."""
    mean = np.zeros(width)
    mean[0] = 1.0
    centers = mean + rng.normal(size=(num, width)) * np.sqrt(between / width)
    return np.repeat(centers, 2, axis=0) + rng.normal(size=(2 * num, width)) * np.sqrt(inside / width)


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
    halves = population(np.random.default_rng(seed), num, between=1.0, inside=2.0)
    first, second = halves[::2], halves[1::2]
    means = (first + second) / 2
    other = np.mean([means[j] @ means[k] for j, k in itertools.permutations(range(num), 2)])
    inside = np.mean(np.sum((first - second) ** 2, axis=1)) / 2
    variance = np.mean(np.sum(first**2 + second**2, axis=1)) / 2 - other
    assert noise_within(halves @ halves.T).value == pytest.approx(inside / variance)


@pytest.mark.parametrize(("between", "inside", "share"), [(0.0, 1.0, 1.0), (1.0, 3.0, 0.75), (2.0, 0.0, 0.0)])
def test_the_share_of_a_large_sample_is_that_of_its_population(between: float, inside: float, share: float) -> None:
    halves = population(np.random.default_rng(1), 400, between=between, inside=inside)
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
    sums = population(np.random.default_rng(2), 300, between=5.0, inside=0.0)[::2]
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
    undefined = expected_updates(against @ against.T, np.ones((1, 3)), [0, 1, 2]).critical_batch_size(0)
    assert undefined.undefined is not None


GROUPS = np.repeat(np.arange(5), [4, 2, 5, 3, 4])
REWARDS = np.array([1, 0, 0, 1, 0, 1, 1, 0, 0, 1, 1, 0, 0, 0, 1, 1, 1, 1], dtype=float)
"""The fourth group has no success, the fifth no failure."""
WEIGHTS = REWARDS - np.array([REWARDS[group == GROUPS].mean() for group in GROUPS])


def pairs_of(scores: np.ndarray) -> dict:
    """(who pulls, who is pulled) -> product and cosine, in loops."""
    effects = {}
    for j in range(5):
        pull = sum(a * s for a, s, g in zip(WEIGHTS, scores, GROUPS, strict=True) if g == j)
        for k in range(5):
            right = [s for s, g, r in zip(scores, GROUPS, REWARDS, strict=True) if g == k and r == 1]
            if not np.any(pull) or not right:
                continue
            target = sum(right) / len(right)
            product = float(pull @ target)
            effects[j, k] = product, product / float(np.linalg.norm(pull) * np.linalg.norm(target))
    return effects


def leave_out(values: dict, combine) -> list[float]:
    names = sorted({name for pair in values for name in pair})
    return [combine({p: v for p, v in values.items() if dropped not in p}) for dropped in (None, *names)]


def mean_between(index: int, values: dict) -> float:
    return float(np.mean([value[index] for (j, k), value in values.items() if j != k]))


@pytest.mark.parametrize("seed", range(2))
def test_they_are_what_loops_over_the_rows_find(seed: int) -> None:
    scores = np.random.default_rng(seed).normal(size=(len(REWARDS), 7)) + np.outer(REWARDS, np.ones(7))
    result = prompt_effects(scores @ scores.T, WEIGHTS, GROUPS, REWARDS == 1)
    pairs = pairs_of(scores)
    assert result.pulls.tolist() == [True, True, True, False, False]
    assert result.is_solved.tolist() == [True, True, True, False, True]
    for (j, k), (product, cosine) in pairs.items():
        assert result.effect[j, k] == pytest.approx(product)
        assert result.cosine[j, k] == pytest.approx(cosine)
    hurts = {pair: (float(product < 0), cosine) for pair, (product, cosine) in pairs.items()}

    def transfer(left: dict) -> float:
        rest = sum(value[0] for (j, k), value in left.items() if j != k)
        return rest / sum(value[0] for (j, k), value in left.items() if j == k)

    for estimate, replicates in (
        (result.frac_hurt(), leave_out(hurts, lambda left: mean_between(0, left))),
        (result.mean_cosine(), leave_out(hurts, lambda left: mean_between(1, left))),
        (result.transfer(), leave_out(pairs, transfer)),
    ):
        full, *replicas = replicates
        num = len(replicas)
        error = 1.96 * np.sqrt((num - 1) / num * np.sum((np.array(replicas) - np.mean(replicas)) ** 2))
        assert num == estimate.num_units == 4  # the group that pulls nowhere and has no right answer counts for nothing
        assert estimate.value == pytest.approx(full)
        if full - error > 0 and full + error < 1:
            assert estimate.low == pytest.approx(full - error, rel=1e-4)
            assert estimate.high == pytest.approx(full + error, rel=1e-4)
    own_mean = np.mean([pairs[k, k][0] if (k, k) in pairs else 0.0 for k in (0, 1, 2, 4)])
    for j, influence in enumerate(result.influences()[:3]):
        rest = [pairs[j, k][0] for k in (0, 1, 2, 4) if k != j]
        assert influence.value == pytest.approx(np.mean(rest) / own_mean)
        assert influence.low < influence.value < influence.high


def effects(effect: list[list[float]]) -> PromptEffects:
    matrix = np.array(effect)
    flags = np.ones(len(matrix), dtype=bool)
    return PromptEffects(effect=matrix, cosine=np.zeros_like(matrix), pulls=flags, is_solved=flags)


def test_what_is_undefined_says_why() -> None:
    two = effects([[1.0, 0.5], [0.5, 1.0]])
    for estimate in (two.frac_hurt(), two.mean_cosine(), two.transfer()):
        assert estimate.undefined == "2 groups with a gradient or a correct answer are too few"
    downhill = effects([[-1.0, 0.1, 0.1], [0.1, -1.0, 0.1], [0.1, 0.1, -1.0]])
    reason = "the step does not raise the correct answers of its own prompts"
    assert downhill.transfer().undefined == reason
    assert [influence.undefined for influence in downhill.influences()] == [reason] * 3
    on_one = effects([[9.0, 0.1, 0.1], [0.1, -1.0, 0.1], [0.1, 0.1, -1.0]])
    assert on_one.transfer().undefined == "it hangs on a single group of this step"
    right = np.array([True, False, False])
    single = PromptEffects(effect=np.eye(3), cosine=np.eye(3), pulls=right, is_solved=np.ones(3, dtype=bool))
    assert single.frac_hurt().undefined == "it hangs on a single group of this step"
    assert [influence.undefined for influence in single.influences()] == [None, *["the group has no gradient"] * 2]
    unheard = PromptEffects(effect=np.eye(3), cosine=np.eye(3), pulls=np.ones(3, dtype=bool), is_solved=right)
    assert unheard.influences()[0].undefined == "no other group has a correct answer"


def drawn_with_held_out(seed: int, num_heldout: int = 6) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Score vectors, held-out directions, and by what each score vector is smaller than that of a log-probability."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(len(REWARDS), 7)) + 2 * np.outer(REWARDS, np.ones(7))
    return scores, rng.normal(size=(num_heldout, 7)) + 1, rng.uniform(2.0, 9.0, len(REWARDS))


def effects_of(scores: np.ndarray, heldout: np.ndarray, scales: np.ndarray) -> HeldoutEffects:
    norms = np.linalg.norm(heldout, axis=1)
    gram, trained = scores @ scores.T, scores @ (scores * scales[:, None]).T
    return heldout_effects(gram, WEIGHTS, GROUPS, REWARDS == 1, scores @ heldout.T, norms, trained)


def interval(values: list[list[float]]) -> tuple[float, float]:
    """Half an interval and its degrees of freedom, from the values without each unit of two samples."""
    parts = [(len(sample) - 1) / len(sample) * sum((v - np.mean(sample)) ** 2 for v in sample) for sample in values]
    free = sum(parts) ** 2 / sum(part**2 / (len(sample) - 1) for part, sample in zip(parts, values, strict=True))
    return stats.t.ppf(0.975, free) * np.sqrt(sum(parts)), free


@pytest.mark.parametrize("seed", range(2))
def test_they_are_what_loops_over_the_vectors_find(seed: int) -> None:
    scores, heldout, scales = drawn_with_held_out(seed)
    result = effects_of(scores, heldout, scales)
    assert result.pulls.tolist() == [True, True, True, False, False]
    pulls = {j: sum(w * s for w, s, g in zip(WEIGHTS, scores, GROUPS, strict=True) if g == j) for j in (0, 1, 2)}
    trained_means = {
        j: np.mean([c * s for c, s, g, r in zip(scales, scores, GROUPS, REWARDS, strict=True) if g == j and r], axis=0)
        for j in (0, 1, 2)
    }

    def numbers(trained: list[int], held: list[int]) -> tuple[float, float, float]:
        pairs = [(pulls[j], heldout[k]) for j in trained for k in held]
        cosines = [p @ c / np.linalg.norm(p) / np.linalg.norm(c) for p, c in pairs]
        step = sum(pulls[j] for j in trained)
        at_home = np.mean([step @ trained_means[j] for j in trained])
        return (
            np.mean([p @ c < 0 for p, c in pairs]),
            np.mean(cosines),
            np.mean([step @ heldout[k] for k in held]) / at_home,
        )

    indices = [0, 1, 2], list(range(6))
    full = numbers(*indices)
    replicates = [
        [numbers([j for j in indices[0] if j != dropped], indices[1]) for dropped in indices[0]],
        [numbers(indices[0], [k for k in indices[1] if k != dropped]) for dropped in indices[1]],
    ]
    estimates = result.frac_hurt(), result.mean_cosine(), result.transfer()
    for index, (estimate, value) in enumerate(zip(estimates, full, strict=True)):
        assert estimate.value == pytest.approx(value)
        if index == 0 and value in (0.0, 1.0):
            continue
        half, _ = interval([[triple[index] for triple in sample] for sample in replicates])
        bounds = ((0.0, 1.0), (-1.0, 1.0), (-np.inf, np.inf))[index]
        assert estimate.interval == pytest.approx((max(bounds[0], value - half), min(bounds[1], value + half)))
        assert estimate.num_units == 9
    unit = np.mean([np.linalg.norm(pull) for pull in pulls.values()]) * np.mean(np.linalg.norm(heldout, axis=1))
    for j, influence in enumerate(result.influences()):
        values = [pulls[j] @ c / unit for c in heldout]
        half = stats.t.ppf(0.975, 5) * np.std(values, ddof=1) / np.sqrt(6)
        assert influence.value == pytest.approx(np.mean(values))
        assert influence.interval == pytest.approx((np.mean(values) - half, np.mean(values) + half))


def effects_held_out(
    effect: list[list[float]], trained: list[list[float]] | None, *, solved: bool = True
) -> HeldoutEffects:
    matrix = np.array(effect)
    flags = np.ones(len(matrix), dtype=bool)
    return HeldoutEffects(
        effect=matrix,
        cosine=np.zeros_like(matrix),
        norms=(1.0, 1.0),
        trained=None if trained is None else np.array(trained),
        unknown="nobody knows",
        is_solved=flags & solved,
        pulls=flags,
    )


def test_undefined_effects_on_held_out_prompts_say_why() -> None:
    few_groups = effects_held_out(np.ones((2, 4)).tolist(), None)
    few_prompts = effects_held_out(np.ones((4, 2)).tolist(), None)
    for result, label in (
        (few_groups, "groups have a gradient"),
        (few_prompts, "held-out prompts have a correct answer"),
    ):
        for estimate in (result.frac_hurt(), result.mean_cosine(), result.transfer()):
            assert estimate.undefined == f"fewer than 3 {label}"
    square = [[0.1, 0.2, 0.3]] * 3
    assert effects_held_out(square, None).transfer().undefined == "nobody knows"
    downhill = effects_held_out(square, (-np.eye(3)).tolist())
    assert downhill.transfer().undefined == "the step does not raise the correct answers of its own prompts"
    unsolved = effects_held_out(square, np.zeros((3, 3)).tolist(), solved=False)
    assert unsolved.transfer().undefined == "the step does not raise the correct answers of its own prompts"
    on_one = effects_held_out(square, [[9.0, 0.0, 0.0], [0.0, -1.0, 0.0], [0.0, 0.0, -1.0]])
    assert on_one.transfer().undefined == "it hangs on a single group of this step"
    flat = heldout_effects(np.eye(2), [1.0, -1.0], [0, 1], [True, False], np.zeros((2, 1)), [0.0], None)
    assert [influence.undefined for influence in flat.influences()] == ["no held-out answer has a gradient"] * 2
    assert flat.cosine.tolist() == [[0.0], [0.0]]


def test_a_step_without_a_gradient_pulls_nothing() -> None:
    result = heldout_effects(np.eye(2), [0.0, 0.0], [0, 0], [True, False], np.ones((2, 4)), np.ones(4), None)
    assert (result.effect.shape, result.influences()) == ((0, 4), [])


def test_one_held_out_prompt_has_influences_without_interval() -> None:
    result = heldout_effects(np.eye(2), [1.0, -2.0], [0, 1], [True, False], np.ones((2, 1)), [1.0], None)
    assert [(row.value, row.interval) for row in result.influences()] == [(1 / 1.5, None), (-2 / 1.5, None)]


def test_effects_are_the_changes_that_a_small_step_makes() -> None:
    """A softmax for each prompt over features that prompts share; the third prompt is held out, too."""
    torch.manual_seed(0)
    features = torch.randn(3, 5, 4, dtype=torch.float64)  # prompts, answers, features
    policy = torch.randn(4, dtype=torch.float64, requires_grad=True)
    right, wrong = (0, 1, 2), (3, 4, 0)

    def logprob(prompt: int, answer: int, weights_now: torch.Tensor) -> torch.Tensor:
        return (features[prompt] @ weights_now).log_softmax(0)[answer]

    def answer_heldout(weights_now: torch.Tensor) -> torch.Tensor:
        return 0.75 * logprob(2, 3, weights_now) + 0.25 * logprob(2, 4, weights_now)

    chosen = [(prompt, answer) for prompt in range(3) for answer in (right[prompt], wrong[prompt])]
    scores = torch.stack([torch.autograd.grad(logprob(*pair, policy), policy)[0] for pair in chosen])
    weights, groups = np.array([0.5, -0.5] * 3), [0, 0, 1, 1, 2, 2]
    gram = (scores @ scores.T).numpy()
    cross = (scores @ torch.autograd.grad(answer_heldout(policy), policy)[0]).numpy()[:, None]
    result = prompt_effects(gram, weights, groups, weights > 0)
    heldout = heldout_effects(gram, weights, groups, weights > 0, cross, [1.0], None)
    before = policy.detach()
    for prompt in range(3):
        moved = before + 1e-6 * (0.5 * scores[2 * prompt] - 0.5 * scores[2 * prompt + 1])
        for other in range(3):
            change = logprob(other, right[other], moved) - logprob(other, right[other], before)
            assert result.effect[prompt, other] == pytest.approx(change.item() / 1e-6, rel=1e-4)
        change = answer_heldout(moved) - answer_heldout(before)
        assert heldout.effect[prompt, 0] == pytest.approx(change.item() / 1e-6, rel=1e-4)


def test_intervals_hold_unrelated_prompts() -> None:
    """Prompts with directions of their own: neither sign is claimed more often than 5 % of the time, both together."""
    rng = np.random.default_rng(0)
    claims = np.zeros(2)
    for _ in range(200):
        rewards = (rng.random((12, 6)) < 0.4).astype(float)
        scores = (rewards - 0.4)[..., None] * rng.normal(size=(12, 1, 60)) + rng.normal(size=(12, 6, 60))
        flat, heldout = scores.reshape(72, 60), rng.normal(size=(20, 60))
        weights = (rewards - rewards.mean(axis=1, keepdims=True)).ravel()
        step = flat @ flat.T, weights, np.repeat(np.arange(12), 6), rewards.ravel() == 1
        held_out = heldout_effects(*step, flat @ heldout.T, np.linalg.norm(heldout, axis=1), step[0])
        claims += [effects.transfer().side_of_zero != 0 for effects in (prompt_effects(*step), held_out)]
    assert claims.max() <= 18  # a binomial of 200 at 0.05 stays below with 99 %


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


def test_leave_one_out_looks_only_at_the_others() -> None:
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
