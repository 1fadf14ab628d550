"""Two files of samples, paired by prompt: the difference at each budget, and whether it is one of reach.

Legend: n samples of a prompt, c of them correct, k the budget, P prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

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
from gradscope.results import passk as results
from gradscope.results.source import Source
from gradscope.say import in_two_digits, percent, with_interval


class Samples(Struct, frozen=True, kw_only=True):
    """The samples of one policy."""

    name: str  # what tables call it
    source: Source  # where they came from
    prompts: tuple[str, ...]  # prompt ids, [P], in the order of the file
    num_samples: NDArray[np.int64]  # n, [P]
    num_correct: NDArray[np.int64]  # c, [P]
    num_missing: int  # samples without a verdict; they are not counted in n
    num_copies: int = 0  # samples of a long text that another of their prompt has; 0 where few are, or have no text


_EQUAL = 1e-12  # two estimates of one prompt closer than this are a tie: they are sums of the same fractions


def compare_samples(
    first: Samples, second: Samples, ks: Sequence[int], *, resampling: Resampling
) -> results.PassAtKComparison:
    """Second against first, paired by prompt, at the budgets ``ks``, ascending."""
    row_of = {prompt: row for row, prompt in enumerate(second.prompts)}
    pairs = [(row, row_of[prompt]) for row, prompt in enumerate(first.prompts) if prompt in row_of]
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
    rows = tuple(
        _difference_of_rows(before, after, k, factor, resampling=resampling)
        for k, factor in zip(ks, compression_factors(before, after, ks), strict=True)
    )
    defined_ks = [row.k for row in rows if row.difference.is_defined]
    solves_first, solves_second = before[1] > 0, after[1] > 0
    won, lost, unsolved = _changes_at_largest(before, after, defined_ks, resampling=resampling)
    sharpening = least_sharpening(before, after, resampling=resampling)
    verdict, evidence = judge_reach(rows, won=won, lost=lost, unsolved=unsolved, least_sharpening=sharpening)
    verifier = ""
    if defined_ks:
        unsolved_after = 1 - float(pass_at_k(*after, defined_ks[-1]).mean())
        verifier = verifier_caution((unsolved.value or 0.0, unsolved_after), defined_ks[-1], len(pairs))
    return results.PassAtKComparison(
        first=first.name,
        second=second.name,
        num_prompts=len(pairs),
        num_unpaired=len(first.prompts) + len(second.prompts) - 2 * len(pairs),
        rows=rows,
        crossover_k=crossover_k(rows),
        solved=results.Solved(
            both=int(np.sum(solves_first & solves_second)),
            first_only=int(np.sum(solves_first & ~solves_second)),
            second_only=int(np.sum(~solves_first & solves_second)),
            neither=int(np.sum(~solves_first & ~solves_second)),
        ),
        frac_won=won,
        frac_lost=lost,
        least_sharpening=sharpening,
        verdict=verdict,
        evidence=evidence,
        verifier=verifier,
    )


def crossover_k(rows: Sequence[results.PassAtKDifference]) -> int | None:
    """The smallest k certainly on the other side of zero than the first defined one, which is certainly on one."""
    sides = [(row.k, row.difference.side_of_zero) for row in rows if row.difference.is_defined]
    return next((k for k, side in sides if side * sides[0][1] < 0), None)


def _difference_of_rows(
    first: Counts, second: Counts, k: int, factor: CompressionFactor, *, resampling: Resampling
) -> results.PassAtKDifference:
    reason = why_k_too_large(first[0], k) or why_k_too_large(second[0], k)
    if reason is None:
        before, after = pass_at_k(*first, k), pass_at_k(*second, k)
        gain, difference = after - before, bootstrap_difference(before, after, resampling=resampling)
    else:
        gain, difference = np.zeros(0), Estimate.undefined_because(reason, num_units=len(first[0]))
    return results.PassAtKDifference(
        k=k,
        difference=difference,
        first_wins=int(np.sum(gain < -_EQUAL)),
        second_wins=int(np.sum(gain > _EQUAL)),
        ties=int(np.sum(np.abs(gain) <= _EQUAL)),
        compression_factor=factor.factor,
        compression_at_least=factor.at_least,
    )


def _changes_at_largest(
    first: Counts, second: Counts, ks: Sequence[int], *, resampling: Resampling
) -> tuple[Estimate, Estimate, Estimate]:
    """The shares won, lost, and unsolved by the first, at the largest budget that both have."""
    if not ks:
        undefined = Estimate.undefined_because("the two have no budget in common", num_units=len(first[0]))
        return undefined, undefined, undefined
    before = pass_at_k(*first, ks[-1])
    gain = pass_at_k(*second, ks[-1]) - before
    columns = np.column_stack([np.maximum(gain, 0.0), np.maximum(-gain, 0.0), 1 - before])
    won, lost, unsolved = bootstrap_means(columns, resampling=resampling)
    return won, lost, unsolved


Verdict = Literal["capacity expansion", "search compression", "no headroom", "undecided"]

MAX_SHARPENING = 64
"""The best of this many samples is the most that training is taken to compress into one: an assumption, far above the
8 that is often sampled, and not more, for each doubling takes twice the samples to rule out."""
MARGIN = 0.05
"""Shares of prompts below this are taken for none at the largest k; the upper end of a 95 % interval has to be."""
ONE_IN_A_HUNDRED = 0.01  # the false-positive rate of which every verdict says what it would do


def judge_reach(
    rows: Sequence[results.PassAtKDifference],
    *,
    won: Estimate,
    lost: Estimate,
    unsolved: Estimate,
    least_sharpening: float | None,
) -> tuple[Verdict, str]:
    """The verdict on a second policy, and its evidence, a sentence without its period.

    *Capacity expansion* asks for prompts that the first leaves unsolved and that the second solves too often for any
    best of :data:`MAX_SHARPENING` of the first, and a gain at the largest k. *Search compression* asks for a gain
    at the smallest k, where at the largest the second solves hardly another prompt: gains, and losses too, are shown to
    be below :data:`MARGIN`, though the first leaves more than that unsolved, else there was *no headroom*; or the gain
    has become a loss. All else is undecided.

    Args:
        rows: Differences by k, ascending.
        won: Mean gain at the largest k, losses counted as 0; ``lost`` is the reverse.
        unsolved: 1 - pass@k of the first at the largest k.
        least_sharpening: Best of m of the first is refuted up to this m.
    """
    defined = [row for row in rows if row.difference.is_defined]
    if len(defined) < 2:
        return "undecided", "one budget says nothing about reach: compare a small k with a large one"
    small, large = defined[0].difference, defined[-1].difference
    ends = f"{_difference(defined[0])}, {_difference(defined[-1])}"
    beyond = least_sharpening is not None and least_sharpening > MAX_SHARPENING
    if beyond and large.side_of_zero > 0:
        return "capacity expansion", (
            f"the second solves prompts anew, beyond the best of {least_sharpening:,.0f} samples of the first, and "
            f"more at the largest budget: {ends}"
        )
    none_won, none_lost = won.ends[1] < MARGIN, lost.ends[1] < MARGIN
    if small.side_of_zero > 0 and none_won and none_lost and large.side_of_zero <= 0 and large.ends[1] < small.ends[0]:
        left = f"{with_interval(unsolved, '.3f')} of the prompts unsolved"
        if unsolved.ends[1] <= MARGIN:
            return "no headroom", f"at the largest budget the first leaves {left}, next to nothing to expand: {ends}"
        if unsolved.ends[0] <= MARGIN:
            return "undecided", (
                f"a gain at the smallest budget; at the largest the first leaves {left}, not certainly more than "
                f"{MARGIN:g}, so there may have been nothing to expand: {ends}"
            )
        return "search compression", (
            f"a gain at the smallest budget; at the largest less than {MARGIN:g} is won on any prompts, and less than "
            f"{MARGIN:g} lost: {ends}"
        )
    if small.side_of_zero > 0 and none_won and large.side_of_zero < 0:
        return "search compression", f"the gain at the smallest budget is a loss at the largest: {ends}"
    return "undecided", f"{_directions(defined)}: {ends}{_why_not_reach(defined, beyond)}"


def verifier_caution(unsolved: tuple[float, float], k: int, num_prompts: int) -> str:
    """How false positives of the verifier would change a verdict, a sentence without its period."""
    # A verifier that passes a share f of wrong samples leaves (1 - f)^k of those prompts unsolved that k samples do
    # not solve. So f = 1 - (u2 / u1)^(1/k) in the second alone makes unsolved shares of u1 and u2 of one and the same
    # policy. A second that leaves no prompt unsolved counts as leaving half a prompt.
    first, second = unsolved[0], max(unsolved[1], 0.5 / num_prompts)
    solved = 1 - (1 - ONE_IN_A_HUNDRED) ** k
    caution = (
        f"a verifier that passes {percent(ONE_IN_A_HUNDRED)} of wrong samples counts a prompt without a right one as "
        f"solved in {percent(solved)} of cases at k = {k}"
    )
    if second >= first - _EQUAL:
        return caution
    rate = 1 - (second / first) ** (1 / k)
    return f"{caution}; had it passed {in_two_digits(rate)} of them in the second alone, that would be the whole gain"


def _directions(rows: Sequence[results.PassAtKDifference]) -> str:
    sides = [row.difference.side_of_zero for row in rows]
    if set(sides) == {1}:
        return "gains at every sampled k"
    if set(sides) == {-1}:
        return "losses at every sampled k"
    if sides[0] == sides[-1] == 0:
        return "the intervals allow a gain and a loss"
    words = {1: "a gain", 0: "no certain difference", -1: "a loss"}
    return f"{words[sides[0]]} at the smallest budget, {words[sides[-1]]} at the largest"


def _why_not_reach(rows: Sequence[results.PassAtKDifference], beyond: bool) -> str:
    if beyond:
        return f"; some prompts are solved anew, beyond any best of {MAX_SHARPENING} of the first, others may be lost"
    if rows[-1].difference.side_of_zero > 0:
        return f"; the best of up to {MAX_SHARPENING} samples of the first may explain them"
    return ""


def _difference(row: results.PassAtKDifference) -> str:
    low, high = row.difference.ends
    return f"{row.difference.value or 0.0:+.3f} [{low:+.3f}, {high:+.3f}] at k = {row.k}"
