"""Did training widen what a policy can solve, or only sharpen it? A verdict, with what it rests on.

A gain at the largest budget is reach: prompts are solved that many samples of the first policy did not solve. A gain at
the smallest budget that is gone at the largest is sharpening: the same prompts are solved with fewer samples. A budget
at which the first policy solves nearly everything cannot tell the two apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from gradscope.results.passk import PassAtKDifference

Verdict = Literal["capacity expansion", "search compression", "undecided"]

CEILING = 0.95
"""Where the first policy solves this share at the largest budget, there is no room for a gain."""


def judge_reach(rows: Sequence[PassAtKDifference], *, ceiling: float) -> tuple[Verdict, str]:
    """The verdict on a second policy, and its evidence; ``ceiling`` is the first one's pass@k at the largest k."""
    known = [row for row in rows if row.difference.is_defined]
    if len(known) < 2:
        return "undecided", "one budget says nothing about reach: compare a small k with a large one"
    small, large = known[0], known[-1]
    (small_low, _), (large_low, large_high) = small.difference.ends, large.difference.ends
    both = f"{_difference(small)}, {_difference(large)}"
    if large_low > 0:
        return "capacity expansion", f"the second solves more at the largest budget: {both}"
    if small_low > 0 and large_high < min(small_low, 0.0):
        return "search compression", f"the gain at the smallest budget is a loss at the largest: {both}"
    if ceiling >= CEILING:
        return "undecided", f"at k = {large.k} the first already solves {ceiling:.3f}, which leaves no room: {both}"
    if small_low > 0 and large_high < small_low:
        return "search compression", f"the gain at the smallest budget is gone at the largest: {both}"
    if small_low > 0:
        return "undecided", f"a gain at the smallest budget; at the largest it may be there or not: {both}"
    return "undecided", f"the intervals allow a gain and a loss: {both}"


def _difference(row: PassAtKDifference) -> str:
    low, high = row.difference.ends
    return f"{row.difference.value or 0.0:+.3f} [{low:+.3f}, {high:+.3f}] at k = {row.k}"
