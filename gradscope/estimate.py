"""Estimate: a number with its interval, or the reason why there is none.

An undefined number is never 0.0, -1 or NaN. It carries a sentence instead, and that sentence travels unchanged to
the table, the JSON document and the check.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A value with an optional interval, or a reason; never both, never NaN.

    Example:
        >>> Estimate(value=0.41, low=0.33, high=0.49, num_units=160).value
        0.41
        >>> Estimate.because("k = 8 exceeds the 4 samples of a prompt").undefined
        'k = 8 exceeds the 4 samples of a prompt'
    """

    value: float | None = None
    """The point estimate, unrounded."""
    low: float | None = None
    """Lower end of the 95 % interval; None where an interval makes no sense or cannot be had."""
    high: float | None = None
    """Upper end of the 95 % interval."""
    num_units: int = 0
    """Number of independent units (prompts, groups, rows) behind the value."""
    undefined: str | None = None
    """Why there is no value."""

    def __post_init__(self) -> None:
        if (self.value is None) == (self.undefined is None):
            raise ValueError("an Estimate holds either a value or the reason why it is undefined")
        if (self.low is None) != (self.high is None):
            raise ValueError("an interval needs both ends")
        if self.value is None and self.low is not None:
            raise ValueError("an undefined Estimate has no interval")
        for number in (self.value, self.low, self.high):
            if number is not None and not math.isfinite(number):
                raise ValueError(f"an Estimate holds finite numbers, got {number}")

    @classmethod
    def because(cls, reason: str, *, num_units: int = 0) -> Estimate:
        """An undefined estimate.

        Args:
            reason: A sentence without a final period, for people.
            num_units: Number of units that were looked at.

        Returns:
            The estimate that carries the reason.
        """
        return cls(undefined=reason, num_units=num_units)

    @classmethod
    def exact(cls, value: float, *, num_units: int = 1) -> Estimate:
        """A number without sampling error, such as a share of the log itself.

        Args:
            value: A finite number.
            num_units: Number of units that it was computed from.

        Returns:
            The estimate, without an interval.
        """
        return cls(value=float(value), num_units=num_units)

    @property
    def is_defined(self) -> bool:
        """Whether there is a value."""
        return self.value is not None
