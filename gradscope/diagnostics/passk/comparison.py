"""Two policies on the prompts that both were asked: at which budget does which find more, and did training widen reach?

A gain at every sampled k is no sign of reach: the best of eight samples of the first policy gains at every k, and
solves no prompt that the first does not. So *capacity expansion* asks for prompts that the first leaves unsolved and
that the second solves too often for any best of :data:`MOST_SHARPENING` of the first, beside a gain at the largest k.
*Search compression* asks for a gain at the smallest k, where at the largest the second solves hardly another prompt:
gains, and losses too, are shown to be below :data:`MARGIN`, though the first leaves more than that unsolved, else there
was *no headroom*; or the gain has become a loss. All else is undecided. Every verdict takes the verifier's word, so
what its false positives would do to it is said beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gradscope.diagnostics.passk.samples import Samples
from gradscope.errors import InputError
from gradscope.estimate import Estimate
from gradscope.metrics.outcomes.passk import (
    CompressionFactor,
    Counts,
    compression_factors,
    least_sharpening,
    pass_at_k,
    why_k_too_large,
)
from gradscope.metrics.uncertainty.bootstrap import bootstrap_difference, bootstrap_means
from gradscope.metrics.uncertainty.intervals import Resampling
from gradscope.results.passk import PassAtKComparison, PassAtKDifference, Solved
from gradscope.say import percent, with_interval

_EQUAL = 1e-12
"""Two estimates of one prompt closer than this are a tie: they are sums of the same fractions."""


def compare_samples(first: Samples, second: Samples, ks: Sequence[int], *, resampling: Resampling) -> PassAtKComparison:
    """Second against first, paired by prompt, at the budgets ``ks``, ascending."""
    where = {prompt: row for row, prompt in enumerate(second.prompts)}
    pairs = [(row, where[prompt]) for row, prompt in enumerate(first.prompts) if prompt in where]
    if not pairs:
        raise InputError(
            f"{first.source.path} and {second.source.path} have no prompt in common: the first has prompt "
            f"{first.prompts[0]!r}, the second {second.prompts[0]!r}.",
            hint="Give two files with samples of the same prompts under the same ids (--prompt-column names the "
            "column), or look at them one by one.",
        )
    rows_first, rows_second = (np.array(rows, dtype=np.int64) for rows in zip(*pairs, strict=True))
    before = (first.num_samples[rows_first], first.num_correct[rows_first])
    after = (second.num_samples[rows_second], second.num_correct[rows_second])
    rows = _rows(before, after, ks, resampling=resampling)
    known = [row.k for row in rows if row.difference.is_defined]
    won, lost, unsolved = _at_largest(before, after, known, resampling=resampling)
    sharpening = least_sharpening(before, after, resampling=resampling)
    verdict, evidence = judge_reach(rows, won=won, lost=lost, unsolved=unsolved, least_sharpening=sharpening)
    return PassAtKComparison(
        first=first.name,
        second=second.name,
        num_prompts=len(pairs),
        num_unpaired=len(first.prompts) + len(second.prompts) - 2 * len(pairs),
        rows=rows,
        crossover_k=crossover_k(rows),
        solved=_solved(before[1] > 0, after[1] > 0),
        frac_won=won,
        frac_lost=lost,
        least_sharpening=sharpening,
        verdict=verdict,
        evidence=evidence,
        verifier=verifier_caution(
            (unsolved.value or 0.0, 1 - float(pass_at_k(*after, known[-1]).mean())), known[-1], len(pairs)
        )
        if known
        else "",
    )


def crossover_k(rows: Sequence[PassAtKDifference]) -> int | None:
    """The smallest k whose difference has the opposite sign of the first defined one; None where it never turns."""
    signs = [(row.k, float(np.sign(row.difference.value))) for row in rows if row.difference.value is not None]
    if not signs or signs[0][1] == 0.0:
        return None
    return next((k for k, sign in signs if sign == -signs[0][1]), None)


def _rows(first: Counts, second: Counts, ks: Sequence[int], *, resampling: Resampling) -> tuple[PassAtKDifference, ...]:
    factors = compression_factors(first, second, ks)
    return tuple(
        _difference_of_rows(first, second, k, factor, resampling=resampling)
        for k, factor in zip(ks, factors, strict=True)
    )


def _difference_of_rows(
    first: Counts, second: Counts, k: int, factor: CompressionFactor, *, resampling: Resampling
) -> PassAtKDifference:
    reason = why_k_too_large(first[0], k) or why_k_too_large(second[0], k)
    if reason is None:
        before, after = pass_at_k(*first, k), pass_at_k(*second, k)
        gain, difference = after - before, bootstrap_difference(before, after, resampling=resampling)
    else:
        gain, difference = np.zeros(0), Estimate.undefined_because(reason, num_units=len(first[0]))
    return PassAtKDifference(
        k=k,
        difference=difference,
        first_wins=int(np.sum(gain < -_EQUAL)),
        second_wins=int(np.sum(gain > _EQUAL)),
        ties=int(np.sum(np.abs(gain) <= _EQUAL)),
        compression_factor=factor.factor,
        compression_at_least=factor.at_least,
    )


def _at_largest(
    first: Counts, second: Counts, known: Sequence[int], *, resampling: Resampling
) -> tuple[Estimate, Estimate, Estimate]:
    """What is gained, what is lost and what the first leaves unsolved at the largest budget that both have."""
    if not known:
        undefined = Estimate.undefined_because("the two have no budget in common", num_units=len(first[0]))
        return undefined, undefined, undefined
    before = pass_at_k(*first, known[-1])
    gain = pass_at_k(*second, known[-1]) - before
    columns = np.column_stack([np.maximum(gain, 0.0), np.maximum(-gain, 0.0), 1 - before])
    won, lost, unsolved = bootstrap_means(columns, resampling=resampling)
    return won, lost, unsolved


def _solved(first: NDArray[np.bool_], second: NDArray[np.bool_]) -> Solved:
    return Solved(
        both=int(np.sum(first & second)),
        first_only=int(np.sum(first & ~second)),
        second_only=int(np.sum(~first & second)),
        neither=int(np.sum(~first & ~second)),
    )


Verdict = Literal["capacity expansion", "search compression", "no headroom", "undecided"]

MOST_SHARPENING = 64
"""The best of this many samples is the most that training is taken to compress into one: an assumption, far above the
8 that is often sampled, and not more, for each doubling takes twice the samples to rule out."""
MARGIN = 0.05
"""Shares of prompts below this are taken for none at the largest k; the upper end of a 95 % interval has to be."""
ONE_IN_A_HUNDRED = 0.01
"""The false-positive rate of which every verdict says what it would do."""


def judge_reach(
    rows: Sequence[PassAtKDifference],
    *,
    won: Estimate,
    lost: Estimate,
    unsolved: Estimate,
    least_sharpening: float | None,
) -> tuple[Verdict, str]:
    """The verdict on a second policy, and its evidence, a sentence without its period.

    Args:
        rows: Differences by k, ascending.
        won: Mean gain at the largest k, losses counted as 0.
        lost: Mean loss at the largest k, gains counted as 0.
        unsolved: 1 - pass@k of the first at the largest k.
        least_sharpening: Best of m of the first is refuted up to this m.

    Returns:
        Both.
    """
    known = [row for row in rows if row.difference.is_defined]
    if len(known) < 2:
        return "undecided", "one budget says nothing about reach: compare a small k with a large one"
    small, large = known[0].difference, known[-1].difference
    both = f"{_difference(known[0])}, {_difference(known[-1])}"
    beyond = least_sharpening is not None and least_sharpening > MOST_SHARPENING
    if beyond and large.side_of_zero > 0:
        return "capacity expansion", (
            f"the second solves prompts anew, beyond the best of {least_sharpening:,.0f} samples of the first, and "
            f"more at the largest budget: {both}"
        )
    none_won, none_lost = won.ends[1] < MARGIN, lost.ends[1] < MARGIN
    if small.side_of_zero > 0 and none_won and none_lost and large.side_of_zero <= 0 and large.ends[1] < small.ends[0]:
        left = f"{with_interval(unsolved, '.3f')} of the prompts unsolved"
        if unsolved.ends[1] <= MARGIN:
            return "no headroom", f"at the largest budget the first leaves {left}, next to nothing to expand: {both}"
        if unsolved.ends[0] <= MARGIN:
            return "undecided", (
                f"a gain at the smallest budget; at the largest the first leaves {left}, not certainly more than "
                f"{MARGIN:g}, so there may have been nothing to expand: {both}"
            )
        return "search compression", (
            f"a gain at the smallest budget; at the largest less than {MARGIN:g} is won on any prompts, and less than "
            f"{MARGIN:g} lost: {both}"
        )
    if small.side_of_zero > 0 and none_won and large.side_of_zero < 0:
        return "search compression", f"the gain at the smallest budget is a loss at the largest: {both}"
    return "undecided", f"{_course(known)}: {both}{_why_not_reach(known, beyond)}"


def verifier_caution(unsolved: tuple[float, float], k: int, num_prompts: int) -> str:
    """What false positives of the verifier would do to a verdict, a sentence without its period."""
    # A verifier that passes a share f of wrong samples leaves (1 - f)^k of those prompts unsolved that k samples do
    # not solve. So f = 1 - (u2 / u1)^(1/k) in the second alone makes unsolved shares of u1 and u2 of one and the same
    # policy. A second that leaves no prompt unsolved counts as leaving half a prompt.
    first, second = unsolved[0], max(unsolved[1], 0.5 / num_prompts)
    solved = 1 - (1 - ONE_IN_A_HUNDRED) ** k
    alike = (
        f"a verifier that passes {percent(ONE_IN_A_HUNDRED)} of wrong samples counts a prompt without a right one as "
        f"solved in {percent(solved)} of cases at k = {k}"
    )
    if second >= first:
        return alike
    alone = 1 - (second / first) ** (1 / k)
    return f"{alike}; had it passed {100 * alone:.2g} % of them in the second alone, that would be the whole gain"


def _course(rows: Sequence[PassAtKDifference]) -> str:
    sides = [row.difference.side_of_zero for row in rows]
    if set(sides) == {1}:
        return "gains at every sampled k"
    if set(sides) == {-1}:
        return "losses at every sampled k"
    if sides[0] == sides[-1] == 0:
        return "the intervals allow a gain and a loss"
    words = {1: "a gain", 0: "no certain difference", -1: "a loss"}
    return f"{words[sides[0]]} at the smallest budget, {words[sides[-1]]} at the largest"


def _why_not_reach(rows: Sequence[PassAtKDifference], beyond: bool) -> str:
    if beyond:
        return f"; some prompts are solved anew, beyond any best of {MOST_SHARPENING} of the first, others may be lost"
    if rows[-1].difference.side_of_zero > 0:
        return f"; the best of at most {MOST_SHARPENING} samples of the first is not ruled out"
    return ""


def _difference(row: PassAtKDifference) -> str:
    low, high = row.difference.ends
    return f"{row.difference.value or 0.0:+.3f} [{low:+.3f}, {high:+.3f}] at k = {row.k}"
