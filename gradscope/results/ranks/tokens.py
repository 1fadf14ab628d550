"""What `gradscope rank --rows token` finds beside spectra. Shapes: N token rows of a group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gradscope.estimate import Estimate

TokenMethod = Literal["exact", "sampled", "sketch"]
"""``exact``: all token rows; ``sampled``: exact rows of a random part of them; ``sketch``: all rows, each kept as k
numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRows:
    """How the token rows of a group were had."""

    method: TokenMethod
    """Whether all tokens were measured, and how."""
    num_tokens: int
    """Tokens of the rollouts that count in the loss."""
    frac_seen: float
    """Share of them in the matrix. The effective rank of a sample is at most the sample's size."""
    seed: int
    """What decided which tokens were drawn, or the sketch."""
    value_error: float
    """Error of a singular value, over the Frobenius norm: that of the arithmetic; where rows were sketched the root of
    ``energy_error``."""
    num_buckets: int | None = None
    """Numbers kept of each sketched row, k."""
    energy_error: float | None = None
    """Of a sketch sqrt((1 + 1/PR) / k), PR the participation ratio: the root mean square of |K~ - K|_F over tr K. It
    bounds the error of every squared singular value, over their sum."""


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
