"""Claims about rewards: both sides of each threshold, and how often they are wrong on made-up logs."""

from collections.abc import Callable
from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest
from msgspec.structs import replace

from gradscope.diagnostics.claims import outcomes
from gradscope.diagnostics.claims.evidence import Judgement
from gradscope.diagnostics.degeneracy.group_rewards import DegeneracyOptions
from gradscope.diagnostics.degeneracy.reward_functions import judged_groups
from gradscope.diagnostics.passk.comparison import compare_samples
from gradscope.diagnostics.rank.tokens import KindEnergy, TokenChange, WeighedTokens
from gradscope.errors import InputError
from gradscope.estimate import Estimate
from gradscope.metrics.gram.part_sums import ratio_over_groups
from gradscope.metrics.outcomes.degeneracy import estimate_rate_parts
from gradscope.metrics.outcomes.jensen_gap import estimate_gap_parts
from gradscope.metrics.sampler import UNDECIDED, UNLIKELY, TokenCell
from gradscope.metrics.uncertainty.intervals import Resampling
from gradscope.rollouts.run import Run
from tests.diagnostics.claims.made_up_evidence import Answered, between, with_gradients
from tests.diagnostics.made_up_runs import group_of, run_of, samples
from tests.diagnostics.rank.made_up_parts import made_up

FEW = Resampling(num_resamples=300)
RETURN, CURVE = outcomes.dead_groups_return, outcomes.all_fail_is_exponential
UNKNOWN = Estimate.undefined_because("the rewards are not binary")


def log(
    rate: Callable[[int, int], float], seed: int, *, steps: int = 12, a_step: int = 16, size: int = 4, new: bool = True
) -> Run:
    """New prompts at every step, or the same; the pass rate is a function of the step and of the place in it."""
    rng = np.random.default_rng(seed)
    cells = [(step, index) for step in range(1, steps + 1) for index in range(a_step)]
    rewards = ((rng.random(size) < rate(*cell)).astype(float).tolist() for cell in cells)
    names = (f"{step * new}-{index}" for step, index in cells)
    return run_of(
        *(group_of(row, step=step, prompt=name) for (step, _), row, name in zip(cells, rewards, names, strict=True))
    )


def numbers_of(run: Run) -> SimpleNamespace:
    """Of a report on degeneracy what claims look at, without the rest of it."""
    table = judged_groups(run)[1]
    overall = DegeneracyOptions(resampling=FEW).estimates([table])[0]
    between_prompts, over_time = estimate_gap_parts(table.draws, overall.jensen_gap, None)
    parts = SimpleNamespace(between_prompts=between_prompts, over_time=over_time)
    prompts, visits = estimate_rate_parts(table.step, table.prompt, table.size, table.num_passing, resampling=FEW)
    returns = SimpleNamespace(between_prompts=prompts, between_visits=visits)
    shares = ("frac_reward_zero_std", "frac_all_fail", "frac_all_pass", "iid_prediction", "jensen_gap", "pass_rate")
    numbers = {name: getattr(overall, name) for name in shares}
    return SimpleNamespace(gap_decomposition=parts, overdispersion=returns, **numbers)


def verdicts(judge: Callable[..., Judgement], reports: list[SimpleNamespace]) -> list[str]:
    return [judge(Answered(results={"degeneracy": report})).verdict for report in reports]


def by_degeneracy(judge: Callable[..., Judgement], **fields: object) -> Judgement:
    stays = SimpleNamespace(between_prompts=between(0.02, 0.03), between_visits=between(0.0, 0.01))
    return judge(Answered(results={"degeneracy": SimpleNamespace(**{"overdispersion": stays, **fields})}))


@pytest.mark.parametrize(
    ("ends", "verdict"),
    [
        ((0.0001, 0.2), "supported"),
        ((0.0, 0.2), "cannot_tell"),
        ((-0.1, 0.9 * outcomes.EXCESS), "contradicted"),
        ((0.0001, 0.9 * outcomes.EXCESS), "contradicted"),
    ],
)
def test_an_excess_is_above_zero_and_perhaps_a_point(ends: tuple[float, float], verdict: str) -> None:
    shares = {"frac_reward_zero_std": between(0.3, 0.5), "iid_prediction": between(0.1, 0.2)}
    judgement = by_degeneracy(outcomes.dead_beyond_prediction, jensen_gap=between(*ends), **shares)
    assert judgement.verdict == verdict
    words = "40.0 % [30.0 %, 50.0 %] of the groups are dead; one pass rate for all would give 15.0"
    assert judgement.why.startswith(words)


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [
        ((0.3, 0.5), (0.1, 0.29), "supported"),
        ((0.3, 0.5), (0.1, 0.3), "cannot_tell"),
        ((0.1, 0.3), (0.3, 0.5), "cannot_tell"),
        ((0.1, 0.29), (0.3, 0.5), "contradicted"),
    ],
)
def test_larger_needs_intervals_that_do_not_meet(first, second, verdict: str) -> None:
    shares = {"frac_all_fail": between(*first), "frac_all_pass": between(*second), "pass_rate": between(0.1, 0.2)}
    assert by_degeneracy(outcomes.dead_groups_are_failures, **shares).verdict == verdict
    parts = SimpleNamespace(between_prompts=between(*first), over_time=between(*second))
    sure, unsure = ({"jensen_gap": between(low, 0.4), "gap_decomposition": parts} for low in (0.1, 0.0))
    assert by_degeneracy(outcomes.excess_from_prompts, **sure).verdict == verdict
    assert by_degeneracy(outcomes.excess_from_prompts, **unsure).why == "It is not sure that there is an excess."
    exact = SimpleNamespace(between_prompts=between(0.1, 0.2), over_time=Estimate.exact(0.0))
    assert by_degeneracy(outcomes.excess_from_prompts, **sure | {"gap_decomposition": exact}).verdict == "cannot_tell"
    nothing = SimpleNamespace(between_prompts=between(-0.01, 0.02), over_time=between(-0.1, -0.05))
    assert by_degeneracy(outcomes.excess_from_prompts, **sure | {"gap_decomposition": nothing}).verdict == "cannot_tell"


@pytest.mark.parametrize(
    ("prompts", "visits", "verdict"),
    [
        (between(0.02, 0.03), between(0.0, 0.01), "supported"),
        (between(0.0, 0.03), between(0.0, 0.01), "cannot_tell"),
        (between(0.0, 0.01), between(0.02, 0.03), "contradicted"),
        (UNKNOWN, UNKNOWN, "cannot_tell"),
    ],
)
def test_what_is_of_the_visit_is_no_difficulty_of_prompts(prompts: Estimate, visits: Estimate, verdict: str) -> None:
    parts = SimpleNamespace(between_prompts=between(0.1, 0.2), over_time=between(0.0, 0.05))
    returns = SimpleNamespace(between_prompts=prompts, between_visits=visits)
    gap = {"jensen_gap": between(0.1, 0.4), "gap_decomposition": parts}
    judgement = by_degeneracy(outcomes.excess_from_prompts, **gap, overdispersion=returns)
    assert judgement.verdict == verdict
    assert ("no prompt returns" in judgement.why) == (prompts is UNKNOWN)


def test_rewards_that_are_not_binary_have_no_gap_and_no_kinds() -> None:
    fields = dict.fromkeys(("jensen_gap", "frac_all_pass", "pass_rate"), UNKNOWN)
    fields |= dict.fromkeys(("frac_reward_zero_std", "frac_all_fail"), between(0.1, 0.2))
    half = SimpleNamespace(between_prompts=between(0.1, 0.2), over_time=UNKNOWN)
    for judge in (outcomes.dead_beyond_prediction, outcomes.dead_groups_are_failures, outcomes.excess_from_prompts):
        judgement = by_degeneracy(judge, **fields, gap_decomposition=half)
        assert (judgement.verdict, judgement.why) == ("cannot_tell", "The rewards are not binary.")
    graded = run_of(*(group_of([0.2, 0.7, 0.5], step=step, prompt=prompt) for step in (1, 2) for prompt in "ab"))
    assert "success threshold" in outcomes.dead_beyond_prediction(Answered(run=graded)).why


def returns(num_dead_again: int, num_prompts: int = 40) -> Answered:
    """Half the prompts are dead at step 1; so many of them, and half of the others, are dead at step 2."""
    half = num_prompts // 2
    dead = [index < num_dead_again or half <= index < half + half // 2 for index in range(num_prompts)]
    first = [group_of([1.0, 1.0 - (index >= half)], step=1, prompt=f"p{index}") for index in range(num_prompts)]
    second = [group_of([1.0, float(is_dead)], step=2, prompt=f"p{index}") for index, is_dead in enumerate(dead)]
    return Answered(run=run_of(*first, *second))


@pytest.mark.parametrize(
    ("dead_again", "num_prompts", "verdict"),
    [(20, 40, "supported"), (10, 40, "cannot_tell"), (0, 40, "contradicted"), (500, 2000, "contradicted")],
)
def test_persistence_is_an_excess_over_the_returns_of_one_step(dead_again: int, num_prompts: int, verdict: str) -> None:
    judgement = outcomes.dead_groups_return(returns(dead_again, num_prompts))
    assert (judgement.verdict, judgement.null.value) == (verdict, 0.0)
    assert judgement.estimate.value == pytest.approx(dead_again / (num_prompts / 2) - 0.5)
    assert "50.0 %" in judgement.why
    assert f"over {num_prompts} returns" in judgement.why


def test_a_gain_that_is_gone_at_the_largest_budget_is_compression() -> None:
    """Four of five prompts are found by one sample in eight before, and by each one after; the others by none."""
    before = {f"p{index}": [float(index % 5 > 0)] * 8 + [0.0] * 56 for index in range(100)}
    after = samples("after", {name: [rewards[0]] * 64 for name, rewards in before.items()})
    comparison = compare_samples(samples("before", before), after, [1, 64, 128], resampling=FEW)
    judgement = outcomes.search_not_capacity(Answered(results={"held_out": SimpleNamespace(comparison=comparison)}))
    assert (judgement.verdict, judgement.null.value) == ("supported", 0.0)
    assert judgement.estimate.value == pytest.approx(0.0, abs=1e-3)
    assert judgement.why.startswith("A gain at the smallest budget")
    # expansion contradicts and the rest is open
    rows = [SimpleNamespace(k=k, difference=between(-0.1, 0.1) if k < 8 else UNKNOWN) for k in (1, 4, 8)]
    for verdict, expected in (("capacity expansion", "contradicted"), ("undecided", "cannot_tell")):
        comparison = SimpleNamespace(rows=rows, verdict=verdict, evidence="a gain and no more", verifier="it errs")
        judgement = outcomes.search_not_capacity(Answered(results={"held_out": SimpleNamespace(comparison=comparison)}))
        assert (judgement.verdict, judgement.estimate.interval) == (expected, (-0.1, 0.1))


@pytest.mark.parametrize("comparison", [None, SimpleNamespace(rows=[SimpleNamespace(difference=UNKNOWN)])])
def test_without_a_common_budget_reach_is_not_judged(comparison: object) -> None:
    judgement = outcomes.search_not_capacity(Answered(results={"held_out": SimpleNamespace(comparison=comparison)}))
    assert judgement.why == "No budget is within the samples of every prompt, before and after."


SEEDS = range(60)
LIMIT = 7  # 5 % of 60 is 3, with two and a half standard errors 7


def only_between(step: int, index: int) -> float:
    return 0.05 if index % 2 else 0.9


@pytest.mark.slow  # a simulation
@pytest.mark.parametrize("rate", [0.02, 0.3])
def test_one_pass_rate_for_all_has_no_excess_and_no_origin(rate: float) -> None:
    logs = [numbers_of(log(lambda step, index: rate, seed)) for seed in SEEDS]
    assert verdicts(outcomes.dead_beyond_prediction, logs).count("supported") <= LIMIT
    assert verdicts(outcomes.excess_from_prompts, logs).count("supported") <= LIMIT


@pytest.mark.slow  # a simulation
def test_prompts_of_unequal_difficulty_are_supported_and_never_contradicted() -> None:
    once = [numbers_of(log(only_between, seed)) for seed in SEEDS]
    assert set(verdicts(outcomes.dead_beyond_prediction, once)) == {"supported"}
    assert set(verdicts(outcomes.excess_from_prompts, once)) == {"cannot_tell"}
    origins = verdicts(outcomes.excess_from_prompts, [numbers_of(log(only_between, seed, new=False)) for seed in SEEDS])
    assert origins.count("contradicted") <= LIMIT
    assert origins.count("supported") > 30


@pytest.mark.parametrize(("rate", "verdict"), [((0.05, 0.2), "supported"), ((0.2, outcomes.HARD), "cannot_tell")])
def test_dead_groups_mostly_fail_on_hard_tasks_alone(rate: tuple[float, float], verdict: str) -> None:
    shares = {"frac_all_fail": between(0.5, 0.7), "frac_all_pass": between(0.0, 0.1), "pass_rate": between(*rate)}
    judgement = by_degeneracy(outcomes.dead_groups_are_failures, **shares)
    assert judgement.verdict == verdict
    assert (verdict == "supported") == ("said of hard tasks" not in judgement.why)


def barrier(rate: Callable[[int, int], float], seed: int, *, size: int = 8) -> Judgement:
    run = log(rate, seed, steps=8, a_step=40, size=size)
    return outcomes.all_fail_is_exponential(Answered(run=run, resampling=FEW))


def test_one_rate_makes_a_power_and_prompts_that_differ_do_not() -> None:
    equal = barrier(lambda step, index: 0.3, 0)
    assert (equal.verdict, equal.estimate.side_of_zero) == ("supported", 0)
    # (1 + .7 + .343 ...) by hand: .7, .7^4 and .7^7; a line would have the mean of the ends
    assert equal.null.value == pytest.approx((0.7 + 0.7**7) / 2 - 0.7**4, abs=0.03)
    differ = barrier(lambda step, index: 0.02 if index % 2 else 0.6, 0)
    assert differ.verdict == "contradicted"
    # half at .98, half at .4
    q = [(0.98**n + 0.4**n) / 2 for n in (1, 4, 7)]
    assert differ.estimate.value == pytest.approx(q[1] - (q[0] * q[2]) ** 0.5, abs=0.03)
    assert differ.estimate.ends[1] < -outcomes.SAME_SHARE
    assert all(f"at N = {size}" in differ.why for size in (1, 4, 7))


def test_the_curve_is_that_of_all_draws_from_a_group() -> None:
    """C(n - c, N) / C(n, N), by counting the draws themselves."""
    run = run_of(*(group_of(rewards, prompt=f"p{i}") for i, rewards in enumerate([[0, 0, 0, 1], [0, 1, 0, 1]] * 4)))
    draws = {n: np.mean([not any(d) for g in run.groups for d in combinations(g.rewards, n)]) for n in (1, 2, 3)}
    judged = outcomes.all_fail_is_exponential(Answered(run=run, resampling=FEW))
    assert judged.estimate.value == pytest.approx(draws[2] - (draws[1] * draws[3]) ** 0.5)
    run = run_of(group_of([0.1, 0.7, 0.3], prompt="a"), group_of([0.2, 0.5, 0.3], prompt="b"))
    assert outcomes.all_fail_is_exponential(Answered(run=run)).why == "No success threshold is known."


@pytest.mark.parametrize(
    ("judge", "run", "words"),
    [
        (RETURN, returns(4, 8).run, "Fewer than 10 prompts return"),
        (RETURN, log(lambda *_: 0.3, 0, steps=2), "No prompt comes back."),
        (RETURN, log(lambda *_: 0.5, 1, steps=2, a_step=5, size=64, new=False), "No step has returns"),
        (CURVE, log(lambda *_: 0.02, 1, steps=8, a_step=40, size=4), "A power and a line are nearly one over these N"),
        (CURVE, log(lambda *_: 0.5, 1, size=2), "A curve needs groups of 3 or more, the smallest has 2"),
        (CURVE, log(lambda *_: 0.5, 1, steps=40, a_step=8, size=8, new=False), "All-fail groups 49.0 %"),
    ],
)
def test_what_cannot_be_judged_says_why(judge: Callable[..., Judgement], run: Run, words: str) -> None:
    judgement = judge(Answered(run=run, resampling=FEW))
    assert judgement.verdict == "cannot_tell"
    assert judgement.why.startswith(words)


def judged(judge, weighed: dict[int, WeighedTokens], changes: dict[int, TokenChange]) -> Judgement:
    followed = {step: (weighed[step].tokens, change) for step, change in changes.items()}
    return judge(Answered(results={"followed_tokens": followed, "weighed_tokens": weighed}))


def with_advantages(sign: float, seed: int = 0) -> WeighedTokens:
    """Tokens whose advantages go with their log-probabilities, against them, or with neither."""
    weighed, rng = made_up(seed, num_groups=8).weighed, np.random.default_rng(seed)
    advantages = sign * np.sign(weighed.tokens.logprobs - np.median(weighed.tokens.logprobs))
    advantages = advantages if sign else rng.choice([-1.0, 1.0], len(advantages))
    return replace(weighed, tokens=replace(weighed.tokens, advantages=advantages))


@pytest.mark.parametrize(("sign", "verdict"), [(1.0, "supported"), (0.0, "cannot_tell"), (-1.0, "contradicted")])
def test_likely_tokens_are_rewarded_where_both_vary_together(sign: float, verdict: str) -> None:
    steps = {step: with_advantages(sign, seed=step) for step in (1, 6)}
    judgement = judged(outcomes.likely_are_rewarded, steps, {})
    assert (judgement.verdict, judgement.null.value, judgement.steps) == (verdict, 0.0, (1, 6))
    parts = [np.cov(step.tokens.logprobs, step.tokens.advantages, bias=True)[0, 1] for step in steps.values()]
    assert judgement.estimate.value == pytest.approx(np.mean(parts))  # steps of as many tokens
    assert judgement.why == "Over 288 tokens of 16 groups, each beside the means of its own step."


def later(weighed: WeighedTokens, change: float, seed: int = 0) -> TokenChange:
    noise = np.random.default_rng(seed).normal(size=len(weighed.tokens.groups))
    return TokenChange(first=4, last=9, logprobs=np.zeros(len(noise)), entropies=change + 0.1 * noise)


@pytest.mark.parametrize(
    ("sign", "change", "verdict"),
    [
        (1.0, -0.5, "supported"),
        (-1.0, 0.5, "supported"),
        (1.0, 0.5, "contradicted"),
        (0.0, 0.5, "cannot_tell"),
        (1.0, 0.0, "cannot_tell"),
    ],
)
def test_the_entropy_falls_where_likely_tokens_are_rewarded(sign: float, change: float, verdict: str) -> None:
    """The change is that of the weights on disk: no gradient, and no optimizer's step, is looked at."""
    weighed, changes = {}, {}
    for step, seed in ((5, 1), (10, 6)):
        tokens = with_advantages(sign, seed=seed)
        weighed[step] = replace(tokens, products=np.zeros_like(tokens.products))
        changes[step] = later(tokens, change, seed=step)
    judgement = judged(outcomes.changes_as_predicted, weighed, changes)
    assert (judgement.verdict, judgement.null.value, judgement.steps) == (verdict, 0.0, (5, 10))
    assert judgement.estimate.value == pytest.approx(np.mean([change.entropies.mean() for change in changes.values()]))
    assert "which are 2 of the 10 between the checkpoints" in judgement.why


def test_steps_without_later_weights_are_left_out() -> None:
    weighed = {5: with_advantages(1.0), 10: with_advantages(-1.0)}
    judgement = judged(outcomes.changes_as_predicted, weighed, {5: later(weighed[5], -0.5)})
    assert (judgement.verdict, judgement.steps) == ("supported", (5,))
    assert judged(outcomes.likely_are_rewarded, {}, {}).why == f"{outcomes.NO_TOKENS}."
    for judge in (outcomes.likely_are_rewarded, outcomes.changes_as_predicted, outcomes.moves_with_advantage):
        with pytest.raises(InputError, match="nobody asked"):
            judge(Answered(no_gradients="nobody asked"))


def energy_of(shares: list[float], *, step: int = 1, kind: TokenCell = UNDECIDED, scale: float = 1.0) -> KindEnergy:
    """Groups of energies 1, 2, ... of which the kind has these shares, and a fifth of ten tokens each."""
    energy = scale * np.arange(1.0, len(shares) + 1)
    return KindEnergy(
        step=step,
        kind=kind,
        tokens=np.full(len(shares), 2.0),
        all_tokens=np.full(len(shares), 10.0),
        energy=energy * shares,
        all_energy=energy,
    )


def judge_tokens(*energies: KindEnergy, kind: TokenCell = UNDECIDED) -> Judgement:
    return outcomes.has_most_energy(kind, with_gradients("token", energies=list(energies)))


@pytest.mark.parametrize(
    ("shares", "verdict"),
    [
        ([0.52, 0.53, 0.51, 0.52], "supported"),
        ([0.3, 0.9, 0.5, 0.6], "cannot_tell"),
        ([0.48, 0.47, 0.49, 0.48], "contradicted"),
        ([0.9, 0.9], "cannot_tell"),
    ],
)
def test_most_is_half_of_the_energy(shares: list[float], verdict: str) -> None:
    judgement = judge_tokens(energy_of(shares), energy_of([0.0] * len(shares), kind=UNLIKELY))
    assert judgement.verdict == verdict
    weights = np.arange(1.0, len(shares) + 1)
    assert judgement.estimate == ratio_over_groups(weights * shares, weights)
    assert judgement.null.value == pytest.approx(0.2)
    assert judgement.steps == (1,)


def test_groups_of_all_steps_count_by_their_energy_where_the_kind_has_any() -> None:
    judgement = judge_tokens(energy_of([0.9] * 3), energy_of([0.1, 0.11, 0.12], step=6, scale=100.0))
    assert judgement.verdict == "contradicted"
    assert judgement.estimate.num_units == 6
    assert judgement.steps == (1, 6)
    assert judgement.why.startswith("Such tokens are 20.0 % of those with an advantage, in 6 groups at 2 steps;")
    zero = judge_tokens(energy_of([0.0] * 4, kind=UNLIKELY), kind=UNLIKELY)
    assert (zero.verdict, zero.estimate.value) == ("cannot_tell", 0.0)
    assert zero.why == "No token of probability below 0.25 has a gradient."
    assert judge_tokens().why == "No step has a gradient and a logged advantage of every token."
    with pytest.raises(InputError, match="nobody asked"):
        outcomes.has_most_energy(UNDECIDED, Answered(no_gradients="nobody asked"))


def moved(slope: float, *, seed: int = 0, signs: bool = True) -> Judgement:
    """Two steps whose tokens moved by as much as their advantage, plus noise."""
    rng, weighed, changes = np.random.default_rng(seed), {}, {}
    for step in (1, 6):
        drawn = made_up(step, num_groups=8).weighed
        advantages = rng.choice([-1.0, 1.0], len(drawn.tokens.groups)) if signs else np.ones(len(drawn.tokens.groups))
        weighed[step] = replace(drawn, tokens=replace(drawn.tokens, advantages=advantages))
        logprobs = slope * advantages + 0.1 * drawn.tokens.logprobs + 0.1 * rng.normal(size=len(advantages))
        changes[step] = TokenChange(first=step - 1, last=step + 4, logprobs=logprobs, entropies=0.0 * logprobs)
    return judged(outcomes.moves_with_advantage, weighed, changes)


@pytest.mark.parametrize(("slope", "verdict"), [(0.2, "supported"), (0.0, "cannot_tell"), (-0.2, "contradicted")])
def test_tokens_move_as_asked_where_like_ones_part_by_their_advantage(slope: float, verdict: str) -> None:
    judgement = moved(slope)
    assert (judgement.verdict, judgement.null.value, judgement.steps) == (verdict, 0.0, (1, 6))
    assert judgement.estimate.value == pytest.approx(2 * slope, abs=0.03)
    assert "over 288 tokens of 16 groups; updates on other prompts lie between the two" in judgement.why


def test_where_no_tokens_can_be_compared_nobody_can_tell() -> None:
    assert moved(0.2, signs=False).why == "No tokens of positive and of negative advantage are of like probability."
