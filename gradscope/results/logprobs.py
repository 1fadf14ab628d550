"""Whether some weights made some rollouts: part of what `replay` and `rank` find."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobDifference:
    """|logged - recomputed| log-probability of each sampled token of a step.

    Where a batch is reused, the logged ones are of the weights that sampled it, and these weights have moved since.
    """

    num_tokens: int
    """Tokens whose log-probability was logged."""
    mean: float
    """Mean difference, in nats."""
    max: float
    """The largest."""
    frac_beyond: float
    """Share of tokens beyond ``bound``."""
    bound: float
    """The difference that counts as one."""
