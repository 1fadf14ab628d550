"""What changes from step to step: entropy, staleness of weights, ends and times of completions."""

from __future__ import annotations

from dataclasses import dataclass

from gradscope.estimate import Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class EntropyNumbers:
    """How undecided the policy was."""

    step: int | None
    """The step; None: the whole log."""
    mean: Estimate
    """Nats a token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyEntropy:
    """The entropy that was logged."""

    overall: EntropyNumbers | None = None
    """The whole log."""
    by_step: tuple[EntropyNumbers, ...] = ()
    """Each step that has it."""
    trend: Estimate | None = None
    """Change along its line, first to last step."""
    origin: str = ""
    """``tokens``, or the trainer's name of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StalenessNumbers:
    """How many updates the weights that sampled were behind."""

    step: int | None
    """The step; None: the whole log."""
    num_rollouts: int
    """Rollouts whose weights are known and that count in the loss."""
    mean_lag: Estimate
    """Mean lag of their first token."""
    max_lag: Estimate
    """Largest lag."""
    frac_above_1: Estimate
    """Share of rollouts that lag by more than one update."""
    frac_mixed: Estimate
    """Share of rollouts during which the weights changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LagShare:
    """The rollouts of one lag."""

    lag: int
    """Updates that their weights were behind."""
    num_rollouts: int
    """Rollouts."""
    share: float
    """Share of all rollouts whose weights are known."""
    logprob_gap: Estimate
    """Mean |log ratio| of their tokens; undefined where the log does not have both log-probabilities."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Staleness:
    """The versions of the weights that sampled."""

    overall: StalenessNumbers | None = None
    """The whole log."""
    by_step: tuple[StalenessNumbers, ...] = ()
    """Each step that has them."""
    by_lag: tuple[LagShare, ...] = ()
    """Each lag that occurs, ascending."""
    contradiction: str = ""
    """Why the versions do not tell a lag, where they do not; a sentence without its period."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationNumbers:
    """How completions ended and how long they took."""

    step: int | None
    """The step; None: the whole log."""
    frac_truncated: Estimate
    """Share of completions that were cut off at the length limit."""
    seconds: Estimate
    """Mean seconds of generating a completion."""
    slowest_over_mean: Estimate
    """Seconds of the slowest completion of a step over the mean of the step; of the whole log its mean over steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """The ends and times of completions."""

    overall: GenerationNumbers | None = None
    """The whole log."""
    by_step: tuple[GenerationNumbers, ...] = ()
    """Each step that has any of them."""
