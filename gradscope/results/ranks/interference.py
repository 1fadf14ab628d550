"""What the gradient of a prompt does to the correct answers of the others."""

from __future__ import annotations

from dataclasses import dataclass

from gradscope.estimate import Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Interference:
    """Of one step under one advantage, over pairs of different groups, to first order."""

    step: int
    """The trainer's step."""
    advantage: str
    """``logged``, or the formulation."""
    frac_hurt: Estimate
    """Share of pairs of which the first lowers the log-probability of the correct answers of the second."""
    cosine: Estimate
    """Mean cosine of a group's gradient with the mean score vector of another's correct rollouts."""
    transfer: Estimate
    """What all others do to a group's correct answers over what its own gradient does for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptInfluence:
    """Of one group under one advantage."""

    step: int
    """The trainer's step."""
    advantage: str
    """``logged``, or the formulation."""
    group_id: str
    """The group."""
    pass_rate: float
    """Its mean reward."""
    influence: Estimate
    """Mean change of the log-probability of the others' correct answers, in units of what groups do for their own."""
