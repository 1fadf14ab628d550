"""The numbers of a run that others are held against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gradscope.estimate import Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineMetric:
    """One metric of a run."""

    estimate: Estimate
    """Its value."""
    prompts: Mapping[str, float] = field(default_factory=dict)
    """Digest of a prompt's id -> the metric on that prompt alone; empty where it is not a mean over prompts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """Metrics of one run."""

    run: str
    """The run they are of."""
    metrics: Mapping[str, BaselineMetric]
    """By name, selectors included, as requirements write them."""
