from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gradscope.advantages.registry import FORMULATIONS
from gradscope.diagnostics.degeneracy.measure import degeneracy_of_run, measure_degeneracy
from gradscope.errors import UsageError
from gradscope.results.degeneracy import DegeneracyReport
from gradscope.rollouts.run import Run
from tests.diagnostics.made_up_runs import group_of, run_of


def with_tokens(run: Run) -> Run:
    """The same run; a passing rollout has 3 tokens, a failing one 1."""
    groups = tuple(
        replace(
            group,
            rollouts=tuple(replace(r, completion_ids=(7,) * (3 if r.reward else 1)) for r in group.rollouts),
        )
        for group in run.groups
    )
    return replace(run, groups=groups)


def beta_run(num_prompts: int = 60, size: int = 8, seed: int = 0) -> Run:
    rng = np.random.default_rng(seed)
    rates = rng.beta(0.5, 0.8, num_prompts)
    return run_of(
        *(group_of((rng.random(size) < p).astype(float).tolist(), prompt=f"p{i}") for i, p in enumerate(rates))
    )


def said(report: DegeneracyReport) -> str:
    return " ".join(report.findings)


SMALL = run_of(
    group_of([1, 1, 1, 1], step=1, prompt="a"),
    group_of([0, 0, 0, 0], step=1, prompt="b"),
    group_of([1, 0, 0, 1], step=2, prompt="c"),
    group_of([0, 0, 0, 0], step=2, prompt="d"),
)


def test_cost_of_a_hand_worked_run() -> None:
    cost = degeneracy_of_run(with_tokens(SMALL)).starvation
    assert cost.frac_rollouts.value == 0.75
    # Dead: 12 + 4 + 4 tokens; alive: 3 + 1 + 1 + 3.
    assert cost.frac_tokens.value == pytest.approx(20 / 28)
    assert cost.tokens_per_rollout.value == pytest.approx(28 / 16)
    assert (cost.batch_size.value, cost.effective_batch_size.value) == (8.0, 2.0)
    assert cost.dilution.value == 0.25
    assert cost.resampling_factor.value == pytest.approx(4.0)


def test_signal_lost_why_and_what_next_are_said() -> None:
    text = said(degeneracy_of_run(with_tokens(beta_run())))
    assert "Signal lost: " in text
    assert "of completion tokens were spent on groups without a gradient" in text
    assert "Chance does not explain them" in text
    assert "Resampling dead groups until the batch is full takes" in text
    assert "groups of 16 take twice as many and are forecast to leave" in text


def test_tokens_are_unknown_without_ids() -> None:
    cost = degeneracy_of_run(SMALL).starvation
    assert cost.frac_tokens.undefined == "token ids of the completions were not logged"


def test_generation_time_of_dead_groups_where_rollouts_are_timed(tmp_path: Path) -> None:
    path = tmp_path / "timed.jsonl"
    rows = [
        {"group_id": group, "reward": reward, "generation_seconds": seconds}
        for group, reward, seconds in (("a", 1, 2.0), ("a", 1, 4.0), ("b", 1, 1.0), ("b", 0, 1.0))
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = measure_degeneracy(path)
    assert report.starvation.frac_generation_time.value == pytest.approx(6 / 8)
    assert "50.0 % of rollouts and 75.0 % of generation time were spent on groups without a gradient" in said(report)
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows[:3], {"group_id": "b", "reward": 0}]))
    unknown = measure_degeneracy(path).starvation.frac_generation_time
    assert unknown.undefined == "no generation time of each rollout was read from the log"


def test_a_log_without_life_cannot_be_resampled() -> None:
    report = degeneracy_of_run(run_of(group_of([0, 0], prompt="a"), group_of([0, 0], prompt="b")))
    assert "no group is alive" in report.starvation.resampling_factor.undefined
    assert "Resampling dead groups would not help" in said(report)


def test_every_formulation_is_weighed() -> None:
    masses = {mass.advantage: mass for mass in degeneracy_of_run(SMALL).advantages}
    assert set(masses) == set(FORMULATIONS)
    sign, dr_grpo, reinforce = masses["sign"], masses["dr_grpo"], masses["reinforce"]
    assert (sign.positive_mass.value, sign.negative_mass.value, sign.frac_zero.value) == (6 / 16, 10 / 16, 0.0)
    assert (dr_grpo.positive_mass.value, dr_grpo.frac_zero.value) == (1 / 16, 0.75)
    assert reinforce.frac_zero.value == 10 / 16


def test_formulation_that_needs_pass_or_fail_says_so() -> None:
    run = run_of(group_of([0.5, 0.2], prompt="a"), group_of([0.1, 0.1], prompt="b"))
    masses = {mass.advantage: mass for mass in degeneracy_of_run(run).advantages}
    assert "it is defined for rewards of 0 and 1" in masses["sign"].positive_mass.undefined
    assert masses["dr_grpo"].positive_mass.value == pytest.approx(0.15 / 4)


def with_rewards(run: Run, **functions: list[list[float | None]]) -> Run:
    groups = tuple(
        replace(
            group,
            rollouts=tuple(
                replace(r, rewards={name: values[place][r.sample] for name, values in functions.items()})
                for r in group.rollouts
            ),
        )
        for place, group in enumerate(run.groups)
    )
    return replace(run, groups=groups)


def test_reward_functions_tie_or_tell_apart() -> None:
    run = run_of(group_of([1, 1], prompt="a"), group_of([1, 0], prompt="b"), group_of([0, 1], prompt="c"))
    functions = {"exact": [[1, 1], [1, 0], [0, 1]], "dense": [[0.2, 0.3], [0.5, 0.1], [0.4, 0.4]]}
    report = degeneracy_of_run(with_rewards(run, **functions))
    dense, exact = report.by_reward
    assert (dense.reward, dense.frac_zero_std.value, dense.num_alone, dense.num_rescuable) == (
        "dense",
        pytest.approx(1 / 3),
        1,
        1,
    )
    assert (exact.reward, exact.frac_zero_std.value, exact.num_alone, exact.num_rescuable) == (
        "exact",
        pytest.approx(1 / 3),
        1,
        0,
    )
    assert "'dense' differs within 1 groups that 'reward' leaves equal" in said(report)


def test_reward_function_that_is_missing_somewhere_has_no_share() -> None:
    run = run_of(group_of([1, 1], prompt="a"), group_of([1, 0], prompt="b"))
    report = degeneracy_of_run(with_rewards(run, one=[[1, 1], [1, 0]], two=[[1, None], [0, 1]]))
    assert report.by_reward[1].frac_zero_std.undefined == "it is missing in 1 of 2 groups"


def test_prediction_is_named_for_every_p() -> None:
    report = degeneracy_of_run(SMALL, base_pass_rate="step")
    assert [row.pass_rate_origin for row in report.predictions] == [
        "the mean of each step",
        "the mean of this log over 4 groups",
    ]
    # Step 1: p = 1/2; step 2: p = 1/4.
    assert report.iid_prediction.value == pytest.approx((2 * 0.5**4 + 0.25**4 + 0.75**4) / 2)
    assert report.predictions[0].iid_prediction == report.iid_prediction
    assert report.gap_decomposition.over_time.value == 0.0
    assert report.gap_decomposition.between_prompts == report.jensen_gap


def test_larger_groups_are_forecast() -> None:
    rows = {row.group_size: row for row in degeneracy_of_run(beta_run(), group_sizes=(4, 16, 100)).by_group_size}
    assert {size: row.method for size, row in rows.items()} == {
        4: "unbiased",
        8: "observed",
        16: "forecast",
        100: "forecast",
    }
    assert rows[4].degeneracy.value > rows[8].degeneracy.value > rows[16].degeneracy.value
    assert rows[16].jensen_gap.value == pytest.approx(
        rows[16].degeneracy.value - rows[16].iid_prediction.value, abs=1e-12
    )
    assert rows[100].degeneracy.undefined == "G = 100 is more than 8 times the 8 samples of a prompt"


def test_per_step_prediction_reaches_forecasts() -> None:
    report = degeneracy_of_run(SMALL, group_sizes=(8,), base_pass_rate="step")
    assert report.by_group_size[1].iid_prediction.value == pytest.approx((2 * 0.5**8 + 0.25**8 + 0.75**8) / 2)


def test_target_names_a_size_and_an_amount_of_resampling() -> None:
    run = with_tokens(beta_run(num_prompts=200))
    report = degeneracy_of_run(run, target_degeneracy=0.3)
    now, larger, resampling = report.target.plans
    assert (now.plan, larger.plan, resampling.plan) == ("now", "larger groups", "resampling")
    dead = now.degeneracy.value
    assert dead > 0.3
    assert larger.method == "forecast"
    assert larger.degeneracy.value <= 0.3
    assert larger.tokens_per_group.value == pytest.approx(
        larger.group_size * report.starvation.tokens_per_rollout.value
    )
    below = degeneracy_of_run(run, group_sizes=(larger.group_size - 1,)).by_group_size[-1]
    assert below.degeneracy.value > 0.3
    assert resampling.rollouts_per_group.value == pytest.approx(8 * 0.7 / (1 - dead))
    assert f"At most 30.0 % dead groups: G = {larger.group_size} (forecast" in said(report)


def test_target_may_be_reached_or_out_of_reach() -> None:
    easy = degeneracy_of_run(beta_run(), target_degeneracy=0.99)
    assert easy.target.plans[1].group_size == 2
    assert "already so at G = 8" in said(easy)
    hard = degeneracy_of_run(beta_run(), target_degeneracy=0.001)
    assert "no group size up to 8 times 8 is known to bring the share to 0.001" in said(hard)
    dead = degeneracy_of_run(run_of(group_of([0, 0], prompt="a")), target_degeneracy=0.5)
    assert "by resampling not possible (no group is alive" in said(dead)


@pytest.mark.parametrize("target", [0.0, 1.0, 20.0])
def test_target_is_a_share(target: float) -> None:
    with pytest.raises(UsageError, match="A target share lies between 0 and 1"):
        degeneracy_of_run(SMALL, target_degeneracy=target)


def test_filtered_log_is_noticed() -> None:
    groups = [group_of([1, 0, 1, 0], prompt=f"p{i}") for i in range(40)]
    assert "a filter may have dropped dead groups" in said(degeneracy_of_run(run_of(*groups)))


def test_histogram_shows_the_ends_and_adds_up() -> None:
    report = degeneracy_of_run(beta_run())
    bars = report.pass_rates.histogram
    assert len(bars) == 9
    assert sum(bar.observed for bar in bars) == pytest.approx(1.0)
    assert sum(bar.beta_binomial for bar in bars) == pytest.approx(1.0)
    assert sum(bar.binomial for bar in bars) == pytest.approx(1.0)
    assert bars[0].observed == report.frac_all_fail.value
    assert bars[-1].observed == report.frac_all_pass.value


def test_levels_within_a_pass_are_not_forecast() -> None:
    groups = [group_of([0.8, 0.9, 0.1, 0.2], prompt=f"p{i}") for i in range(6)]
    groups += [group_of([0.8, 0.9, 0.8, 0.9], prompt=f"q{i}") for i in range(6)]
    report = degeneracy_of_run(run_of(*groups), success_threshold=0.5, group_sizes=(8,))
    assert "passes do not tell which groups have equal rewards" in report.by_group_size[-1].degeneracy.undefined
    assert report.pass_rates.histogram == ()


def test_fractional_rewards_in_float32_explain_another_logged_share() -> None:
    run = run_of(
        group_of([0.1, 0.1], step=1, prompt="a"),
        group_of([0.2, 0.4], step=1, prompt="b"),
        metrics={1: {"frac_reward_zero_std": 0.0}},
    )
    assert "in float32 misses groups of equal fractional rewards" in said(degeneracy_of_run(run))


def test_real_log_is_told_in_words(shared_data: Path) -> None:
    report = measure_degeneracy(shared_data / "qwen_math_rm8" / "math_cot_100.jsonl")
    assert report.frac_reward_zero_std.value == 0.9
    assert report.starvation.resampling_factor.value == pytest.approx(10.0)
    assert "Signal lost: 90.0 % of rollouts" in said(report)
