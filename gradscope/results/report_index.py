"""What `gradscope report` finds in a folder of runs: each run in a few numbers and curves, to be seen side by side."""

from __future__ import annotations

from dataclasses import dataclass

from gradscope.estimate import Estimate
from gradscope.results.source import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """One run of the folder, from its log alone."""

    name: str
    """Its path below the folder."""
    command: str
    """The command that reports on it."""
    steps: tuple[int, ...]
    """Its steps, ascending."""
    num_rollouts: int
    """Rollouts in its log."""
    frac_reward_zero_std: Estimate
    """Share of groups whose rewards are all equal."""
    reward: Estimate
    """Mean reward over the log; a fact about it, without an interval."""
    reward_change: Estimate
    """Change of the mean reward along its line, first to last step."""
    reward_by_step: tuple[float | None, ...]
    """Mean reward of each step."""
    degenerate_by_step: tuple[float | None, ...]
    """Share of degenerate groups of each step."""
    grad_norm_by_step: tuple[float | None, ...]
    """Gradient norm of each step, as the trainer logged it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunIndex:
    """The runs of a folder."""

    source: Source
    """The folder."""
    name: str
    """What the page calls it."""
    runs: tuple[RunSummary, ...]
    """In order of their names."""
    left_out: tuple[tuple[str, str], ...]
    """Name of a run that cannot be read, and why."""
    findings: tuple[str, ...]
    """What the numbers say."""
