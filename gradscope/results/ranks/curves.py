"""Ranks averaged over the groups of a step: of rollouts, of tokens, of dL/dW. Shapes: R rollouts, G group size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gradscope.estimate import Estimate
from gradscope.results.ranks.tokens import TokenMethod


@dataclass(frozen=True, slots=True, kw_only=True)
class NullRank:
    """The effective rank under one null model, on the same live sub-groups."""

    effective_rank: Estimate
    """Mean over the live sub-groups, interval by resampling groups; each sub-group's own is a mean over draws."""
    difference: Estimate
    """Effective rank minus that of the null, paired by sub-group."""
    ratio: Estimate
    """Mean effective rank over the mean of the null, from the same sub-groups."""
    two_direction_energy: Estimate
    """Share of sum s^2 in the two largest singular values under the null."""
    profile: tuple[float, ...] = ()
    """Mean over the live sub-groups of s / sum s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCurvePoint:
    """A rank averaged over the groups of one step."""

    step: int
    """The trainer's step."""
    advantage: str
    """``logged``, or the formulation."""
    group_size: int
    """Rows of each matrix."""
    num_groups: int
    """Sub-groups of this size at the step."""
    num_dead: int
    """Those whose advantages are all zero: their matrix is zero and has no rank."""
    effective_rank: Estimate
    """Mean over the live sub-groups, interval by resampling groups."""
    given_prompts: Estimate
    """The same mean with the interval of other rollouts of the same prompts, by leaving each rollout out once."""
    stable_rank: Estimate
    """As ``effective_rank``."""
    participation_ratio: Estimate
    """Likewise."""
    two_direction_energy: Estimate
    """Share of sum s^2 in the two largest singular values, averaged likewise; of two rows it is 1."""
    summed_energy: Estimate
    """|sum of rows|^2 over the sum of their squared norms, averaged likewise: 1 for unrelated rows."""
    shared_directions: Estimate
    """Directions on which a sub-group's unit rows have more energy than one of them could have: their mean number."""
    shared_energy: Estimate
    """Share of the rows' squared norms on the shared directions, averaged likewise."""
    shared_sum: Estimate
    """Share of |sum of rows|^2 on them, averaged over the sub-groups whose sum is not zero."""
    shared_kept: Estimate
    """``summed_energy`` of the rows' parts on them, averaged over the sub-groups whose rows have any."""
    residual_kept: Estimate
    """``summed_energy`` of what is left of the rows, averaged over the sub-groups where something is."""
    profile: tuple[float, ...] = ()
    """Mean over the live sub-groups of s / sum s, largest first: what the effective rank is the entropy of."""
    nulls: Mapping[str, NullRank] = field(default_factory=dict)
    """The same under each null model; empty where every sub-group is dead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRankPoint:
    """Ranks of token rows, averaged over the groups of one step."""

    step: int
    """The trainer's step."""
    advantage: str
    """``logged``, or the formulation."""
    group_size: int
    """Rollouts over which an advantage was computed."""
    method: TokenMethod
    """How the rows were had; ``sampled`` where any group was."""
    num_groups: int
    """Groups, or parts of them, of this size at the step."""
    num_dead: int
    """Those whose token weights are all zero: their matrix is zero and has no rank."""
    num_rows: Estimate
    """Token rows of a live group, N. Mean over live groups."""
    frac_seen: float
    """Share of the step's tokens that are rows."""
    effective_rank: Estimate
    """Mean over live groups, interval by resampling groups."""
    stable_rank: Estimate
    """Likewise."""
    participation_ratio: Estimate
    """Likewise."""
    two_direction_energy: Estimate
    """Share of sum s^2 in the two largest singular values, averaged likewise."""
    energy_error: float | None = None
    """Of sketches the largest error of a squared singular value, over their sum, of any live group."""
    nulls: Mapping[str, NullRank] = field(default_factory=dict)
    """The same under each null model; empty where no group is live."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightRankPoint:
    """The rank of dL/dW of one group of G rollouts, averaged over the groups of one step."""

    step: int
    """The trainer's step."""
    advantage: str
    """``logged``, or the formulation."""
    group_size: int
    """Rollouts of each group, G."""
    tensor: str | None
    """The weight; None for the mean over all weights of each group."""
    shape: tuple[int, int] | None
    """Its outputs and inputs, the smaller of which bounds the rank; None for the mean over weights."""
    num_groups: int
    """Groups, or parts of them, of this size at the step."""
    num_dead: int
    """Those without a gradient."""
    effective_rank: Estimate
    """Mean over the live ones, interval by resampling groups."""
    stable_rank: Estimate
    """Likewise."""
    participation_ratio: Estimate
    """Likewise."""
    two_direction_energy: Estimate
    """Share of sum s^2 in the two largest singular values, averaged likewise."""
    nulls: Mapping[str, NullRank] = field(default_factory=dict)
    """The same under each null model, ``gaussian`` with the norms of the matrix's rows (of the smaller side)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeChange:
    """What a larger group does to the effective rank, from the same rollouts of the same prompts."""

    step: int
    """The trainer's step."""
    advantage: str
    """``logged``, or the formulation."""
    matrix: str
    """Which matrix: a kind of rows, or the name of a weight."""
    first: int
    """The smaller group size."""
    second: int
    """The larger one."""
    difference: Estimate
    """Effective rank at the larger minus at the smaller, paired by prompt; prompts that live at every size."""
