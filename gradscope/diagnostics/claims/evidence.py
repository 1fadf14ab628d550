"""Claims and their evidence: each result is read or computed once, when the first claim asks for it.

A claim says that a number lies in a range. It is supported where the whole 95 % interval lies in the range, and
contradicted where the whole interval lies outside, and undecided otherwise. Where several numbers must lie in their
ranges, the intervals are widened so that all of them hold together with 95 % (Bonferroni).

Shapes: R rollouts of a step, G rollouts of a group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from gradscope.advantages.group import return_to_go
from gradscope.diagnostics.check.metric_values import MetricValues, computed_once
from gradscope.diagnostics.degeneracy.reward_functions import judged_groups
from gradscope.diagnostics.passk.measure import pass_at_k_of_samples, read_samples, sample_files
from gradscope.diagnostics.rank.options import RankOptions
from gradscope.diagnostics.rank.rows import RankRequest, StepRows
from gradscope.errors import InputError
from gradscope.estimate import Estimate
from gradscope.metrics.outcomes.degeneracy import GroupTable
from gradscope.metrics.uncertainty.intervals import bonferroni
from gradscope.progress import ProgressCallback, no_progress
from gradscope.results.passk import PassAtKReport
from gradscope.results.rank import WeightUpdate
from gradscope.results.source import RowKind
from gradscope.results.verdicts import ClaimVerdict
from gradscope.rollouts.groups import RolloutGroup, sizes_of

if TYPE_CHECKING:
    from gradscope.diagnostics.rank.measure import Collected
    from gradscope.diagnostics.rank.tokens import TokenChange, WeighedTokens
    from gradscope.gradients.tokens.sums import CountedTokens

BY_SIDE: dict[int, ClaimVerdict] = {1: "supported", 0: "cannot_tell", -1: "contradicted"}
NO_NULL = Estimate.undefined_because("no chance model belongs to this number")
NO_TOKENS = "No step has a gradient and a logged advantage of every token"


Needs = RowKind | Literal["weighed"]
"""A kind of matrix, or every token with its advantage and the sums of its gradients."""


class Judgement(Struct, frozen=True, kw_only=True):
    """What a run says about a claim."""

    estimate: Estimate  # the number
    null: Estimate = field(default_factory=lambda: Estimate.exact(0.0))  # what it would be without the claim's cause
    verdict: ClaimVerdict  # by the rule
    why: str  # in words
    steps: tuple[int, ...] = ()  # steps that were looked at; empty for the whole log


class Claim(Struct, frozen=True, kw_only=True):
    """One claim; a new one is one record and, where its number is new, one function."""

    name: str  # a word a topic, then the matrix or the part
    source: str  # the paper
    claim: str  # the claim, in one sentence
    metric: str  # what is measured
    settle: str  # what would settle it
    ours: bool = False
    """Whether the definition, or a bound in it, is this package's, so that a number outside refutes no source."""
    needs: Needs | None = None  # what of the weights it is judged by; None: the log alone, or samples
    judge: Callable[[Evidence], Judgement]
    """Looks at the run; raises a ``GradscopeError`` where the run lacks what it needs."""


def in_range(estimate: Estimate, low: float, high: float, *, num_tests: int = 1) -> ClaimVerdict:
    """The rule for one of ``num_tests`` numbers that are judged together; undecided without an interval.

    >>> in_range(Estimate(value=2.0, low=1.8, high=2.2), 1.5, 2.5)
    'supported'
    >>> in_range(Estimate(value=2.0, low=1.8, high=3.2), 1.5, 2.5)
    'cannot_tell'
    >>> in_range(Estimate(value=4.0, low=3.8, high=4.2), 1.5, 2.5)
    'contradicted'
    """
    if estimate.interval is None:
        return "cannot_tell"
    first, last = bonferroni(estimate, num_tests).ends
    if low <= first and last <= high:
        return "supported"
    return "contradicted" if last < low or first > high else "cannot_tell"


def on_side(estimate: Estimate) -> ClaimVerdict:
    """The rule for a direction: supported where the whole interval lies above zero, contradicted where it lies below.

    >>> on_side(Estimate(value=0.4, low=0.3, high=0.5)), on_side(Estimate(value=0.0, low=-0.1, high=0.1))
    ('supported', 'cannot_tell')
    """
    return BY_SIDE[estimate.side_of_zero]


def rises(estimate: Estimate, null: float, margin: float) -> ClaimVerdict:
    """The rule for "it is more than" ``null``.

    ``margin`` is the least excess worth the name: an interval that ends below it contradicts the claim, though it may
    be above zero.

    >>> rises(Estimate(value=0.2, low=0.1, high=0.3), 0.0, 0.02)
    'supported'
    >>> rises(Estimate(value=0.0, low=-0.01, high=0.01), 0.0, 0.02)
    'contradicted'
    """
    if estimate.interval is None:
        return "cannot_tell"
    low, high = estimate.ends
    return "contradicted" if high < null + margin else "supported" if low > null else "cannot_tell"


def all_hold(verdicts: Sequence[ClaimVerdict]) -> ClaimVerdict:
    """All of several must hold: one that is contradicted decides, and all must be supported.

    >>> all_hold(["supported", "cannot_tell"]), all_hold(["supported", "contradicted"])
    ('cannot_tell', 'contradicted')
    """
    if "contradicted" in verdicts:
        return "contradicted"
    return "supported" if verdicts and all(verdict == "supported" for verdict in verdicts) else "cannot_tell"


def cannot_tell(reason: str, *, estimate: Estimate | None = None, steps: tuple[int, ...] = ()) -> Judgement:
    """A judgement where the run lacks what the claim needs; the reason has no period."""
    number = estimate or Estimate.undefined_because(reason)
    why = f"{reason[:1].upper()}{reason[1:]}."
    return Judgement(estimate=number, null=NO_NULL, verdict="cannot_tell", why=why, steps=steps)


ADVANTAGE = "dr_grpo"
"""Ranks are compared between group sizes under the reward minus the group's mean, which every reward has. Grpo's rows
are its multiples within a group, so their ranks are the same."""
MAX_TOKENS = 256  # token rows of a group; of more, as many are drawn. Exact rows cost the square of their number.
_KINDS: tuple[RowKind, ...] = ("rollout", "token", "weight", "hidden", "logit")


class ClaimOptions(Struct, frozen=True, kw_only=True):
    """By what the claims of a run are judged, besides its log."""

    samples: Sequence[str | Path] = ()  # of held-out prompts, before and after; none: those of the run folder, if any
    success_threshold: float | None = None
    """A rollout passes when its reward reaches this; None: 1 for rewards of 0/1 or -1/1."""
    advantage: str = ADVANTAGE
    """The formulation under which ranks are measured, ``my.py:name`` for one of your own."""


class Evidence(MetricValues, kw_only=True):
    """A run and the results computed so far: each metric by name, and what else claims need."""

    steps: tuple[int, ...]  # steps whose gradients are recomputed, ascending; none where none can be or none is wanted
    no_gradients: str = ""  # why there are no such steps, without the period
    samples: tuple[str, ...] = ()  # files of held-out samples, before and after; empty: those of the run folder
    advantage: str = ADVANTAGE  # the formulation under which ranks are measured
    progress: ProgressCallback = no_progress  # called at each step
    is_restricted: bool = False
    """Whether claims must not cost another gradient, beyond the results of another command that the cache holds."""

    def groups(self) -> GroupTable:
        """The groups as a table, whether their rewards are equal among it, and how many pass where that is known."""
        return judged_groups(self.run, self.success_threshold)[1]

    def gradients(self, kind: RowKind) -> Collected:
        """One kind of matrix at each of the steps; an ``InputError`` where no step could be recomputed."""
        if not self.steps:
            raise InputError(f"{self.no_gradients}.")
        return _require_step(self.kinds()[kind])

    def request(self, kind: RowKind) -> RankRequest:
        """The ranks of one kind of matrix, on the same prompts at every power of two of rollouts."""
        largest = max(sizes_of(self.run.groups), default=0)
        sizes = tuple(size for size in (2**power for power in range(1, 12)) if size < largest)
        options = RankOptions(pair_groups=True)
        return RankRequest(rows=kind, advantages=(self.advantage,), group_sizes=sizes, options=options)

    def rows(self, step: int) -> StepRows:
        """The rollouts' Gram matrices of one of the steps."""
        return next(rows for rows in self.gradients("rollout").rows if rows.step == step)

    @computed_once
    def credited(self) -> tuple[str, Collected]:
        """dL/dW of the last step under advantages of single tokens, and where those come from, in words."""
        step = self.gradients("rollout").report.steps[-1].step
        origin, groups = token_credit(self.run.groups_at(step))
        run = replace(self.run, groups=groups)
        request = replace(self.request("weight"), advantages=("logged", self.advantage), group_sizes=())
        from gradscope.diagnostics.rank.measure import collect_kinds

        collected = collect_kinds(run, [step], [request], self.engine, self.progress, max_tokens=MAX_TOKENS)
        return origin, _require_step(collected["weight"])

    @computed_once
    def weighed_tokens(self) -> Mapping[int, WeighedTokens]:
        """Step -> its tokens, of each step with a gradient and a logged advantage of every token."""
        return self.gradients("token").weighed

    @computed_once
    def followed_tokens(self) -> Mapping[int, tuple[CountedTokens, TokenChange]]:
        """Step -> the same tokens, and what became of them by the next checkpoint; an ``InputError`` without any."""
        tokens = {step: weighed.tokens for step, weighed in self.weighed_tokens().items()}
        from gradscope.diagnostics.rank.tokens import token_changes

        changes, missing = token_changes(self.run, tokens, self.engine)
        if not changes:
            raise InputError(f"{next(iter(missing.values()), NO_TOKENS)}.")
        return {step: (tokens[step], change) for step, change in changes.items()}

    @computed_once
    def updates(self) -> tuple[WeightUpdate, ...]:
        """What training did to each weight: one change a weight and pair of checkpoints."""
        from gradscope.diagnostics.rank.weight_updates import update_report

        return update_report(self.run, no_progress).updates

    @computed_once
    def held_out(self) -> PassAtKReport:
        """pass@k of held-out prompts, before and after; an ``InputError`` where there are not two files of samples."""
        report: PassAtKReport | None = self.cache.get("passk")
        paths = () if self.is_restricted else self.samples or (self.run.path,)
        files = [file for path in paths for file in sample_files(path)]
        number = len(report.tables if report else files)
        if number < 2:
            raise InputError("The run has no samples of held-out prompts before and after training.")
        if number > 2:
            raise InputError(f"Reach needs two files of samples, before and after, and there are {number}.")
        if report is not None:
            return report
        read = [read_samples(file, success_threshold=self.success_threshold) for file in files]
        return pass_at_k_of_samples(read, resampling=self.resampling)

    def computed(self) -> Collected | None:
        """The rollouts' matrices where they were computed; None where no claim asked for them or they could not be."""
        collected = self.cache.get("kinds")
        return collected["rollout"] if isinstance(collected, Mapping) else None

    @computed_once
    def kinds(self) -> Mapping[RowKind, Collected]:
        """Every kind of matrix at each of the steps."""
        from gradscope.diagnostics.rank.measure import collect_kinds

        requests = list(map(self.request, _KINDS))
        return collect_kinds(self.run, self.steps, requests, self.engine, self.progress, max_tokens=MAX_TOKENS)


def _require_step(collected: Collected) -> Collected:
    """The same; an InputError with the first reason where no step could be computed."""
    if not collected.tables["steps"]:
        raise InputError(str(next(iter(collected.skipped.values()))))
    return collected


def token_credit(groups: Sequence[RolloutGroup]) -> tuple[str, tuple[RolloutGroup, ...]]:
    """Groups whose rollouts have an advantage of every token, and where these come from, in words."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    advantages = [rollout.token_advantages for rollout in rollouts]
    if None not in advantages:
        if all(len(set(values or ())) < 2 for values in advantages):
            raise InputError("The logged advantages are the same at every token of a rollout.")
        return "the logged advantages of tokens", tuple(groups)
    if any(rollout.token_rewards is None for rollout in rollouts):
        raise InputError("The log has neither advantages nor rewards of single tokens.")
    if all(not any((rollout.token_rewards or ())[:-1]) for rollout in rollouts):
        raise InputError("Only last tokens have a reward, so that of single tokens says no more than the outcome.")
    return "what each token's rewards add up to from there on, minus the group's mean", tuple(map(_credited, groups))


def _credited(group: RolloutGroup) -> RolloutGroup:
    advantages = return_to_go([np.array(rollout.token_rewards or ()) for rollout in group.rollouts])
    pairs = zip(group.rollouts, advantages, strict=True)
    rollouts = tuple(replace(rollout, token_advantages=tuple(values.tolist())) for rollout, values in pairs)
    return replace(group, rollouts=rollouts)
