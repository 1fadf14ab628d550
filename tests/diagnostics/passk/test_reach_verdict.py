from __future__ import annotations

import pytest

from gradscope.diagnostics.passk.reach_verdict import judge_reach
from gradscope.estimate import Estimate
from gradscope.results.passk import PassAtKDifference


def differences(*ends: tuple[float, float]) -> list[PassAtKDifference]:
    return [
        PassAtKDifference(
            k=16**place,
            difference=Estimate(value=(low + high) / 2, low=low, high=high, num_units=40),
            first_wins=0,
            second_wins=0,
            ties=0,
        )
        for place, (low, high) in enumerate(ends)
    ]


@pytest.mark.parametrize(
    ("ends", "ceiling", "verdict", "words"),
    [
        (((0.1, 0.3), (0.05, 0.2)), 0.6, "capacity expansion", "solves more at the largest budget"),
        (((0.1, 0.3), (-0.2, -0.05)), 0.6, "search compression", "is a loss at the largest"),
        (((0.1, 0.3), (-0.2, -0.05)), 0.97, "search compression", "is a loss at the largest"),
        (((0.1, 0.3), (-0.1, 0.05)), 0.6, "search compression", "is gone at the largest"),
        (((0.1, 0.3), (-0.1, 0.05)), 0.97, "undecided", "already solves 0.970, which leaves no room"),
        (((0.1, 0.3), (-0.1, 0.2)), 0.6, "undecided", "may be there or not"),
        (((-0.1, 0.3), (-0.1, 0.2)), 0.6, "undecided", "allow a gain and a loss"),
        (((0.1, 0.3),), 0.6, "undecided", "one budget says nothing about reach"),
    ],
)
def test_verdict_and_its_evidence(
    ends: tuple[tuple[float, float], ...], ceiling: float, verdict: str, words: str
) -> None:
    found, evidence = judge_reach(differences(*ends), ceiling=ceiling)
    assert found == verdict
    assert words in evidence


def test_evidence_holds_the_figures() -> None:
    _, evidence = judge_reach(differences((0.1, 0.3), (0.05, 0.2)), ceiling=0.5)
    assert evidence.endswith("+0.200 [+0.100, +0.300] at k = 1, +0.125 [+0.050, +0.200] at k = 16")
