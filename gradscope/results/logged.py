"""The policy over the steps, from logged tokens and metrics."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct, field

from gradscope.estimate import Estimate


class EntropyNumbers(Struct, frozen=True, kw_only=True):
    """How undecided the policy was."""

    step: int | None  # the step; None: all steps
    mean: Estimate  # nats a token


class PolicyEntropy(Struct, frozen=True, kw_only=True):
    """The entropy that was logged."""

    overall: EntropyNumbers | None = None  # all steps
    by_step: tuple[EntropyNumbers, ...] = ()  # each step that has it
    trend: Estimate | None = None  # change along its line, first to last step
    origin: str = ""  # ``tokens``, or the trainer's name of it


class StalenessNumbers(Struct, frozen=True, kw_only=True):
    """How many updates the weights that sampled were behind."""

    step: int | None  # the step; None: all steps
    num_rollouts: int  # rollouts whose weights are known and that count in the loss
    mean_lag: Estimate  # mean lag of their first token
    max_lag: Estimate  # largest lag
    frac_above_1: Estimate  # share of rollouts that lag by more than one update
    frac_mixed: Estimate  # share of rollouts during which the weights changed


class LagShare(Struct, frozen=True, kw_only=True):
    """The rollouts of one lag."""

    lag: int  # updates that their weights were behind
    num_rollouts: int  # rollouts
    share: float  # share of all rollouts whose weights are known
    logprob_gap: Estimate
    """Mean |log ratio| of their tokens; undefined where the log does not have both log-probabilities."""


class Staleness(Struct, frozen=True, kw_only=True):
    """The versions of the weights that sampled."""

    overall: StalenessNumbers | None = None  # all steps
    by_step: tuple[StalenessNumbers, ...] = ()  # each step that has them
    by_lag: tuple[LagShare, ...] = ()  # each lag that occurs, ascending
    contradiction: str = ""  # why the versions give no lag, where they do not; a sentence without its period


class GenerationNumbers(Struct, frozen=True, kw_only=True):
    """How completions ended and how long they took."""

    step: int | None  # the step; None: all steps
    frac_truncated: Estimate  # share of completions that were cut off at the length limit
    seconds: Estimate  # mean seconds of generating a completion
    slowest_over_mean: Estimate
    """Seconds of the slowest completion of a step over the mean of the step; overall its mean over steps."""


class Generation(Struct, frozen=True, kw_only=True):
    """The ends and times of completions."""

    overall: GenerationNumbers | None = None  # all steps
    by_step: tuple[GenerationNumbers, ...] = ()  # each step that has any of them


class MetricCourse(Struct, frozen=True, kw_only=True):
    """One number at the steps that have it, as it was logged."""

    name: str  # its common name: ``frac_reward_zero_std``, ``reward``, ``grad_norm``, ...
    title: str  # its name for people
    style: Literal["share", "norm", "count"]  # how it reads
    mean: Estimate  # mean over these steps, without an interval; undefined where one of them is no finite number
    largest_step: int  # the step of its largest finite number; of its first number where none is finite
    smallest_step: int  # the same of its smallest
    steps: Sequence[int]  # the steps, ascending
    values: Sequence[float]  # the number at each of them; NaN and infinity as they were logged

    def at(self, step: int) -> float:
        """The number at one of its steps."""
        return self.values[bisect_left(self.steps, step)]


class MismatchNumbers(Struct, frozen=True, kw_only=True):
    """How far the trainer's policy is from the one that sampled; w is the ratio of both probabilities of a token."""

    step: int | None  # the step; None: all steps
    num_tokens: int  # sampled tokens that have both log-probabilities
    num_sequences: int  # sequences that have them
    token_ess: Estimate  # effective share of the tokens
    sequence_ess: Estimate  # effective share of the sequences
    logprob_gap: Estimate  # mean of |log w|
    kl_k1: Estimate  # KL(sampler, trainer) a token, mean of -log w
    kl_k3: Estimate  # KL(sampler, trainer) a token, mean of w - 1 - log w
    chi2_token: Estimate  # mean of w^2 - 1 over tokens
    chi2_sequence: Estimate  # mean of w^2 - 1 over sequences
    frac_beyond_2: Estimate  # share of tokens with w outside [1/2, 2]
    frac_beyond_clip: Estimate  # share of tokens with w outside [0.8, 1.2]
    frac_clipped: Estimate  # share of tokens whose gradient PPO's clip at 0.2 takes; undefined without advantages


class TokenMismatch(Struct, frozen=True, kw_only=True):
    """One token on which sampler and trainer differ."""

    step: int  # its step
    row: int  # the row of its rollout within the step, from 0
    sequence: int  # which of its rollout's sequences it is in, from 0; 0 where the rollout is one
    position: int  # its position in the completion of its sequence, from 0
    sampler: float  # the sampler's log-probability
    trainer: float  # the trainer's


class SamplerMismatch(Struct, frozen=True, kw_only=True):
    """The logged log-probabilities of sampler and trainer compared."""

    overall: MismatchNumbers | None = None  # all steps
    by_step: tuple[MismatchNumbers, ...] = ()  # each step that has tokens to compare
    worst: tuple[TokenMismatch, ...] = ()  # the tokens with the largest |log w|
    set_aside: Mapping[str, int] = {}  # why rows could not be compared -> how many
    is_identical: bool = False  # whether no token differs at all, as where the trainer takes over the sampler's values


class LoggedPolicy(Struct, frozen=True, kw_only=True):
    """Everything of this kind that a log holds."""

    sampler: SamplerMismatch = field(default_factory=SamplerMismatch)  # sampler and trainer
    entropy: PolicyEntropy = field(default_factory=PolicyEntropy)  # entropy
    staleness: Staleness = field(default_factory=Staleness)  # lag of the weights
    generation: Generation = field(default_factory=Generation)  # ends and times of completions
    missing: Mapping[str, str] = {}
    """Part without numbers -> why; a sentence without its period."""
