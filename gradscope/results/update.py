"""What `gradscope rank --rows update` finds. Letters: W_t weights after t updates, T checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from gradscope.estimate import Estimate
from gradscope.results.row_kinds import OfStep


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightUpdate:
    """The change of one weight matrix between two checkpoints."""

    tensor: str
    first: int  # updates that the earlier weights have had
    last: int  # updates that the later weights have had
    shape: tuple[int, int]  # rows and columns
    update_size: Estimate  # |W_last - W_first|_F over |W_0|_F, of an adapter its base's
    singular_values: tuple[float, ...]  # of the change, descending
    effective_rank: Estimate  # exp H(s / sum s)
    gaussian: Estimate
    """The effective rank of a matrix of this shape with independent entries; of an adapter that of a product of two
    such factors of its rank."""
    stable_rank: Estimate  # sum s^2 / s_1^2
    top_energy: Estimate  # s_1^2 / sum s^2: the share of a rank-one change
    principal_overlap: Estimate  # share of the change's energy in the principal subspace of W_0
    principal_null: Estimate  # the same of a random change
    spectrum_drift: Estimate
    """|s(W_last) - s(W_first)|_2 over |W_last - W_first|_F: the part of the change that is in the singular values."""
    spectrum_drift_null: Estimate  # the same of an unrelated change of this size
    principal_angle: Estimate  # degrees by which the principal directions turned
    principal_angle_null: Estimate  # the same of an unrelated change of this size
    bfloat16_changed: Estimate  # share of entries whose bfloat16 rounding changed


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterState:
    """One product B A of a LoRA adapter at one checkpoint."""

    tensor: str  # the weight that it is added to
    num_updates: int  # updates that it has had
    rank: int  # r, the most that its rank can be
    a_norm: Estimate  # |A|_F
    b_norm: Estimate  # |B|_F: 0 where the adapter does nothing yet
    product_size: Estimate  # |s B A|_F over |W|_F of the weight that it is added to
    effective_rank: Estimate  # exp H(s / sum s) of B A
    unrelated_rank: Estimate  # the effective rank of a product of unrelated factors of these shapes
    alignment: Estimate  # |B A|_F over |B|_F |A|_F
    unrelated_alignment: Estimate  # the same of unrelated factors


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateTrajectory:
    """The updates W_t - W_0 of all checkpoints of one tensor, or of all tensors together, as T rows of one matrix."""

    tensor: str | None  # the parameter's name; None: all matrices together
    num_updates: tuple[int, ...]  # t of each row
    effective_rank: Estimate  # exp H(s / sum s) of the T rows, at most T
    top_energy: Estimate  # s_1^2 / sum s^2 of the T rows
    linear_growth: Estimate  # share of energy on the best straight line D_t = t V
    walk_effective_rank: Estimate  # the effective rank of a random walk at these checkpoints
    walk_top_energy: Estimate  # its share of energy in one direction
    walk_linear_growth: Estimate  # its share of energy on a straight line


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientAndUpdate:
    """The gradient of one weight at a step, and its change from there to the next checkpoint."""

    step: int  # the step of the gradient, the first one after ``first`` updates
    tensor: str
    first: int  # updates that the weights of the gradient have had, W_a
    last: int  # updates of the next checkpoint, W_b
    gradient_rank: Estimate  # exp H(s / sum s) of dL/dW
    gradient_top_energy: Estimate  # s_1^2 / sum s^2 of dL/dW
    update_rank: Estimate  # exp H(s / sum s) of W_b - W_a
    update_top_energy: Estimate  # s_1^2 / sum s^2 of W_b - W_a
    gaussian: Estimate  # the effective rank of a matrix of this shape with independent entries: the null of both


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerStep(OfStep):
    """The first step of a fresh optimizer from the gradient of a step."""

    tensor: str | None  # the parameter's name; None: all matrices together
    optimizer: Literal["sgd", "adam", "muon"]  # which one, as PyTorch has it
    effective_rank: Estimate  # exp H(s / sum s) of the step; over all matrices their mean
    cosines: Mapping[str, Estimate]  # optimizer -> cosine of the two steps
    bfloat16_moved: Estimate
    """Share of entries whose bfloat16 rounding the step changes, at the size of Adam's at the logged learning rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleShare(OfStep):
    """The part of one kind of module in the gradient of a step."""

    module: Literal["output head", "embedding", "attention", "mlp", "other"]
    """Which weights, by their names; ``other`` is norms and what no name tells."""
    norm: Estimate  # norm of the gradient of these weights
    energy_share: Estimate  # its square over that of the whole gradient
    frac_parameters: Estimate
    """Share of the trainable parameters, which the other is where the gradient is spread evenly."""
