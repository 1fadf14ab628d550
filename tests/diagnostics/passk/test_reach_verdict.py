from __future__ import annotations

import pytest

from gradscope.diagnostics.passk.reach_verdict import MARGIN, MOST_SHARPENING, judge_reach, verifier_caution
from gradscope.estimate import Estimate
from gradscope.results.passk import PassAtKDifference

GAIN, LEFT_OPEN, EQUAL, LOSS = (0.1, 0.3), (-0.05, 0.44), (-0.02, 0.03), (-0.2, -0.06)
NONE, SOME = (0.0, 0.9 * MARGIN), (0.02, 1.1 * MARGIN)


def around(ends: tuple[float, float]) -> Estimate:
    return Estimate(value=sum(ends) / 2, low=ends[0], high=ends[1], num_units=40)


def differences(*ends: tuple[float, float]) -> list[PassAtKDifference]:
    return [
        PassAtKDifference(
            k=16**place,
            difference=around(pair),
            first_wins=0,
            second_wins=0,
            ties=0,
            compression_factor=Estimate.undefined_because("not asked for"),
            compression_at_least=None,
        )
        for place, pair in enumerate(ends)
    ]


@pytest.mark.parametrize(
    ("ends", "won", "lost", "least", "verdict", "words"),
    [
        ((GAIN, GAIN), SOME, NONE, 65.0, "capacity expansion", "beyond the best of 65 samples of the first"),
        ((LEFT_OPEN, GAIN), SOME, NONE, 65.0, "capacity expansion", "and more at the largest budget"),
        ((GAIN, GAIN), SOME, NONE, 64.0, "undecided", "gains at every sampled k: +0.200"),
        ((GAIN, GAIN), SOME, NONE, None, "undecided", "the best of at most 64 samples of the first is not ruled out"),
        ((GAIN, LOSS), SOME, SOME, 65.0, "undecided", "some prompts are solved anew, beyond any best of 64"),
        ((GAIN, EQUAL), NONE, NONE, None, "search compression", "at the largest less than 0.05 is won"),
        (
            (GAIN, EQUAL),
            SOME,
            NONE,
            None,
            "undecided",
            "a gain at the smallest budget, no certain difference",
        ),
        (
            (GAIN, EQUAL),
            NONE,
            SOME,
            None,
            "undecided",
            "a gain at the smallest budget, no certain difference",
        ),
        ((GAIN, (0.01, 0.03)), NONE, NONE, None, "undecided", "gains at every sampled k"),
        (((0.01, 0.05), EQUAL), NONE, NONE, None, "undecided", "a gain at the smallest budget"),
        ((GAIN, LOSS), NONE, SOME, None, "search compression", "the gain at the smallest budget is a loss"),
        ((GAIN, LOSS), SOME, SOME, None, "undecided", "a gain at the smallest budget, a loss at the largest"),
        ((GAIN, LEFT_OPEN), SOME, SOME, None, "undecided", "no certain difference at the largest"),
        ((LOSS, LOSS), NONE, SOME, None, "undecided", "losses at every sampled k"),
        ((LEFT_OPEN, LEFT_OPEN), SOME, SOME, None, "undecided", "the intervals allow a gain and a loss"),
        ((GAIN,), NONE, NONE, 65.0, "undecided", "one budget says nothing about reach"),
    ],
)
def test_verdict_and_its_evidence(
    ends: tuple[tuple[float, float], ...],
    won: tuple[float, float],
    lost: tuple[float, float],
    least: float | None,
    verdict: str,
    words: str,
) -> None:
    unsolved = around((0.1, 0.2))
    found, evidence = judge_reach(
        differences(*ends), won=around(won), lost=around(lost), unsolved=unsolved, least_sharpening=least
    )
    assert found == verdict
    assert words in evidence


def test_evidence_holds_the_figures() -> None:
    rows = differences((0.1, 0.3), (0.05, 0.2))
    shares = {"won": around(SOME), "lost": around(NONE), "unsolved": around(SOME)}
    _, evidence = judge_reach(rows, **shares, least_sharpening=2.0 * MOST_SHARPENING)
    assert evidence.endswith("+0.200 [+0.100, +0.300] at k = 1, +0.125 [+0.050, +0.200] at k = 16")


@pytest.mark.parametrize(
    ("unsolved", "verdict", "words"),
    [
        ((0.0, 0.04), "no headroom", "the first leaves 0.020 [0.000, 0.040] of the prompts unsolved"),
        ((0.0, MARGIN), "no headroom", "next to nothing to expand"),
        ((0.02, 0.2), "undecided", "there may have been nothing to expand"),
        ((MARGIN, 0.2), "undecided", "not certainly more than 0.05"),
        ((1.02 * MARGIN, 0.2), "search compression", "less than 0.05 is won"),
    ],
)
def test_without_headroom_nothing_is_compressed(unsolved: tuple[float, float], verdict: str, words: str) -> None:
    shares = {"won": around(NONE), "lost": around(NONE), "unsolved": around(unsolved)}
    found, evidence = judge_reach(differences(GAIN, EQUAL), **shares, least_sharpening=None)
    assert found == verdict
    assert words in evidence


def test_what_false_positives_do_is_their_chance_among_k_samples() -> None:
    """Half the prompts are unsolvable, and the second's verifier passes 2 % of wrong samples: 64 samples each."""
    unsolved = 0.5 * 0.98**64
    said = verifier_caution((0.5, unsolved), 64, 200)
    assert "solved in 47.4 % of cases at k = 64; had it passed 2 % of them in the second alone, that would be" in said
    assert "alone" not in verifier_caution((0.5, 0.5), 64, 200)
    assert "passed 6.9 % of them" in verifier_caution((0.5, 0.0), 64, 100)
