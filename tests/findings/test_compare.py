from __future__ import annotations

from dataclasses import replace

import pytest

from gradscope.estimate import Estimate
from gradscope.findings.compare import compare_findings, is_decided
from gradscope.results.compare import ComparedPair, Comparison
from tests.render.examples import source


def pair(p_holm: float | None, value: float = 0.25, *, num_pairs: int = 8, changed: str = "advantage") -> ComparedPair:
    return ComparedPair(
        first="grpo",
        second="sign",
        changed=changed,
        metric="pass@1",
        difference=Estimate(value=value, low=value - 0.125, high=value + 0.125),
        p_value=p_holm,
        p_holm=p_holm,
        sign_flip_p_value=p_holm,
        num_pairs=num_pairs,
        test="paired t",
        undefined=None,
    )


def compared(*pairs: ComparedPair, left_out: dict[str, str] | None = None) -> str:
    comparison = Comparison(
        source=source(),
        cells=(),
        pairs=pairs,
        curves=(),
        metrics=("pass@1",),
        num_tests=len(pairs),
        left_out=left_out or {},
    )
    return " ".join(compare_findings(comparison))


@pytest.mark.parametrize(("p_holm", "decided"), [(0.049, True), (0.05, False), (None, False)])
def test_only_a_corrected_p_value_below_the_level_decides(p_holm: float | None, decided: bool) -> None:
    assert is_decided(pair(p_holm)) == decided


def test_a_decision_has_direction_size_and_interval() -> None:
    assert "pass@1: sign is above grpo by 0.250 (+0.250 [+0.125, +0.375], 8 pairs, corrected p = 0.01)." in compared(
        pair(0.01)
    )
    assert "sign is below grpo by 0.250 (-0.250 [" in compared(pair(0.01, -0.25))


def test_few_pairs_rest_on_the_t_test() -> None:
    """With five pairs sign flips cannot go below 2 / 32."""
    assert "With 5 pairs sign flips cannot give a p-value below 0.0625" in compared(pair(0.01, num_pairs=5))
    assert "sign flips" not in compared(pair(0.01, num_pairs=6))


def test_what_is_open_says_how_far_it_could_be() -> None:
    text = compared(pair(0.4), pair(0.01))
    assert "pass@1 leaves 1 of 1 pairs undecided; differences of up to 0.375 are not excluded" in text
    assert "None of the 1 tests decides after Holm's correction." in compared(pair(0.4))
    exact = replace(pair(None), difference=Estimate.exact(0.1))
    assert "pass@1 leaves 1 of 1 pairs undecided: no evidence of equality." in compared(exact)


def test_cautions_fit_what_was_compared() -> None:
    assert compared() == "No two cells differ in exactly one thing, so nothing is compared in pairs."
    assert "only held-out samples compare like with like" in compared(pair(0.01, changed="sampling"))
    assert "Some cells share fewer than two seeds" in compared(pair(None, num_pairs=1))
    assert "bad is left out: not finished." in compared(left_out={"bad": "not finished"})
