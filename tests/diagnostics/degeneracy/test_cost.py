from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from gradscope.advantages.registry import FORMULATIONS
from gradscope.diagnostics.degeneracy.measure import degeneracy_of_run, measure_degeneracy
from gradscope.rollouts.run import TrainerSettings
from tests.diagnostics.made_up_runs import beta_run, group_of, run_of, said, two_steps, with_tokens


def test_cost_of_a_hand_worked_run() -> None:
    cost = degeneracy_of_run(with_tokens(two_steps())).starvation
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
    assert re.search(r"% of completion tokens; of \d+ rollouts a step", text)
    assert "Chance does not explain them" in text
    assert "Resampling dead groups until the batch is full takes" in text
    assert "groups of 16 take twice as many and are forecast to leave" in text


def test_tokens_are_unknown_without_ids() -> None:
    cost = degeneracy_of_run(two_steps()).starvation
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
    assert "Signal lost: 50.0 % of rollouts and 75.0 % of generation time; of 4 rollouts a step 2 count." in said(
        report
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows[:3], {"group_id": "b", "reward": 0}]))
    unknown = measure_degeneracy(path).starvation.frac_generation_time
    assert unknown.undefined == "no generation time of each rollout was read from the log"


def test_a_log_without_life_cannot_be_resampled() -> None:
    report = degeneracy_of_run(run_of(group_of([0, 0], prompt="a"), group_of([0, 0], prompt="b")))
    assert "no group is alive" in report.starvation.resampling_factor.undefined
    assert "Resampling dead groups would not help" in said(report)


def test_every_formulation_is_weighed() -> None:
    masses = {mass.advantage: mass for mass in degeneracy_of_run(two_steps()).advantages}
    assert set(masses) == set(FORMULATIONS)
    sign, dr_grpo, reinforce = masses["sign"], masses["dr_grpo"], masses["reinforce"]
    assert (sign.positive_mass.value, sign.negative_mass.value, sign.frac_zero.value) == (6 / 16, 10 / 16, 0.0)
    assert (dr_grpo.positive_mass.value, dr_grpo.frac_zero.value) == (1 / 16, 0.75)
    assert reinforce.frac_zero.value == 10 / 16


def test_a_run_with_a_constant_is_weighed_under_it() -> None:
    settings = TrainerSettings(values={"advantage": "sign:c=0.5"})
    masses = degeneracy_of_run(replace(two_steps(), settings=settings)).advantages
    own, plain = masses[-1], next(mass for mass in masses if mass.advantage == "sign")
    assert own.advantage == "sign:c=0.5"
    assert own.positive_mass.value == plain.positive_mass.value
    assert own.negative_mass.value == plain.negative_mass.value - 0.5 * 8 / 16  # two groups of four fail


def test_formulation_that_needs_pass_or_fail_says_so() -> None:
    run = run_of(group_of([0.5, 0.2], prompt="a"), group_of([0.1, 0.1], prompt="b"))
    masses = {mass.advantage: mass for mass in degeneracy_of_run(run).advantages}
    assert "it is defined for rewards of 0 and 1" in masses["sign"].positive_mass.undefined
    assert masses["dr_grpo"].positive_mass.value == pytest.approx(0.15 / 4)
