"""From one Gram matrix of score vectors to the spectra of every formulation and group size, without a backward pass.

The gradient row of rollout i is A_i s_i, so the Gram matrix of gradient rows is diag(A) K diag(A): exchanging the
advantage, or regrouping a group of 8 into four groups of 2, is arithmetic on K. The KL part of the trainer's objective
is left out here, because it does not scale with the advantage; `replay` counts it in.

Shapes: R rollouts of a step, G rollouts of a group, N rows of a matrix, P parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradscope.advantages.registry import compute_advantages
from gradscope.diagnostics.step_rows import StepRows
from gradscope.errors import InputError
from gradscope.estimate import Estimate
from gradscope.metrics.bootstrap import bootstrap_mean
from gradscope.metrics.geometry import gradient_gram
from gradscope.metrics.spectrum import (
    center_gram,
    effective_rank,
    energy_rank,
    noise_floor,
    numerical_rank,
    participation_ratio,
    singular_values_from_gram,
    spectral_entropy_rank,
    stable_rank,
)
from gradscope.results.rank import GradientSpectrum, RankCurvePoint, RowKind

LOGGED = "logged"
"""The name of the advantage that the optimizer saw."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubGroup:
    """Rollouts that share a baseline: a group, or a part of one."""

    group_id: str
    """The group that they belong to."""
    index: NDArray[np.intp]
    """Their rows in the step, [G]."""
    samples: tuple[int, ...]
    """Which samples of the group they are."""


def sub_groups(rows: StepRows, group_size: int | None) -> list[SubGroup]:
    """Disjoint parts of every group of a step.

    The rollouts of a group are exchangeable, so consecutive parts are as good as random ones, and disjoint parts are
    independent given the prompt.

    Args:
        rows: The step.
        group_size: Rollouts of a part; None: the groups as they are. A remainder is left out.

    Returns:
        The parts, by group; groups smaller than ``group_size`` give none.
    """
    members: dict[str, list[int]] = {}
    for row, group_id in enumerate(rows.group_ids):
        members.setdefault(group_id, []).append(row)
    parts = []
    for group_id, index in members.items():
        size = len(index) if group_size is None else group_size
        for start in range(0, len(index) - size + 1, size):
            parts.append(
                SubGroup(
                    group_id=group_id,
                    index=np.array(index[start : start + size]),
                    samples=tuple(rows.samples[row] for row in index[start : start + size]),
                )
            )
    return parts


def part_advantages(rows: StepRows, part: SubGroup, advantage: str) -> NDArray[np.float64]:
    """The advantages of the rollouts of one part.

    Args:
        rows: The step.
        part: Some of its rollouts.
        advantage: ``logged`` or a formulation.

    Returns:
        Advantages, [G]; where each token has its own, 1 for a rollout with a gradient and 0 for one without.

    Raises:
        InputError: A reward or an advantage that is needed was not logged.
    """
    if advantage != LOGGED:
        rewards = rows.rewards[part.index]
        if np.isnan(rewards).any():
            raise InputError(f"A rollout of group {part.group_id} at step {rows.step} has no reward.")
        return compute_advantages(advantage, rewards)
    if rows.advantages is not None:
        return rows.advantages[part.index]
    if rows.is_live is None:
        raise InputError(f"No advantages were logged at step {rows.step}.", hint="Name one: --advantage dr_grpo")
    return rows.is_live[part.index].astype(np.float64)


def _part_gram(rows: StepRows, part: SubGroup, advantage: str) -> NDArray[np.float64]:
    """Gram matrix of the gradient rows of one part, [G, G]."""
    square = np.ix_(part.index, part.index)
    if advantage == LOGGED and rows.policy_gram is not None:
        return np.asarray(rows.policy_gram[square], dtype=np.float64)
    return gradient_gram(rows.gram[square], part_advantages(rows, part, advantage))


def spectrum_of(
    gram: NDArray[np.float64],
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

    Returns:
        Singular values and all ranks.
    """
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
    )


def spectrum_from_values(
    values: NDArray[np.float64],
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
        energy_rank_90=energy_rank(values, 0.90),
        energy_rank_99=energy_rank(values, 0.99),
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
        The step's spectrum followed by one per (sub-)group, and the averages over (sub-)groups, one per group size;
        both empty where no group is large enough.
    """
    parts = sub_groups(rows, group_size)
    if not parts:
        return [], []
    size = group_size or max(len(part.index) for part in parts)
    weights = [part_advantages(rows, part, advantage) for part in parts]
    grams = [_part_gram(rows, part, advantage) for part in parts]
    make = _Maker(rows=rows, advantage=advantage, centered=centered)
    whole = make.whole_step(parts, weights, size, by_group)
    each = [] if by_group else [make.part(part, gram) for part, gram in zip(parts, grams, strict=True)]
    return [whole, *each], ([] if by_group else _curve(rows.step, advantage, parts, weights, each))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Maker:
    """Spectra of one step under one advantage."""

    rows: StepRows
    advantage: str
    centered: bool

    def part(self, part: SubGroup, gram: NDArray[np.float64]) -> GradientSpectrum:
        """The spectrum of one (sub-)group."""
        return spectrum_of(
            gram,
            step=self.rows.step,
            advantage=self.advantage,
            group_size=len(part.index),
            num_columns=self.rows.num_parameters,
            relative_row_error=self.rows.relative_row_error,
            group_id=part.group_id,
            samples=part.samples,
            centered=self.centered,
        )

    def whole_step(
        self, parts: list[SubGroup], weights: list[NDArray[np.float64]], size: int, by_group: bool
    ) -> GradientSpectrum:
        """The spectrum of all rows of the step, or of the sums over its groups."""
        index = np.concatenate([part.index for part in parts])
        square = np.ix_(index, index)
        if self.advantage == LOGGED and self.rows.policy_gram is not None:
            gram = np.asarray(self.rows.policy_gram[square], dtype=np.float64)
        else:
            gram = gradient_gram(self.rows.gram[square], np.concatenate(weights))
        if by_group:
            membership = np.repeat(np.eye(len(parts)), [len(part.index) for part in parts], axis=1)
            gram = membership @ gram @ membership.T
        return spectrum_of(
            gram,
            step=self.rows.step,
            advantage=self.advantage,
            group_size=size,
            num_columns=self.rows.num_parameters,
            relative_row_error=self.rows.relative_row_error,
            rows="group" if by_group else "rollout",
            centered=self.centered,
        )


def _curve(
    step: int,
    advantage: str,
    parts: Sequence[SubGroup],
    weights: Sequence[NDArray[np.float64]],
    spectra: Sequence[GradientSpectrum],
) -> list[RankCurvePoint]:
    """Ranks averaged over the live parts, one point per size: ranks of matrices of different size are not averaged."""
    points = []
    for size in sorted({len(part.index) for part in parts}):
        chosen = [i for i, part in enumerate(parts) if len(part.index) == size]
        live = [i for i in chosen if np.any(weights[i] != 0)]
        clusters = [parts[i].group_id for i in live]

        def mean(name: str, live: list[int] = live, clusters: list[str] = clusters) -> Estimate:
            estimates = [getattr(spectra[i], name) for i in live]
            pairs = [(e.value, c) for e, c in zip(estimates, clusters, strict=True) if e.value is not None]
            if not pairs:
                return Estimate.because("every group of this step has zero advantage, so its gradient matrix is zero")
            return bootstrap_mean([v for v, _ in pairs], [c for _, c in pairs], share=False)

        points.append(
            RankCurvePoint(
                step=step,
                advantage=advantage,
                group_size=size,
                num_groups=len(chosen),
                num_dead=len(chosen) - len(live),
                effective_rank=mean("effective_rank"),
                stable_rank=mean("stable_rank"),
                participation_ratio=mean("participation_ratio"),
            )
        )
    return points
