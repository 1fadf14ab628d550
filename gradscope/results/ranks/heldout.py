"""What the gradients of a step do to the correct answers of held-out prompts."""

from __future__ import annotations

from dataclasses import dataclass

from gradscope.estimate import Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldoutTransfer:
    """Of one step under one advantage, over pairs of a training and a held-out prompt, to first order."""

    step: int
    """The trainer's step."""
    advantage: str
    """``logged``, or the formulation."""
    num_groups: int
    """Groups of the step with a gradient."""
    num_heldout: int
    """Held-out prompts with a correct answer that are no prompts of the step."""
    frac_hurt: Estimate
    """Share of pairs of which the first lowers the log-probability of the correct answers of the second."""
    cosine: Estimate
    """Mean cosine of a group's gradient with that of the log-probability of a held-out prompt's correct answers."""
    transfer: Estimate
    """What the step does to held-out correct answers over what it does to those that it was trained on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldoutInfluence:
    """Of one group with a gradient under one advantage."""

    step: int
    """The trainer's step."""
    advantage: str
    """``logged``, or the formulation."""
    group_id: str
    """The group."""
    pass_rate: float | None
    """Its mean reward; None where a reward is missing."""
    influence: Estimate
    """Mean product with the held-out prompts, in units of the mean norms of either."""
