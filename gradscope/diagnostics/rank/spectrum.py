"""From singular values to a spectrum with all eight ranks: the one place where they are counted.

:func:`spectrum_of` starts from a Gram matrix and knows its noise floor; :func:`ranks_of` starts from singular values.

Shapes: N rows of a matrix, P parameters.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gradscope.estimate import Estimate
from gradscope.metrics.gram.spectrum import (
    Array,
    center_gram,
    effective_rank,
    energy_rank,
    frac_energy_below,
    noise_floor,
    numerical_rank,
    participation_ratio,
    singular_values_from_gram,
    spectral_entropy_rank,
    stable_rank,
)
from gradscope.results.rank import GradientSpectrum, Ranks, SpectrumLabel
from gradscope.results.ranks.tokens import TokenRows


def spectrum_of(
    gram: Array,
    label: SpectrumLabel,
    *,
    relative_row_error: float,
    values: Array | None = None,
    nulls: Mapping[str, Estimate] | None = None,
    tokens: TokenRows | None = None,
) -> GradientSpectrum:
    """The spectrum of the matrix whose Gram matrix is given.

    An error E of the rows moves no singular value by more than its norm, at most (relative error) x |X|_F, so that is
    the noise floor; below it, squaring the rows in float64 and taking the root again loses the rest.

    Args:
        gram: Gram matrix of the rows before any centering, [N, N].
        label: Which matrix it is; ``centered`` subtracts the mean row first.
        values: Its singular values, where they are known already, [N].

    Returns:
        Singular values and all ranks.
    """
    if values is None:
        values = singular_values_from_gram(center_gram(gram) if label.centered else gram)
    floor = max(relative_row_error * float(np.sqrt(np.trace(gram))), noise_floor(gram, 0.0))
    return GradientSpectrum(
        label=label,
        singular_values=tuple(float(value) for value in values),
        noise_floor=floor,
        ranks=ranks_of(values, floor),
        nulls=nulls or {},
        tokens=tokens,
    )


def ranks_of(values: Array, floor: float) -> Ranks:
    """Every rank of the catalogue.

    Args:
        values: All singular values of a matrix, [N].
        floor: Singular values up to this are arithmetic.

    Returns:
        The ranks; undefined for a zero matrix.

    Example:
        >>> ranks = ranks_of(np.array([3.0, 3.0, 1e-9]), 1e-6)
        >>> round(ranks.stable_rank.value, 6), ranks.numerical_rank.value
        (2.0, 2.0)
    """
    return Ranks(
        effective_rank=effective_rank(values),
        spectral_entropy_rank=spectral_entropy_rank(values),
        stable_rank=stable_rank(values),
        participation_ratio=participation_ratio(values),
        numerical_rank=numerical_rank(values, floor),
        frac_energy_below_floor=frac_energy_below(values, floor),
        energy_rank_90=energy_rank(values, 0.90),
        energy_rank_99=energy_rank(values, 0.99),
    )
