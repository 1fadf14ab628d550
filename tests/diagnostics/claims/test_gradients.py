"""Claims about gradients: sparsity, the best baseline, and Sign's parts, held to all outcomes of a tiny policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest

from gradscope.diagnostics.claims.claim import Judgement
from gradscope.diagnostics.claims.gradients import (
    SAME_BASELINE,
    SPARSER,
    entries_grow_sparser,
    group_mean_is_optimal,
    groups_grow_sparser,
    rows_grow_sparser,
    sign_part_climbs,
    sign_part_is_the_direction,
    tokens_grow_sparser,
)
from gradscope.diagnostics.rank.collected import Collected
from gradscope.diagnostics.rank.formulations.reward_baselines import baseline_groups
from gradscope.diagnostics.rank.rollouts.step_rows import StepRows
from gradscope.estimate import Estimate
from tests.diagnostics.claims.made_up_evidence import Given
from tests.diagnostics.made_up_runs import group_of, run_of
from tests.diagnostics.rank.rollouts.test_step_spectra import make_rows

UNKNOWN = Estimate.undefined_because("nothing is there")


def course(values: list[float], prompts: list[str] | None = None) -> Judgement:
    """Rollouts' Gini over steps of the same prompts, or of one prompt each."""
    steps = [SimpleNamespace(step=at, sparsity={"gini": Estimate.exact(one)}) for at, one in enumerate(values, start=1)]
    names = prompts or ["p"] * len(values)
    run = run_of(*(group_of([0.0, 1.0], step=at, prompt=name) for at, name in enumerate(names, start=1)))
    return rows_grow_sparser(Given(run=run, found={"gradients": {"rollout": Collected(steps=steps)}}))


def visits(
    rates: Callable[[int, int], float], seed: int, *, num_prompts: int = 12, steps: int = 24, a_step: int = 12
) -> Judgement:
    """A log in which prompts return in order, G = 4; the pass rate is a function of step and prompt."""
    rng = np.random.default_rng(seed)
    places = [(step, (step * a_step + at) % num_prompts) for step in range(steps) for at in range(a_step)]
    groups = (
        group_of((rng.random(4) < rates(step, prompt)).astype(float).tolist(), step=step + 1, prompt=f"p{prompt:03d}")
        for step, prompt in places
    )
    return groups_grow_sparser(Given(run=run_of(*groups)))


def around_a_line(change: float, noise: float = 0.001) -> list[float]:
    """Twenty steps along a line, off it by turns."""
    return [0.4 + change * step / 19 + noise * (-1) ** (step // 2) for step in range(20)]


@pytest.mark.parametrize(
    ("change", "noise", "verdict"),
    [
        (0.1, 0.001, "supported"),
        (1.3 * SPARSER, 0.001, "supported"),
        (0.01, 0.02, "cannot_tell"),
        (0.5 * SPARSER, 0.001, "contradicted"),
        (-0.1, 0.001, "contradicted"),
    ],
)
def test_growth_is_a_change_along_the_line(change: float, noise: float, verdict: str) -> None:
    found = course(around_a_line(change, noise))
    assert (found.verdict, found.null.value, found.steps) == (verdict, 0.0, tuple(range(1, 21)))
    assert "of the same prompts, along the line through 20 steps from 1 to 20." in found.why


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([], "No step has such a gradient."),
        ([0.1, 0.2], "A trend needs three steps, there are 2."),
        ([0.375] * 4, "The steps lie on one line, so nothing tells the noise."),
        ([0.1, 0.2, 0.3], "The steps lie on one line, so nothing tells the noise."),
    ],
)
def test_steps_that_have_no_trend_say_why(values: list[float], words: str) -> None:
    found = course(values)
    assert (found.verdict, found.why, found.estimate.interval) == ("cannot_tell", words, None)


def test_a_change_of_prompts_is_no_change_of_the_policy() -> None:
    values = around_a_line(0.1)
    found = course(values, [f"p{place}" for place in range(20)])
    assert (found.verdict, found.estimate.interval) == ("cannot_tell", None)
    assert "the prompts change between these steps" in found.why.lower()


def test_a_constant_policy_under_a_curriculum_grows_no_sparser() -> None:
    """Prompts grow harder along the log: those that never return tell nothing, those that return tell the truth."""
    harder = [visits(lambda step, prompt: 0.5 - step / 50, seed, num_prompts=288) for seed in range(20)]
    assert {found.why for found in harder} == {"No prompt returns, so a change of prompts may look the same."}
    again = [visits(lambda step, prompt: 0.5 - prompt / 300, seed, num_prompts=144) for seed in range(40)]
    assert [found.verdict for found in again].count("supported") <= 2
    assert "Within the 144 of 144 prompts that return" in again[0].why
    falls = [visits(lambda step, prompt: 0.5 - step / 100, seed, steps=48).verdict for seed in range(12)]
    assert falls.count("supported") >= 8


@pytest.mark.parametrize("num_steps", [4, 5, 12])
def test_few_checkpoints_that_resemble_their_neighbors_decide_nothing(num_steps: int) -> None:
    """A correlation of 0.9; 38 to 56 % were decided."""
    rng = np.random.default_rng(num_steps)
    noise = rng.normal(size=(300, 60 + num_steps))
    for at in range(1, noise.shape[1]):
        noise[:, at] += 0.9 * noise[:, at - 1]
    found = [course(list(0.5 + 0.05 * row[60:])).verdict for row in noise]
    assert found.count("supported") + found.count("contradicted") <= 15


def test_each_part_has_its_own_index() -> None:
    values = around_a_line(0.1)
    steps = [SimpleNamespace(step=step, sparsity={"gini": Estimate.exact(g)}) for step, g in enumerate(values)]
    tokens = [SimpleNamespace(step=step, gini=Estimate.exact(1 - g)) for step, g in enumerate(values)]
    entries = [
        SimpleNamespace(step=step, gini=one)
        for step, g in enumerate(values)
        for one in (Estimate.exact(g), Estimate.exact(3 * g), UNKNOWN)
    ]
    kinds = {
        "rollout": Collected(steps=steps),
        "token": Collected(sparsity=tokens),
        "weight": Collected(sparsity=entries),
    }
    run = run_of(*(group_of([0.0, 1.0], step=step) for step in range(20)))
    evidence = Given(run=run, found={"gradients": kinds})
    assert rows_grow_sparser(evidence).verdict == "supported"
    assert tokens_grow_sparser(evidence).verdict == "contradicted"
    assert entries_grow_sparser(evidence).estimate.value == pytest.approx(
        2 * rows_grow_sparser(evidence).estimate.value
    )


@pytest.mark.parametrize("num_steps", [5, 12, 40])
def test_noise_is_not_growth(num_steps: int) -> None:
    rng = np.random.default_rng(num_steps)
    found = [course(list(rng.binomial(16, 0.4, num_steps) / 16)).verdict for _ in range(200)]
    assert found.count("supported") <= 16  # 2.5 % are expected, and 5 % of 200 are 10


def baseline_evidence(rewards: np.ndarray, norms: np.ndarray) -> Given:
    """Groups of four with squared norms as given, [J, 4] both."""
    ids = [f"g{group}" for group in range(len(rewards)) for _ in range(4)]
    rows, _ = make_rows(rewards.ravel().tolist(), ids)
    own = baseline_groups(replace(rows, gram=np.diag(norms.ravel())))
    found = Collected(baseline_groups=own, steps=[SimpleNamespace(step=3)])
    run = run_of(*(group_of(row.tolist(), step=3, prompt=f"g{place}") for place, row in enumerate(rewards)))
    return Given(run=run, found={"gradients": {"rollout": found}})


def drawn(seed: int, *, of_success: float = 1.0, spread: float = 0.2, num_groups: int = 40) -> Given:
    """Half the groups all fail; norms of successes are as many times those of failures."""
    rng = np.random.default_rng(seed)
    rewards = (rng.random((num_groups, 4)) < np.where(np.arange(num_groups) % 2, 0.5, 0.0)[:, None]).astype(float)
    return baseline_evidence(rewards, np.where(rewards, of_success, 1.0) * rng.lognormal(0, spread, rewards.shape))


@pytest.mark.slow  # a simulation
def test_norms_that_do_not_know_the_reward_leave_the_group_mean_optimal() -> None:
    """However many groups are dead, whose mean says nothing."""
    found = [group_mean_is_optimal(drawn(seed)).verdict for seed in range(60)]
    assert found.count("contradicted") == 0
    assert found.count("supported") > 45


def test_long_successes_pull_the_best_baseline_up() -> None:
    judged = group_mean_is_optimal(drawn(0, of_success=4.0))
    assert (judged.verdict, judged.null.value, judged.steps) == ("contradicted", 0.0, (3,))
    assert judged.estimate.low > SAME_BASELINE
    assert "Correlation of reward and squared norm 0.88" in judged.why
    assert group_mean_is_optimal(drawn(0, spread=2.0)).verdict == "cannot_tell"


@pytest.mark.parametrize(("apart", "verdict"), [(0.9, "supported"), (1.1, "contradicted")])
def test_a_baseline_near_the_mean_is_no_other(apart: float, verdict: str) -> None:
    """One success of two: b = q / (q + 1) lies apart from 1/2 by the same in each group, up to a little."""
    best = 0.5 + apart * SAME_BASELINE + np.linspace(-0.001, 0.001, 12)
    rewards = np.tile([1.0, 0.0, 1.0, 0.0], (12, 1))
    norms = np.tile([1.0, 1.0, 1.0, 1.0], (12, 1))
    norms[:, ::2] = (best / (1 - best))[:, None]
    assert group_mean_is_optimal(baseline_evidence(rewards, norms)).verdict == verdict


def test_groups_of_equal_rewards_have_no_best_baseline() -> None:
    found = group_mean_is_optimal(baseline_evidence(np.zeros((3, 4)), np.ones((3, 4))))
    assert (found.verdict, found.why) == ("cannot_tell", "No group with unequal rewards has a gradient.")
    silent = group_mean_is_optimal(baseline_evidence(np.tile([1.0, 0.0, 0.0, 0.0], (3, 1)), np.zeros((3, 4))))
    assert silent.why == found.why


def test_one_group_is_not_enough_and_its_noise_may_be_unknown() -> None:
    norms = np.array([[0.0, 1.0, 0.0, 0.0]])
    found = group_mean_is_optimal(baseline_evidence(np.array([[1.0, 0.0, 0.0, 0.0]]), norms))
    assert found.verdict == "cannot_tell"
    assert "unknown" in group_mean_is_optimal(baseline_evidence(np.array([[1.0, 0.0, 0.0, 0.0]]), norms * 0 + 1.0)).why


class Policy:
    """Prompts with weights of their own: a softmax over three answers each, of which the first is correct."""

    def __init__(self, *pass_rates: float, size: int) -> None:
        self.probabilities = [np.array([p, (1 - p) * 0.3, (1 - p) * 0.7]) for p in pass_rates]
        self.size = size

    def score(self, prompt: int, answer: int) -> np.ndarray:
        row = np.zeros((len(self.probabilities), 3))
        row[prompt] = np.eye(3)[answer] - self.probabilities[prompt]
        return row.ravel()

    def expected(self, advantage) -> np.ndarray:
        """E[sum_i A_i s_i] over all outcomes of a group, mean over prompts; A is a function of the rewards."""
        total = np.zeros(3 * len(self.probabilities))
        for prompt, probabilities in enumerate(self.probabilities):
            for answers in product(range(3), repeat=self.size):
                weights = advantage(np.array([answer == 0 for answer in answers], dtype=float))
                update = sum(w * self.score(prompt, answer) for w, answer in zip(weights, answers, strict=True))
                total += np.prod(probabilities[list(answers)]) * update
        return total / len(self.probabilities)

    def gradient(self, k: int) -> np.ndarray:
        """Of pass@k, k (1 - p)^(k - 1) dp, with dp = p (e_0 - pi); mean over prompts."""
        parts = [k * (1 - p[0]) ** (k - 1) * p[0] * (np.eye(3)[0] - p) for p in self.probabilities]
        return np.concatenate(parts) / len(parts)

    def rows(self, num_groups: int, seed: int) -> StepRows:
        rng = np.random.default_rng(seed)
        prompts = [group % len(self.probabilities) for group in range(num_groups) for _ in range(self.size)]
        answers = [rng.choice(3, p=self.probabilities[prompt]) for prompt in prompts]
        scores = np.stack([self.score(prompt, answer) for prompt, answer in zip(prompts, answers, strict=True)])
        ids = [f"g{group}" for group in range(num_groups) for _ in range(self.size)]
        rows, _ = make_rows([float(answer == 0) for answer in answers], ids)
        return replace(rows, gram=scores @ scores.T)


PARTS = {
    "all_fail": lambda rewards: -np.ones_like(rewards) * (rewards.max() == 0),
    "mixed": lambda rewards: (2 * rewards - 1) * (0 < rewards.mean() < 1),
    "all_pass": lambda rewards: np.ones_like(rewards) * (rewards.min() == 1),
}


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


def judged(part: str, target: str, rows: StepRows) -> Judgement:
    found = Collected(rows=[rows], steps=[SimpleNamespace(step=rows.step)])
    return sign_part_climbs(part, target)(Given(found={"gradients": {"rollout": found}}))


@pytest.mark.parametrize("rates", [(0.3,), (0.7,), (0.9, 0.1), (0.05, 0.4, 0.8)])
@pytest.mark.parametrize("size", [2, 4])
def test_signs_all_fail_part_is_the_gradient_of_pass_at_g(rates: tuple[float, ...], size: int) -> None:
    """The theorem of arXiv 2605.07689, by all outcomes of a group."""
    policy = Policy(*rates, size=size)
    np.testing.assert_allclose(policy.expected(PARTS["all_fail"]), policy.gradient(size), atol=1e-14)
    whole = policy.expected(lambda rewards: 2 * rewards - 1)
    np.testing.assert_allclose(sum(policy.expected(part) for part in PARTS.values()), whole, atol=1e-14)


CASES = [
    ((0.3,), "all_fail", "pass@G"),
    ((0.3,), "mixed", "pass@G"),
    ((0.7,), "all_pass", "pass@G"),
    ((0.3,), "all_fail", "pass@1"),
    ((0.9, 0.1), "all_fail", "pass@G"),
    ((0.9, 0.1), "mixed", "pass@G"),
    ((0.9, 0.1), "all_pass", "pass@G"),
    ((0.9, 0.1), "all_fail", "pass@1"),
]


@pytest.mark.slow  # a simulation
@pytest.mark.parametrize(("rates", "part", "target"), CASES)
def test_verdicts_on_parts_are_true_of_all_outcomes(rates: tuple[float, ...], part: str, target: str) -> None:
    policy = Policy(*rates, size=3)
    truth = cosine(policy.expected(PARTS[part]), policy.gradient(3 if target == "pass@G" else 1))
    found = [judged(part, target, policy.rows(300, seed)).verdict for seed in range(24)]
    right, wrong = ("supported", "contradicted") if truth > 0 else ("contradicted", "supported")
    assert found.count(wrong) <= 3, (truth, found)
    assert found.count(right) >= 8 or abs(truth) < 0.05, (truth, found)


@pytest.mark.slow  # a simulation
@pytest.mark.parametrize("part", ["all_pass", "all_fail"])
def test_a_direction_between_the_two_climbs_and_is_another(part: str) -> None:
    """Easy prompts at .9 and hard ones at .15: a cosine of .3 to .8 with pass@1 climbs, and was called contradicted."""
    policy = Policy(0.9, 0.15, size=4)
    truth = cosine(policy.expected(PARTS[part]), policy.gradient(1))
    assert 0.25 < truth < 0.85
    rows = [policy.rows(240, seed) for seed in range(20)]
    climbs = [judged(part, "pass@1", one).verdict for one in rows]
    assert climbs.count("contradicted") == 0
    assert climbs.count("supported") >= 15
    is_same = sign_part_is_the_direction(part, "pass@1")
    found = [Collected(rows=[one], steps=[SimpleNamespace(step=one.step)]) for one in rows]
    same = [is_same(Given(found={"gradients": {"rollout": one}})).verdict for one in found]
    assert same.count("supported") <= 1


def test_the_step_with_most_such_groups_is_looked_at() -> None:
    policy = Policy(0.3, size=3)
    first, second = replace(policy.rows(10, 1), step=1), replace(policy.rows(200, 2), step=2)
    found = Collected(rows=[first, second], steps=[SimpleNamespace(step=1), SimpleNamespace(step=2)])
    judgement = sign_part_climbs("all_fail", "pass@G")(Given(found={"gradients": {"rollout": found}}))
    assert judgement.steps == (2,)
    assert "such groups of 200, G = 3" in judgement.why


@pytest.mark.parametrize(
    ("rewards", "groups", "words"),
    [
        ([0.0, 0.5, 1.0, 0.0], "aabb", "The rewards are not 0 and 1 in groups of two or more of one size."),
        ([0.0, 1.0, 1.0], "abc", "The rewards are not 0 and 1 in groups of two or more of one size."),
        ([0.0, 1.0, 1.0], "aab", "The rewards are not 0 and 1 in groups of two or more of one size."),
        ([float("nan"), 1.0], "aa", "The rewards are not 0 and 1 in groups of two or more of one size."),
        ([0.0, 1.0, 1.0, 0.0], "aabb", "No group of these steps is all-fail."),
        ([0.0, 0.0, 1.0, 0.0], "aabb", "1 such groups of 2, G = 2: 2 groups are too few."),
        ([0.0] * 6, "aabbcc", "its mean over groups is not above its own noise"),
    ],
)
def test_what_has_no_direction_says_why(rewards: list[float], groups: str, words: str) -> None:
    found = judged("all_fail", "pass@G", make_rows(rewards, list(groups))[0])
    assert found.verdict == "cannot_tell"
    assert words in found.why
