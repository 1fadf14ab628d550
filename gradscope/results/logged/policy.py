"""All parts together, as a report holds them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gradscope.results.logged.course import Generation, PolicyEntropy, Staleness
from gradscope.results.logged.mismatch import SamplerMismatch


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedPolicy:
    """Everything of this kind that a log holds."""

    sampler: SamplerMismatch = field(default_factory=SamplerMismatch)
    """Sampler and trainer."""
    entropy: PolicyEntropy = field(default_factory=PolicyEntropy)
    """Entropy."""
    staleness: Staleness = field(default_factory=Staleness)
    """Lag of the weights."""
    generation: Generation = field(default_factory=Generation)
    """Ends and times of completions."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Part without numbers -> why; a sentence without its period."""
