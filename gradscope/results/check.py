"""What `gradscope check` finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gradscope.estimate import Estimate
from gradscope.results.source import Source

Operator = Literal["<", "<=", ">", ">=", "==", "!="]
Outcome = Literal["pass", "fail", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One condition on a metric: ``frac_reward_zero_std <= 0.5``."""

    metric: str
    """A catalogue metric, or ``pass@<k>``."""
    op: Operator
    """How the value must compare with the limit."""
    limit: float
    """The limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A requirement and what became of it."""

    metric: str
    """The requirement's metric."""
    op: Operator
    """The requirement's operator."""
    limit: float
    """The requirement's limit."""
    outcome: Outcome
    """``unknown`` where the metric has no value; it never counts as a pass."""
    estimate: Estimate
    """The metric's value on this run."""
    meaning: str
    """What the outcome means, for people."""
    next_step: str
    """What to do about it; empty where it passed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """All requirements on one run."""

    source: Source
    """The run."""
    verdicts: tuple[Verdict, ...]
    """One per requirement, in the order given."""
    outcome: Outcome
    """``fail`` if any failed, else ``unknown`` if any could not be decided, else ``pass``."""
