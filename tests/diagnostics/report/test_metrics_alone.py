"""What a log of metrics alone answers."""

import math

import numpy as np
import pytest
from msgspec.structs import replace

from gradscope.diagnostics.report.metrics_alone import dead_section, report_of_metrics
from gradscope.diagnostics.report.sections.agreement import agreement_as_logged
from gradscope.results.report import ReportSection
from gradscope.rollouts.run import Run
from tests.diagnostics.made_up_runs import run_of


def metrics_alone(**series: tuple[float, ...]) -> Run:
    num_steps = max(map(len, series.values()))
    metrics = {
        step + 1: {name.replace("__", "/"): values[step] for name, values in series.items() if step < len(values)}
        for step in range(num_steps)
    }
    run = run_of(metrics=metrics)
    return replace(
        run, source=replace(run.source, kind="metrics", missing=("No mean reward.", "Metrics alone: log rollouts."))
    )


def sections_of(run: Run) -> dict[str, ReportSection]:
    return {section.name: section for section in report_of_metrics(run, "a run", agreement_as_logged(run)).sections}


NORMS = (*(0.1, 0.12, 0.11) * 4, 9.0)


def test_a_page_has_a_section_a_question_and_its_numbers_on_top() -> None:
    run = metrics_alone(
        frac_reward_zero_std=(1.0, 0.9), completions__clipped_ratio=(1.0, 1.0), grad_norm=NORMS, reward=(0.1, 0.2)
    )
    report, sections = report_of_metrics(run, "a run"), sections_of(run)
    assert list(sections) == ["reward", "norm", "signal", "generation", "rollouts"]
    assert [entry.severity for entry in sections.values()] == ["unknown", "look", "problem", "problem", "unknown"]
    assert sections["rollouts"].missing == "Metrics alone: log rollouts."
    assert sections["norm"].findings[0].startswith("Step 13 stands out: grad_norm 9, 81.8 times the 0.11 of the 11")
    assert sections["norm"].findings[1] == "The largest gradient norm is 9, at step 13."
    assert [entry.title for entry in report.strip] == ["no gradient", "mean reward", "cut off", "gradient norm"]
    assert tuple(report.strip[3].course) == NORMS
    with_kl = metrics_alone(frac_reward_zero_std=(1.0, 0.9), reward=(0.1, 0.2), kl=(0.1, 0.1))
    assert [row[0] for row in sections_of(with_kl)["courses"].tables[0].rows] == [
        "frac_reward_zero_std",
        "reward",
        "kl",
    ]
    assert (report.recomputed, report.rollouts, report.name) == ((), (), "a run")


@pytest.mark.parametrize(
    ("shares", "of_tokens"),
    [
        ((0.7, 0.7), "70.0 % of tokens was beyond the clip"),
        ((0.0,) * 16 + (0.9,) * 4, "18.0 % of tokens was beyond the clip, 90.0 % in the last fifth of steps"),
        ((0.3, 0.3), ""),
    ],
)
def test_tokens_beyond_the_clip_are_told_where_they_are_most(shares: tuple[float, ...], of_tokens: str) -> None:
    section = sections_of(metrics_alone(clip_ratio__region_mean=shares, entropy=(1.0, 1.0)))["courses"]
    is_said = f"The ratio of {of_tokens}: they gave no gradient." in section.findings
    assert (is_said, section.severity == "look", "num_iterations" in section.next_step) == (bool(of_tokens),) * 3


@pytest.mark.parametrize(
    ("shares", "severity", "next_step"),
    [
        ((0.0, 0.0), "fine", "Nothing to do."),
        ((0.16,) * 20, "fine", "Log rollouts"),  # as with rollouts
        ((0.3, 0.3), "look", "Log rollouts"),
        ((0.05,) * 15 + (0.4,) * 5, "look", "Log rollouts"),
        ((0.9, 0.9), "problem", "Log rollouts"),
        ((0.1,) * 16 + (0.9,) * 4, "problem", "Log rollouts"),
        ((math.nan,) * 2, "unknown", "Log"),
    ],
)
def test_how_urgent_dead_groups_are(shares: tuple[float, ...], severity: str, next_step: str) -> None:
    section = sections_of(metrics_alone(frac_reward_zero_std=shares))["signal"]
    assert section.severity == severity
    assert section.next_step.startswith(next_step)


@pytest.mark.parametrize(
    ("rate", "cut", "next_step"),
    [
        *((0.95, 0.5, "Try harder prompts"), (0.05, 0.5, "Try easier prompts"), (0.5, 0.5, "Log rollouts")),
        (0.95, 0.9, "90.0 % of completions were cut off"),  # the length limit comes before the prompts
    ],
)
def test_what_to_try_follows_from_what_dead_groups_do(rate: float, cut: float, next_step: str) -> None:
    metrics = {"reward": (rate, rate), "completions__clipped_ratio": (cut, cut)}
    sections = sections_of(metrics_alone(frac_reward_zero_std=(0.9, 0.9), **metrics))
    assert sections["signal"].next_step.startswith(next_step)
    assert sections["generation"].severity == ("problem" if cut > 0.5 else "look")


def test_numbers_that_are_not_finite_are_reported_and_drawn_as_gaps() -> None:
    sections = sections_of(
        metrics_alone(grad_norm=(0.1, math.nan), completions__clipped_ratio=(math.nan, 0.1), kl=(0.1, math.inf))
    )
    assert sections["norm"].severity == "problem"
    assert sections["norm"].findings[0] == "grad_norm is NaN at step 2."
    assert sections["norm"].charts[0].series[0].values == (0.1, None)
    assert sections["generation"].findings == ("How many is not known: the trainer logged NaN at step 1.",)
    assert sections["courses"].findings[0] == "kl is Infinity at step 2."
    assert sections["courses"].next_step.startswith("Look at what changed there")


def test_without_the_share_the_page_says_how_to_name_it() -> None:
    run = metrics_alone(completions__clipped_ratio=(0.0, 0.05), grad_norm=(1.0, 1.5), kl=(0.1,))
    sections = sections_of(run)
    assert "--metric-column frac_reward_zero_std=NAME" in (sections["signal"].missing or "")
    assert dead_section((), run.source) == sections["signal"]
    assert sections["generation"].findings == (
        "Few completions were cut off at the length limit (at most 5.0 %, at step 2).",
    )
    assert sections["norm"].findings == (
        "The largest gradient norm is 1.5, at step 2, 1.2 times the median. "
        "Fewer than nine steps do not tell whether one stands out.",
    )
    assert sections["courses"].findings == ("Logged: KL.",)
    assert sections_of(metrics_alone(reward_std=(0.5,)))["courses"].severity == "unknown"
    assert "courses" not in sections_of(metrics_alone(frac_reward_zero_std=(0.5,)))
    # steps without a spread of rewards are steps without a gradient
    severities = [
        sections_of(metrics_alone(reward_std=(0.0,) * dead + (0.2,) * (4 - dead)))["signal"].severity
        for dead in (1, 2, 3)
    ]
    assert severities == ["look", "look", "problem"]


def test_a_score_that_falls_while_the_reward_rises_asks_for_a_look() -> None:
    rising = tuple(0.01 * step for step in range(30))
    section = sections_of(metrics_alone(reward=rising, rewards__accuracy__mean=rising[::-1]))["reward"]
    assert section.findings[0].startswith(
        "rewards/accuracy/mean falls while the mean reward rises: 0.265 at steps 1 to 6, "
    )
    assert (section.severity, section.next_step[:26]) == ("look", "Read completions of late s")
    section = sections_of(metrics_alone(rewards__accuracy__mean=rising[::-1], kl=rising))["reward"]
    assert section.findings[0].startswith("rewards/accuracy/mean falls: ")
    (once,) = sections_of(metrics_alone(reward=(0.5,)))["reward"].findings
    assert once == "One logged step does not tell."
    broken = sections_of(metrics_alone(reward=(0.5, math.nan)))["reward"]
    assert (broken.severity, broken.next_step[:12]) == ("problem", "Look at what")


@pytest.mark.parametrize(("spread", "back", "is_told"), [(0.3, 0.5, True), (0.9, 0.5, False), (0.3, 0.1, False)])
def test_a_reward_that_fell_and_came_back_is_told(spread: float, back: float, is_told: bool) -> None:
    levels = (0.4,) * 16 + (0.1,) * 10 + (back,) * 14
    reward = tuple(level + 0.01 * (step % 3) for step, level in enumerate(levels))
    section = sections_of(metrics_alone(reward=reward, reward_std=(spread,) * 40))["reward"]
    sentence = "The mean reward fell and came back: from 0.41 to 0.11 at step 17, 0.51 in the end (medians of 5 steps)."
    assert (sentence in section.findings) == is_told
    assert not is_told or (section.severity, section.next_step[:12]) == ("look", "Look at what")


def test_a_collapse_of_the_reward_comes_first_and_the_advice_on_dead_groups_follows_it() -> None:
    """Dead groups came first, with the advice to try easier prompts."""
    reward = tuple(0.5 + 0.02 * (step % 3) if step < 15 else 0.01 * (step % 3) for step in range(50))
    dead = tuple(0.1 if step < 15 else 0.9 for step in range(50))
    run = metrics_alone(reward=reward, reward_std=(0.4,) * 50, frac_reward_zero_std=dead)
    first, second, *_ = report_of_metrics(run, "a run").by_severity
    assert (first.name, first.severity) == ("reward", "problem")
    assert "; it drops at step 16 from 0.52 to 0.01" in first.headline
    assert second.next_step == "The reward falls: look at what changed before making the prompts easier."
    constant = metrics_alone(reward=(0.5,) * 20, frac_reward_zero_std=(1.0,) * 20)
    assert sections_of(constant)["signal"].next_step.endswith("look at the reward function before the prompts.")


@pytest.mark.parametrize("happens", ["entropy", "grad_norm", "learning_rate"])
def test_what_happened_comes_before_a_reward_that_stalls_and_groups_that_are_dead(happens: str) -> None:
    """The first line was "The mean reward stalls"; that no update changed anything came later."""
    rng = np.random.default_rng(0)
    noise = 1 + 0.02 * rng.normal(size=60)
    series = {name: (noise * level).tolist() for name, level in (("entropy", 0.5), ("grad_norm", 0.1))}
    series |= {"reward": (noise * 0.4).tolist(), "reward_std": [0.45] * 60, "frac_reward_zero_std": [0.4] * 60}
    if happens == "grad_norm":
        series["grad_norm"][30] *= 30
    elif happens == "entropy":
        series["entropy"][40:] = [0.02] * 20
    else:
        series["learning_rate"] = [0.0] * 60
    first, *others = report_of_metrics(metrics_alone(**{k: tuple(v) for k, v in series.items()}), "a run").by_severity
    starts = {
        "entropy": "The entropy falls",
        "grad_norm": "Step 31 stands out",
        "learning_rate": "The learning rate is 0",
    }
    assert first.headline.startswith(starts[happens])
    assert first.severity == ("problem" if happens == "learning_rate" else "look")
    assert [section.name for section in others if section.severity == "look"] == ["reward", "signal"]


@pytest.mark.parametrize("jump", [3, 7, 11])
def test_without_a_norm_a_kl_that_jumps_is_told(jump: int) -> None:
    kl = tuple(0.01 * (1 + step % 3) * (1000 if step == jump else 1) for step in range(20))
    section = sections_of(metrics_alone(kl=kl, reward=(0.1, 0.2)))["courses"]
    assert (section.severity, section.findings[0].split(":")[0]) == ("look", f"Step {jump + 1} stands out")


def test_beside_a_norm_a_kl_that_rises_for_good_is_told_where_it_is_asked_about() -> None:
    kl = tuple((0.01 if step < 24 else 0.5) * (1 + 0.1 * (step % 3)) for step in range(30))
    sections = sections_of(metrics_alone(kl=kl, grad_norm=(0.1, 0.12, 0.11) * 10))
    assert sections["courses"].severity == "look"
    assert sections["courses"].findings[0].startswith("kl jumps at step 25 from 0.011 to 0.55")
    assert not any("jumps" in text for text in sections["norm"].findings)


@pytest.mark.parametrize(
    ("metrics", "advice"),
    [
        ({"grad_norm": (0.5,) + (1.0,) * 20}, "Log the norm before it is clipped"),
        ({"grad_norm": (0.1, 0.12, 0.11) * 4, "learning_rate": (0.0,) * 12}, "Log more digits"),
        ({"grad_norm": NORMS}, "Look at what changed there"),
    ],
)
def test_advice_on_a_norm_is_of_what_is_said(metrics: dict[str, tuple[float, ...]], advice: str) -> None:
    assert sections_of(metrics_alone(**metrics))["norm"].next_step.startswith(advice)


@pytest.mark.parametrize(
    ("name", "near", "far", "problem"),
    [
        ("sampling/sampling_logp_difference/mean", 0.002, 0.02, 0.3),
        ("training/rollout_probs_diff_mean", 0.003, 0.02, 0.136),  # verl
        ("policy/rollout_train_logprobs_abs_diff_mean", 0.01, 0.0145, 1.33),  # SkyRL
        ("train/train_rollout_logprob_abs_diff", 0.005, 0.025, 0.1),  # slime
        ("debug/vllm_vs_local_logprob_diff_mean", 0.006, 0.03, 0.3),  # open-instruct
        ("mismatch_kl/all/mean", 0.001, 0.02, 0.5),  # prime-rl
        ("optim/kl_sample_train_v1", -0.003, -0.02, 0.35),  # Tinker
        ("train/token_mult_prob_error", 1.011, 1.08, 1.2),  # NeMo-RL
    ],
)
def test_sampler_and_trainer_that_drift_apart_are_a_problem_in_metrics_alone(
    name: str, near: float, far: float, problem: float
) -> None:
    key = name.replace("/", "__")
    for level, severity in ((near, "fine"), (far, "look"), (problem, "problem")):
        section = sections_of(metrics_alone(**{key: (near,) * 16 + (level,) * 4}))["agreement"]
        assert section.findings == (f"The trainer logged on average at steps 17 to 20: {name} = {level:.4g}.",)
        assert section.severity == severity
    assert "agreement" not in sections_of(metrics_alone(**{key: (0.0,) * 20}))  # verl's where it is not known
    assert "agreement" not in sections_of(metrics_alone(reward=(0.5,) * 20))


def test_a_share_of_correct_answers_that_is_the_reward_is_told_once() -> None:
    falling = tuple(1 - 0.02 * step for step in range(30))
    section = sections_of(metrics_alone(reward=falling, rewards__correct__mean=falling))["reward"]
    assert section.headline.startswith("The mean reward falls: ")
    assert not any("correct" in finding for finding in section.findings)
