from __future__ import annotations

from dataclasses import replace

import pytest

from gradscope.advantages.registry import FORMULATIONS
from gradscope.diagnostics.degeneracy.measure import degeneracy_of_run
from gradscope.rollouts.run import TrainerSettings
from tests.diagnostics.made_up_runs import group_of, run_of, two_steps


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
