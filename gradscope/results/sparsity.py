"""How much of a step's gradient is (near) zero below the rollout: token by token, or entry by entry of each weight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gradscope.estimate import Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientSparsity:
    """Four definitions on the sizes of some parts x of one step's gradient, under the logged advantage."""

    step: int
    """The trainer's step."""
    parts: Literal["tokens", "entries"]
    """What x is: the row norm of every token, or the absolute value of every entry of one weight's gradient."""
    tensor: str | None
    """The weight; None for tokens."""
    num_parts: int
    """Tokens or entries."""
    frac_seen: float
    """Share of them that was measured: below 1 where tokens were drawn at random."""
    zero: Estimate
    """Share that is exactly zero."""
    small: Estimate
    """Share below 1 % of the largest; zeros among them."""
    hoyer: Estimate
    """(sqrt(n) - sum x / sqrt(sum x^2)) / (sqrt(n) - 1): 0 for equal sizes, 1 for a single part."""
    gini: Estimate
    """Mean absolute difference over twice the mean: 0 for equal sizes, (n - 1)/n for a single part."""
