"""The metric catalogue: what every number is called, how it is computed, and where it comes from.

Every table caption, figure, JSON document, check message and `gradscope explain` reads this one list, so a name never
means two things.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Literal

from gradscope.errors import UsageError

Direction = Literal["higher", "lower", "neither"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric of the catalogue."""

    name: str
    """The name in JSON, requirements and code."""
    title: str
    """The name in tables and figures."""
    formula: str
    """How it is computed, in one line of plain text."""
    meaning: str
    """What it tells, in one or two sentences."""
    range: str
    """The values it can take."""
    better: Direction
    """Which way is better, where one is."""
    moved_by: str
    """What makes it rise or fall."""
    source: str
    """The paper or program that the formula is from."""
    command: str
    """The command that computes it."""


def metric(name: str) -> Metric:
    """A catalogue entry by its name.

    Args:
        name: The metric's name.

    Returns:
        Its entry.

    Raises:
        UsageError: There is no such metric; the hint names the nearest ones.
    """
    if name in CATALOG:
        return CATALOG[name]
    near = difflib.get_close_matches(name, CATALOG, n=3, cutoff=0.5)
    hint = f"Did you mean {' or '.join(repr(n) for n in near)}?" if near else "See `gradscope explain` for the list."
    raise UsageError(f"There is no metric {name!r}.", hint=hint)


def definitions(*names: str) -> dict[str, str]:
    """The formulas that a document prints beside its numbers.

    Args:
        *names: Metric names.

    Returns:
        Name -> formula.
    """
    return {name: metric(name).formula for name in names}


_ENTRIES: tuple[Metric, ...] = (
    Metric(
        name="frac_reward_zero_std",
        title="degenerate groups",
        formula="(number of groups with max(r) - min(r) <= 1e-8) / (number of groups)",
        meaning="Share of groups whose rollouts all have the same reward. A group-mean baseline gives each of them "
        "zero advantage, so the group contributes nothing to the policy gradient.",
        range="[0, 1]",
        better="lower",
        moved_by="Prompts that are too hard or too easy for the policy, small groups, rewards with few levels.",
        source="TRL logs it under this name; arXiv 2605.07689 studies it.",
        command="degeneracy",
    ),
)

CATALOG: dict[str, Metric] = {entry.name: entry for entry in _ENTRIES}
