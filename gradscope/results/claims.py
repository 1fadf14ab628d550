"""What `gradscope claims` finds: one row a claim, with what was measured, what chance would give, and a verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from gradscope.estimate import Estimate
from gradscope.results.source import Source
from gradscope.shown import Shown

ClaimVerdict = Literal["supported", "contradicted", "cannot_tell"]
NOT_SHOWN = "this run does not show it, by our measure"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRow:
    """One claim held against one run."""

    name: str
    """The claim's name: a word a topic, then the matrix or the part."""
    source: str
    """Who says so."""
    claim: str
    """What is said, in one sentence."""
    metric: str
    """What was measured, of which matrix or which groups."""
    steps: tuple[int, ...]
    """Steps that it was measured at; empty for the whole log."""
    estimate: Estimate
    """The number; undefined where this run does not have it."""
    null: Estimate
    """What it is to be held against: its value by chance, or if the claim's cause were absent; undefined where there is
    no such number."""
    verdict: ClaimVerdict
    """``supported`` or ``contradicted`` where the whole interval says so, on this run; else ``cannot_tell``."""
    why: str
    """What the verdict rests on, in words."""
    settle: str
    """What would settle it."""
    ours: bool
    """Whether the definition, or a bound in it, is gradscope's: a ``contradicted`` row then refutes no source."""

    @property
    def words(self) -> str:
        """The verdict as people read it."""
        if self.ours and self.verdict == "contradicted":
            return NOT_SHOWN
        return self.verdict.replace("_", " ")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ClaimsReport(Shown):
    """A run against claims."""

    source: Source
    """The run."""
    claims: tuple[ClaimRow, ...]
    """One row a claim."""
    steps: tuple[int, ...]
    """Steps whose gradients were recomputed."""
    skipped: Mapping[int, str]
    """Steps that could not be, with the reason."""
    engine: Mapping[str, object]
    """How gradients were computed; empty where none were."""
    findings: tuple[str, ...] = ()
    """What the rows say, in sentences for people."""
