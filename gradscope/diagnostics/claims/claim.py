"""The shape of a claim, and the one rule by which a number supports or contradicts it.

A claim says that a number lies in a range. It is supported where the whole 95 % interval lies in the range, and
contradicted where the whole interval lies outside; else nobody can tell on this run. Where several numbers must lie in
theirs, their intervals are widened so that all of them together hold with 95 % (Bonferroni).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradscope.estimate import Estimate
from gradscope.metrics.uncertainty.intervals import bonferroni
from gradscope.results.verdicts import ClaimVerdict

if TYPE_CHECKING:
    from gradscope.diagnostics.claims.evidence import Evidence

BY_SIDE: dict[int, ClaimVerdict] = {1: "supported", 0: "cannot_tell", -1: "contradicted"}
NO_NULL = Estimate.undefined_because("no chance model belongs to this number")


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What a run says about a claim."""

    estimate: Estimate  # the number
    null: Estimate = NO_NULL  # what it would be if the claim's cause were absent
    verdict: ClaimVerdict  # by the rule
    why: str  # in words
    steps: tuple[int, ...] = ()  # steps that were looked at; empty for the whole log


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One claim; a new one is one record and, where its number is new, one function."""

    name: str  # a word a topic, then the matrix or the part
    source: str  # who says so
    claim: str  # what is said, in one sentence
    metric: str  # what is measured
    settle: str  # what would settle it
    ours: bool = False
    """Whether the definition, or a bound in it, is this package's, so that a number outside refutes no source."""
    judge: Callable[[Evidence], Judgement]
    """Looks at the run; raises a ``GradscopeError`` where the run lacks what it needs."""


def in_range(estimate: Estimate, low: float, high: float, *, num_tests: int = 1) -> ClaimVerdict:
    """The rule for one number.

    Args:
        low: Least value of the range.
        high: Greatest.
        num_tests: Numbers that are judged together.

    Returns:
        The verdict; without an interval nobody can tell.

    Example:
        >>> in_range(Estimate(value=2.0, low=1.8, high=2.2), 1.5, 2.5)
        'supported'
        >>> in_range(Estimate(value=2.0, low=1.8, high=3.2), 1.5, 2.5)
        'cannot_tell'
        >>> in_range(Estimate(value=4.0, low=3.8, high=4.2), 1.5, 2.5)
        'contradicted'
    """
    if estimate.interval is None:
        return "cannot_tell"
    first, last = bonferroni(estimate, num_tests).ends
    if low <= first and last <= high:
        return "supported"
    return "contradicted" if last < low or first > high else "cannot_tell"


def on_side(estimate: Estimate) -> ClaimVerdict:
    """The rule for a direction: supported where the whole interval lies above zero, contradicted where it lies below.

    Returns:
        The verdict.

    Example:
        >>> on_side(Estimate(value=0.4, low=0.3, high=0.5)), on_side(Estimate(value=0.0, low=-0.1, high=0.1))
        ('supported', 'cannot_tell')
    """
    return BY_SIDE[estimate.side_of_zero]


def rises(estimate: Estimate, null: float, margin: float) -> ClaimVerdict:
    """The rule for "it is more than".

    Args:
        null: What it is said to exceed.
        margin: The least excess worth the name: an interval that ends below it contradicts the claim, though it may be
            above zero.

    Returns:
        The verdict.

    Example:
        >>> rises(Estimate(value=0.2, low=0.1, high=0.3), 0.0, 0.02)
        'supported'
        >>> rises(Estimate(value=0.0, low=-0.01, high=0.01), 0.0, 0.02)
        'contradicted'
    """
    if estimate.interval is None:
        return "cannot_tell"
    low, high = estimate.ends
    return "contradicted" if high < null + margin else "supported" if low > null else "cannot_tell"


def together(verdicts: Sequence[ClaimVerdict]) -> ClaimVerdict:
    """All of several must hold: one that is contradicted decides, and all must be supported.

    Returns:
        The verdict on the claim.

    Example:
        >>> together(["supported", "cannot_tell"]), together(["supported", "contradicted"])
        ('cannot_tell', 'contradicted')
    """
    if "contradicted" in verdicts:
        return "contradicted"
    return "supported" if verdicts and all(verdict == "supported" for verdict in verdicts) else "cannot_tell"


def cannot_tell(reason: str, *, estimate: Estimate | None = None, steps: tuple[int, ...] = ()) -> Judgement:
    """A judgement where the run lacks what the claim needs; the reason has no period."""
    number = estimate or Estimate.undefined_because(reason)
    return Judgement(estimate=number, verdict="cannot_tell", why=f"{reason[:1].upper()}{reason[1:]}.", steps=steps)
