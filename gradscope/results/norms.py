"""The results of `gradscope replay` and `gradscope spike`: the logged norms of the steps, and the cause of one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from gradscope.estimate import Estimate
from gradscope.results.source import OfStep, Source
from gradscope.shown import Shown

ReplayVerdict = Literal["match", "mismatch", "cannot", "no_gradient"]


class Quantity(Struct, frozen=True, kw_only=True):
    """One number that the trainer logged, recomputed."""

    name: str
    """``reward``, ``advantage``, ``frac_reward_zero_std``, ``grad_norm``, or ``completion``: a text that is not of its
    ids, and there only where one is."""
    verdict: ReplayVerdict  # whether it was reproduced
    cause: str | None  # why not, or how it could be reproduced although something was inferred
    reason: str | None = None
    """The kind of cause: ``weights_missing``, ``differs``, ... (`docs/replay.md` has them all); None for a match."""
    advice: str | None = None  # a sentence; None for a match


class StepReplay(OfStep, frozen=True, kw_only=True):
    """One step, recomputed from its rollouts and the weights before its update."""

    weights: str | None  # the weights that were used; None where they are not on disk
    verdict: ReplayVerdict
    """``mismatch`` if any quantity differs, else the verdict on ``grad_norm``: only the right weights, ids, advantages
    and loss reproduce it. ``no_gradient``: it is zero, logged and recomputed, as with other weights and ids, maybe."""
    cause: str | None  # the first cause, for people
    quantities: tuple[Quantity, ...]  # the verdict on each
    logged: Mapping[str, float]  # the trainer's values
    recomputed: Mapping[str, float]  # the same names, recomputed; a name is absent where it could not be
    relative_error: Mapping[str, float]
    """|recomputed - logged| / |logged|, and |recomputed - logged| where the logged value is 0. For ``advantage``:
    the largest absolute difference over the step's rollouts. None of a ``grad_norm`` without a gradient."""
    num_inferred_ids: int  # rollouts of the step whose token ids were re-tokenized from text
    frac_kl: float | None  # norm of the KL part of the gradient over the norm of the gradient; None without a KL term
    logprob_difference: LogprobDifference | None = None
    """Whether these weights made these rollouts; None where the sampler's log-probabilities were not logged, and where
    an update used the batch before."""
    told_within: float | None = None
    """How closely the logged ``grad_norm`` can be reproduced, relative: half the interval over orders of the rollouts,
    where the trainer computed in bfloat16 or float16, its micro-batches matter, or float32 missed it by little; else
    None."""

    parts: Mapping[str, tuple[float, float]] = {}
    """``kl``, ``entropy``: norm of that part of the gradient, and its projection on the gradient, over the norm of the
    gradient; absent without such a term or a gradient. Of a norm that matches, the KL part alone is known."""
    untested: tuple[str, ...] = ()
    """Arguments that could have other values, and losses that could have been used, with the same ``grad_norm``."""

    def verdict_on(self, name: str) -> ReplayVerdict | None:
        """The verdict on one quantity; None where it was not looked at."""
        return next((quantity.verdict for quantity in self.quantities if quantity.name == name), None)


class ReplayReport(Shown, Struct, frozen=True, kw_only=True):
    """Does the log reproduce the trainer's numbers?"""

    source: Source  # where the rollouts came from
    steps: tuple[StepReplay, ...]  # by step
    verdict: ReplayVerdict
    """``mismatch`` if any step mismatches, else ``match`` if any step with a gradient matches, else ``cannot``."""
    tolerance: float  # largest relative error of ``grad_norm`` that counts as a match
    engine: Mapping[str, object]  # engine, dtype, device, coverage and self-check of the gradient computation
    headline: str  # the verdict with its counts: ``match at 3 of 24 steps; 21 cannot``
    frac_replay_mismatch: Estimate
    """Share of the judged steps, those that match or mismatch, that mismatch; undefined where no step is judged."""
    equivalent_check: str = ""
    """The ``gradscope check`` command that passes where this verdict is ``match`` and nowhere else; empty where the
    tolerance is another."""
    findings: tuple[str, ...] = ()  # what the numbers say, in sentences for people


class LogprobDifference(Struct, frozen=True, kw_only=True):
    """|logged - recomputed| log-probability of each sampled token of a step.

    Where a batch is reused, the logged ones are of the weights that sampled it, and these weights have moved since.
    """

    num_tokens: int  # tokens whose log-probability was logged
    mean: float  # mean difference, in nats
    max: float  # the largest
    frac_beyond: float  # share of tokens beyond ``bound``
    bound: float  # the difference that counts as one


class SpikeMetric(Struct, frozen=True, kw_only=True):
    """One number that the trainer logged at the step, compared with those of the steps around it."""

    name: str  # as it was logged
    value: Estimate  # at the step; undefined where it was logged as NaN or infinity
    typical: Estimate  # median of the up to 50 nearest steps; undefined with fewer than 8
    deviation: Estimate
    """Standard deviations from it, by their median absolute deviation; of logarithms where none is negative."""
    by_chance: Estimate
    """The deviation that the furthest of as many normal, equal steps exceeds in one run of twenty."""
    is_unusual: bool  # whether the deviation is larger, or the number is not finite


class SpikeRollout(Struct, frozen=True, kw_only=True):
    """One rollout of the step."""

    group_id: str
    sample: int
    reward: float | None  # its reward; None where it is missing
    advantage: float | None  # as logged; None where each token has its own, or none was logged
    num_tokens: int | None  # completion tokens; None where only text was logged
    repeated_ngrams: Estimate  # share of its runs of four tokens, or words, that stood in it before
    projection_share: Estimate  # its part of the step's gradient along the gradient
    norm_without: Estimate  # the step's ``grad_norm`` without it, the others' weights in the loss as they were


class SpikeRemoval(Struct, frozen=True, kw_only=True):
    """The step without some of its rollouts, the worst first."""

    num_removed: int  # how many are left out
    group_id: str  # group of the one that is left out last
    sample: int
    grad_norm: float  # the norm without them


class SpikeToken(Struct, frozen=True, kw_only=True):
    """One token of the rollouts with the largest parts."""

    group_id: str  # group of its rollout
    sample: int  # index of that within the group
    position: int  # index within the completion
    text: str  # the token alone; its id in brackets where there is no tokenizer
    norm: float  # norm of its gradient, ``token_norm``
    weight: float  # factor on grad log pi in the loss; negative where the update makes the token more likely
    entropy: float  # entropy of the policy where it was sampled, in nats


class SpikeTensor(Struct, frozen=True, kw_only=True):
    """One parameter's part of the step's gradient."""

    tensor: str
    norm: float  # norm of its gradient
    tensor_share: float  # its part of the squared norm of the gradient
    frac_parameters: float  # its part of the trainable parameters: the share that it would have, were all entries alike


class SpikeReport(Shown, Struct, frozen=True, kw_only=True):
    """The analysis of one step."""

    source: Source
    step: int
    was_named: bool  # whether the step was asked for; else it is the one that stands out most
    metrics: tuple[SpikeMetric, ...]  # of gradient norm, KL and loss those that were logged
    course: Mapping[int, float]
    """Step -> the logged number by which the step was chosen, or its first metric; finite ones."""
    grad_norm: Estimate  # recomputed; undefined where it could not be, with the reason
    rollouts: tuple[SpikeRollout, ...]
    """All of the step, those with the largest part of its gradient first; without gradients, those that repeat most."""
    removals: tuple[SpikeRemoval, ...]
    """One rollout after the other left out, until the norm is that of the steps around it or a quarter is gone."""
    tokens: tuple[SpikeToken, ...]  # those with the largest gradients of the rollouts with the largest parts
    tensors: tuple[SpikeTensor, ...]  # parameters, the largest part first
    engine: Mapping[str, object]  # how gradients were computed; empty where none were
    findings: tuple[str, ...] = ()  # what the numbers say, in sentences for people
