"""Ranks of token rows without their Gram matrix: products alone, so all tokens of long rollouts count.

The largest singular values come with Lanczos's residual bounds, the ranks with an interval of random probes.

Shapes: N token rows of a group, G rollouts, P parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gradscope.diagnostics.rank.rollouts.step_rows import StepRows
from gradscope.diagnostics.rank.rollouts.sub_groups import SubGroup, advantages_of, sub_groups
from gradscope.diagnostics.rank.tokens.token_spectra import token_weights
from gradscope.estimate import Estimate
from gradscope.metrics.gram.lanczos import MatrixFreeSpectrum, Product, matrix_free_spectrum
from gradscope.metrics.gram.spectrum import ZERO_MATRIX, Array
from gradscope.results.rank import GradientSpectrum, Ranks, SpectrumLabel
from gradscope.results.rank_tokens import TokenRows

if TYPE_CHECKING:
    from gradscope.gradients.tokens.measure import TokenOperator


_ONLY_SOME = "only the largest singular values are known without the matrix"


def matrix_free_spectra(
    rows: StepRows, operators: Sequence[TokenOperator], advantages: Sequence[str], *, seed: int, centered: bool = False
) -> dict[str, list[GradientSpectrum]]:
    """The spectra of all token rows of each group.

    Returns:
        Advantage -> one spectrum per group.
    """
    of_group = {operator.table.group_id: operator for operator in operators}
    parts = [part for part in sub_groups(rows, None) if part.group_id in of_group]
    weights = {name: advantages_of(rows, parts, name) for name in advantages}
    spectra: dict[str, list[GradientSpectrum]] = {name: [] for name in advantages}
    for position, part in enumerate(parts):
        operator = of_group[part.group_id]
        of_tokens = {
            name: token_weights(operator.table, part.index, weights[name][position], name) for name in advantages
        }
        # a dead group needs no products, and building them is most of the work
        products = operator.build() if any(vector.any() for vector in of_tokens.values()) else None
        for name, vector in of_tokens.items():
            spectrum = None
            if products is not None and vector.any():
                spectrum = matrix_free_spectrum(
                    _weighted(products, vector, centered),
                    len(vector),
                    seed=seed,
                    relative_error=operator.relative_error,
                )
            spectra[name].append(_spectrum(rows, operator, part, name, spectrum, seed=seed, centered=centered))
    return spectra


def _weighted(products: Product, weights: Array, centered: bool) -> Product:
    """Products with diag(v) U diag(v), of centered rows where asked."""

    def middle(vector: Array) -> Array:
        return vector - vector.mean() if centered else vector

    return lambda vector: middle(weights * products(weights * middle(vector)))


def _spectrum(
    rows: StepRows,
    operator: TokenOperator,
    part: SubGroup,
    advantage: str,
    summary: MatrixFreeSpectrum | None,
    *,
    seed: int,
    centered: bool,
) -> GradientSpectrum:
    """What is known of one group's token rows; None where every weight is zero."""
    zero, unknown = (
        Estimate.undefined_because(ZERO_MATRIX),
        Estimate.undefined_because(ZERO_MATRIX if summary is None else _ONLY_SOME),
    )
    norm = 0.0 if summary is None else float(np.sqrt(summary.energy))
    bound = 0.0 if summary is None else float(np.max(summary.bounds, initial=0.0))
    num_tokens = len(operator.table.rows)
    return GradientSpectrum(
        label=SpectrumLabel(
            step=rows.step,
            group_id=part.group_id,
            rows="token",
            advantage=advantage,
            group_size=len(part.index),
            samples=part.samples,
            shape=(num_tokens, operator.num_parameters),
            centered=centered,
        ),
        singular_values=() if summary is None else tuple(summary.singular_values.tolist()),
        noise_floor=rows.relative_row_error * norm,
        ranks=Ranks(
            effective_rank=zero if summary is None else summary.effective_rank,
            spectral_entropy_rank=zero if summary is None else summary.spectral_entropy_rank,
            stable_rank=zero if summary is None else summary.stable_rank,
            participation_ratio=zero if summary is None else summary.participation_ratio,
            numerical_rank=unknown,
            frac_energy_below_floor=unknown,
            energy_rank_90=unknown,
            energy_rank_99=unknown,
        ),
        tokens=TokenRows(
            method="matrix_free",
            num_tokens=num_tokens,
            frac_seen=1.0,
            seed=seed,
            value_error=bound / norm if norm else 0.0,
        ),
    )
