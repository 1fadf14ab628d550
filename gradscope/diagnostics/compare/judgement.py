"""What the tests of a comparison may claim: a decision, a suggestion, or nothing yet.

Runs bifurcate: most seeds do well and some collapse. The t test takes differences for normal, and Holm's rule asks it
for probabilities far out in tails that it then gets wrong: an arm of which half of the seeds collapse, against a steady
one of the same mean, five seeds and five tests, is decided 26 times in 100. The test that flips signs assumes only that
either sign is as likely where there is no difference, so a decision rests on it;
``benchmarks/referee/compare_decides.py`` measures both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gradscope.estimate import Estimate
from gradscope.metrics.uncertainty.paired import holm, least_detectable_mean
from gradscope.results.compare import ComparedPair, CompareVerdict

FEWEST_PAIRS = 8
"""Pairs from which sign flips can give a p-value below 0.01, so that more than one test can decide."""
LEVEL = 0.05
"""A corrected p-value up to this counts."""
POWER = 0.8
"""How often the least detectable difference would be decided."""


def judged(pairs: Sequence[ComparedPair]) -> tuple[ComparedPair, ...]:
    """Pairs with corrected p-values and what these claim.

    Sign flips are corrected for the tests that can decide, those of 8 pairs or more; the t test for all that were made.

    Args:
        pairs: With the p-values of single tests.

    Returns:
        The same pairs in the same order.
    """
    flips = [pair.sign_flip_p_value if pair.num_pairs >= FEWEST_PAIRS else None for pair in pairs]
    num_tests = sum(p is not None for p in flips)
    corrected = zip(pairs, holm([pair.p_value for pair in pairs]), holm(flips), strict=True)
    return tuple(
        replace(
            pair,
            p_holm=by_t,
            sign_flip_p_holm=by_flips,
            verdict=_verdict(by_t, by_flips),
            least_detectable=_least_detectable(pair, num_tests),
        )
        for pair, by_t, by_flips in corrected
    )


def _verdict(by_t: float | None, by_flips: float | None) -> CompareVerdict:
    if by_flips is not None and by_flips <= LEVEL:
        return "decides"
    return "suggests" if by_t is not None and by_t <= LEVEL else "open"


def _least_detectable(pair: ComparedPair, num_tests: int) -> Estimate:
    """The difference that would be decided four times in five as the smallest of the p-values, at the spread seen."""
    number = pair.num_pairs
    if number < FEWEST_PAIRS:
        return Estimate.undefined_because(f"a decision needs {FEWEST_PAIRS} pairs, there are {number}")
    if pair.spread is None:
        return Estimate.undefined_because(pair.undefined or "there is no spread", num_units=number)
    level, least = LEVEL / num_tests, 2 / 2**number
    if least > level:
        return Estimate.undefined_because(
            f"sign flips of {number} pairs give no p-value below {least:.2g}, and the first of {num_tests} tests needs "
            f"{level:.2g}",
            num_units=number,
        )
    return Estimate.exact(pair.spread * least_detectable_mean(number, level, POWER), num_units=number)
