"""From one Gram matrix of score vectors to the spectra of every formulation and group size, without a backward pass.

The gradient row of rollout i is A_i s_i, so the Gram matrix of gradient rows is diag(A) K diag(A): exchanging the
advantage, or regrouping a group of 8 into four groups of 2, is arithmetic on K. The KL part of the trainer's objective
is left out here, because it does not scale with the advantage; `replay` counts it in.

Shapes: R rollouts of a step, G rollouts of a part, n parts of one size, N rows of a matrix, P parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gradscope.advantages.registry import LOGGED
from gradscope.diagnostics.rank.rollouts.curve_point import TOKEN_ADVANTAGES, curve_point
from gradscope.diagnostics.rank.rollouts.null_values import null_values
from gradscope.diagnostics.rank.rollouts.part_stack import PartStack
from gradscope.diagnostics.rank.rollouts.step_rows import StepRows
from gradscope.diagnostics.rank.rollouts.sub_groups import SubGroup, advantages_of, by_size, sub_groups
from gradscope.estimate import Estimate
from gradscope.metrics.gram.null_models import NULLS
from gradscope.metrics.gram.spectrum import (
    ZERO_MATRIX,
    center_gram,
    effective_rank,
    effective_ranks,
    energy_rank,
    frac_energy_below,
    noise_floor,
    numerical_rank,
    participation_ratio,
    singular_values_from_gram,
    spectral_entropy_rank,
    stable_rank,
)
from gradscope.results.rank import GradientSpectrum, RankCurvePoint, RowKind
from gradscope.results.rank_tokens import TokenRows

Array = NDArray[np.float64]


def spectrum_of(
    gram: Array,
    *,
    step: int,
    advantage: str,
    group_size: int,
    num_columns: int,
    relative_row_error: float,
    rows: RowKind = "rollout",
    group_id: str | None = None,
    samples: tuple[int, ...] = (),
    centered: bool = False,
    values: Array | None = None,
    nulls: Mapping[str, Estimate] | None = None,
    tokens: TokenRows | None = None,
) -> GradientSpectrum:
    """The spectrum of the matrix whose Gram matrix is given.

    Args:
        gram: Gram matrix of its rows, [N, N].
        step: The trainer's step.
        advantage: What weighs the rows.
        group_size: Rollouts over which an advantage was computed.
        num_columns: P.
        relative_row_error: Relative error of a row.
        rows: What a row is.
        group_id: The group, or None for a whole step.
        samples: Which samples of the group.
        centered: Whether to subtract the mean row first.
        values: Its singular values, where they are known already.
        nulls: Effective rank under each null model.
        tokens: How token rows were had.

    Returns:
        Singular values and all ranks.
    """
    if values is None:
        values = singular_values_from_gram(center_gram(gram) if centered else gram)
    # an error E of the rows moves no singular value by more than its norm, at most (relative error) x |X|_F; below
    # that, squaring the rows in float64 and taking the root again loses the rest
    floor = max(relative_row_error * float(np.sqrt(np.trace(gram))), noise_floor(gram, 0.0))
    return spectrum_from_values(
        values,
        step=step,
        advantage=advantage,
        group_size=group_size,
        shape=(len(gram), num_columns),
        noise_floor=floor,
        rows=rows,
        group_id=group_id,
        samples=samples,
        centered=centered,
        nulls=nulls,
        tokens=tokens,
    )


def spectrum_from_values(
    values: Array,
    *,
    step: int,
    advantage: str,
    group_size: int,
    shape: tuple[int, int],
    noise_floor: float,
    rows: RowKind,
    group_id: str | None = None,
    samples: tuple[int, ...] = (),
    tensor: str | None = None,
    centered: bool = False,
    nulls: Mapping[str, Estimate] | None = None,
    tokens: TokenRows | None = None,
) -> GradientSpectrum:
    """A spectrum with every rank of the catalogue.

    Args:
        values: Singular values, descending.
        step: The trainer's step.
        advantage: What weighs the rows.
        group_size: Rollouts over which an advantage was computed.
        shape: Rows and columns of the matrix.
        noise_floor: Singular values below this are arithmetic.
        rows: What a row is.
        group_id: The group, or None for a whole step.
        samples: Which samples of the group.
        tensor: The parameter's name, for a weight gradient.
        centered: Whether the mean row was subtracted.
        nulls: Effective rank under each null model.
        tokens: How token rows were had.

    Returns:
        The spectrum.
    """
    return GradientSpectrum(
        step=step,
        group_id=group_id,
        rows=rows,
        advantage=advantage,
        group_size=group_size,
        samples=samples,
        tensor=tensor,
        shape=shape,
        centered=centered,
        singular_values=tuple(float(value) for value in values),
        noise_floor=noise_floor,
        effective_rank=effective_rank(values),
        spectral_entropy_rank=spectral_entropy_rank(values),
        stable_rank=stable_rank(values),
        participation_ratio=participation_ratio(values),
        numerical_rank=numerical_rank(values, noise_floor),
        frac_energy_below_floor=frac_energy_below(values, noise_floor),
        energy_rank_90=energy_rank(values, 0.90),
        energy_rank_99=energy_rank(values, 0.99),
        nulls=nulls or {},
        tokens=tokens,
    )


def step_spectra(
    rows: StepRows, advantage: str, group_size: int | None, *, by_group: bool, centered: bool = False
) -> tuple[list[GradientSpectrum], list[RankCurvePoint]]:
    """All spectra of one step for one advantage and one group size.

    Args:
        rows: The step.
        advantage: ``logged`` or a formulation.
        group_size: Regroup into groups of this size; None: as logged.
        by_group: Whether rows of the step's matrix are whole groups (sums over their rollouts) rather than rollouts.
        centered: Whether to subtract the mean row.

    Returns:
        The step's spectrum followed by one per (sub-)group, and the averages over (sub-)groups, one per group size:
        ranks of matrices of different size are not averaged. Both empty where no group is large enough.
    """
    parts = sub_groups(rows, group_size)
    if not parts:
        return [], []
    question = _Question(rows=rows, advantage=advantage, centered=centered, parts=parts)
    # at sub-sampled sizes the whole step's rows are nearly the same rows, so its nulls are given once
    whole = question.whole_step(by_group, with_nulls=group_size is None)
    if by_group:
        return [whole], []
    stacks = question.stacks()
    spectra = {id(part): spectrum for stack in stacks for part, spectrum in question.spectra(stack)}
    curve = [curve_point(stack, step=rows.step, advantage=advantage) for stack in stacks]
    return [whole, *(spectra[id(part)] for part in parts)], curve


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """One step under one advantage, in parts."""

    rows: StepRows
    advantage: str
    centered: bool
    parts: list[SubGroup]
    weights: list[Array] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", advantages_of(self.rows, self.parts, self.advantage))

    @property
    def is_scalar(self) -> bool:
        """Whether each rollout has one advantage."""
        return self.advantage != LOGGED or self.rows.advantages is not None

    def gradients(self, index: NDArray[np.intp], weights: Array) -> Array:
        """Gram matrices of gradient rows at [..., N] rows of the step, [..., N, N]."""
        square = (index[..., :, None], index[..., None, :])
        if self.advantage == LOGGED and self.rows.policy_gram is not None:
            return np.asarray(self.rows.policy_gram[square], dtype=np.float64)
        return np.asarray(weights[..., :, None] * self.rows.gram[square] * weights[..., None, :], dtype=np.float64)

    def stacks(self) -> list[PartStack]:
        """The parts by size."""
        found = []
        for chosen in by_size(self.parts):
            index = np.stack([self.parts[place].index for place in chosen])
            weights = np.stack([self.weights[place] for place in chosen])
            found.append(
                PartStack(
                    parts=tuple(self.parts[place] for place in chosen),
                    scores=self.rows.gram[index[:, :, None], index[:, None, :]],
                    gradients=self.gradients(index, weights),
                    weights=weights,
                    rewards=self.rows.rewards[index],
                    is_scalar=self.is_scalar,
                    num_columns=self.rows.num_parameters,
                    centered=self.centered,
                )
            )
        return found

    def spectra(self, stack: PartStack) -> list[tuple[SubGroup, GradientSpectrum]]:
        """One spectrum a part."""
        return [
            (
                part,
                spectrum_of(
                    gram,
                    values=values,
                    step=self.rows.step,
                    advantage=self.advantage,
                    group_size=len(part.index),
                    num_columns=self.rows.num_parameters,
                    relative_row_error=self.rows.relative_row_error,
                    group_id=part.group_id,
                    samples=part.samples,
                    centered=self.centered,
                ),
            )
            for part, gram, values in zip(stack.parts, stack.gradients, stack.values, strict=True)
        ]

    def whole_step(self, by_group: bool, *, with_nulls: bool) -> GradientSpectrum:
        """The spectrum of all rows of the step, or of the sums over its groups."""
        index, weights = np.concatenate([part.index for part in self.parts]), np.concatenate(self.weights)
        gram = self.gradients(index, weights)
        if by_group:
            sums = _group_sums(self.parts)
            gram = sums @ gram @ sums.T
        return spectrum_of(
            gram,
            step=self.rows.step,
            advantage=self.advantage,
            group_size=max(len(part.index) for part in self.parts),
            num_columns=self.rows.num_parameters,
            relative_row_error=self.rows.relative_row_error,
            rows="group" if by_group else "rollout",
            centered=self.centered,
            nulls=self._whole_nulls(by_group) if with_nulls else None,
        )

    def _whole_nulls(self, by_group: bool) -> Mapping[str, Estimate]:
        """Effective rank under each null, on the live groups: a dead group's score vectors are no gradient."""
        live = [place for place, weights in enumerate(self.weights) if np.any(weights != 0)]
        if not live:
            return {name: Estimate.undefined_because(ZERO_MATRIX) for name in NULLS}
        parts = [self.parts[place] for place in live]
        index, weights = np.concatenate([p.index for p in parts]), np.concatenate([self.weights[p] for p in live])
        gram, sums = self.gradients(index, weights), _group_sums(parts) if by_group else None
        values = null_values(
            self.rows.gram[np.ix_(index, index)][None],
            (gram if sums is None else sums @ gram @ sums.T)[None],
            weights[None] if self.is_scalar else None,
            np.repeat(np.arange(len(parts)), [len(part.index) for part in parts])[None],
            num_columns=self.rows.num_parameters,
            centered=self.centered,
            sums=sums,
        )
        ranks = {name: float(np.mean(effective_ranks(drawn))) for name, drawn in values.items()}
        none = Estimate.undefined_because(TOKEN_ADVANTAGES)
        return {name: Estimate.exact(ranks[name], num_units=len(parts)) if name in ranks else none for name in NULLS}


def _group_sums(parts: list[SubGroup]) -> Array:
    """Adds the rollouts of each part up, [J, R]."""
    return np.asarray(np.repeat(np.eye(len(parts)), [len(part.index) for part in parts], axis=1), dtype=np.float64)
