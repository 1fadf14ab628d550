"""The result of `gradscope degeneracy`: shares of groups, what the dead ones cost, their sources, and remedies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct

from gradscope.estimate import Estimate
from gradscope.results.envelope import Deferring, LazyRows
from gradscope.results.logged import MetricCourse
from gradscope.results.source import Quarantine, Source
from gradscope.shown import Shown


class SignalCost(Struct, frozen=True, kw_only=True):
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


class AdvantageMass(Struct, frozen=True, kw_only=True):
    """The signal that one formulation would have given the optimizer on the rewards of this log."""

    advantage: str  # name of the formulation
    positive_mass: Estimate  # mean over rollouts of max(A, 0)
    negative_mass: Estimate  # mean over rollouts of max(-A, 0)
    frac_zero: Estimate  # share of rollouts with advantage zero


class RewardFunction(Struct, frozen=True, kw_only=True):
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


class RewardConflict(Struct, frozen=True, kw_only=True):
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


class SideRewards(Struct, frozen=True, kw_only=True):
    """The share of a run that its main reward decides, which a comparison of dead groups alone does not show."""

    run: str  # the run's name in the comparison
    frac_reward_zero_std: Estimate  # share of its groups with zero reward range
    frac_main_differs: Estimate
    """Share of its groups in which the main reward distinguishes rollouts; undefined where that is not known."""
    conflict: RewardConflict | None
    """Its groups that side rewards decide; None where there are none, or where that is not known."""


class RateBin(Struct, frozen=True, kw_only=True):
    """One bar of the histogram of pass rates."""

    low: float  # smallest pass rate in it
    high: float  # largest; the bars at 0 and at 1 hold exactly these
    observed: float  # share of groups
    beta_binomial: float  # share that the fitted inflated beta-binomial expects
    binomial: float  # share that independent coin flips with one pass rate would show


class PassRateDistribution(Struct, frozen=True, kw_only=True):
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


class TargetPlan(Struct, frozen=True, kw_only=True):
    """One way to a target share of degenerate groups."""

    plan: Literal["now", "larger groups", "resampling"]
    """``now``: as logged; ``larger groups``: the smallest group size that reaches the target; ``resampling``: dynamic
    sampling, which draws further prompts for degenerate groups."""
    group_size: int | None  # rollouts a group; None where no size within reach of the data meets the target
    degeneracy: Estimate  # share of degenerate groups in the batch
    rollouts_per_group: Estimate  # rollouts to sample for each group of the batch
    tokens_per_group: Estimate  # completion tokens to sample for each group of the batch
    method: Literal["observed", "unbiased", "forecast"]  # where the share comes from


class TargetDegeneracy(Struct, frozen=True, kw_only=True):
    """A way to at most a given share of degenerate groups."""

    target: float  # the share
    plans: tuple[TargetPlan, ...]  # as logged, by larger groups, by resampling


_MANY_IN_CONFLICT = 0.25  # as many dead groups cost a third more rollouts, which the report calls worth a look
_MANY_CONTRADICTING = 0.25  # of the groups with unequal rewards; a learned baseline may turn a few around
_SURELY_FILTERED = 8.0  # dead groups: where so many are expected, one log in 3,000 has none


class GroupSizeDegeneracy(Struct, frozen=True, kw_only=True):
    """Degeneracy at one group size."""

    group_size: int  # rollouts a group, G
    degeneracy: Estimate  # share of groups of this size with zero reward range
    iid_prediction: Estimate  # p^G + (1-p)^G
    jensen_gap: Estimate  # degeneracy - iid_prediction
    method: Literal["observed", "unbiased", "forecast"]
    """``observed``: groups of this size were logged; ``unbiased``: mean of [C(c,G)+C(n-c,G)]/C(n,G) over larger
    groups; ``forecast``: the fitted beta-binomial, beyond the rollouts that were logged."""


class IidPrediction(Struct, frozen=True, kw_only=True):
    """The i.i.d. prediction from one choice of p: papers use either, and the two differ a lot."""

    pass_rate_origin: str  # which p it used, in words
    iid_prediction: Estimate  # p^G + (1-p)^G at the logged group sizes
    jensen_gap: Estimate  # frac_reward_zero_std - iid_prediction


class Overdispersion(Deferring, frozen=True, kw_only=True):
    """Whether groups differ more than independent coin flips with one pass rate a step."""

    rate_variance: Estimate  # Var(p_x) over groups without bias; twice it is the gap of the population at G = 2
    between_prompts: Estimate
    """The part of the variance within steps that a prompt has at every visit; undefined where none returns."""
    between_visits: Estimate  # the rest, of the visit, such as anything that the rollouts of one group share
    z: Estimate  # standard deviations by which fewer pairs of a group disagree than if outcomes were dealt at random
    p_value: Estimate  # chance of so few disagreeing pairs under the i.i.d. hypothesis
    test: str  # how the p-value was computed


class GapDecomposition(Struct, frozen=True, kw_only=True):
    """The Jensen gap in two parts that add up to it."""

    between_prompts: Estimate  # within a step, prompts differ: the gap minus the part over time
    over_time: Estimate
    """Between steps, p moves: mean over steps of the prediction at the step's p, minus that at the p of the log, both
    without bias."""


class PromptCounts(Struct, frozen=True, kw_only=True):
    """How many prompts the policy learns from, by the main reward where the log has several, else by the one reported.

    A prompt ``never`` passes where no group of it differed and no rollout passed, ``always`` where none differed and
    all passed, and is ``live`` otherwise.
    """

    never: int | None = None  # prompts without a passing rollout; None where passing is not known
    always: int | None = None  # prompts whose rollouts all pass; likewise
    live: int  # all others; where passing is not known, those of which a group differed
    never_groups: int | None = None  # groups of the prompts that never pass; likewise
    always_groups: int | None = None  # groups of those that always do; likewise
    frac_rollouts: float  # share of the rollouts that the prompts took that are not live
    reward: str  # the reward that decides


class PolicyDegeneracy(Struct, frozen=True, kw_only=True):
    """One of several policies whose rollouts a log pools."""

    policy: str
    num_groups: int  # groups that are of this policy alone
    num_rollouts: int  # its rollouts, in any group
    frac_reward_zero_std: Estimate
    """Share of its own groups with zero reward range; undefined where every group mixes policies."""
    pass_rate: Estimate  # mean over groups of its share of passing rollouts


class EnvironmentDegeneracy(Struct, frozen=True, kw_only=True):
    """One of several environments, data sources or agents whose prompts a log mixes."""

    environment: str
    num_groups: int  # its groups
    num_rollouts: int  # their rollouts
    frac_reward_zero_std: Estimate  # share of its groups with zero reward range
    pass_rate: Estimate  # mean over its groups of their share of passing rollouts


class PolicyGap(Struct, frozen=True, kw_only=True):
    """The Jensen gap of pooled policies in two parts that add up to it."""

    between_prompts: Estimate
    """Degeneracy minus the prediction at the policies' own pass rates: prod p_m + prod (1 - p_m) over a group."""
    between_policies: Estimate
    """That prediction minus the one at the pooled pass rate; negative where groups mix unequal policies."""


class StepDegeneracy(Struct, frozen=True, kw_only=True):
    """One step of the run, or a window of neighboring steps."""

    step: int  # the trainer's step; the first of a window
    last_step: int  # the last step of a window; equal to ``step`` for a single step
    num_groups: int  # groups at this step or in this window
    frac_reward_zero_std: Estimate  # share of groups with zero reward range
    frac_all_pass: Estimate  # share of groups that all pass
    frac_all_fail: Estimate  # share of groups that all fail
    frac_tied: Estimate  # share of groups with equal rewards that are neither pass nor fail
    pass_rate: Estimate  # mean over groups of the share of passing rollouts
    iid_prediction: Estimate  # p^G + (1-p)^G at this step's p (or at the given base pass rate)
    jensen_gap: Estimate  # frac_reward_zero_std - iid_prediction
    logged: float | None
    """The trainer's own ``frac_reward_zero_std`` at this step, where it logged one that covers these groups; None for a
    window."""


class DegeneracyCourse(Struct, frozen=True, kw_only=True):
    """The shares of :class:`StepDegeneracy` over steps or windows without intervals, which cost a resampling each."""

    step: Sequence[int] = ()
    last_step: Sequence[int] = ()  # each as in :class:`StepDegeneracy`, a row each
    frac_reward_zero_std: Sequence[float | None] = ()  # None where it is undefined, as below
    frac_all_pass: Sequence[float | None] = ()  # likewise
    frac_all_fail: Sequence[float | None] = ()  # likewise
    frac_tied: Sequence[float | None] = ()  # likewise
    pass_rate: Sequence[float | None] = ()  # likewise
    logged: Sequence[float | None] = ()  # None where the trainer logged none that covers these groups

    @classmethod
    def of(cls, rows: Sequence[StepDegeneracy]) -> DegeneracyCourse:
        """That of rows whose intervals are known."""
        columns = {name: tuple(getattr(row, name) for row in rows) for name in cls.__struct_fields__}
        values = {name: tuple(getattr(value, "value", value) for value in column) for name, column in columns.items()}
        return cls(**values)

    @property
    def is_windows(self) -> bool:
        """Whether its rows join steps."""
        return self.step != self.last_step


class StepBehindFilter(Struct, frozen=True, kw_only=True):
    """One step of the run before its trainer's filter."""

    step: int
    num_sampled: int | None = None  # groups that were sampled, logged or dropped; None where that is not known
    num_dead: int | None = None  # those of them that gave no gradient: dropped for equal rewards, or dead in the log
    frac_zero_std_sampled: Estimate  # num_dead / num_sampled


class BehindFilter(Struct, frozen=True, kw_only=True):
    """Dead groups before a trainer's filter dropped some of them, from the counters that it logged."""

    frac_zero_std_sampled: Estimate
    """num_dead / num_sampled, with an interval over steps; undefined where no counter was logged."""
    num_sampled: int | None = None  # groups that were sampled at all steps whose counters can be used
    num_dead: int | None = None  # those of them that gave no gradient
    by_step: tuple[StepBehindFilter, ...] = ()  # one row a step; none where no counter was logged


class DegeneracyReport(Shown, Deferring, frozen=True, kw_only=True):
    """How many groups give no gradient, of which kind, against coin flips; fields that no screen shows are deferred."""

    not_in_document = (
        *(
            "course",
            "summary",
            "min_num_filtered",
            "silent_functions",
            "num_faint",
            "faint_spread",
            "num_contradicting",
        ),
        *("num_zeroed", "num_moved", "num_off_mean", "num_merged", "doubled_steps", "num_pooled", "usual_size"),
        *("frac_copied", "num_once", "frac_of_one_prompt", "frac_cut_off"),
    )

    source: Source  # where the rollouts came from
    reward: str  # which reward was used: ``reward`` (the trainer's scalar) or the name of one reward function
    success_threshold: float | None = None
    """A rollout passes when its reward reaches this; None where rewards are not binary and none was given."""
    num_groups: int  # groups used
    num_rollouts: int  # rollouts used
    group_size: int | None = None  # rollouts a group; None when groups differ in size
    pass_rate_origin: str  # which p the i.i.d. prediction used, in words
    course_pass_rate_origin: str
    """Which p the predictions of ``by_step`` used, in words: without a given one, that of their own groups."""
    frac_reward_zero_std: Estimate  # share of groups with zero reward range
    behind_filter: BehindFilter
    """The same share among all groups that were sampled, those included that a filter dropped before the log."""
    frac_all_pass: Estimate  # share of groups that all pass
    frac_all_fail: Estimate  # share of groups that all fail
    frac_tied: Estimate  # share of groups with equal rewards that are neither pass nor fail
    pass_rate: Estimate  # mean over groups of the share of passing rollouts, p
    iid_prediction: Estimate  # p^G + (1-p)^G
    jensen_gap: Estimate  # frac_reward_zero_std - iid_prediction
    relative_gap: Estimate  # jensen_gap / iid_prediction
    predictions: tuple[IidPrediction, ...] = ()
    """The prediction from each p that can be had: the mean of the log, each step's own, the given one."""
    overdispersion: Overdispersion  # the i.i.d. hypothesis on trial
    by_group_size: tuple[GroupSizeDegeneracy, ...]  # one row per group size asked for, the logged one first
    gap_decomposition: GapDecomposition  # the gap split into prompts and time
    by_policy: tuple[PolicyDegeneracy, ...] = ()  # one row per policy, where the log pools several
    policy_gap: PolicyGap | None = None
    """The gap split into prompts and policies; None for a log of one policy, or where passing is not
    known."""
    by_environment: tuple[EnvironmentDegeneracy, ...] = ()
    """One row per environment, data source or agent, where rows name several."""
    by_step: tuple[StepDegeneracy, ...]  # one row per step
    course: DegeneracyCourse = DegeneracyCourse()  # the shares of ``by_step``
    pass_rates: PassRateDistribution  # the distribution of pass rates over groups
    starvation: SignalCost  # the cost of degenerate groups
    advantages: tuple[AdvantageMass, ...] = ()  # each formulation of the registry on these rewards
    advantages_of: str = ""  # whose advantages the shares of ``by_reward`` are of, in words; empty where there are none
    by_reward: tuple[RewardFunction, ...] = ()  # each reward function, where several were logged
    frac_reward_conflict: Estimate
    """Share of groups in which the main reward is tied and the others make all of the gradient."""
    reward_conflict: RewardConflict | None = None
    """Details of these groups; None where there are none, or where the share is undefined."""
    prompts: PromptCounts  # how many prompts never pass, always pass, and are live
    by_prompt: LazyRows
    """One row a prompt, those that cost the most rollouts without a gradient first: ``prompt_id``, ``prompt`` (its
    text; None where the log was reduced to its rewards), ``num_groups``, ``num_rollouts``, ``pass_rate`` (None where
    passing is not known), ``status``, ``first_step``, ``last_live_step`` (None where none of its groups differed)."""
    target: TargetDegeneracy | None
    """Ways to reach a share of degenerate groups; None where none was asked for."""
    frac_set_aside: Estimate
    """Share of the log's rows that could not be used; without an interval, for it is of this log and no sample."""
    quarantined: Quarantine  # rows that were set aside (the same object as in ``source``; scripts rely on both)
    summary: tuple[str, ...] = ()
    """The first findings: the share, contradictions, its cost, advice."""
    findings: tuple[str, ...] = ()  # the meaning of the numbers, in sentences
    metrics: tuple[MetricCourse, ...] = ()
    """The trainer's metrics by step, where the log holds metrics and no rollouts."""
    min_num_filtered: float = 0.0
    """Where no group passes or fails throughout: how many at least would, were rollouts independent."""
    silent_functions: Sequence[str] = ()  # reward functions that are 0 for every rollout, though another one is not
    num_faint: int = 0  # groups whose rewards differ by next to nothing beside those of other groups
    faint_spread: float = 0.0  # the most that these differ by
    num_contradicting: int = 0  # groups whose logged advantages fall where the rewards rise
    num_zeroed: int = 0  # groups of unequal rewards whose logged advantages are all zero
    num_moved: int = 0  # groups of equal rewards whose logged advantages are not zero
    num_off_mean: int = 0  # groups of unequal rewards whose logged advantages do not sum to zero
    num_merged: int = 0  # groups whose logged advantages are those of several groups
    doubled_steps: Sequence[int] = ()  # steps with twice the rollouts that most steps have
    num_pooled: int = 0  # groups with a multiple of the rollouts that most have, where all larger ones have one
    usual_size: int = 0  # rollouts that nearly all groups have; 0 where there is no such number
    frac_copied: float = 0.0  # share of the rollouts of dead groups whose text is that of another of their group
    num_once: int = 0  # different texts that nearly all groups have, of repeated rows; 0 where no row repeats
    frac_of_one_prompt: float = 0.0  # share of the rollouts that one of several prompts has, if that is far beyond its
    frac_cut_off: float = 0.0
    """Share of completions that were cut off, by the rollouts or else as logged; 0 where the log does not say."""

    @property
    def num_dead(self) -> int:
        """Groups with zero reward range."""
        return round((self.frac_reward_zero_std.value or 0.0) * self.num_groups)

    @property
    def contradicts_rewards(self) -> bool:
        """Whether the logged advantages are not those of these rewards, whatever their formula."""
        num_live = self.num_groups * (1 - (self.frac_reward_zero_std.value or 0.0))
        are_zero = self.num_zeroed > max(0.5 * num_live, 1)
        return are_zero or self.num_contradicting > max(_MANY_CONTRADICTING * num_live, 1)

    @property
    def has_other_baseline(self) -> bool:
        """Whether logged advantages do not sum to zero in most groups of equal rewards, or in most others."""
        dead = self.frac_reward_zero_std.value or 0.0
        is_moved = self.num_moved > 0.5 * self.num_groups * (dead or 1.0)
        return is_moved or self.num_off_mean > max(0.5 * self.num_groups * (1 - dead), 1)

    @property
    def looks_filtered(self) -> bool:
        """Whether dead groups are missing that chance alone would have made."""
        return self.frac_reward_zero_std.value == 0 and self.min_num_filtered >= _SURELY_FILTERED

    @property
    def is_in_conflict(self) -> bool:
        """Whether so many groups are decided by side rewards that this is the first thing to say of the run."""
        return (self.frac_reward_conflict.value or 0.0) >= _MANY_IN_CONFLICT
