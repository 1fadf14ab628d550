"""What `gradscope spike` finds: the step that stands out, and what its gradient is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gradscope.estimate import Estimate
from gradscope.results.source import Source
from gradscope.shown import Drawn


@dataclass(frozen=True, slots=True, kw_only=True)
class SpikeMetric:
    """One number that the trainer logged at the step, beside those of the steps around it."""

    name: str
    """As it was logged."""
    value: Estimate
    """At the step; undefined where it was logged as NaN or infinity."""
    typical: Estimate
    """Median of the up to 50 nearest steps; undefined with fewer than 8."""
    deviation: Estimate
    """Standard deviations from it, by their median absolute deviation; of logarithms where none is negative."""
    by_chance: Estimate
    """What the furthest of as many steps exceeds in one run of twenty, were the steps normal and alike."""
    is_unusual: bool
    """Whether the deviation lies above that, or the number is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpikeRollout:
    """One rollout of the step."""

    group_id: str
    """Its group."""
    sample: int
    """Its index within the group."""
    reward: float | None
    """Its reward; None where it is missing."""
    advantage: float | None
    """As logged; None where each token has its own, or none was logged."""
    num_tokens: int | None
    """Completion tokens; None where only text was logged."""
    repeated_ngrams: Estimate
    """Share of its runs of four tokens, or words, that stood in it before."""
    projection_share: Estimate
    """Its part of the step's gradient along the gradient."""
    norm_without: Estimate
    """The step's ``grad_norm`` without it, the others' weights in the loss as they were."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpikeRemoval:
    """The step without some of its rollouts, the worst first."""

    num_removed: int
    """How many are left out."""
    group_id: str
    """Group of the one that is left out last."""
    sample: int
    """Its index within the group."""
    grad_norm: float
    """What is left of the norm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpikeToken:
    """One token of the rollouts with the largest parts."""

    group_id: str
    """Group of its rollout."""
    sample: int
    """Index of that within the group."""
    position: int
    """Index within the completion."""
    text: str
    """The token alone; its id in brackets where there is no tokenizer."""
    norm: float
    """Norm of its gradient, ``token_norm``."""
    weight: float
    """What multiplies grad log pi in the loss; negative where the update makes the token more likely."""
    entropy: float
    """Entropy of the policy where it was sampled, in nats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpikeTensor:
    """One parameter's part of the step's gradient."""

    tensor: str
    """Its name."""
    norm: float
    """Norm of its gradient."""
    tensor_share: float
    """Its part of the squared norm of the whole gradient."""
    frac_parameters: float
    """Its part of the trainable parameters: the share that it would have, were all entries alike."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SpikeReport(Drawn):
    """A step taken apart."""

    source: Source
    """The run."""
    step: int
    """The trainer's step."""
    was_named: bool
    """Whether the step was asked for; else it is the one that stands out most."""
    metrics: tuple[SpikeMetric, ...]
    """What was logged at it: the gradient norm, the KL, the loss, as far as they were."""
    course: Mapping[int, float]
    """Step -> the logged number by which the step was chosen, or its first metric; finite ones."""
    grad_norm: Estimate
    """Recomputed; undefined where it could not be, with the reason."""
    rollouts: tuple[SpikeRollout, ...]
    """All of the step, those with the largest part of its gradient first; without gradients, those that repeat most."""
    removals: tuple[SpikeRemoval, ...]
    """One rollout after the other left out, until the norm is that of the steps around it or a quarter is gone."""
    tokens: tuple[SpikeToken, ...]
    """Those with the largest gradients of the rollouts with the largest parts."""
    tensors: tuple[SpikeTensor, ...]
    """Parameters, the largest part first."""
    engine: Mapping[str, object]
    """How gradients were computed; empty where none were."""
    findings: tuple[str, ...] = ()
    """What the numbers say, in sentences for people."""
