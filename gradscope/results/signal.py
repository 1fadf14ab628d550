"""The cost of degenerate groups, their sources, and remedies: parts of the result of `gradscope degeneracy`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from gradscope.estimate import Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalCost:
    """The share of the work that gave a group-mean baseline no gradient."""

    frac_rollouts: Estimate  # share of rollouts in degenerate groups
    frac_tokens: Estimate  # share of completion tokens in degenerate groups; undefined where token ids were not logged
    frac_generation_time: Estimate
    """Share of the generation time that was spent on degenerate groups; undefined where rollouts were not timed."""
    tokens_per_rollout: Estimate  # mean number of completion tokens
    batch_size: Estimate  # mean rollouts a step
    effective_batch_size: Estimate  # mean rollouts a step in groups that are not degenerate
    dilution: Estimate
    """Factor by which dead rollouts shrink a loss that is averaged over all rollouts: 1 - frac_rollouts."""
    resampling_factor: Estimate  # groups to sample for each live one: 1 / (1 - frac_reward_zero_std)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageMass:
    """The signal that one formulation would have given the optimizer on the rewards of this log."""

    advantage: str  # name of the formulation
    positive_mass: Estimate  # mean over rollouts of max(A, 0)
    negative_mass: Estimate  # mean over rollouts of max(-A, 0)
    frac_zero: Estimate  # share of rollouts with advantage zero


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardFunction:
    """One reward function on the groups of the log."""

    name: str
    weight: float | None
    """Its weight in the reward; 0 where it is no part of it, None where the weights are not known."""
    frac_tied: Estimate
    """Share of groups in which it is equal for all rollouts; undefined where it is missing somewhere."""
    advantage_share: Estimate
    """Its share of the sum of squared advantages: those that were logged, else those that the trainer's arguments
    make of the rewards; undefined without either."""
    difference_share: Estimate
    """Its share of the sum of squared deviations of the reward from its group's mean, which no advantage scales."""
    correlation: Mapping[str, Estimate]
    """Other function -> correlation with it within groups; of more than 32 functions, with the main one alone."""
    num_alone: int  # groups in which it is the only function that distinguishes rollouts
    num_rescuable: int  # degenerate groups in which it distinguishes rollouts, though the trainer's scalar does not


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardConflict:
    """Groups in which the main reward is tied, so that other functions make all of their gradient."""

    main: str  # the reward function that should be learned: the one that was named, else the one of 0 and 1
    deciding: str  # the function with the largest part of the squared advantage of these groups
    is_alone: bool  # whether in all of them no other function differs
    num_groups: int  # how many there are
    frac_groups: Estimate  # their share of all groups
    advantage_share: Estimate  # their share of the sum of squared advantages; undefined as for a reward function
    difference_share: Estimate
    """Their share of the sum of squared deviations of the reward from its group's mean: what would be left of them if
    no advantage were divided by a standard deviation."""
    remedy: str
    """The trainer's argument that divides no advantage by its group's standard deviation, in words; empty where none
    is divided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SideRewards:
    """The share of a run that its main reward decides, which a comparison of dead groups alone does not show."""

    run: str  # the run's name in the comparison
    frac_reward_zero_std: Estimate  # share of its groups with zero reward range
    frac_main_differs: Estimate
    """Share of its groups in which the main reward distinguishes rollouts; undefined where that is not known."""
    conflict: RewardConflict | None
    """Its groups that side rewards decide; None where there are none, or where that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateBin:
    """One bar of the histogram of pass rates."""

    low: float  # smallest pass rate in it
    high: float  # largest; the bars at 0 and at 1 hold exactly these
    observed: float  # share of groups
    beta_binomial: float  # share that the fitted inflated beta-binomial expects
    binomial: float  # share that independent coin flips with one pass rate would show


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRateDistribution:
    """The distribution of pass rates over groups, behind counts of a few rollouts each."""

    beta_a: Estimate  # first shape of the beta distribution, by maximum likelihood
    beta_b: Estimate  # second shape
    at_zero: Estimate
    """Share of prompts that never pass, besides the beta distribution; 0 where the counts do not need it."""
    at_one: Estimate  # share of prompts that always pass, likewise
    goodness_of_fit: Estimate  # p-value of the inflated beta-binomial by Pearson's chi-squared test
    frac_hopeless: Estimate  # mass of the NPMLE at pass rates up to 0.01
    frac_solved: Estimate  # mass of the NPMLE at pass rates from 0.99
    histogram: tuple[RateBin, ...]  # observed pass rates c/n, the ends apart


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetPlan:
    """One way to a target share of degenerate groups."""

    plan: Literal["now", "larger groups", "resampling"]
    """``now``: as logged; ``larger groups``: the smallest group size that reaches the target; ``resampling``: dynamic
    sampling, which draws further prompts for degenerate groups."""
    group_size: int | None  # rollouts a group; None where no size within reach of the data meets the target
    degeneracy: Estimate  # share of degenerate groups in the batch
    rollouts_per_group: Estimate  # rollouts to sample for each group of the batch
    tokens_per_group: Estimate  # completion tokens to sample for each group of the batch
    method: Literal["observed", "unbiased", "forecast"]  # where the share comes from


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetDegeneracy:
    """A way to at most a given share of degenerate groups."""

    target: float  # the share
    plans: tuple[TargetPlan, ...]  # as logged, by larger groups, by resampling
