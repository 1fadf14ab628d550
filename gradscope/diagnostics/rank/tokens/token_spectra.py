"""Ranks of token rows: how many directions the tokens of a group pull in, under each advantage.

A token's row is its weight times grad log pi of the token, so its Gram matrix under any advantage is diag(v) U diag(v);
exchanging the advantage is arithmetic here too.

Shapes: N token rows of a group, G rollouts of a part, P parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gradscope.advantages.registry import LOGGED
from gradscope.diagnostics.rank.rollouts.step_rows import StepRows
from gradscope.diagnostics.rank.rollouts.step_spectra import spectrum_of
from gradscope.diagnostics.rank.rollouts.sub_groups import SubGroup, advantages_of, sub_groups
from gradscope.diagnostics.rank.tokens.null_values import token_nulls
from gradscope.estimate import Estimate
from gradscope.metrics.uncertainty.bootstrap import bootstrap_means
from gradscope.results.rank import GradientSpectrum
from gradscope.results.rank_tokens import TokenRankPoint, TokenRows

if TYPE_CHECKING:
    from gradscope.gradients.tokens.measure import TokenGram
    from gradscope.gradients.tokens.table import TokenTable

Array = NDArray[np.float64]

_ALL_DEAD = "every token of this step has zero weight, so its gradient matrix is zero"


def token_spectra(
    rows: StepRows,
    tokens: Sequence[TokenGram],
    advantage: str,
    group_size: int | None,
    *,
    seed: int,
    centered: bool = False,
) -> tuple[list[GradientSpectrum], list[TokenRankPoint]]:
    """The spectra of the token rows of each group under one advantage, and their averages.

    Args:
        rows: The step.
        tokens: The Gram matrices of its groups' tokens.
        advantage: ``logged`` or a formulation.
        group_size: Regroup into groups of this size; None: as logged.
        seed: What decided which tokens were drawn.
        centered: Whether to subtract the mean row.

    Returns:
        One spectrum per group, and one point per group size.
    """
    of_group = {gram.table.group_id: gram for gram in tokens}
    parts = [part for part in sub_groups(rows, group_size) if part.group_id in of_group]
    weights = advantages_of(rows, parts, advantage)
    spectra = [
        _spectrum(rows, of_group[part.group_id], part, advantages, advantage, seed=seed, centered=centered)
        for part, advantages in zip(parts, weights, strict=True)
    ]
    return spectra, token_points(spectra)


def token_weights(table: TokenTable, rollouts: NDArray[np.intp], advantages: Array, advantage: str) -> Array:
    """What multiplies each token's grad log pi.

    Args:
        table: A group's tokens.
        rollouts: The rollouts of the step whose advantages are given, [G].
        advantages: Their advantages, [G].
        advantage: ``logged`` or a formulation.

    Returns:
        The weights; zero for a token of another rollout, [N].
    """
    by_rollout = dict(zip(rollouts.tolist(), advantages.tolist(), strict=True))
    if advantage == LOGGED and table.logged_weights is not None:
        return np.where(np.isin(table.rollouts, rollouts), table.logged_weights, 0.0)
    return -np.array([by_rollout.get(rollout, 0.0) for rollout in table.rollouts.tolist()]) * table.score_weights


def token_points(spectra: Sequence[GradientSpectrum]) -> list[TokenRankPoint]:
    """Ranks averaged over the live groups; intervals resample groups.

    Args:
        spectra: Of one step and one advantage.

    Returns:
        One point per group size.
    """
    sizes = sorted({spectrum.group_size for spectrum in spectra})
    return [_point([spectrum for spectrum in spectra if spectrum.group_size == size]) for size in sizes]


def _point(spectra: Sequence[GradientSpectrum]) -> TokenRankPoint:
    first = spectra[0]
    live = [spectrum for spectrum in spectra if spectrum.effective_rank.value is not None]
    seen = [spectrum.tokens for spectrum in spectra if spectrum.tokens is not None]
    means = _means(live)
    return TokenRankPoint(
        step=first.step,
        advantage=first.advantage,
        group_size=first.group_size,
        method=max((rows.method for rows in seen), key=("exact", "matrix_free", "sketch", "sampled").index),
        num_groups=len(spectra),
        num_dead=len(spectra) - len(live),
        num_rows=means[0],
        frac_seen=sum(rows.frac_seen * rows.num_tokens for rows in seen) / sum(rows.num_tokens for rows in seen),
        effective_rank=means[1],
        stable_rank=means[2],
        participation_ratio=means[3],
        energy_error=max((rows.energy_error for rows in seen if rows.energy_error is not None), default=None),
        nulls=_mean_nulls(live),
    )


def _spectrum(
    rows: StepRows,
    gram: TokenGram,
    part: SubGroup,
    advantages: Array,
    advantage: str,
    *,
    seed: int,
    centered: bool,
) -> GradientSpectrum:
    """The spectrum of the tokens of one part of a group."""
    inside = np.flatnonzero(np.isin(gram.table.rollouts, part.index))
    weights = token_weights(gram.table, part.index, advantages, advantage)[inside]
    weighted = weights[:, None] * gram.gram[np.ix_(inside, inside)] * weights
    frac_seen = len(gram.gram) / gram.table.num_tokens
    error = None if gram.num_buckets is None else sketch_error(weighted, gram.num_buckets)
    value_error = rows.relative_row_error if error is None else max(rows.relative_row_error, error**0.5)
    return spectrum_of(
        weighted,
        step=rows.step,
        advantage=advantage,
        group_size=len(part.index),
        num_columns=gram.num_parameters,
        relative_row_error=value_error,
        rows="token",
        group_id=part.group_id,
        samples=part.samples,
        centered=centered,
        nulls=token_nulls(
            gram.gram[np.ix_(inside, inside)],
            weights,
            gram.table.score_weights[inside],
            None if advantage == LOGGED and rows.advantages is None else advantages,
            np.searchsorted(part.index, gram.table.rollouts[inside]),
            num_columns=gram.num_parameters,
            centered=centered,
        ),
        tokens=TokenRows(
            method="sketch" if error is not None else "exact" if frac_seen == 1.0 else "sampled",
            num_tokens=round(len(inside) / frac_seen),
            frac_seen=frac_seen,
            seed=seed,
            value_error=value_error,
            num_buckets=gram.num_buckets,
            energy_error=error,
        ),
    )


def sketch_error(gram: Array, num_buckets: int) -> float:
    """Root mean square of |K~ - K|_F / tr K where rows were sketched: sqrt((1 + 1/PR) / k).

    Args:
        gram: Inner products of the sketches, which give the participation ratio PR, [N, N].
        num_buckets: k.

    Returns:
        The error; 0 of a zero matrix.

    Example:
        >>> round(sketch_error(np.eye(4), 125), 6)
        0.1
    """
    energy = float(np.trace(gram))
    return ((1.0 + float(np.sum(gram**2)) / energy**2) / num_buckets) ** 0.5 if energy > 0 else 0.0


def _mean_nulls(spectra: Sequence[GradientSpectrum]) -> dict[str, Estimate]:
    """Mean over live groups of the rank under each null; empty where products alone were had."""
    found = {}
    for name in spectra[0].nulls if spectra else ():
        known = [rank.value for spectrum in spectra if (rank := spectrum.nulls[name]).value is not None]
        none = spectra[0].nulls[name]
        found[name] = Estimate.exact(sum(known) / len(known), num_units=len(known)) if known else none
    return found


def _means(spectra: Sequence[GradientSpectrum]) -> tuple[Estimate, ...]:
    """Rows, effective rank, stable rank and participation ratio, averaged over groups."""
    if not spectra:
        return (Estimate.undefined_because(_ALL_DEAD),) * 4
    columns = [
        [float(s.shape[0]), *(e.value or 0.0 for e in (s.effective_rank, s.stable_rank, s.participation_ratio))]
        for s in spectra
    ]
    num_rows, *ranks = bootstrap_means(columns, [str(spectrum.group_id) for spectrum in spectra], share=False)
    most = max(spectrum.shape[0] for spectrum in spectra)
    return (num_rows, *(_as_rank(rank, most) for rank in ranks))


def _as_rank(mean: Estimate, most: int) -> Estimate:
    """The mean with its interval kept where a rank can be; few groups know no better."""
    if mean.value is None or mean.low is None or mean.high is None:
        return mean
    return replace(mean, low=max(mean.low, min(1.0, mean.value)), high=max(mean.value, min(mean.high, float(most))))
