"""Estimate: a number with its interval, or the reason why there is none.

An undefined number is never 0.0, -1 or NaN. It carries a sentence instead, and that sentence travels unchanged to
the table, the JSON document and the check.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeVar

from msgspec import Struct
from msgspec.structs import replace


class Estimate(Struct, frozen=True, kw_only=True):
    """A value with an optional interval, or a reason; never both, never NaN.

    >>> Estimate(value=0.41, low=0.33, high=0.49, num_units=160).value
    0.41
    >>> Estimate.undefined_because("k = 8 exceeds the 4 samples of a prompt").undefined
    'k = 8 exceeds the 4 samples of a prompt'
    """

    value: float | None = None  # the point estimate, unrounded
    low: float | None = None  # lower end of the 95 % interval; None where an interval makes no sense or cannot be had
    high: float | None = None  # upper end of the 95 % interval
    num_units: int = 0  # number of independent units (prompts, groups, rows) behind the value
    undefined: str | None = None  # why there is no value

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
    def undefined_because(cls, reason: str, *, num_units: int = 0) -> Estimate:
        """An undefined estimate; the reason is a sentence for people, without its period."""
        return cls(undefined=reason, num_units=num_units)

    @classmethod
    def exact(cls, value: float, *, num_units: int = 1) -> Estimate:
        """A finite number without sampling error, such as a share of the log itself: it has no interval."""
        return cls(value=float(value), num_units=num_units)

    @property
    def is_defined(self) -> bool:
        """Whether there is a value."""
        return self.value is not None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Both ends; None where there is no interval."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def ends(self) -> tuple[float, float]:
        """Both ends; the value twice where there is no interval.

        Raises:
            ValueError: There is no value either.

        >>> Estimate.exact(0.5).ends
        (0.5, 0.5)
        """
        if self.value is None:
            raise ValueError(f"an undefined estimate has no ends: {self.undefined}")
        return self.interval or (self.value, self.value)

    @property
    def effect_over_interval(self) -> float:
        """How many times half its interval a difference is: what chance explains least is the greatest."""
        low, high = self.ends
        return abs(low + high) / max(high - low, 1e-300)

    @property
    def side_of_zero(self) -> Literal[-1, 0, 1]:
        """The side of zero on which the interval lies; 0 where it holds zero, or where there is none.

        >>> [Estimate(value=v, low=v - 1, high=v + 1).side_of_zero for v in (-2.0, 0.5, 2.0)]
        [-1, 0, 1]
        """
        low, high = self.interval or (0.0, 0.0)
        return 1 if low > 0 else -1 if high < 0 else 0

    def map(self, function: Callable[[float], float]) -> Estimate:
        """A monotone function of the number, whose interval is the image of this one; undefined stays undefined.

        Args:
            function: Monotone and finite over the interval.

        Returns:
            The estimate of the function; a falling one exchanges the ends.

        >>> Estimate(value=0.5, low=0.25, high=0.75).map(lambda share: 1 - share).interval
        (0.25, 0.75)
        """
        if self.value is None:
            return self
        low, high = sorted(map(function, self.interval)) if self.interval else (None, None)
        return replace(self, value=function(self.value), low=low, high=high)

    def within(self, low: float, high: float) -> Estimate:
        """The estimate with value and ends clamped to a range that the number cannot leave."""
        return self.map(lambda number: min(max(number, low), high))


def mean_of_defined(values: Iterable[float | None]) -> float | None:
    """The mean of those numbers that are defined; None where none is."""
    defined = [value for value in values if value is not None]
    return math.fsum(defined) / len(defined) if defined else None


Kind = TypeVar("Kind")


def estimate_names(kind: type) -> list[str]:
    """The fields of a record that are estimates, those that it inherits first."""
    annotations = [getattr(base, "__annotations__", {}) for base in reversed(kind.__mro__)]
    return [name for of_base in annotations for name, type in of_base.items() if type == "Estimate"]


def undefined_record(kind: type[Kind], unknown: Estimate, **defined: Any) -> Kind:
    """A record all of whose estimates are undefined for one reason, but for those that are given."""
    return kind(**(dict.fromkeys(estimate_names(kind), unknown) | defined))
