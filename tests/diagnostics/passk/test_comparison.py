from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from gradscope.diagnostics.passk.comparison import (
    MARGIN,
    MOST_SHARPENING,
    compare_samples,
    crossover_k,
    judge_reach,
    verifier_caution,
)
from gradscope.diagnostics.passk.measure import pass_at_k_of_samples
from gradscope.diagnostics.passk.samples import Samples
from gradscope.errors import InputError
from gradscope.estimate import Estimate
from gradscope.metrics.uncertainty.intervals import Resampling
from gradscope.results.passk import PassAtKDifference
from tests.diagnostics.made_up_runs import FIRST, SECOND, samples


def test_second_file_is_paired_by_prompt() -> None:
    report = pass_at_k_of_samples([FIRST, SECOND], ks=(4, 1))
    comparison = report.comparison
    assert (comparison.num_prompts, comparison.num_unpaired) == (3, 1)
    by_k = {row.k: row for row in comparison.rows}
    assert by_k[1].difference.value == pytest.approx((3 * 0.25 - 1.5) / 3)
    assert (by_k[1].first_wins, by_k[1].second_wins, by_k[1].ties) == (2, 1, 0)
    assert by_k[4].difference.value == pytest.approx(1 / 3)
    assert (by_k[4].first_wins, by_k[4].second_wins, by_k[4].ties) == (0, 1, 2)
    assert comparison.crossover_k == 4
    assert (comparison.solved.both, comparison.solved.first_only) == (2, 0)
    assert (comparison.solved.second_only, comparison.solved.neither) == (1, 0)
    verdict, unpaired, factor, verifier, *reach = report.findings
    assert verifier.startswith("A verifier that passes 1.0 % of wrong samples")
    assert verdict.startswith("second against first: the intervals allow a gain and a loss: -0.250")
    assert "; the sign turns at k = 4. Verdict: undecided between " in verdict
    assert unpaired.startswith("1 prompts are in only one of first and second")
    assert factor == "first needs 0.50 times the samples of second for the same pass@1."
    assert [sentence.partition(":")[0] for sentence in reach] == ["first", "second"]


def test_further_files_are_compared_with_the_first() -> None:
    third = samples("third", {"a": [0, 0, 0, 0]})
    report = pass_at_k_of_samples([FIRST, SECOND, third])
    assert report.comparison.second == "second"
    assert [(one.first, one.second) for one in report.further_comparisons] == [("first", "third")]


def test_difference_beyond_the_samples_is_undefined() -> None:
    short = samples("short", {"a": [1, 0]})
    row = pass_at_k_of_samples([FIRST, short], ks=(4,)).comparison.rows[0]
    assert row.difference.undefined == "k = 4 exceeds the 2 samples of a prompt"
    assert (row.first_wins, row.second_wins, row.ties) == (0, 0, 0)
    assert row.compression_factor.undefined == "k = 4 exceeds the 2 samples of a prompt"
    assert pass_at_k_of_samples([FIRST, short], ks=(4,)).comparison.frac_won.undefined == (
        "the two have no budget in common"
    )


def test_wide_interval_is_called_undecided() -> None:
    one = samples("one", {str(i): [i % 2, 0] for i in range(12)})
    two = samples("two", {str(i): [(i // 2) % 2, 0] for i in range(12)})
    report = pass_at_k_of_samples([one, two], ks=(1,))
    assert "undecided" in report.findings[0]


def test_sign_may_never_turn() -> None:
    def row(k: int, value: float) -> PassAtKDifference:
        return PassAtKDifference(
            k=k,
            difference=Estimate.exact(value),
            first_wins=0,
            second_wins=0,
            ties=0,
            compression_factor=Estimate.undefined_because("not asked for"),
            compression_at_least=None,
        )

    assert crossover_k([row(1, 0.1), row(2, 0.0), row(4, -0.1)]) == 4
    assert crossover_k([row(1, 0.1), row(2, 0.0)]) is None
    assert crossover_k([row(1, 0.0), row(2, -0.1)]) is None
    assert crossover_k([]) is None


def test_files_about_different_prompts_are_refused() -> None:
    other = samples("other", {"z": [1, 0]})
    with pytest.raises(InputError, match="have no prompt in common: the first has prompt 'a', the second 'z'"):
        pass_at_k_of_samples([FIRST, other])


Change = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


def judged(draw: Callable[[np.random.Generator], np.ndarray], change: Change, n: int) -> Counter[str]:
    """Verdicts over ten logs of two policies with known rates."""
    verdicts: Counter[str] = Counter()
    for seed in range(10):
        rng = np.random.default_rng(seed)
        first, second = (counted(n, rng.binomial(n, rates)) for rates in change(draw(rng)))
        found = compare_samples(first, second, (1, 4, n), resampling=Resampling(num_resamples=300, seed=seed))
        verdicts[found.verdict] += 1
    return verdicts


def counted(n: int, correct: np.ndarray) -> Samples:
    return replace(
        FIRST,
        prompts=tuple(map(str, range(len(correct)))),
        num_samples=np.full(len(correct), n),
        num_correct=correct,
    )


def best_of(m: float) -> Change:
    return lambda rates: (rates, 1 - (1 - rates) ** m)


def newly_solved(share: float) -> Change:
    """The first ``share`` of the prompts are impossible for the first policy, and 0.3 for the second."""
    return lambda rates: (
        np.where(np.arange(len(rates)) < share * len(rates), 0.0, rates),
        np.where(np.arange(len(rates)) < share * len(rates), 0.3, rates),
    )


@pytest.mark.slow
@pytest.mark.parametrize("n", [16, 64])
@pytest.mark.parametrize(
    "draw",
    [
        lambda rng: rng.beta(0.3, 1, 500),
        lambda rng: rng.beta(0.5, 0.5, 500),
        lambda rng: 0.0001 ** rng.random(500),
        lambda rng: rng.choice([0.02, 0.5], 500),
    ],
)
def test_the_best_of_several_samples_is_never_an_expansion(
    draw: Callable[[np.random.Generator], np.ndarray], n: int
) -> None:
    """Forty of forty such logs of 500 prompts were called capacity expansion once."""
    for m in (1.0, 8.0, 32.0):
        verdicts = judged(draw, best_of(m), n)
        assert verdicts["capacity expansion"] == 0
        assert m > 1 or verdicts["search compression"] == 0


def test_prompts_solved_anew_are_an_expansion_where_the_samples_can_show_it() -> None:
    def draw(rng: np.random.Generator) -> np.ndarray:
        return rng.beta(0.5, 0.5, 500)

    assert judged(draw, newly_solved(0.3), 64) == {"capacity expansion": 10}
    assert judged(draw, newly_solved(0.3), 8) == {"undecided": 10}


def test_a_gain_that_ends_within_the_margin_is_compression() -> None:
    def draw(rng: np.random.Generator, num_prompts: int = 500) -> np.ndarray:
        """A fifth cannot be solved: there is something left to expand."""
        return np.where(np.arange(num_prompts) % 5 == 0, 0.0, rng.beta(2, 2, num_prompts))

    assert judged(draw, best_of(8), 64) == {"search compression": 10}
    # Of 40 prompts even none that differs could be two.
    assert judged(lambda rng: draw(rng, 40), best_of(8), 64) == {"undecided": 10}


def test_prompts_won_and_lost_in_equal_numbers_are_no_compression() -> None:
    def change(rates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        place = np.arange(len(rates)) % 5
        return np.where(place == 0, 0.0, rates), np.where(place == 1, 0.0, np.where(place == 0, 0.9, rates**0.3))

    assert judged(lambda rng: rng.beta(2, 2, 500), change, 64)["search compression"] == 0


@pytest.mark.parametrize("draw", [lambda rng: rng.beta(2, 2, 300), lambda rng: rng.uniform(0.2, 0.9, 300)])
def test_prompts_that_are_all_solved_are_no_compression(draw: Callable[[np.random.Generator], np.ndarray]) -> None:
    """pass@64 is 1.000 before and after: eight of eight such logs were called search compression."""
    verdicts = judged(draw, best_of(8.0), 64)
    assert verdicts["search compression"] == 0
    assert verdicts["no headroom"] >= 8


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
