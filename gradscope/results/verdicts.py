"""The results of `gradscope check` and `gradscope claims`: each requirement and each claim with its verdict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from gradscope.estimate import Estimate
from gradscope.results.source import Source
from gradscope.shown import Shown

Operator = Literal["<", "<=", ">", ">=", "==", "!="]
Outcome = Literal["pass", "fail", "unknown"]
BaselineRule = Literal["interval", "value"]


class Requirement(Struct, frozen=True, kw_only=True):
    """One condition on a metric: ``frac_reward_zero_std@last20% <= 0.5``."""

    metric: str
    """A catalogue metric, ``pass@<k>``, or a metric of the trainer; ``@`` and a selector of steps may follow."""
    op: Operator  # how the value must compare with the limit
    limit: float  # the limit


class Change(Struct, frozen=True, kw_only=True):
    """A metric of this run compared with the baseline's."""

    baseline: Estimate  # the value when the baseline was written
    change: Estimate  # this run minus the baseline
    margin: float  # how much worse it may be
    rule: BaselineRule
    """``interval``: fails when chance does not explain a change beyond the margin; ``value``: on any such change."""
    num_paired: int  # prompts that both runs have and that were paired; 0 where the two were compared as wholes
    p_value: float | None = None
    """How often chance alone would make a change as far beyond the margin, corrected by Holm's rule for all metrics
    that were compared; the metric fails at 0.05. None where that is not known, and under the rule ``value``."""
    num_tests: int = 0  # metrics that it is corrected for


class Verdict(Struct, frozen=True, kw_only=True):
    """A requirement and its outcome."""

    metric: str  # the requirement's metric
    op: Operator  # the requirement's operator; against a baseline the one that its direction asks for
    limit: float  # the requirement's limit; against a baseline its value with the margin, 0 where it has none
    outcome: Outcome  # ``unknown`` where the metric has no value; it never counts as a pass
    estimate: Estimate  # the metric's value on this run
    of: str = ""  # what the value is of: ``step 12``, ``steps 5 to 9``, ``72 groups``; empty where there is none
    meaning: str  # interpretation of the outcome
    next_step: str  # advice; empty where it passed
    advice: str = ""  # the part of it that the run's numbers say to try; empty where they say nothing
    command: str = ""  # the part of it that looks closer, as a person types it; empty where no command does
    change: Change | None = None  # against a baseline: both numbers and the rule; None for a limit
    allowed: bool = False  # whether an unknown outcome of this metric was allowed and does not fail the check

    @property
    def is_within_chance(self) -> bool:
        """Whether the interval of the metric holds the limit, so that other prompts or steps could turn the outcome."""
        interval = None if self.change is not None else self.estimate.interval
        return interval is not None and interval[0] <= self.limit <= interval[1]


class CheckReport(Shown, Struct, frozen=True, kw_only=True):
    """All requirements on one run."""

    source: Source
    verdicts: tuple[Verdict, ...]  # one per requirement in the order given, then one per metric of the baseline
    outcome: Outcome
    """``fail`` if any failed, else ``unknown`` if any could not be decided without leave, else ``pass``."""
    findings: tuple[str, ...] = ()
    """Caveats of the outcome beyond the requirements: groups that side rewards decide."""
    without_interval: tuple[str, ...] = ()
    """Metrics of a baseline that was just written that have no interval: a change of theirs will not be decided."""


class BaselineMetric(Struct, frozen=True, kw_only=True):
    """One metric of a run."""

    estimate: Estimate  # its value, or why there is none
    prompts: Mapping[str, float] = {}
    """Digest of a prompt's id -> the metric on that prompt alone; empty where it is not a mean over prompts."""
    course: Mapping[int, float] = {}  # step -> the number that a mean or a trend over steps joins; empty for others
    deviations: Mapping[int, float] = {}
    """Step -> how far its groups are above what their prompts have over the run; empty where it is not of groups."""
    is_not_finite: bool = False
    """Whether there is no value because the trainer logged NaN or infinity: no requirement holds for that. A baseline
    file does not hold this."""


class Baseline(Struct, frozen=True, kw_only=True):
    """Metrics of one run."""

    run: str  # the run they are of
    metrics: Mapping[str, BaselineMetric]  # by name, selectors included, as requirements write them
    recipe: Mapping[str, str] = {}
    """What numbers follow from besides the policy: ``rollouts a group``, ``groups a step``, ``reward functions``, the
    trainer's settings; empty where the file does not hold them."""


ClaimVerdict = Literal["supported", "contradicted", "cannot_tell"]
NOT_SHOWN = "this run does not show it, by our measure"


class ClaimRow(Struct, frozen=True, kw_only=True):
    """One claim held against one run."""

    name: str  # the claim's name: a word a topic, then the matrix or the part
    source: str  # who says so
    claim: str  # one sentence
    metric: str  # the measured metric, of which matrix or which groups
    steps: tuple[int, ...]  # steps that it was measured at; empty for all steps
    estimate: Estimate  # the number; undefined where this run does not have it
    null: Estimate
    """The number to compare with: its value by chance, or if the claim's cause were absent; undefined where there is
    no such number."""
    verdict: ClaimVerdict
    """``supported`` or ``contradicted`` where all of the interval agrees, on this run; else ``cannot_tell``."""
    why: str  # reason of the verdict, in words
    settle: str  # how to settle it
    ours: bool
    """Whether the definition, or a bound in it, is gradscope's: a ``contradicted`` row then refutes no source."""

    @property
    def words(self) -> str:
        """The verdict as people read it."""
        if self.ours and self.verdict == "contradicted":
            return NOT_SHOWN
        return self.verdict.replace("_", " ")


class ClaimsReport(Shown, Struct, frozen=True, kw_only=True):
    """A run against claims."""

    source: Source
    claims: tuple[ClaimRow, ...]  # one row a claim
    steps: tuple[int, ...]  # steps whose gradients were recomputed
    skipped: Mapping[int, str]  # steps that could not be, with the reason
    engine: Mapping[str, object]  # how gradients were computed; empty where none were
    findings: tuple[str, ...] = ()  # the meaning of the rows, in sentences
