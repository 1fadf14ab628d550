"""The result of `gradscope compare`: cells of runs that differ in their seed only, and pairs of cells."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from gradscope.estimate import Estimate
from gradscope.results.degeneracy import SideRewards
from gradscope.results.source import Source
from gradscope.shown import Shown

CompareVerdict = Literal["decides", "suggests", "differ", "open"]

_NOT_JUDGED = Estimate.undefined_because("the pair is not judged yet")


UNKNOWN = "unknown"  # the formulation of a run that does not state it: no difference, whatever that of the other is


class ComparedCell(Struct, frozen=True, kw_only=True):
    """Runs with the same settings and different seeds."""

    name: str  # the formulation, with the other settings that vary
    advantage: str  # the formulation; ``unknown`` where the runs do not state it
    settings: Mapping[str, str | int | float | bool | None]  # the other settings in which the compared runs differ
    seeds: tuple[int, ...]  # one run each
    runs: tuple[str, ...] = ()  # these runs, by the parts of their paths that distinguish all compared ones
    metrics: Mapping[str, Estimate]  # metric -> mean over the runs, interval by Student's t

    @property
    def states_advantage(self) -> bool:
        """Whether its formulation is known."""
        return self.advantage != UNKNOWN


class ComparedPair(Struct, frozen=True, kw_only=True):
    """One metric of two cells that differ in one thing, paired by seed."""

    first: str  # a cell's name
    second: str  # the other cell's name
    changed: str  # the varied setting: ``advantage``, or its name
    metric: str  # the metric
    difference: Estimate  # mean over the common seeds of second minus first
    p_value: float | None  # of the paired t test; None where it could not be made
    p_holm: float | None  # the same, corrected for all tests of the comparison
    sign_flip_p_value: float | None  # of the permutation test that flips signs
    sign_flip_p_holm: float | None = None
    """The same, corrected for all tests of 8 pairs or more; None where there are fewer pairs."""
    verdict: CompareVerdict = "open"
    """``decides`` where the corrected sign flips do, ``suggests`` where only the corrected t test would; ``differ`` of
    two single runs whose prompts do not explain it, with no word on other seeds."""
    least_detectable: Estimate = _NOT_JUDGED
    """The difference that would be decided in 80 % of such comparisons, at the spread seen."""
    spread: float | None = None  # standard deviation of the paired differences; None where it is unknown
    num_pairs: int  # seeds that both cells have
    test: str  # which test ``p_value`` is of
    undefined: str | None  # why there is no p-value
    within_runs: Estimate | None = None
    """Of two runs alone: the difference of a mean over groups, its interval by resampling prompts (of metrics alone,
    over their steps), with no word on other seeds. None elsewhere."""


class ComparedCurve(Struct, frozen=True, kw_only=True):
    """One metric of a cell over the steps."""

    cell: str  # the cell's name
    metric: str  # ``reward`` or ``frac_reward_zero_std``
    steps: tuple[float, ...]  # the middle of each window of steps
    mean: tuple[float, ...]  # mean over the window and the runs
    low: tuple[float, ...]  # that of the lowest run
    high: tuple[float, ...]  # that of the highest run


class Comparison(Shown, Struct, frozen=True, kw_only=True):
    """Cells of runs side by side."""

    source: Source  # the runs that were read
    cells: tuple[ComparedCell, ...]  # by formulation and settings
    pairs: tuple[ComparedPair, ...]  # each metric of each two cells that differ in one thing
    curves: tuple[ComparedCurve, ...]  # learning curves
    metrics: tuple[str, ...]  # the metrics compared, in order
    num_tests: int  # tests that were made, for which p-values are corrected
    rewards: tuple[SideRewards, ...] = ()
    """How much of each run its main reward decides; of runs of ours only where two are compared."""
    left_out: Mapping[str, str] = {}  # folder of a run -> why it is not compared
    num_shared_prompts: int | None = None  # prompts that two logs have in common; None where they are not compared
    num_common_steps: int  # steps that all runs have, at which they are compared; 0: as wholes, and nothing is judged
    levels_left: tuple[str, ...] = ()  # what has left its level for good in one of two runs alone, a sentence each
    parting: str = ""  # where the mean rewards of two runs part for good, in a sentence; empty where they do not
    has_seeds_in_names: bool = False  # whether the runs' names say which seeds are pairs, as their logs do not
    cautions: tuple[str, ...] = ()  # other differences, or possible differences, of the runs than the compared one
    findings: tuple[str, ...] = ()  # the meaning of the numbers, in sentences
