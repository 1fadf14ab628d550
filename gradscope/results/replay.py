"""What `gradscope replay` finds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from gradscope.estimate import Estimate
from gradscope.results.source import Source
from gradscope.shown import Drawn

ReplayVerdict = Literal["match", "mismatch", "cannot", "no_gradient"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """One number that the trainer logged, recomputed."""

    name: str
    """``reward``, ``advantage``, ``frac_reward_zero_std``, ``grad_norm``, or ``completion``: a text that is not of its
    ids, and there only where one is."""
    verdict: ReplayVerdict
    """Whether it was reproduced."""
    cause: str | None
    """Why not, or how it could be reproduced although something was inferred."""
    reason: str | None = None
    """The kind of cause: ``weights_missing``, ``differs``, ... (`docs/replay.md` has them all); None for a match."""
    advice: str | None = None
    """What to do about it, a sentence; None for a match."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReplay:
    """One step, recomputed from its rollouts and the weights before its update."""

    step: int
    """The trainer's step."""
    weights: str | None
    """The weights that were used; None where they are not on disk."""
    verdict: ReplayVerdict
    """``mismatch`` if any quantity differs, else what is said of ``grad_norm``: only the right weights, ids, advantages
    and loss reproduce it. ``no_gradient``: it is zero in the log and here, which any weights and ids would give."""
    cause: str | None
    """The first cause, for people."""
    quantities: tuple[Quantity, ...]
    """The verdict on each."""
    logged: Mapping[str, float]
    """What the trainer logged."""
    recomputed: Mapping[str, float]
    """The same names, recomputed; a name is absent where it could not be."""
    relative_error: Mapping[str, float]
    """|recomputed - logged| / |logged|, and |recomputed - logged| where the logged value is 0. For ``advantage``:
    the largest absolute difference over the step's rollouts."""
    num_inferred_ids: int
    """Rollouts of the step whose token ids were re-tokenized from text."""
    frac_kl: float | None
    """Norm of the KL part of the gradient over the norm of the whole; None without a KL term."""
    logprob_difference: LogprobDifference | None = None
    """Whether these weights made these rollouts; None where the sampler's log-probabilities were not logged."""
    told_within: float | None = None
    """How closely the logged ``grad_norm`` can be told, relative: half the interval over orders of the rollouts, where
    the trainer computed in bfloat16 or float16, its micro-batches matter, or float32 missed it by little; else None."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ReplayReport(Drawn):
    """Does the log reproduce the trainer's numbers?"""

    source: Source
    """Where the rollouts came from."""
    steps: tuple[StepReplay, ...]
    """By step."""
    verdict: ReplayVerdict
    """``mismatch`` if any step mismatches, else ``match`` if any step with a gradient matches, else ``cannot``."""
    tolerance: float
    """Largest relative error of ``grad_norm`` that counts as a match."""
    engine: Mapping[str, object]
    """Engine, dtype, device, coverage and self-check of the gradient computation."""
    headline: str
    """The verdict with its counts: ``match at 3 of 24 steps; 21 cannot``."""
    frac_replay_mismatch: Estimate
    """Share of the judged steps, those that match or mismatch, that mismatch; undefined where no step is judged."""
    equivalent_check: str = ""
    """The ``gradscope check`` command that passes where this verdict is ``match`` and nowhere else; empty where the
    tolerance is another."""
    findings: tuple[str, ...] = ()
    """What the numbers say, in sentences for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobDifference:
    """|logged - recomputed| log-probability of each sampled token of a step.

    Where a batch is reused, the logged ones are of the weights that sampled it, and these weights have moved since.
    """

    num_tokens: int
    """Tokens whose log-probability was logged."""
    mean: float
    """Mean difference, in nats."""
    max: float
    """The largest."""
    frac_beyond: float
    """Share of tokens beyond ``bound``."""
    bound: float
    """The difference that counts as one."""
