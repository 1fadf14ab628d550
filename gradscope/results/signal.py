"""What degenerate groups cost, who makes them, and what would help: parts of what `gradscope degeneracy` finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gradscope.estimate import Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalCost:
    """The share of the work that gave a group-mean baseline no gradient."""

    frac_rollouts: Estimate
    """Share of rollouts in degenerate groups."""
    frac_tokens: Estimate
    """Share of completion tokens in degenerate groups; undefined where token ids were not logged."""
    frac_generation_time: Estimate
    """Share of the generation time that was spent on degenerate groups; undefined where rollouts were not timed."""
    tokens_per_rollout: Estimate
    """Mean number of completion tokens."""
    batch_size: Estimate
    """Mean rollouts a step."""
    effective_batch_size: Estimate
    """Mean rollouts a step in groups that are not degenerate."""
    dilution: Estimate
    """Factor by which dead rollouts shrink a loss that is averaged over all rollouts: 1 - frac_rollouts."""
    resampling_factor: Estimate
    """Groups to sample for each live one: 1 / (1 - frac_reward_zero_std)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageMass:
    """What one formulation would have fed to the optimizer on the rewards of this log."""

    advantage: str
    """Name of the formulation."""
    positive_mass: Estimate
    """Mean over rollouts of max(A, 0)."""
    negative_mass: Estimate
    """Mean over rollouts of max(-A, 0)."""
    frac_zero: Estimate
    """Share of rollouts with advantage zero."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardTies:
    """One reward function on the groups of the log."""

    reward: str
    """Its name."""
    frac_zero_std: Estimate
    """Share of groups in which it is equal for all rollouts; undefined where it is missing somewhere."""
    num_alone: int
    """Groups in which it is the only function that tells rollouts apart."""
    num_rescuable: int
    """Degenerate groups in which it tells rollouts apart, though the trainer's scalar does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateBin:
    """One bar of the histogram of pass rates."""

    low: float
    """Smallest pass rate in it."""
    high: float
    """Largest; the bars at 0 and at 1 hold exactly these."""
    observed: float
    """Share of groups."""
    beta_binomial: float
    """Share that the fitted inflated beta-binomial expects."""
    binomial: float
    """Share that independent coin flips with one pass rate would show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRateDistribution:
    """The distribution of pass rates over groups, behind counts of a few rollouts each."""

    beta_a: Estimate
    """First shape of the beta distribution, by maximum likelihood."""
    beta_b: Estimate
    """Second shape."""
    at_zero: Estimate
    """Share of prompts that never pass, beside the beta distribution; 0 where the counts do not ask for it."""
    at_one: Estimate
    """Share of prompts that always pass, likewise."""
    goodness_of_fit: Estimate
    """p-value of the inflated beta-binomial by Pearson's chi-squared test."""
    frac_hopeless: Estimate
    """Mass of the NPMLE at pass rates up to 0.01."""
    frac_solved: Estimate
    """Mass of the NPMLE at pass rates from 0.99."""
    histogram: tuple[RateBin, ...]
    """Observed pass rates c/n, the ends apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetPlan:
    """One way to a target share of degenerate groups."""

    plan: Literal["now", "larger groups", "resampling"]
    """``now``: as logged; ``larger groups``: the smallest group size that reaches the target; ``resampling``: dynamic
    sampling, which draws further prompts for degenerate groups."""
    group_size: int | None
    """Rollouts a group; None where no size within reach of the data meets the target."""
    degeneracy: Estimate
    """Share of degenerate groups in the batch."""
    rollouts_per_group: Estimate
    """Rollouts to sample for each group of the batch."""
    tokens_per_group: Estimate
    """Completion tokens to sample for each group of the batch."""
    method: Literal["observed", "unbiased", "forecast"]
    """Where the share comes from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetDegeneracy:
    """What it takes that at most a given share of groups is degenerate."""

    target: float
    """The share."""
    plans: tuple[TargetPlan, ...]
    """As logged, by larger groups, by resampling."""
