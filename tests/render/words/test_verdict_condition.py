from __future__ import annotations

from dataclasses import replace

import pytest

from gradscope.estimate import Estimate
from gradscope.render.words.verdict_condition import condition
from gradscope.results.check import Change
from tests.render.examples import check_report

VERDICT = check_report().verdicts[0]


@pytest.mark.parametrize(("limit", "text"), [(0.3, "0.3"), (1e-05, "1e-05"), (2.0, "2")])
def test_a_limit_reads_as_it_was_typed(limit: float, text: str) -> None:
    assert condition(replace(VERDICT, limit=limit)) == f"frac_reward_zero_std <= {text}"


def test_a_baseline_has_no_limit_of_its_own() -> None:
    some = Estimate.exact(0.5)
    change = Change(baseline=some, change=some, margin=0.0, rule="interval", num_paired=0)
    assert condition(replace(VERDICT, change=change)) == "frac_reward_zero_std against the baseline"
