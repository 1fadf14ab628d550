"""What `gradscope rank --rows update` finds. Letters: W_t weights after t updates, T checkpoints."""

from __future__ import annotations

from dataclasses import dataclass

from gradscope.estimate import Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightUpdate:
    """The change of one weight matrix between two checkpoints."""

    tensor: str
    """The parameter's name."""
    first: int
    """Updates that the earlier weights have had."""
    last: int
    """Updates that the later weights have had."""
    shape: tuple[int, int]
    """Rows and columns."""
    update_size: Estimate
    """|W_last - W_first|_F over |W_0|_F, of an adapter its base's."""
    singular_values: tuple[float, ...]
    """Of the change, descending."""
    effective_rank: Estimate
    """exp H(s / sum s)."""
    gaussian: Estimate
    """The effective rank of a matrix of this shape with independent entries."""
    stable_rank: Estimate
    """sum s^2 / s_1^2."""
    top_energy: Estimate
    """s_1^2 / sum s^2: the share of a rank-one change."""
    principal_overlap: Estimate
    """Share of the change's energy in the principal subspace of W_0."""
    principal_null: Estimate
    """The same of a random change."""
    bfloat16_changed: Estimate
    """Share of entries whose bfloat16 rounding changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateTrajectory:
    """The updates W_t - W_0 of all checkpoints of one tensor, or of all tensors together, as T rows of one matrix."""

    tensor: str | None
    """The parameter's name; None: all matrices together."""
    num_updates: tuple[int, ...]
    """t of each row."""
    effective_rank: Estimate
    """exp H(s / sum s) of the T rows, at most T."""
    top_energy: Estimate
    """s_1^2 / sum s^2 of the T rows."""
    linear_growth: Estimate
    """Share of energy on the best straight line D_t = t V."""
    walk_effective_rank: Estimate
    """The effective rank of a random walk at these checkpoints."""
    walk_top_energy: Estimate
    """Its share of energy in one direction."""
    walk_linear_growth: Estimate
    """Its share of energy on a straight line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientAndUpdate:
    """The gradient of one weight at a step, and its change from there to the next checkpoint."""

    step: int
    """The step of the gradient, the first one after ``first`` updates."""
    tensor: str
    """The parameter's name."""
    first: int
    """Updates that the weights of the gradient have had, W_a."""
    last: int
    """Updates of the next checkpoint, W_b."""
    gradient_rank: Estimate
    """exp H(s / sum s) of dL/dW."""
    gradient_top_energy: Estimate
    """s_1^2 / sum s^2 of dL/dW."""
    update_rank: Estimate
    """exp H(s / sum s) of W_b - W_a."""
    update_top_energy: Estimate
    """s_1^2 / sum s^2 of W_b - W_a."""
    gaussian: Estimate
    """The effective rank of a matrix of this shape with independent entries: the null of both."""
