"""Claims about gradients, their ranks and the change of weights, held to all outcomes of a tiny policy."""

from collections.abc import Callable
from functools import partial
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from msgspec.structs import replace

from gradscope.diagnostics.claims import gradients
from gradscope.diagnostics.claims.evidence import ADVANTAGE, Judgement, in_range, on_side
from gradscope.diagnostics.rank.formulations import baseline_groups
from gradscope.diagnostics.rank.rows import StepRows
from gradscope.diagnostics.rank.spectrum import GroupRank
from gradscope.diagnostics.rank.weight_groups import ALL_WEIGHTS
from gradscope.errors import InputError
from gradscope.estimate import Estimate
from gradscope.metrics.gram.geometry import CHANNELS
from gradscope.results.rank import NullRank, RankCurvePoint, TokenRankPoint, WeightRankPoint
from tests.diagnostics.claims.made_up_evidence import Answered, between, collected_of, with_gradients
from tests.diagnostics.made_up_runs import group_of, run_of, with_fields
from tests.diagnostics.rank.test_rollout_spectra import make_rows


def judge_ginis(values: list[float], prompts: list[str] | None = None) -> Judgement:
    """Rollouts' Gini over steps of the same prompts, or of one prompt each."""
    numbered = list(enumerate(values, start=1))
    steps = [SimpleNamespace(step=step, sparsity={"gini": Estimate.exact(gini)}) for step, gini in numbered]
    names = prompts or ["p"] * len(values)
    run = run_of(*(group_of([0.0, 1.0], step=step, prompt=name) for step, name in enumerate(names, start=1)))
    return gradients.rows_grow_sparser(with_gradients("rollout", run=run, steps=steps))


def visits(
    rates: Callable[[int, int], float], seed: int, *, num_prompts: int = 12, steps: int = 24, a_step: int = 12
) -> Judgement:
    """A log in which prompts return in order, G = 4; the pass rate is a function of step and prompt."""
    rng = np.random.default_rng(seed)
    visited = [(visit // a_step, visit % num_prompts) for visit in range(steps * a_step)]
    groups = (
        group_of((rng.random(4) < rates(step, prompt)).astype(float).tolist(), step=step + 1, prompt=f"p{prompt:03d}")
        for step, prompt in visited
    )
    return gradients.groups_grow_sparser(Answered(run=run_of(*groups)))


def around_a_line(change: float, noise: float = 0.001) -> list[float]:
    """Twenty steps along a line, off it by turns."""
    return [0.4 + change * step / 19 + noise * (-1) ** (step // 2) for step in range(20)]


@pytest.mark.parametrize(
    ("change", "noise", "verdict"),
    [
        (0.1, 0.001, "supported"),
        (1.3 * gradients.SPARSER, 0.001, "supported"),
        (0.01, 0.02, "cannot_tell"),
        (0.5 * gradients.SPARSER, 0.001, "contradicted"),
        (-0.1, 0.001, "contradicted"),
    ],
)
def test_growth_is_a_change_along_the_line(change: float, noise: float, verdict: str) -> None:
    judgement = judge_ginis(around_a_line(change, noise))
    assert (judgement.verdict, judgement.null.value, judgement.steps) == (verdict, 0.0, tuple(range(1, 21)))
    assert "of the same prompts, along the line through 20 steps from 1 to 20." in judgement.why


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([], "No step has such a gradient."),
        ([0.1, 0.2], "A trend needs three steps, there are 2."),
        ([0.375] * 4, "The steps lie on one line, so nothing tells the noise."),
    ],
)
def test_steps_that_have_no_trend_say_why(values: list[float], words: str) -> None:
    judgement = judge_ginis(values)
    assert (judgement.verdict, judgement.why, judgement.estimate.interval) == ("cannot_tell", words, None)
    changing = judge_ginis(around_a_line(0.1), [f"p{index}" for index in range(20)])
    assert (changing.verdict, changing.estimate.interval) == ("cannot_tell", None)
    assert "the prompts change between these steps" in changing.why.lower()


@pytest.mark.slow
def test_a_constant_policy_under_a_curriculum_grows_no_sparser() -> None:
    """Prompts grow harder along the log: those that never return tell nothing, those that return tell the truth."""
    harder = [visits(lambda step, prompt: 0.5 - step / 50, seed, num_prompts=288) for seed in range(20)]
    assert {judgement.why for judgement in harder} == {"No prompt returns, so a change of prompts may look the same."}
    returning = [visits(lambda step, prompt: 0.5 - prompt / 300, seed, num_prompts=144) for seed in range(40)]
    assert [judgement.verdict for judgement in returning].count("supported") <= 2
    assert "Within the 144 of 144 prompts that return" in returning[0].why
    falls = [visits(lambda step, prompt: 0.5 - step / 100, seed, steps=48).verdict for seed in range(12)]
    assert falls.count("supported") >= 8


def baseline_evidence(rewards: np.ndarray, norms: np.ndarray) -> Answered:
    """Groups of four with squared norms as given, [J, 4] both."""
    ids = [f"g{group}" for group in range(len(rewards)) for _ in range(4)]
    rows, _ = make_rows(rewards.ravel().tolist(), ids)
    groups = baseline_groups(replace(rows, gram=np.diag(norms.ravel())))
    run = run_of(*(group_of(row.tolist(), step=3, prompt=f"g{index}") for index, row in enumerate(rewards)))
    return with_gradients("rollout", run=run, baseline_groups=groups, steps=[SimpleNamespace(step=3)])


def drawn(seed: int, *, of_success: float = 1.0, spread: float = 0.2, num_groups: int = 40) -> Answered:
    """Half the groups all fail; norms of successes are as many times those of failures."""
    rng = np.random.default_rng(seed)
    rewards = (rng.random((num_groups, 4)) < np.where(np.arange(num_groups) % 2, 0.5, 0.0)[:, None]).astype(float)
    return baseline_evidence(rewards, np.where(rewards, of_success, 1.0) * rng.lognormal(0, spread, rewards.shape))


def test_long_successes_pull_the_best_baseline_up() -> None:
    judged = gradients.group_mean_is_optimal(drawn(0, of_success=4.0))
    assert (judged.verdict, judged.null.value, judged.steps) == ("contradicted", 0.0, (3,))
    assert judged.estimate.low > gradients.SAME_BASELINE
    assert "the correlation of reward and squared norm is 0.88" in judged.why
    ratio = float(judged.why.partition("mean reward are ")[2].split(" ", 1)[0])
    assert ratio == pytest.approx(4.0, abs=0.2)
    assert gradients.group_mean_is_optimal(drawn(0, spread=2.0)).verdict == "cannot_tell"


@pytest.mark.parametrize(("distance", "verdict"), [(0.9, "supported"), (1.1, "contradicted")])
def test_a_baseline_near_the_mean_is_no_other(distance: float, verdict: str) -> None:
    """One success of two: b = q / (q + 1) lies apart from 1/2 by the same in each group, up to a little."""
    best = 0.5 + distance * gradients.SAME_BASELINE + np.linspace(-0.001, 0.001, 12)
    rewards = np.tile([1.0, 0.0, 1.0, 0.0], (12, 1))
    norms = np.tile([1.0, 1.0, 1.0, 1.0], (12, 1))
    norms[:, ::2] = (best / (1 - best))[:, None]
    assert gradients.group_mean_is_optimal(baseline_evidence(rewards, norms)).verdict == verdict


def test_groups_without_unequal_rewards_or_a_second_group_have_no_best_baseline() -> None:
    judgement = gradients.group_mean_is_optimal(baseline_evidence(np.zeros((3, 4)), np.ones((3, 4))))
    assert (judgement.verdict, judgement.why) == ("cannot_tell", "No group with unequal rewards has a gradient.")
    one_pass = np.array([[1.0, 0.0, 0.0, 0.0]])
    silent = gradients.group_mean_is_optimal(baseline_evidence(one_pass.repeat(3, 0), np.zeros((3, 4))))
    assert silent.why == judgement.why
    judgement = gradients.group_mean_is_optimal(baseline_evidence(one_pass, np.array([[0.0, 1.0, 0.0, 0.0]])))
    assert judgement.verdict == "cannot_tell"
    assert "unknown" in gradients.group_mean_is_optimal(baseline_evidence(one_pass, np.ones((1, 4)))).why


def class_means(scale: float, advantage: str = ADVANTAGE, rewards: tuple[float, ...] = (1.0, 0.0) * 4) -> Judgement:
    """Twelve groups of eight whose score vectors are their class's mean and noise of so much of its length."""
    rows, noise = make_rows([*rewards] * 12, [f"g{group}" for group in range(12) for _ in rewards])
    means = np.random.default_rng(1).normal(size=(12, 2, noise.shape[1])).repeat(8, 0).reshape(96, 2, -1)
    scores = means[np.arange(96), (np.array(rows.rewards) > 0.5).astype(int)] + scale * noise
    parts = {"rows": [replace(rows, gram=scores @ scores.T)], "steps": [SimpleNamespace(step=3)]}
    return gradients.two_class_means(with_gradients("rollout", advantage=advantage, **parts))


@pytest.mark.parametrize(
    ("scale", "verdict", "share", "tolerance"), [(0.1, "supported", 1.0, 0.02), (30.0, "contradicted", 2 / 8, 0.05)]
)
def test_equal_rows_of_a_class_are_two_rows(scale: float, verdict: str, share: float, tolerance: float) -> None:
    judged = class_means(scale)
    assert (judged.verdict, judged.steps) == (verdict, (3,))
    assert judged.null.value == pytest.approx(2 / 8)  # eight unrelated rows of one size, four of each class
    assert judged.estimate.value == pytest.approx(share, abs=tolerance)


def test_the_share_is_that_of_rows_projected_on_the_class_means() -> None:
    rows, scores = make_rows([1.0, 1.0, 0.0, 0.0, 0.0, 1.0], ["a"] * 6)
    judged = gradients.two_class_means(with_gradients("rollout", rows=[rows], steps=[SimpleNamespace(step=3)]))
    weighed = (rows.rewards - rows.rewards.mean())[:, None] * scores
    fitted = np.stack([weighed[rows.rewards == reward].mean(axis=0) for reward in rows.rewards])
    assert judged.estimate.value == pytest.approx((fitted**2).sum() / (weighed**2).sum())


ONE_PASS = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0)


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


def cosine(first: np.ndarray, other: np.ndarray) -> float:
    return float(first @ other / np.linalg.norm(first) / np.linalg.norm(other))


def judged(part: str, target: str, rows: StepRows, rule: Callable[[Estimate], str] = on_side) -> Judgement:
    evidence = with_gradients("rollout", rows=[rows], steps=[SimpleNamespace(step=rows.step)])
    return gradients.sign_part(part, target, rule, evidence)


@pytest.mark.slow  # a simulation
@pytest.mark.parametrize(
    ("rates", "part", "target"),
    [
        ((0.3,), "all_fail", "pass@G"),
        ((0.3,), "mixed", "pass@G"),
        ((0.9, 0.1), "all_pass", "pass@G"),
        ((0.9, 0.1), "all_fail", "pass@1"),
    ],
)
def test_verdicts_on_parts_are_true_of_all_outcomes(rates: tuple[float, ...], part: str, target: str) -> None:
    policy = Policy(*rates, size=3)
    truth = cosine(policy.expected(PARTS[part]), policy.gradient(3 if target == "pass@G" else 1))
    verdicts = [judged(part, target, policy.rows(300, seed)).verdict for seed in range(8)]
    right, wrong = ("supported", "contradicted") if truth > 0 else ("contradicted", "supported")
    assert verdicts.count(wrong) <= 1, (truth, verdicts)
    assert verdicts.count(right) >= 3 or abs(truth) < 0.05, (truth, verdicts)


@pytest.mark.slow  # a simulation
@pytest.mark.parametrize("part", ["all_pass", "all_fail"])
def test_a_direction_between_the_two_climbs_and_is_another(part: str) -> None:
    """Easy prompts at .9 and hard ones at .15: a cosine of .3 to .8 with pass@1 climbs, and was called contradicted."""
    policy = Policy(0.9, 0.15, size=4)
    assert 0.25 < cosine(policy.expected(PARTS[part]), policy.gradient(1)) < 0.85
    rows = [policy.rows(240, seed) for seed in range(6)]
    climbs = [judged(part, "pass@1", step_rows).verdict for step_rows in rows]
    assert climbs.count("contradicted") == 0
    assert climbs.count("supported") >= 4
    is_same = partial(in_range, low=gradients.SAME_DIRECTION, high=1.0)
    same = [judged(part, "pass@1", step_rows, is_same).verdict for step_rows in rows]
    assert same.count("supported") <= 1


def test_the_step_with_most_such_groups_is_looked_at() -> None:
    policy = Policy(0.3, size=3)
    first, second = replace(policy.rows(10, 1), step=1), replace(policy.rows(200, 2), step=2)
    parts = {"rows": [first, second], "steps": [SimpleNamespace(step=1), SimpleNamespace(step=2)]}
    judgement = gradients.sign_part("all_fail", "pass@G", on_side, with_gradients("rollout", **parts))
    assert judgement.steps == (2,)
    assert "such groups of 200, G = 3" in judgement.why


@pytest.mark.parametrize(
    ("rewards", "groups", "words"),
    [
        ([0.0, 0.5, 1.0, 0.0], "aabb", "The rewards are not 0 and 1 in groups of two or more of one size."),
        ([0.0, 1.0, 1.0], "abc", "The rewards are not 0 and 1 in groups of two or more of one size."),
        ([0.0, 1.0, 1.0], "aab", "The rewards are not 0 and 1 in groups of two or more of one size."),
        ([0.0, 1.0, 1.0, 0.0], "aabb", "No group of these steps is all-fail."),
        ([0.0, 0.0, 1.0, 0.0], "aabb", "1 such groups of 2, G = 2: 2 groups are too few."),
        ([0.0] * 6, "aabbcc", "its mean over groups is not above its own noise"),
    ],
)
def test_what_has_no_direction_says_why(rewards: list[float], groups: str, words: str) -> None:
    judgement = judged("all_fail", "pass@G", make_rows(rewards, list(groups))[0])
    assert judgement.verdict == "cannot_tell"
    assert words in judgement.why


RANKS_UNKNOWN = Estimate.undefined_because("no group is live")


def around(value: float) -> Estimate:
    return between(value - 0.01, value + 0.01)


def point(size: int, rank: Estimate, *, step: int = 1, kind: type = RankCurvePoint, **extra: object) -> object:
    unknown = {"difference": RANKS_UNKNOWN, "two_direction_energy": RANKS_UNKNOWN}
    null = NullRank(effective_rank=around(4.0), ratio=around(0.5), **unknown)
    fields = {"step": step, "advantage": ADVANTAGE, "group_size": size, "num_groups": 12, "num_dead": 0}
    ranked = {"effective_rank": rank, "stable_rank": rank, "participation_ratio": rank, "two_direction_energy": rank}
    ranked |= dict.fromkeys(("given_prompts", "summed_energy", *CHANNELS), rank) if kind is RankCurvePoint else {}
    return kind(**fields, **ranked, **extra, nulls={"gaussian": null} if rank.is_defined else {})


def judge_ranks(points: list, change: Estimate | None, seen: str = "") -> Judgement:
    ranks = gradients.RankEvidence(points=points, change=change, seen=seen)
    return gradients.rank_two_at_every_size(lambda _: ranks, Answered())


@pytest.mark.parametrize(
    ("rank", "change", "verdict"),
    [
        (2.0, 0.0, "supported"),
        (1.52, 0.48, "supported"),
        (2.48, -0.48, "supported"),
        (1.48, 0.0, "contradicted"),
        (2.52, 0.0, "contradicted"),
        (2.0, 0.5, "cannot_tell"),
        (2.0, 0.52, "contradicted"),
        (2.0, -0.52, "contradicted"),
    ],
)
def test_about_two_and_whatever_the_size(rank: float, change: float, verdict: str) -> None:
    judgement = judge_ranks([point(2, around(rank - change)), point(8, around(rank))], around(change))
    assert (judgement.verdict, judgement.estimate.value, judgement.null.value) == (verdict, pytest.approx(rank), 4.0)
    assert f"{change:+.2f}" in judgement.why
    words = "from the smallest to the largest R on the same prompts (20); 0.50 [0.49, 0.51] of unrelated"
    assert words in judgement.why


def test_one_size_with_another_rank_contradicts_and_two_numbers_hold_together() -> None:
    """2.24 standard errors to either side: [1.55, 2.45] alone would do."""
    wide = [point(2, around(2.0)), point(8, between(1.55, 2.45))]
    assert judge_ranks(wide, around(0.0)).verdict == "cannot_tell"
    assert judge_ranks([*wide[:1], point(8, between(1.57, 2.43))], around(0.0)).verdict == "supported"
    assert judge_ranks([point(8, around(3.0))], None).verdict == "contradicted"


@pytest.mark.parametrize(
    ("judged", "words"),
    [
        (class_means(0.1, "sign", ONE_PASS), "Under sign the advantages of 12 groups do not sum to zero"),
        (
            class_means(0.1, "negative_only", ONE_PASS),
            "Under negative_only the advantages of 12 groups do not sum to zero",
        ),
        (class_means(0.1, rewards=(1.0, 0.5, 0.0, 0.0, 1.0, 0.0, 0.2, 0.0)), "have over two values"),
        (class_means(0.1, rewards=(0.0,) * 8), "No group has a gradient."),
        (judge_ranks([point(8, around(2.0))], None), "there is one group size"),
        (judge_ranks([point(2, RANKS_UNKNOWN), point(8, around(2.0))], around(0.0)), "there is one group size"),
        (judge_ranks([point(2, around(2.0)), point(8, around(2.0))], None), "no change is stated"),
        (judge_ranks([point(2, around(2.0)), point(8, around(2.0))], RANKS_UNKNOWN), "no change is stated"),
        (judge_ranks([point(2, RANKS_UNKNOWN)], None), "No group is live."),
        (judge_ranks([], None), "No group has such a matrix."),
    ],
)
def test_what_decides_nothing_says_why(judged: Judgement, words: str) -> None:
    assert judged.verdict == "cannot_tell"
    assert words in judged.why


def group_ranks(matrix: str) -> list[GroupRank]:
    """Twelve groups whose rank is larger at the largest size, and a step before that says something else."""
    return [
        group_rank(step, name, size, group, 2 + group / 100 + extra + 0.01 * group * (size == 8))
        for step, name, extra in ((1, matrix, 1.0), (2, matrix, 0.0), (2, "other", 1.0))
        for size in (2, 4, 8)
        for group in range(12)
    ]


def group_rank(step: int, matrix: str, size: int, group: int, rank: float, advantage: str = ADVANTAGE) -> GroupRank:
    fields = {"step": step, "matrix": matrix, "group_size": size, "advantage": advantage}
    return GroupRank(**fields, group_id=f"g{group}", rank=rank, max_rank=32)


def test_rollouts_are_those_of_the_last_step_by_size_and_drawn_tokens_have_no_change() -> None:
    curve = [point(8, around(2.0), step=2), point(2, around(2.0), step=2), point(8, around(9.0), step=1)]
    evidence = with_gradients("hidden", group_ranks=group_ranks("rollout"), curve=curve)
    ranks = gradients.rollout_ranks("hidden", evidence)
    assert [(point.step, point.group_size) for point in ranks.points] == [(2, 2), (2, 8)]
    assert ranks.change.value == pytest.approx(np.mean([0.01 * group for group in range(12)]))
    assert gradients.rank_two_at_every_size(partial(gradients.rollout_ranks, "hidden"), evidence).steps == (2,)

    def ranks_with(*seen: float) -> gradients.RankEvidence:
        tokens = [
            point(size, around(2.0), step=2, kind=TokenRankPoint, method="exact", num_rows=around(9), frac_seen=share)
            for size, share in zip((2, 8), seen, strict=True)
        ]
        evidence = with_gradients("token", group_ranks=group_ranks("token"), token_curve=tokens)
        return gradients.token_ranks("token", evidence)

    assert ranks_with(1.0, 1.0).change is not None
    drawn = ranks_with(1.0, 0.25)
    assert (drawn.change, drawn.seen) == (None, " 25.0 % of the tokens are rows.")
    assert judge_ranks(drawn.points, drawn.change, drawn.seen).why.endswith("25.0 % of the tokens are rows.")
    assert gradients.token_ranks("token", with_gradients("token")).points == []


def weights(*names: str) -> Answered:
    points = [
        point(size, around(rank), step=2, kind=WeightRankPoint, tensor=name, shape=name and (8, 8))
        for rank, name in enumerate((None, *names), start=2)
        for size in (2, 8)
    ]
    return with_gradients("weight", group_ranks=group_ranks(ALL_WEIGHTS), weight_curve=points, num_weights=3)


def test_weights_are_all_of_them_or_the_head() -> None:
    evidence = weights("model.embed_tokens.weight", "lm_head.weight", "model.layers.0.mlp.down_proj.weight")
    everything, head = gradients.weight_ranks("weight", evidence), gradients.head_ranks("weight", evidence)
    assert [point.tensor for point in everything.points] == [None, None]
    assert everything.change is not None
    assert everything.seen == ""
    drawn = gradients.weight_ranks("weight", weights("lm_head.weight"))
    assert drawn.seen == " The mean is over 1 of 3 weights, drawn at random."
    assert [point.tensor for point in head.points] == ["lm_head.weight"] * 2
    head = gradients.head_ranks("weight", weights("gpt_neox.layers.0", "embed_out.weight"))
    assert head.points[0].tensor == "embed_out.weight"


@pytest.mark.parametrize("names", [(), ("model.embed_tokens.weight", "model.layers.0.mlp.down_proj.weight")])
def test_a_tied_head_is_no_matrix_of_its_own(names: tuple[str, ...]) -> None:
    with pytest.raises(InputError, match="No weight is the output head alone: it is tied to the embedding"):
        gradients.head_ranks("weight", weights(*names))


def advantage_run(lengths: tuple[int, ...], num_groups: int = 12, size: int = 4) -> Answered:
    """Rewards 1, 0, 1, 0; pairs of completions of a group have these numbers of tokens in turn."""
    ids = [(5,) * lengths[(sample // 2) % len(lengths)] for sample in range(size)]
    rewards = [float((sample + 1) % 2) for sample in range(size)]
    groups = (group_of(rewards, step=1, prompt=f"p{group}") for group in range(num_groups))
    return Answered(run=run_of(*(with_fields(group, completion_ids=ids) for group in groups)))


def test_advantages_have_the_rank_of_their_matrix_at_every_size() -> None:
    ranks = gradients.advantage_ranks("advantage", advantage_run((3,)))
    assert [point.group_size for point in ranks.points] == [2, 4]
    assert [point.effective_rank.value for point in ranks.points] == pytest.approx([1.0, 1.0])
    assert ranks.change.value == pytest.approx(0.0, abs=1e-6)
    ranks = gradients.advantage_ranks("advantage", advantage_run((3, 1)))
    values = np.linalg.svd(0.5 * np.array([[1, 1, 1], [-1, -1, -1], [1, 0, 0], [-1, 0, 0]]), compute_uv=False)[:2]
    share = values / values.sum()
    assert ranks.points[-1].effective_rank.value == pytest.approx(np.exp(-np.sum(share * np.log(share))))
    assert ranks.change.value > 0
    with pytest.raises(InputError, match="number of tokens is not known"):
        gradients.advantage_ranks("advantage", Answered())
    judge = partial(gradients.rank_two_at_every_size, partial(gradients.advantage_ranks, "advantage"))
    assert judge(advantage_run((3,), size=1)).verdict == "cannot_tell"


def test_advantages_of_a_large_step_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    complete = gradients.advantage_ranks("advantage", advantage_run((3, 1)))
    monkeypatch.setattr(gradients, "_MOST_ADVANTAGES", 20)
    drawn = gradients.advantage_ranks("advantage", advantage_run((3, 1)))
    assert (complete.seen, drawn.seen) == ("", " 4 of 12 groups were looked at.")
    ranks = [[point.effective_rank.value for point in part.points] for part in (complete, drawn)]
    assert ranks[0] == pytest.approx(ranks[1])
    monkeypatch.setattr(gradients, "MAX_READ_BACK", 20)
    with pytest.raises(InputError, match="Step 1 has 48 rollouts, too many to look at"):
        gradients.advantage_ranks("advantage", advantage_run((3, 1)))


def credit(ratios: list[float], *, advantages: tuple[str, ...] = ("logged", ADVANTAGE)) -> Answered:
    ranks = [
        group_rank(3, matrix, 4, group, rank, name)
        for group, ratio in enumerate(ratios)
        for matrix in (ALL_WEIGHTS, "lm_head.weight")
        for name, rank in (("logged", 5.0 * ratio), (ADVANTAGE, 5.0))
        if name in advantages
    ]
    parts = collected_of(group_ranks=ranks, steps=[SimpleNamespace(step=3)])
    return Answered(results={"credited": ("the logged advantages of tokens", parts)})


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ([1.2, 1.3, 1.25, 1.22, 1.28, 1.24], "supported"),
        ([1.0, 1.3, 0.9, 1.1, 0.95, 1.2], "cannot_tell"),
        ([1.0, 1.01, 0.99, 1.02, 1.0, 1.01], "contradicted"),
        ([1.5, 1.6], "cannot_tell"),
    ],
)
def test_credit_for_tokens_is_a_ratio_paired_by_group(ratios: list[float], verdict: str) -> None:
    judgement = gradients.higher_with_token_credit(credit(ratios))
    assert (judgement.verdict, judgement.steps, judgement.null.value) == (verdict, (3,), 1.0)
    assert judgement.estimate.value == pytest.approx(np.mean(ratios))
    assert f"with the outcome's, on {len(ratios)} groups" in judgement.why
    single = gradients.higher_with_token_credit(credit(ratios, advantages=("logged",)))
    assert (single.verdict, single.why) == ("cannot_tell", "No group has a gradient under both advantages.")


def change(first: int, last: int, *, overlap: float = 0.1, null: float = 0.1, changed: float | None = 0.1) -> object:
    unknown = Estimate.undefined_because("the base model is not on this disk")
    shares = {"principal_overlap": overlap, "spectrum_drift": overlap, "bfloat16_changed": changed}
    numbers = {name: unknown if changed is None else Estimate.exact(share) for name, share in shares.items()}
    nulls = dict.fromkeys(("principal_null", "spectrum_drift_null"), Estimate.exact(null))
    return SimpleNamespace(first=first, last=last, **numbers, **nulls)


def judge_weights(judge, *changes: object) -> Judgement:
    return judge(Answered(results={"updates": changes}))


@pytest.mark.parametrize(
    ("shares", "verdict"),
    [
        ((0.01, 0.05, 0.02, 0.0), "supported"),
        ((0.29, 0.295, 0.3, 0.31), "cannot_tell"),
        ((0.31, 0.33, 0.32, 0.34), "contradicted"),
    ],
)
def test_few_parameters_are_thirty_per_cent(shares: tuple[float, ...], verdict: str) -> None:
    """A share cannot be negative, so an interval that a few small ones would stretch below zero is no doubt."""
    judgement = judge_weights(gradients.few_parameters_change, *(change(0, 4, changed=share) for share in shares))
    assert (judgement.verdict, judgement.null.value) == (verdict, 0.3)
    assert 0 <= judgement.estimate.low <= judgement.estimate.high <= 1


def test_changes_from_the_first_to_the_last_checkpoint_count_where_they_differ() -> None:
    halves = [change(0, 2, changed=0.9), change(2, 4, changed=0.9)]
    ends = (change(0, 4, changed=share) for share in (0.1, 0.11))
    assert judge_weights(gradients.few_parameters_change, *halves, *ends).estimate.num_units == 2
    assert judge_weights(gradients.few_parameters_change, change(0, 4), change(0, 4)).verdict == "cannot_tell"


@pytest.mark.parametrize(
    ("overlaps", "verdict"),
    [((0.01, 0.02, 0.03), "supported"), ((0.08, 0.1, 0.11), "cannot_tell"), ((0.2, 0.22, 0.21), "contradicted")],
)
@pytest.mark.parametrize("judge", [gradients.avoids_principal_directions, gradients.inherits_singular_values])
def test_shares_are_held_against_those_of_random_changes(judge, overlaps: tuple[float, ...], verdict: str) -> None:
    judgement = judge_weights(judge, *(change(0, 4, overlap=overlap) for overlap in overlaps))
    assert judgement.verdict == verdict
    assert judgement.estimate.value == pytest.approx(sum(overlaps) / 3 - 0.1)
    assert "from 0 to 4 updates, with an interval over 3 weights: other weights, not other runs" in judgement.why


def test_without_initial_weights_nobody_can_tell() -> None:
    for judge in (
        gradients.few_parameters_change,
        gradients.avoids_principal_directions,
        gradients.inherits_singular_values,
    ):
        judgement = judge_weights(judge, change(0, 4), change(0, 4, changed=None))
        assert judgement.verdict == "cannot_tell"
        assert judgement.why == "The initial weights of fewer than two matrices are on disk."
        with pytest.raises(InputError, match="An update needs two checkpoints of one kind, and there are 0"):
            judge(Answered())
