"""How often estimates resample, and from which seed: one record that travels instead of two numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Resampling:
    """Resamples and their seed."""

    num_resamples: int = 2000
    """Resamples, B: quantiles at 2.5 % and 97.5 % rest on 50 of them each, and their own noise is then a twentieth of
    the interval's width."""
    seed: int = 0
    """The same seed and input give the same interval to the last bit."""


RESAMPLING = Resampling()
"""What every estimate does unless told otherwise."""
