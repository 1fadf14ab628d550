"""The confidence of every interval: 95 %, here and nowhere else."""

from __future__ import annotations

COVERAGE = 0.95
"""How often an interval is to hold the truth: what papers report, so that intervals can be laid beside theirs."""
UPPER_TAIL = (1 + COVERAGE) / 2
"""Probability below the upper end of a symmetric interval."""
QUANTILES = (round((1 - COVERAGE) / 2, 12), UPPER_TAIL)
"""Probabilities of both ends of an interval that is read off a sample; rounded, because 1 - 0.95 is not 0.05 in
binary."""
NORMAL = 1.959963984540054
"""The normal quantile of the upper tail, written out so that a module needs no scipy for it."""
