"""Ranks of token rows: how many directions the tokens of a group pull in, under each advantage.

A token's row is its weight times grad log pi of the token, so its Gram matrix under any advantage is diag(v) U diag(v);
exchanging the advantage is arithmetic here too.

Shapes: N token rows of a group, G rollouts of a part, P parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gradscope.advantages.registry import LOGGED
from gradscope.diagnostics.rank.null_values import mean_null_ranks, null_values
from gradscope.diagnostics.rank.rollouts.step_rows import StepRows
from gradscope.diagnostics.rank.rollouts.sub_groups import SubGroup, advantages_of, sub_groups
from gradscope.diagnostics.rank.spectrum import spectrum_of
from gradscope.estimate import Estimate
from gradscope.metrics.gram.spectrum import Array
from gradscope.metrics.uncertainty.bounded import bounded_means
from gradscope.results.rank import GradientSpectrum, SpectrumLabel
from gradscope.results.rank_tokens import TokenRankPoint, TokenRows

if TYPE_CHECKING:
    from gradscope.gradients.tokens.measure import TokenGram
    from gradscope.gradients.tokens.table import TokenTable


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
        group_size: Regroup into groups of this size; None: as logged.
        seed: What decided which tokens were drawn.

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
    return spectra, _points(spectra)


def token_weights(table: TokenTable, rollouts: NDArray[np.intp], advantages: Array, advantage: str) -> Array:
    """What multiplies each token's grad log pi.

    Args:
        rollouts: The rollouts of the step whose advantages are given, [G].
        advantages: Their advantages, [G].

    Returns:
        The weights; zero for a token of another rollout, [N].
    """
    by_rollout = dict(zip(rollouts.tolist(), advantages.tolist(), strict=True))
    if advantage == LOGGED and table.logged_weights is not None:
        return np.where(np.isin(table.rollouts, rollouts), table.logged_weights, 0.0)
    return -np.array([by_rollout.get(rollout, 0.0) for rollout in table.rollouts.tolist()]) * table.score_weights


def _points(spectra: Sequence[GradientSpectrum]) -> list[TokenRankPoint]:
    """Ranks of one step and advantage, averaged over the live groups; one point per group size."""
    sizes = sorted({spectrum.label.group_size for spectrum in spectra})
    return [_point([spectrum for spectrum in spectra if spectrum.label.group_size == size]) for size in sizes]


def _point(spectra: Sequence[GradientSpectrum]) -> TokenRankPoint:
    first = spectra[0]
    live = [spectrum for spectrum in spectra if spectrum.ranks.effective_rank.value is not None]
    seen = [spectrum.tokens for spectrum in spectra if spectrum.tokens is not None]
    means = _means(live)
    return TokenRankPoint(
        step=first.label.step,
        advantage=first.label.advantage,
        group_size=first.label.group_size,
        method=max((rows.method for rows in seen), key=("exact", "sketch", "sampled").index),
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
    scores = gram.gram[np.ix_(inside, inside)]
    weighted = weights[:, None] * scores * weights
    frac_seen = len(gram.gram) / gram.table.num_tokens
    error = None if gram.num_buckets is None else sketch_error(weighted, gram.num_buckets)
    value_error = rows.relative_row_error if error is None else max(rows.relative_row_error, error**0.5)
    label = SpectrumLabel(
        step=rows.step,
        group_id=part.group_id,
        rows="token",
        advantage=advantage,
        group_size=len(part.index),
        samples=part.samples,
        shape=(len(inside), gram.num_parameters),
        centered=centered,
    )
    how = TokenRows(
        method="sketch" if error is not None else "exact" if frac_seen == 1.0 else "sampled",
        num_tokens=round(len(inside) / frac_seen),
        frac_seen=frac_seen,
        seed=seed,
        value_error=value_error,
        num_buckets=gram.num_buckets,
        energy_error=error,
    )
    scalars = None if advantage == LOGGED and rows.advantages is None else advantages
    nulls = _null_ranks(gram, inside, part, weights, scalars, centered=centered)
    return spectrum_of(weighted, label, relative_row_error=value_error, nulls=nulls, tokens=how)


def _null_ranks(
    gram: TokenGram,
    inside: NDArray[np.intp],
    part: SubGroup,
    weights: Array,
    advantages: Array | None,
    *,
    centered: bool,
) -> dict[str, Estimate]:
    """The rank under each null: a shuffle deals the advantages of the part's rollouts, and tokens keep their own's."""
    scores = gram.gram[np.ix_(inside, inside)]
    norms = np.abs(weights) * np.sqrt(np.clip(np.diag(scores), 0.0, None))
    if not norms.any():
        return mean_null_ranks({})
    spread = np.zeros((len(inside), len(part.index)))
    owners = np.searchsorted(part.index, gram.table.rollouts[inside])
    spread[np.arange(len(inside)), owners] = gram.table.score_weights[inside]
    values = null_values(
        scores[None],
        norms[None],
        None if advantages is None else advantages[None],
        np.zeros((1, len(part.index)), dtype=np.int64),
        num_columns=gram.num_parameters,
        centered=centered,
        spread=spread,
    )
    return mean_null_ranks(values)


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
    """Mean over live groups of the rank under each null; empty where no group is live."""
    means = {}
    for name in spectra[0].nulls if spectra else ():
        ranks = [rank.value for spectrum in spectra if (rank := spectrum.nulls[name]).value is not None]
        none = spectra[0].nulls[name]
        means[name] = Estimate.exact(sum(ranks) / len(ranks), num_units=len(ranks)) if ranks else none
    return means


def _means(spectra: Sequence[GradientSpectrum]) -> tuple[Estimate, ...]:
    """Rows, effective rank, stable rank and participation ratio, averaged over groups."""
    if not spectra:
        return (Estimate.undefined_because(_ALL_DEAD),) * 4
    columns = [
        [
            float(s.label.shape[0]),
            *(e.value or 0.0 for e in (s.ranks.effective_rank, s.ranks.stable_rank, s.ranks.participation_ratio)),
        ]
        for s in spectra
    ]
    # Groups differ in their number of tokens: no mean of ranks lies beyond that of the longest.
    longest = float(max(spectrum.label.shape[0] for spectrum in spectra))
    return bounded_means(columns, [str(spectrum.label.group_id) for spectrum in spectra], low=1.0, high=longest)
