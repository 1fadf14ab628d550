"""Did training widen what a policy can solve, or only sharpen it? A verdict, with what it rests on.

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

from gradscope.estimate import Estimate
from gradscope.results.passk import PassAtKDifference
from gradscope.say import percent, with_interval

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
    """The verdict on a second policy, and its evidence.

    Args:
        rows: Differences by k, ascending.
        won: Mean gain at the largest k, losses counted as 0.
        lost: Mean loss at the largest k, gains counted as 0.
        unsolved: 1 - pass@k of the first at the largest k.
        least_sharpening: Best of m of the first is refuted up to this m.

    Returns:
        The verdict, and a sentence without its period.
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
    """What false positives of the verifier would do to a verdict.

    A verifier that passes a share f of wrong samples leaves (1 - f)^k of those prompts unsolved that k samples do not
    solve. So f = 1 - (u2 / u1)^(1/k) in the second alone makes unsolved shares of u1 and u2 of one and the same policy.

    Args:
        unsolved: 1 - pass@k of the first and of the second, u1 and u2, at the largest k.
        k: That budget.
        num_prompts: Prompts; a second that leaves none unsolved counts as leaving half a prompt.

    Returns:
        A sentence without its period.
    """
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
