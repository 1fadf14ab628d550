"""The rule: both sides of every end, and what nobody can tell."""

from __future__ import annotations

import pytest

from gradscope.diagnostics.claims.claim import NO_NULL, cannot_tell, in_range, rises, together
from gradscope.estimate import Estimate
from tests.diagnostics.claims.made_up_evidence import between

UNKNOWN = Estimate.undefined_because("nothing was logged")


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (1.5, 2.5, "supported"),
        (1.49, 2.5, "cannot_tell"),
        (1.5, 2.51, "cannot_tell"),
        (1.0, 1.5, "cannot_tell"),
        (1.0, 1.49, "contradicted"),
        (2.5, 3.0, "cannot_tell"),
        (2.51, 3.0, "contradicted"),
        (1.0, 3.0, "cannot_tell"),
    ],
)
def test_a_number_is_in_its_range_where_its_whole_interval_is(low: float, high: float, verdict: str) -> None:
    assert in_range(between(low, high), 1.5, 2.5) == verdict


def test_numbers_that_are_judged_together_have_wider_intervals() -> None:
    # 2.24 standard errors to either side in place of 1.96
    assert in_range(between(1.55, 2.45), 1.5, 2.5, num_tests=2) == "cannot_tell"
    assert in_range(between(1.57, 2.43), 1.5, 2.5, num_tests=2) == "supported"


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.001, 0.3, "supported"),
        (0.0, 0.3, "cannot_tell"),
        (-0.1, 0.05, "cannot_tell"),
        (-0.1, 0.049, "contradicted"),
        (0.001, 0.049, "contradicted"),
        (0.001, 0.05, "supported"),
    ],
)
def test_a_rise_is_above_zero_and_may_be_as_large_as_its_margin(low: float, high: float, verdict: str) -> None:
    assert rises(between(low, high), 0.0, 0.05) == verdict
    assert rises(between(1 + low, 1 + high), 1.0, 0.05) == verdict


@pytest.mark.parametrize("number", [Estimate.exact(2.0), UNKNOWN])
def test_without_an_interval_nobody_can_tell(number: Estimate) -> None:
    assert in_range(number, 1.5, 2.5) == in_range(number, 5.0, 6.0, num_tests=2) == "cannot_tell"
    assert rises(number, 0.0, 0.1) == "cannot_tell"


def test_all_must_hold_and_one_that_does_not_decides() -> None:
    assert together(["supported", "supported"]) == "supported"
    assert together(["supported", "cannot_tell"]) == "cannot_tell"
    assert together(["cannot_tell", "contradicted", "supported"]) == "contradicted"
    assert together([]) == "cannot_tell"


def test_a_reason_becomes_a_sentence_and_the_reason_of_the_number() -> None:
    judged = cannot_tell("no step has such a gradient", steps=(1, 2))
    assert (judged.verdict, judged.why, judged.steps) == ("cannot_tell", "No step has such a gradient.", (1, 2))
    assert judged.estimate.undefined == "no step has such a gradient"
    assert judged.null is NO_NULL
    assert cannot_tell("too few", estimate=Estimate.exact(0.5)).estimate.value == 0.5
