import math
import re

import numpy as np
import pytest
from msgspec.structs import replace

from gradscope.estimate import Estimate
from gradscope.findings import logged
from gradscope.results.logged import MetricCourse
from gradscope.results.norms import LogprobDifference, StepReplay
from tests.metrics.uncertainty.test_steps import persistent
from tests.render.examples import replay_report

STEPS = replay_report().steps


def step(index: int, *, frac_beyond: float, largest: float) -> StepReplay:
    difference = LogprobDifference(num_tokens=1500, mean=0.01, max=largest, frac_beyond=frac_beyond, bound=0.1)
    return replace(STEPS[index], logprob_difference=difference)


def test_small_differences_are_of_these_weights() -> None:
    (sentence,) = logged.logprob_findings(
        [step(0, frac_beyond=0.0, largest=2e-5), step(1, frac_beyond=0.0, largest=5e-5)]
    )
    assert sentence.endswith("are those of these weights: the largest difference of a token is 5e-05 at 2 steps.")
    (sentence,) = logged.logprob_findings([step(0, frac_beyond=0.0, largest=0.02)])
    assert "are near those of these weights: the largest difference of a token is 0.02 at 1 step, more than" in sentence


def test_the_step_with_most_tokens_beyond_the_bound_is_named() -> None:
    steps = [step(0, frac_beyond=0.01, largest=9.0), step(4, frac_beyond=0.25, largest=2.0)]
    assert logged.logprob_findings(steps) == (
        "At step 5 the sampler's logged log-probabilities differ from these weights' by more than 0.1 at 25.0 % of "
        "1,500 tokens (mean 0.01, largest 2): other weights, another temperature or other kernels sampled them.",
    )
    # without logged probabilities nothing is said
    assert logged.logprob_findings(STEPS) == ()


def series(name: str, *values: float) -> MetricCourse:
    finite = [value for value in values if math.isfinite(value)]
    mean = Estimate.undefined_because("NaN")
    if len(finite) == len(values):
        mean = Estimate.exact(sum(values) / len(values))
    return MetricCourse(
        name=name,
        title=name,
        style="share",
        mean=mean,
        largest_step=10 * (values.index(max(finite or values)) + 1),
        smallest_step=10 * (values.index(min(finite or values)) + 1),
        steps=tuple(10 * (index + 1) for index in range(len(values))),
        values=values,
    )


@pytest.mark.slow
def test_a_held_out_score_that_falls_is_told_and_one_that_wavers_is_not() -> None:
    falls = [0.5 + 0.01 * (index % 2) - 0.02 * max(index - 4, 0) for index in range(15)]
    wavers = [0.5 + 0.03 * (index % 3) for index in range(15)]
    held, level = series("val/acc", *falls), series("val-core/pass@1", *wavers)
    assert logged.lost_sentence([level]) == ""
    assert logged.lost_sentence([held]) == (
        "val/acc falls: 0.503 at steps 10 to 30, 0.443 at steps 70 to 90, 0.323 at steps 130 to 150."
    )
    scores = [held, *(replace(held, name=name) for name in "abcd"), level]
    assert logged.lost_sentence(scores).endswith("; likewise a, b and 2 more.")
    assert logged.metric_findings([series("reward", *falls[::-1])], verdicts=[held])[1].startswith(
        "val/acc falls while the mean reward rises: "
    )
    rng = np.random.default_rng(0)
    wander = [series("val/acc", *persistent(rng, 60, 0.8)) for _ in range(100)]
    assert sum(logged.lost_sentence([series]) != "" for series in wander) <= 8, "26 by the noise of neighbors alone"


def level_sentences_of(metrics: list[MetricCourse]) -> tuple[list[str], list[str]]:
    return list(logged.reward_level_sentences(metrics)), list(logged.level_sentences(metrics))


def test_a_reward_that_never_changes_and_a_spread_that_vanishes_are_told_without_the_share_of_dead_groups() -> None:
    constant, spread = series("reward", *[0.5] * 20), series("reward_std", *(0.4 * 0.7**step for step in range(20)))
    (stays,), (falls,) = level_sentences_of([constant, spread])
    assert stays.startswith("The mean reward is logged as 0.5 at all 20 steps: ")
    assert falls.startswith("The reward_std falls from 0.4, its median up to step 10, to 0.000")
    assert len(list(logged.level_sentences([spread, series("frac_reward_zero_std", *[0.5] * 20)]))) == 0
    assert not list(logged.level_sentences([replace(spread, values=spread.values[::-1]), series("reward", *[0.5] * 9)]))


@pytest.mark.parametrize(
    ("steps", "gaps"),
    [
        ([*range(1, 21), *range(41, 61)], "steps 21 to 40"),
        ([*range(0, 200, 10), *range(400, 600, 10)], "steps 191 to 399"),
        ([*range(1, 21), *range(29, 61)], ""),  # as where a few were lost
        ([step * step for step in range(40)], ""),
        ([1, *range(50, 60)], ""),  # few
    ],
)
def test_a_gap_in_even_steps_is_named(steps: list[int], gaps: str) -> None:
    assert logged.gap_sentence(steps) == (f"Nothing was logged at {gaps}." if gaps else "")


@pytest.mark.parametrize("name", ["reward", "loss"])
@pytest.mark.parametrize(("value", "is_told"), [(1000.0, True), (-1000.0, True), (1.2, False), (math.inf, False)])
def test_a_reward_or_loss_of_another_order_is_named(name: str, value: float, is_told: bool) -> None:
    numbers = [0.5 + 0.05 * (index % 5) for index in range(30)]
    sentences = level_sentences_of([series(name, *numbers[:7], value, *numbers[8:])])[name == "loss"]
    assert sentences == [f"The {name} is {value:.4g} at step 80, far from its median of 0.6."] * is_told
    assert level_sentences_of([series(name, value, *numbers)]) == ([], [])  # as before anything was learned
    saturating = [0.95 - 0.5 * 0.8**index + 0.001 * (index % 2) for index in range(60)]
    assert level_sentences_of([series("reward", *saturating)]) == ([], [])


DEAD = "of a step's groups gave no gradient, by the trainer's log of"


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ((0.5, 0.7), f"60.0 % {DEAD} 2 logged steps."),
        ((1.0, 1.0), f"100.0 % {DEAD} 2 logged steps; at 2 of them every group."),
        ((0.0,), f"0.0 % {DEAD} the one logged step."),
        ((math.nan, 0.5), "How many groups gave no gradient is not known: NaN."),
    ],
)
def test_dead_groups(values: tuple[float, ...], sentence: str) -> None:
    assert logged.dead_sentence([series("frac_reward_zero_std", *values)]) == sentence
    assert logged.dead_sentence([]).startswith("These metrics do not tell")


@pytest.mark.parametrize(
    ("metrics", "end"),
    [
        ({"reward": (0.9, 0.9)}, " If rewards are 0 and 1, 70.0 % or more of groups all pass."),
        ({"reward": (0.2, 0.0)}, " If rewards are 0 and 1, 70.0 % or more of groups all fail."),
        ({"reward": (1.0, 1.0)}, " If rewards are 0 and 1, 80.0 % of groups all pass."),
        ({"reward": (0.5, 0.5)}, " logged steps."),
        ({"reward": (0.9, 1.1)}, " logged steps."),
        ({"reward": (0.9,)}, " logged steps."),
        ({"reward": (0.9, 0.9), "reward_std": (0.05, 0.011)}, " logged steps."),
        ({"reward": (1.0, 1.0), "reward_std": (0.05, 0.013)}, " If rewards are 0 and 1, 80.0 % of groups all pass."),
        (
            {"reward": (0.5, 0.5), "frac_all_pass": (0.7, 0.7), "frac_all_fail": (0.1, 0.1)},
            " 70.0 % of groups all pass.",
        ),
    ],
)
def test_what_dead_groups_do_follows_from_the_mean_reward(metrics: dict[str, tuple[float, ...]], end: str) -> None:
    """At a share of dead groups d and a pass rate m, d - (1 - m) or more all pass, and d - m or more all fail."""
    logged_metrics = [series(name, *values) for name, values in {"frac_reward_zero_std": (0.8, 0.8), **metrics}.items()]
    assert logged.dead_sentence(logged_metrics).endswith(end)


@pytest.mark.parametrize(
    ("metrics", "share", "start"),
    [
        (
            {"reward_std": (0.0, 0.0), "reward": (0.5, 0.5)},
            1.0,
            "At each of 2 logged steps the spread of rewards is 0:",
        ),
        ({"reward_std": (0.0, 0.2), "reward": (0.0, 1.0)}, 0.5, "At 1 of 2 logged steps the spread of rewards is 0:"),
        ({"reward": (0.0, 1.0, 0.5, 0.2)}, 0.5, "At 2 of 4 logged steps the mean reward is exactly 0 or 1: if rewards"),
        ({"reward": (0.0, 2.0)}, 0.0, ""),
        ({"reward": (0.0, -1.0)}, 0.0, ""),
        ({"reward": (0.0,) * 10}, 1.0, "At each of 10 logged steps the mean reward is exactly 0 or 1:"),
        ({"reward": (0.0,) * 10, "grad_norm": (0.0, 0.1) * 5}, 0.0, ""),  # which nobody filled in
        ({"reward_std": (0.1, math.nan)}, 0.0, ""),
    ],
)
def test_steps_at_which_rewards_do_not_vary_have_no_gradient(
    metrics: dict[str, tuple[float, ...]], share: float, start: str
) -> None:
    logged_metrics = [series(name, *values) for name, values in metrics.items()]
    assert logged.dead_steps(logged_metrics)[0] == share
    assert logged.dead_steps(logged_metrics)[1].startswith(start)
    assert ("do not tell how many" in logged.dead_sentence(logged_metrics)) == (share < 1.0)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ((1.0, 1.0), "Every completion was cut off at the length limit, at each of 2 logged steps."),
        ((0.1, 0.3), "20.0 % of completions were cut off at the length limit (at most 30.0 %, at step 20)."),
        ((0.2, 0.2), "20.0 % of completions were cut off at the length limit."),
        ((0.1, 0.1), ""),
        (
            (0.01,) * 8 + (0.2, 0.3),
            "5.8 % of completions were cut off at the length limit, 25.0 % in the last fifth of steps "
            "(at most 30.0 %, at step 100).",
        ),
        ((0.08,) * 8 + (0.12, 0.14), ""),
        ((math.nan, 1.0), ""),
    ],
)
def test_completions_that_were_cut_off(values: tuple[float, ...], sentence: str) -> None:
    assert logged.clipped_sentence([series("completions/clipped_ratio", *values)]) == sentence
    assert logged.clipped_sentence([]) == ""


@pytest.mark.parametrize(
    ("levels", "spread", "goes"),
    [
        ((0.3, 0.6), 0.4, "rises"),
        ((0.5, 0.505), 0.4, "hardly rises"),
        ((0.5, 0.505), 0.01, "rises"),  # beside such a spread it is no small rise
        ((0.5, 0.505), None, "rises"),
        ((0.97, 0.98), 0.4, "rises"),  # no room for more
        ((5.0, 5.01), 0.4, "hardly rises"),
        ((0.5, 0.5), 0.4, "is"),
        ((0.6, 0.3), 0.4, "falls"),
        ((0.3, 0.6, 0.6, 0.6), 0.4, "stalls"),
        ((0.3, 0.6, 0.6, 0.6), None, "stalls"),
        ((0.3, 0.98, 0.98, 0.98), None, "rises"),  # solved
        ((0.3, 0.5, 0.6, 0.65), 0.4, "rises"),
        ((0.3, 0.9, 0.9, 0.9), 0.4, "rises"),  # solved
        ((0.4, 0.6, 0.6, 0.52), 0.2, "falls"),
        ((0.2, 0.7, 0.82, 0.83), 0.3, "rises"),  # good from 0.8 on
        ((-0.8, 0.6, 0.7, 0.7), 0.9, "rises"),  # of rewards from -1 on
        ((0.5, 2.3, 2.4, 2.4), 0.9, "levels off"),  # whose highest is not known
        ((0.3, 0.36, 0.42, 0.48), 0.4, "rises"),  # no slower than before
    ],
)
def test_where_a_logged_reward_goes(levels: tuple[float, ...], spread: float | None, goes: str) -> None:
    noise = np.random.default_rng(0).normal(scale=1e-3 * (levels[0] != levels[1]), size=100)
    values = np.interp(np.linspace(0.0, len(levels) - 1.0, 100), range(len(levels)), levels) + noise
    metrics = [series("reward", *values.tolist())]
    metrics += [] if spread is None else [series("reward_std", *[spread] * 100)]
    assert logged.reward_direction(metrics) == goes
    if levels[0] != levels[1]:
        assert logged.reward_sentence(metrics).startswith(f"The mean reward {goes}: ")


def test_a_reward_that_is_left_open_has_its_interval() -> None:
    noise = np.random.default_rng(0).normal(scale=0.05, size=100)
    sentence = logged.reward_sentence([series("reward", *(0.3 + noise).tolist())])
    interval = re.search(
        r": from the first to the last it changes by \S+ \[-0.0\d+, \+0.0\d+\], which leaves open", sentence
    )
    assert interval is not None, sentence


def test_a_reward_that_levels_off_rises_and_one_that_wanders_does_not() -> None:
    """The line through such a curve is left open by its trend, which allows for drifts."""
    noise = np.random.default_rng(0).normal(scale=0.1, size=200)
    levels_off = 0.8 * (1 - np.exp(-np.arange(200) / 10)) + noise
    assert logged.reward_direction([series("reward", *levels_off.tolist())]) == "rises"
    wanders = [series("reward", *np.convolve(noise, 0.8 ** np.arange(30))[:200].tolist()), series("loss", 0.1)]
    assert logged.reward_direction(wanders) == "is"


@pytest.mark.parametrize("num_steps", [10, 12, 19, 20])
def test_a_fall_of_a_few_steps_is_no_rise(num_steps: int) -> None:
    noise = np.random.default_rng(num_steps).normal(scale=0.02, size=num_steps)
    metrics = [series("reward", *(np.linspace(0.7, 0.2, num_steps) + noise).tolist())]
    assert logged.reward_direction(metrics) == "falls"
    beside_spread = logged.reward_direction([*metrics, series("reward_std", *[4.0] * num_steps)])
    assert beside_spread == "is"  # which is little


@pytest.mark.parametrize(("num_late", "falls"), [(0, False), (2, False), (5, True), (10, True)])
def test_a_collapse_just_before_the_end_is_no_rise(num_late: int, falls: bool) -> None:
    """The last fifth of 100 steps lay above the first, and "rises" was all that was said."""
    values = np.linspace(0.3, 0.8, 100) + np.random.default_rng(0).normal(scale=0.03, size=100)
    values[100 - num_late :] -= 0.4
    reward = [series("reward", *values.tolist())]
    assert logged.reward_direction(reward) == ("falls" if falls else "rises")
    drops = f"; it drops at step {10 * (101 - num_late)} from 0.752 to 0.3"
    assert (drops in logged.reward_sentence(reward)) == falls


@pytest.mark.parametrize(
    ("late", "numbers"), [((0.4, 0.2, 0.1), {19, 20}), ((0.7, 0.2, 0.1), {0}), ((0.2, 0.1, 0.7), {0})]
)
def test_a_collapse_of_the_last_three_steps_is_a_fall(late: tuple[float, ...], numbers: set[int]) -> None:
    """A published run was stopped at .08 after .77, and where it goes was left open."""
    steady = [np.random.default_rng(seed).normal(0.7, scale=0.05, size=70).tolist() for seed in range(20)]
    sentences = [logged.reward_sentence([series("reward", *values, *late)]) for values in steady]
    drops = re.compile(r"falls: .*; it drops at step 710 from 0\.[67]\d*, to 0\.1 at the last, 730\.")
    assert sum(drops.search(sentence) is not None for sentence in sentences) in numbers


@pytest.mark.slow
@pytest.mark.parametrize("fraction", [0.3, 0.5, 0.7, 0.9])
def test_a_cliff_anywhere_is_a_fall_and_a_dip_is_none(fraction: float) -> None:
    """At 70 % of a run it left residuals about a cubic so large that the fall was within its error."""
    rng, steps = np.random.default_rng(0), np.arange(100)
    for _ in range(20):
        grows = 0.2 + 0.5 * (1 - np.exp(-0.03 * steps)) + rng.normal(scale=0.04, size=100)
        fallen = [series("reward", *np.where(steps < 100 * fraction, grows, grows - 0.5).tolist())]
        assert logged.reward_direction(fallen) == "falls"
        assert f"it drops at step {1000 * fraction + 10:.0f} " in logged.reward_sentence(fallen)
        dips = [series("reward", *np.where(abs(steps - 40) > 5, grows, grows - 0.5).tolist())]
        assert logged.reward_direction(dips) != "falls"


@pytest.mark.parametrize("num_steps", [100, 250, 600])
def test_a_slow_fall_is_told_at_the_end_and_as_a_dip_where_it_comes_back(num_steps: int) -> None:
    """78 % of dips over 20 to 100 steps were told by nobody, and 36 % of late falls were left open."""
    rng, steps = np.random.default_rng(num_steps), np.arange(num_steps)
    spread = series("reward_std", *[0.45] * num_steps)
    for _ in range(5):
        learns = 0.75 - 0.3 * np.exp(-10 * steps / num_steps) + rng.normal(scale=0.06, size=num_steps)
        away = np.interp(steps / num_steps, [0.3, 0.45, 0.55, 0.7], [0.0, 0.35, 0.35, 0.0])
        dips = [series("reward", *(learns - away).tolist()), spread]
        assert re.search(r"fell and came back: 0.7\d* at steps .*, 0.[34]\d* at steps ", logged.dip_sentence(dips))
        assert logged.reward_direction(dips) != "falls"
        late = learns - 0.4 * np.clip((steps - num_steps + 30) / 30, 0.0, 1.0)
        falls = [series("reward", *late.tolist()), spread]
        assert logged.reward_direction(falls) == "falls"
        assert logged.falls_far(falls) or num_steps == 600  # by .2 over the last twentieth of its steps
        assert logged.dip_sentence([series("reward", *learns.tolist()), spread]) == ""
    # its end is told apart where most of the fall lies there
    assert logged.reward_sentence(falls).count(" at steps ") == 3 + (num_steps == 250)


@pytest.mark.parametrize(("moving", "same", "step"), [(20, 10, 210), (90, 20, None), (20, 9, None), (95, 25, 960)])
def test_a_reward_that_stays_the_same_to_the_end(moving: int, same: int, step: int | None) -> None:
    metrics = [series("reward", *np.linspace(0, 1, moving), *[-5.0] * same)]
    stays = [sentence for sentence in logged.reward_level_sentences(metrics) if "stays" in sentence]
    last = 10 * (moving + same)
    assert stays == ([] if step is None else [f"The mean reward stays at -5 from step {step} to the last, {last}."])


def test_rewards_and_what_is_no_number() -> None:
    metrics = [series("reward", 0.25, 0.5), series("kl", 0.1, math.nan, math.inf)]
    assert (
        logged.reward_sentence(metrics)
        == "The mean reward was 0.25 at step 10 and 0.5 at step 20: too few steps to tell where it goes."
    )
    assert logged.reward_sentence(metrics[1:]) == logged.reward_sentence([series("reward", 0.5)]) == ""
    assert list(logged.broken_sentences(metrics)) == ["kl is NaN at step 20, and at 1 step more."]
    assert logged.metric_named(metrics, "kl") is metrics[1]
    assert [sentence.split()[0] for sentence in logged.metric_findings(metrics)] == ["These", "kl", "The"]


def test_metrics_that_end_on_another_level_are_told() -> None:
    """An entropy that fell from 0.68 to 0.018 in a log of metrics alone was told by nobody."""
    steady, late = [1.0] * 44, [*[5.0] * 15, 5.01]
    metrics = [series(name, *steady, *late) for name in ("kl", "entropy", "reward", "completions/mean_length")]
    assert [sentence.split()[:3] for sentence in logged.level_sentences(metrics)] == [
        ["The", name, "rises"] for name in ("entropy", "completions/mean_length")
    ]
    fallen = [series(name, *late, *late, *late, *steady[1:12], 1.01) for name in ("kl", "entropy", "reward")]
    _, reward, entropy = logged.metric_findings(fallen)  # what does not rise before other levels
    assert (
        reward == "The mean reward falls: 5 at steps 10 to 120, 5 at steps 250 to 360, 1 at steps 490 to 600; "
        "it drops at step 490 from 5 to 1 (medians of 5 steps)."
    )
    assert entropy.startswith("The entropy falls from 5, its median up to step 30, to 1 at")
    assert "falls" not in logged.reward_sentence([series("reward", *[0.5, 0.3] * 30)])
    rising = [series("reward", *(step / 100 for step in range(60))), fallen[1]]
    assert logged.metric_findings(rising)[1] == entropy  # and a reward that rises behind them
    early = series("entropy", *(0.02 + 0.58 * math.exp(-step / 3) for step in range(60)))
    assert next(logged.level_sentences([early])).startswith(
        "The entropy falls from 0.436, its median up to step 30, to"
    )


def test_a_share_of_dead_groups_that_moves_and_one_that_is_none_are_told() -> None:
    moved = logged.dead_sentence([series("frac_reward_zero_std", *(step / 10 for step in range(10)))])
    assert moved.endswith("of 10 logged steps, from 5.0 % in the first fifth of them to 85.0 % in the last.")
    reason = Estimate.undefined_because("the trainer logged a number that is no share at step 10")
    unknown = replace(series("frac_reward_zero_std", math.nan, math.nan), mean=reason)
    assert list(logged.broken_sentences([unknown])) == [
        "frac_reward_zero_std is no share at step 10, and at 1 step more."
    ]
    assert logged.reward_sentence([series("reward", *[0.5, 0.2, 0.4, 0.6, 0.1] * 2)]) == (
        "The mean reward was 0.35 at steps 10 to 20, 0.3 at steps 50 to 60, 0.35 at steps 90 to 100: "
        "too few steps to tell where it goes."
    )
