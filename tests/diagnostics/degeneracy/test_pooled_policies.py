from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gradscope.diagnostics.degeneracy.measure import degeneracy_of_run, measure_degeneracy
from gradscope.metrics.outcomes.degeneracy import NO_THRESHOLD
from gradscope.metrics.uncertainty.intervals import Resampling
from gradscope.rollouts.read_options import ColumnNames, ReadOptions
from gradscope.rollouts.types import RolloutGroup
from tests.diagnostics.made_up_runs import group_of, run_of


def sampled_by(group: RolloutGroup, *policies: str) -> RolloutGroup:
    named = policies * group.size if len(policies) == 1 else policies
    rollouts = tuple(replace(r, policy=name) for r, name in zip(group.rollouts, named[: group.size], strict=True))
    return replace(group, rollouts=rollouts)


def test_policies_of_unequal_strength_make_a_gap_of_their_own() -> None:
    groups = [sampled_by(group_of([1, 1], prompt=f"p{i}"), "strong") for i in range(6)]
    groups += [sampled_by(group_of([0, 0], prompt=f"q{i}"), "weak") for i in range(6)]
    report = degeneracy_of_run(run_of(*groups))
    assert report.jensen_gap.value == pytest.approx(0.5)
    assert report.policy_gap.between_policies.value == pytest.approx(0.5)
    assert report.policy_gap.between_prompts.value == pytest.approx(0.0)
    assert [(row.policy, row.num_groups, row.pass_rate.value) for row in report.by_policy] == [
        ("strong", 6, 1.0),
        ("weak", 6, 0.0),
    ]
    assert "The log pools 2 policies" in " ".join(report.findings)


def test_unequal_coins_in_one_group_agree_less_often() -> None:
    groups = [sampled_by(group_of([1, i % 4 == 0], prompt=f"p{i}"), "strong", "weak") for i in range(8)]
    report = degeneracy_of_run(run_of(*groups))
    # p is 1 and 1/4: agreement 1/4, the pooled 5/8 predicts (25 + 9) / 64.
    assert report.policy_gap.between_prompts.value == pytest.approx(0.0)
    assert report.policy_gap.between_policies.value == pytest.approx(1 / 4 - 34 / 64)
    assert report.by_policy[0].frac_reward_zero_std.undefined == "no group is of this policy alone"


def test_log_of_one_policy_has_no_split() -> None:
    report = degeneracy_of_run(run_of(group_of([1, 0])))
    assert (report.by_policy, report.policy_gap) == ((), None)


def test_gsm8k_models_and_their_gap(shared_data: Path) -> None:
    report = measure_degeneracy(
        shared_data / "gsm8k" / "example_model_solutions.jsonl", resampling=Resampling(num_resamples=50)
    )
    rates = [row.pass_rate.value for row in report.by_policy]
    assert rates == pytest.approx([0.2168, 0.3904, 0.3472, 0.5625], abs=5e-5)
    assert report.frac_reward_zero_std.value == pytest.approx(0.44579, abs=5e-6)
    assert report.iid_prediction.value == pytest.approx(0.16916, abs=5e-6)
    parts = report.policy_gap.between_prompts.value + report.policy_gap.between_policies.value
    assert parts == pytest.approx(report.jensen_gap.value, abs=1e-12)
    assert report.policy_gap.between_policies.value < 0


@pytest.mark.slow
def test_reasoning_gym_by_model(shared_data: Path) -> None:
    path = shared_data / "reasoning_gym" / "rg_easy_n3_scores.jsonl.gz"
    read = ReadOptions(columns=ColumnNames(reward="scores"))  # a list of scores alone, without the responses
    report = measure_degeneracy(path, resampling=Resampling(num_resamples=20), read=read)
    assert report.policy_gap is None
    assert all(row.pass_rate.undefined == NO_THRESHOLD for row in report.by_policy)
    shares = [row.frac_reward_zero_std.value for row in report.by_policy]
    assert sum(row.num_groups for row in report.by_policy) == report.num_groups
    assert (round(min(shares), 2), round(max(shares), 2)) == (0.74, 0.87)
