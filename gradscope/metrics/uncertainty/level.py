"""The confidence of every interval: 95 %, here and nowhere else."""

from __future__ import annotations

from functools import lru_cache

COVERAGE = 0.95
"""How often an interval is to hold the truth: what papers report, so that intervals can be laid beside theirs."""
UPPER_TAIL = (1 + COVERAGE) / 2
"""Probability below the upper end of a symmetric interval."""
QUANTILES = (round((1 - COVERAGE) / 2, 12), UPPER_TAIL)
"""Probabilities of both ends of an interval that is read off a sample; rounded, because 1 - 0.95 is not 0.05 in
binary."""
NORMAL = 1.959963984540054
"""The normal quantile of the upper tail, written out so that a module needs no scipy for it."""


@lru_cache(maxsize=4096)
def student_quantile(degrees_of_freedom: float) -> float:
    """Student's quantile of the upper tail: a symmetric interval is that many standard errors wide on each side.

    Args:
        degrees_of_freedom: Above 0; it need not be whole.

    Returns:
        The quantile; kept, because the steps of a run ask for the same few.

    Example:
        >>> round(student_quantile(9), 3)
        2.262
    """
    from scipy.special import stdtrit  # takes 0.15 s, which readers of NORMAL need not wait for

    return float(stdtrit(degrees_of_freedom, UPPER_TAIL))
