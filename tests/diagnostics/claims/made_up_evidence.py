"""Evidence that was found already: what claims look at, given by hand."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from gradscope.diagnostics.claims.evidence import Evidence
from gradscope.diagnostics.rank.collected import Collected
from gradscope.estimate import Estimate
from gradscope.results.rank import RankReport
from gradscope.rollouts.run import Run
from tests.diagnostics.made_up_runs import group_of, run_of

_OWN = {field.name for field in fields(Collected)}


@dataclass(slots=True, kw_only=True)
class Answered(Evidence):
    """Answers where they are given, and is like any other evidence where they are not."""

    run: Run = field(default_factory=lambda: run_of(group_of([0.0, 1.0], step=1)))
    steps: tuple[int, ...] = ()
    results: Mapping[str, Any] = field(default_factory=dict)  # method -> what it returns; ``gradients`` by kind

    def gradients(self, kind: str) -> Collected:
        if "gradients" in self.results:
            return self.results["gradients"][kind]
        return Evidence.gradients(self, kind)

    def degeneracy(self) -> Any:
        return self.results["degeneracy"] if "degeneracy" in self.results else Evidence.degeneracy(self)

    def credited(self) -> Any:
        return self.results["credited"] if "credited" in self.results else Evidence.credited(self)

    def weighed_tokens(self) -> Any:
        return self.results["weighed_tokens"] if "weighed_tokens" in self.results else Evidence.weighed_tokens(self)

    def followed_tokens(self) -> Any:
        return self.results["followed_tokens"] if "followed_tokens" in self.results else Evidence.followed_tokens(self)

    def updates(self) -> Any:
        return self.results["updates"] if "updates" in self.results else Evidence.updates(self)

    def held_out(self) -> Any:
        return self.results["held_out"] if "held_out" in self.results else Evidence.held_out(self)


def collected_of(**parts: Any) -> Collected:
    """Tables of the report, and what else was collected, by name."""
    tables = {name: parts.pop(name) for name in {field.name for field in fields(RankReport)} & set(parts) - _OWN}
    return Collected(source=None, kind="rollout", tables=defaultdict(list, tables), **parts)


def between(low: float, high: float, units: int = 20) -> Estimate:
    return Estimate(value=(low + high) / 2, low=low, high=high, num_units=units)
