"""Evidence that was found already: what claims look at, given by hand."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from msgspec import field

from gradscope.diagnostics.claims.evidence import ADVANTAGE, Evidence
from gradscope.diagnostics.rank.measure import Collected
from gradscope.estimate import Estimate
from gradscope.results.rank import RankReport
from gradscope.rollouts.run import Run
from tests.diagnostics.made_up_runs import group_of, run_of

_FIELDS = set(Collected.__struct_fields__)


class Answered(Evidence, kw_only=True):
    """Answers where they are given, and is like any other evidence where they are not."""

    run: Run = field(default_factory=lambda: run_of(group_of([0.0, 1.0], step=1)))
    steps: tuple[int, ...] = ()
    results: Mapping[str, Any] = {}  # method -> what it returns; ``gradients`` by kind

    def __post_init__(self) -> None:
        self.cache |= self.results

    def gradients(self, kind: str) -> Collected:
        if "gradients" in self.results:
            return self.results["gradients"][kind]
        return Evidence.gradients(self, kind)


def collected_of(**parts: Any) -> Collected:
    """Tables of the report, and what else was collected, by name."""
    tables = {name: parts.pop(name) for name in set(RankReport.__struct_fields__) & set(parts) - _FIELDS}
    return Collected(source=None, kind="rollout", tables=defaultdict(list, tables), **parts)


def with_gradients(kind: str, *, run: Run | None = None, advantage: str = ADVANTAGE, **parts: Any) -> Answered:
    """Evidence whose gradients of one kind are these parts."""
    run = run or run_of(group_of([0.0, 1.0], step=1))
    return Answered(run=run, advantage=advantage, results={"gradients": {kind: collected_of(**parts)}})


def between(low: float, high: float, units: int = 20) -> Estimate:
    return Estimate(value=(low + high) / 2, low=low, high=high, num_units=units)
