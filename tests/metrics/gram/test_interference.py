import numpy as np
import pytest
import torch
from scipy import stats

from gradscope.metrics.gram.interference import HeldoutEffects, PromptEffects, heldout_effects, prompt_effects

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
    return [combine({p: v for p, v in values.items() if out not in p}) for out in (None, *names)]


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
        full, *without = replicates
        num = len(without)
        error = 1.96 * np.sqrt((num - 1) / num * np.sum((np.array(without) - np.mean(without)) ** 2))
        assert num == estimate.num_units == 4  # the group that pulls nowhere and has no right answer counts for nothing
        assert estimate.value == pytest.approx(full)
        if full - error > 0 and full + error < 1:
            assert estimate.low == pytest.approx(full - error, rel=1e-4)
            assert estimate.high == pytest.approx(full + error, rel=1e-4)
    own = np.mean([pairs[k, k][0] if (k, k) in pairs else 0.0 for k in (0, 1, 2, 4)])
    for j, influence in enumerate(result.influences()[:3]):
        rest = [pairs[j, k][0] for k in (0, 1, 2, 4) if k != j]
        assert influence.value == pytest.approx(np.mean(rest) / own)
        assert influence.low < influence.value < influence.high


def effects(effect: list[list[float]]) -> PromptEffects:
    matrix = np.array(effect)
    every = np.ones(len(matrix), dtype=bool)
    return PromptEffects(effect=matrix, cosine=np.zeros_like(matrix), pulls=every, is_solved=every)


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
    alone = PromptEffects(effect=np.eye(3), cosine=np.eye(3), pulls=right, is_solved=np.ones(3, dtype=bool))
    assert alone.frac_hurt().undefined == "it hangs on a single group of this step"
    assert [influence.undefined for influence in alone.influences()] == [None, *["the group has no gradient"] * 2]
    unheard = PromptEffects(effect=np.eye(3), cosine=np.eye(3), pulls=np.ones(3, dtype=bool), is_solved=right)
    assert unheard.influences()[0].undefined == "no other group has a correct answer"


def drawn_with_held_out(seed: int, num_heldout: int = 6) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Score vectors, held-out directions, and by what each score vector is smaller than that of a log-probability."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(len(REWARDS), 7)) + 2 * np.outer(REWARDS, np.ones(7))
    return scores, rng.normal(size=(num_heldout, 7)) + 1, rng.uniform(2.0, 9.0, len(REWARDS))


def effects_of(scores: np.ndarray, heldout: np.ndarray, scales: np.ndarray) -> HeldoutEffects:
    norms = np.linalg.norm(heldout, axis=1)
    gram, own = scores @ scores.T, scores @ (scores * scales[:, None]).T
    return heldout_effects(gram, WEIGHTS, GROUPS, REWARDS == 1, scores @ heldout.T, norms, own)


def interval(values: list[list[float]]) -> tuple[float, float]:
    """Half an interval and its degrees of freedom, from the values without each unit of two samples."""
    parts = [(len(one) - 1) / len(one) * sum((v - np.mean(one)) ** 2 for v in one) for one in values]
    free = sum(parts) ** 2 / sum(part**2 / (len(one) - 1) for part, one in zip(parts, values, strict=True))
    return stats.t.ppf(0.975, free) * np.sqrt(sum(parts)), free


@pytest.mark.parametrize("seed", range(2))
def test_they_are_what_loops_over_the_vectors_find(seed: int) -> None:
    scores, heldout, scales = drawn_with_held_out(seed)
    result = effects_of(scores, heldout, scales)
    assert result.pulls.tolist() == [True, True, True, False, False]
    pulls = {j: sum(w * s for w, s, g in zip(WEIGHTS, scores, GROUPS, strict=True) if g == j) for j in (0, 1, 2)}
    own = {
        j: np.mean([c * s for c, s, g, r in zip(scales, scores, GROUPS, REWARDS, strict=True) if g == j and r], axis=0)
        for j in (0, 1, 2)
    }

    def numbers(trained: list[int], held: list[int]) -> tuple[float, float, float]:
        pairs = [(pulls[j], heldout[k]) for j in trained for k in held]
        cosines = [p @ c / np.linalg.norm(p) / np.linalg.norm(c) for p, c in pairs]
        step = sum(pulls[j] for j in trained)
        at_home = np.mean([step @ own[j] for j in trained])
        return (
            np.mean([p @ c < 0 for p, c in pairs]),
            np.mean(cosines),
            np.mean([step @ heldout[k] for k in held]) / at_home,
        )

    every = [0, 1, 2], list(range(6))
    full = numbers(*every)
    without = [
        [numbers([j for j in every[0] if j != out], every[1]) for out in every[0]],
        [numbers(every[0], [k for k in every[1] if k != out]) for out in every[1]],
    ]
    estimates = result.frac_hurt(), result.mean_cosine(), result.transfer()
    for index, (estimate, value) in enumerate(zip(estimates, full, strict=True)):
        assert estimate.value == pytest.approx(value)
        if index == 0 and value in (0.0, 1.0):
            continue
        half, _ = interval([[one[index] for one in sample] for sample in without])
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
    effect: list[list[float]], own: list[list[float]] | None, *, solved: bool = True
) -> HeldoutEffects:
    matrix = np.array(effect)
    every = np.ones(len(matrix), dtype=bool)
    return HeldoutEffects(
        effect=matrix,
        cosine=np.zeros_like(matrix),
        norms=(1.0, 1.0),
        own=None if own is None else np.array(own),
        unknown="nobody knows",
        is_solved=every & solved,
        pulls=every,
    )


def test_undefined_effects_on_held_out_prompts_say_why() -> None:
    few_groups, few_prompts = (
        effects_held_out(np.ones((2, 4)).tolist(), None),
        effects_held_out(np.ones((4, 2)).tolist(), None),
    )
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
    assert [(one.value, one.interval) for one in result.influences()] == [(1 / 1.5, None), (-2 / 1.5, None)]


def test_effects_are_the_changes_that_a_small_step_makes() -> None:
    """A softmax for each prompt over features that prompts share; the third prompt is held out, too."""
    torch.manual_seed(0)
    features = torch.randn(3, 5, 4, dtype=torch.float64)  # prompts, answers, features
    policy = torch.randn(4, dtype=torch.float64, requires_grad=True)
    right, wrong = (0, 1, 2), (3, 4, 0)

    def logprob(prompt: int, answer: int, at: torch.Tensor) -> torch.Tensor:
        return (features[prompt] @ at).log_softmax(0)[answer]

    def answer_heldout(at: torch.Tensor) -> torch.Tensor:
        return 0.75 * logprob(2, 3, at) + 0.25 * logprob(2, 4, at)

    chosen = [(prompt, answer) for prompt in range(3) for answer in (right[prompt], wrong[prompt])]
    scores = torch.stack([torch.autograd.grad(logprob(*one, policy), policy)[0] for one in chosen])
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
        of_heldout = heldout_effects(*step, flat @ heldout.T, np.linalg.norm(heldout, axis=1), step[0])
        claims += [effects.transfer().side_of_zero != 0 for effects in (prompt_effects(*step), of_heldout)]
    assert claims.max() <= 18  # a binomial of 200 at 0.05 stays below with 99 %
