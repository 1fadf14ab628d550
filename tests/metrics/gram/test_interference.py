"""Effects of prompts on each other's correct answers: against loops over the rows, and against a small step itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gradscope.metrics.gram.interference import PromptEffects, prompt_effects

SIZES = [4, 2, 5, 3, 4]


def drawn(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Score vectors, advantages, groups and rewards; the fourth group has no success, the fifth no failure."""
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(len(SIZES)), SIZES)
    rewards = np.array([1, 0, 0, 1, 0, 1, 1, 0, 0, 1, 1, 0, 0, 0, 1, 1, 1, 1], dtype=float)
    means = np.array([rewards[groups == group].mean() for group in groups])
    return rng.normal(size=(sum(SIZES), 7)) + np.outer(rewards, np.ones(7)), rewards - means, groups, rewards


def pairs_of(scores: np.ndarray, advantages: np.ndarray, groups: np.ndarray, rewards: np.ndarray) -> dict:
    """(who pulls, who is pulled) -> product and cosine, in loops."""
    found = {}
    for j in set(groups.tolist()):
        pull = sum(a * s for a, s, g in zip(advantages, scores, groups, strict=True) if g == j)
        for k in set(groups.tolist()):
            right = [s for s, g, r in zip(scores, groups, rewards, strict=True) if g == k and r == 1]
            if not np.any(pull) or not right:
                continue
            target = sum(right) / len(right)
            product = float(pull @ target)
            found[j, k] = product, product / float(np.linalg.norm(pull) * np.linalg.norm(target))
    return found


def leave_out(values: dict, combine) -> list[float]:
    names = sorted({name for pair in values for name in pair})
    return [combine({p: v for p, v in values.items() if out not in p}) for out in (None, *names)]


def mean_between(place: int, values: dict) -> float:
    return float(np.mean([value[place] for (j, k), value in values.items() if j != k]))


@pytest.mark.parametrize("seed", range(3))
def test_they_are_what_loops_over_the_rows_find(seed: int) -> None:
    scores, advantages, groups, rewards = drawn(seed)
    found = prompt_effects(scores @ scores.T, advantages, groups, rewards == 1)
    pairs = pairs_of(scores, advantages, groups, rewards)
    assert found.pulls.tolist() == [True, True, True, False, False]
    assert found.is_solved.tolist() == [True, True, True, False, True]
    for (j, k), (product, cosine) in pairs.items():
        assert found.effect[j, k] == pytest.approx(product)
        assert found.cosine[j, k] == pytest.approx(cosine)
    hurts = {pair: (float(product < 0), cosine) for pair, (product, cosine) in pairs.items()}

    def transfer(left: dict) -> float:
        others = sum(value[0] for (j, k), value in left.items() if j != k)
        return others / sum(value[0] for (j, k), value in left.items() if j == k)

    for estimate, replicates in (
        (found.frac_hurt(), leave_out(hurts, lambda left: mean_between(0, left))),
        (found.mean_cosine(), leave_out(hurts, lambda left: mean_between(1, left))),
        (found.transfer(), leave_out(pairs, transfer)),
    ):
        whole, *without = replicates
        num = len(without)
        error = 1.96 * np.sqrt((num - 1) / num * np.sum((np.array(without) - np.mean(without)) ** 2))
        assert num == estimate.num_units == 4  # the group that pulls nowhere and has no right answer counts for nothing
        assert estimate.value == pytest.approx(whole)
        if whole - error > 0 and whole + error < 1:
            assert estimate.low == pytest.approx(whole - error, rel=1e-4)
            assert estimate.high == pytest.approx(whole + error, rel=1e-4)
    own = np.mean([pairs[k, k][0] if (k, k) in pairs else 0.0 for k in (0, 1, 2, 4)])
    for j, influence in enumerate(found.influences()[:3]):
        others = [pairs[j, k][0] for k in (0, 1, 2, 4) if k != j]
        assert influence.value == pytest.approx(np.mean(others) / own)
        assert influence.low < influence.value < influence.high


def test_it_is_the_change_that_a_small_step_makes() -> None:
    """A softmax for each prompt over features that prompts share: log-probabilities before and after a tiny step."""
    torch.manual_seed(0)
    features = torch.randn(3, 5, 4, dtype=torch.float64)  # prompts, answers, features
    policy = torch.randn(4, dtype=torch.float64, requires_grad=True)
    right, wrong = (0, 1, 2), (3, 4, 0)

    def logprob(prompt: int, answer: int, at: torch.Tensor) -> torch.Tensor:
        return (features[prompt] @ at).log_softmax(0)[answer]

    chosen = [(prompt, answer) for prompt in range(3) for answer in (right[prompt], wrong[prompt])]
    scores = torch.stack([torch.autograd.grad(logprob(*one, policy), policy)[0] for one in chosen])
    weights = np.array([0.5, -0.5] * 3)
    found = prompt_effects((scores @ scores.T).numpy(), weights, [0, 0, 1, 1, 2, 2], weights > 0)
    for prompt in range(3):
        pull = 0.5 * scores[2 * prompt] - 0.5 * scores[2 * prompt + 1]
        moved = policy.detach() + 1e-6 * pull
        for other in range(3):
            change = logprob(other, right[other], moved) - logprob(other, right[other], policy.detach())
            assert found.effect[prompt, other] == pytest.approx(change.item() / 1e-6, rel=1e-4)


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


def test_intervals_hold_unrelated_prompts() -> None:
    """Prompts with directions of their own: neither sign is claimed more often than 5 % of the time, both together."""
    rng = np.random.default_rng(0)
    claimed = 0
    for _ in range(200):
        rewards = (rng.random((12, 6)) < 0.4).astype(float)
        scores = (rewards - 0.4)[..., None] * rng.normal(size=(12, 1, 60)) + rng.normal(size=(12, 6, 60))
        flat = scores.reshape(72, 60)
        advantages = (rewards - rewards.mean(axis=1, keepdims=True)).ravel()
        found = prompt_effects(flat @ flat.T, advantages, np.repeat(np.arange(12), 6), rewards.ravel() == 1)
        low, high = found.transfer().interval or (-1.0, 1.0)
        claimed += low > 0 or high < 0
    assert claimed <= 18  # a binomial of 200 at 0.05 stays below with 99 %
