from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from msgspec.structs import replace

from gradscope.diagnostics.passk import comparison as pairs
from gradscope.diagnostics.passk import measure as passk
from gradscope.errors import InputError, UsageError
from gradscope.estimate import Estimate
from gradscope.metrics.uncertainty.intervals import Resampling
from gradscope.results.passk import PassAtKDifference, Solved
from tests.diagnostics.made_up_runs import FIRST, SECOND, samples


def test_second_file_is_paired_by_prompt() -> None:
    report = passk.pass_at_k_of_samples([FIRST, SECOND], ks=(4, 1))
    comparison = report.comparison
    third = samples("third", {"a": [0, 0, 0, 0]})
    (pair,) = passk.pass_at_k_of_samples([FIRST, SECOND, third]).further_comparisons
    assert (pair.first, pair.second) == ("first", "third")
    assert (comparison.num_prompts, comparison.num_unpaired) == (3, 1)
    by_k = {row.k: row for row in comparison.rows}
    assert by_k[1].difference.value == pytest.approx((3 * 0.25 - 1.5) / 3)
    assert (by_k[1].first_wins, by_k[1].second_wins, by_k[1].ties) == (2, 1, 0)
    assert by_k[4].difference.value == pytest.approx(1 / 3)
    assert (by_k[4].first_wins, by_k[4].second_wins, by_k[4].ties) == (0, 1, 2)
    assert comparison.crossover_k is None, "what intervals allow is no turn"
    assert comparison.solved == Solved(both=2, first_only=0, second_only=1, neither=0)
    verdict, factor, verifier, *reach = report.findings
    assert verifier.startswith("A verifier that passes 1.0 % of wrong samples")
    assert verdict.startswith(
        "second against first, over 3 prompts in both and without 1 in one: the intervals allow a gain and a loss: -0.2"
    )
    assert " at k = 4. Verdict: undecided whether " in verdict
    assert factor == "first needs 0.50 times the samples of second for the same pass@1."
    assert [sentence.partition(":")[0] for sentence in reach] == ["first", "second"]


def difference(k: int, estimate: Estimate) -> PassAtKDifference:
    factor = {"compression_factor": Estimate.undefined_because("not measured"), "compression_at_least": None}
    return PassAtKDifference(k=k, difference=estimate, first_wins=0, second_wins=0, ties=0, **factor)


@pytest.mark.parametrize(
    ("values", "crossing"),
    [((0.2, 0.0, -0.05, -0.2), 8), ((0.2, 0.0), None), ((0.05, -0.2), None), ((0.0, -0.2), None), ((), None)],
)
def test_the_sign_of_the_difference_may_turn(values: tuple[float, ...], crossing: int | None) -> None:
    estimates = [Estimate(value=value, low=value - 0.1, high=value + 0.1) for value in values]
    rows = [difference(2**index, estimate) for index, estimate in enumerate(estimates)]
    assert pairs.crossover_k(rows) == crossing


def test_files_without_a_common_prompt_or_a_budget_are_refused() -> None:
    other = samples("other", {"z": [1, 0]})
    with pytest.raises(InputError, match="have no prompt in common: the first has prompt 'a', the second 'z'"):
        passk.pass_at_k_of_samples([FIRST, other])
    with pytest.raises(UsageError, match=r"pass@k needs a file of samples\."):
        passk.measure_pass_at_k()
    with pytest.raises(UsageError, match=r"k is at least 1, got 0\."):
        passk.measure_pass_at_k("samples.jsonl", ks=(0,))
    assert passk.default_ks(1) == [1]
    assert passk.default_ks(100) == [1, 2, 4, 5, 8, 10, 16, 20, 32, 50, 64, 100]


Change = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


def judged(draw: Callable[[np.random.Generator], np.ndarray], change: Change, n: int) -> Counter[str]:
    """Verdicts over ten logs of two policies with known rates."""
    verdicts: Counter[str] = Counter()
    for seed in range(10):
        rng = np.random.default_rng(seed)
        first, second = (counted(n, rng.binomial(n, rates)) for rates in change(draw(rng)))
        resampling = Resampling(num_resamples=300, seed=seed)
        verdicts[pairs.compare_samples(first, second, (1, 4, n), resampling=resampling).verdict] += 1
    return verdicts


def counted(n: int, correct: np.ndarray) -> pairs.Samples:
    prompts = tuple(map(str, range(len(correct))))
    return replace(FIRST, prompts=prompts, num_samples=np.full(len(correct), n), num_correct=correct)


def best_of(m: float) -> Change:
    return lambda rates: (rates, 1 - (1 - rates) ** m)


def newly_solved(share: float) -> Change:
    """The first ``share`` of the prompts are impossible for the first policy, and 0.3 for the second."""
    return lambda rates: tuple(np.where(np.arange(len(rates)) < share * len(rates), rate, rates) for rate in (0.0, 0.3))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("draw", "n"), [(lambda rng: rng.beta(0.3, 1, 500), 64), (lambda rng: rng.choice([0.02, 0.5], 500), 16)]
)
def test_the_best_of_samples_is_never_an_expansion(draw: Callable[[np.random.Generator], np.ndarray], n: int) -> None:
    """Forty of forty such logs of 500 prompts were called capacity expansion once."""
    for m in (1.0, 8.0, 32.0):
        verdicts = judged(draw, best_of(m), n)
        assert verdicts["capacity expansion"] == 0
        assert m > 1 or verdicts["search compression"] == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("draw", "change", "n", "verdict"),
    [
        (lambda rng: rng.beta(0.5, 0.5, 500), newly_solved(0.3), 64, "capacity expansion"),
        (lambda rng: rng.beta(0.5, 0.5, 500), newly_solved(0.3), 8, "undecided"),  # too few samples to show it
        (lambda rng: with_impossible(rng.beta(2, 2, 500)), best_of(8), 64, "search compression"),
        (lambda rng: with_impossible(rng.beta(2, 2, 40)), best_of(8), 64, "undecided"),  # none of 40 could be two
        (lambda rng: rng.beta(2, 2, 300), best_of(8), 64, "no headroom"),  # pass@64 is 1.000 before and after
    ],
)
def test_policies_of_known_rates_are_judged_right(
    draw: Callable[[np.random.Generator], np.ndarray], change: Change, n: int, verdict: str
) -> None:
    assert judged(draw, change, n)[verdict] >= 8


def with_impossible(rates: np.ndarray) -> np.ndarray:
    """A fifth cannot be solved: there is something left to expand."""
    return np.where(np.arange(len(rates)) % 5 == 0, 0.0, rates)


GAIN, LEFT_OPEN, EQUAL, LOSS = (0.1, 0.3), (-0.05, 0.44), (-0.02, 0.03), (-0.2, -0.06)
ZERO, ABOVE = (0.0, 0.9 * pairs.MARGIN), (0.02, 1.1 * pairs.MARGIN)


def around(ends: tuple[float, float]) -> Estimate:
    return Estimate(value=sum(ends) / 2, low=ends[0], high=ends[1], num_units=40)


def differences(*ends: tuple[float, float]) -> list[PassAtKDifference]:
    return [difference(16**index, around(pair)) for index, pair in enumerate(ends)]


LEFT, SHARPER = (0.1, 0.2), (GAIN, EQUAL)


@pytest.mark.parametrize(
    ("ends", "won", "lost", "sharpening", "verdict", "words", "unsolved"),
    [
        ((GAIN, GAIN), ABOVE, ZERO, 65.0, "capacity expansion", "beyond the best of 65 samples of the first", LEFT),
        ((LEFT_OPEN, GAIN), ABOVE, ZERO, 65.0, "capacity expansion", "and more at the largest budget", LEFT),
        ((GAIN, GAIN), ABOVE, ZERO, 64.0, "undecided", "gains at every sampled k: +0.200", LEFT),
        ((GAIN, GAIN), ABOVE, ZERO, None, "undecided", "the best of up to 64 samples of the first may explain", LEFT),
        ((GAIN, LOSS), ABOVE, ABOVE, 65.0, "undecided", "some prompts are solved anew, beyond any best of 64", LEFT),
        (SHARPER, ZERO, ZERO, None, "search compression", "at the largest less than 0.05 is won", LEFT),
        (SHARPER, ABOVE, ZERO, None, "undecided", "a gain at the smallest budget, no certain difference", LEFT),
        ((GAIN, (0.01, 0.03)), ZERO, ZERO, None, "undecided", "gains at every sampled k", LEFT),
        (((0.01, 0.05), EQUAL), ZERO, ZERO, None, "undecided", "a gain at the smallest budget", LEFT),
        ((GAIN, LOSS), ZERO, ABOVE, None, "search compression", "the gain at the smallest budget is a loss", LEFT),
        ((GAIN, LOSS), ABOVE, ABOVE, None, "undecided", "a gain at the smallest budget, a loss at the largest", LEFT),
        ((GAIN, LEFT_OPEN), ABOVE, ABOVE, None, "undecided", "no certain difference at the largest", LEFT),
        ((LOSS, LOSS), ZERO, ABOVE, None, "undecided", "losses at every sampled k", LEFT),
        ((LEFT_OPEN, LEFT_OPEN), ABOVE, ABOVE, None, "undecided", "the intervals allow a gain and a loss", LEFT),
        ((GAIN,), ZERO, ZERO, 65.0, "undecided", "one budget says nothing about reach", LEFT),
        (SHARPER, ZERO, ZERO, None, "no headroom", "next to nothing to expand", (0.0, pairs.MARGIN)),
        (SHARPER, ZERO, ZERO, None, "undecided", "not certainly more than 0.05", (pairs.MARGIN, 0.2)),
        (SHARPER, ZERO, ZERO, None, "search compression", "less than 0.05 is won", (1.02 * pairs.MARGIN, 0.2)),
    ],
)
def test_verdict_and_its_evidence(
    ends: tuple[tuple[float, float], ...],
    won: tuple[float, float],
    lost: tuple[float, float],
    sharpening: float | None,
    verdict: str,
    words: str,
    unsolved: tuple[float, float],
) -> None:
    shares = {"won": around(won), "lost": around(lost), "unsolved": around(unsolved)}
    actual, evidence = pairs.judge_reach(differences(*ends), **shares, least_sharpening=sharpening)
    assert actual == verdict
    assert words in evidence


def test_what_false_positives_do_is_their_chance_among_k_samples() -> None:
    """Half the prompts are unsolvable, and the second's verifier passes 2 % of wrong samples: 64 samples each."""
    unsolved = 0.5 * 0.98**64
    caution = pairs.verifier_caution((0.5, unsolved), 64, 200)
    words = "solved in 47.4 % of cases at k = 64; had it passed 2 % of them in the second alone, that would be"
    assert words in caution
    assert "alone" not in pairs.verifier_caution((0.1 + 0.2, 0.3), 64, 200), "equal but for rounding"
    assert "passed 6.9 % of them" in pairs.verifier_caution((0.5, 0.0), 64, 100)
    assert "solved in 3.0 % of cases at k = 3" in pairs.verifier_caution((0.5, 0.0), 3, 100)
