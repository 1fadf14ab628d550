"""What a verdict is about, in the one form that every output of a check shares."""

from __future__ import annotations

from gradscope.results.check import Verdict


def condition(verdict: Verdict) -> str:
    """The requirement as a line: ``frac_reward_zero_std <= 0.5``, or ``pass@8 against the baseline``."""
    if verdict.change is not None:
        return f"{verdict.metric} against the baseline"
    return f"{verdict.metric} {verdict.op} {verdict.limit:g}"
