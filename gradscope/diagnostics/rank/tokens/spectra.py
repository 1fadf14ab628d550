"""Ranks of token rows: how many directions the tokens of a group pull in, under each advantage.

A token's row is its weight times grad log pi of the token, so its Gram matrix under any advantage is diag(v) U diag(v);
exchanging the advantage is arithmetic here too.

Shapes: N token rows of a group, G rollouts of a part, P parameters.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from gradscope.advantages.registry import LOGGED
from gradscope.diagnostics.rank.rows import StepRows, SubGroup, advantages_of, sub_groups
from gradscope.diagnostics.rank.spectrum import MeanRanks, drawn_counts, mean_null_ranks, null_values, spectrum_of
from gradscope.metrics.gram.spectrum import NULLS, Array, rank_counts
from gradscope.metrics.uncertainty.bootstrap import bootstrap_means
from gradscope.results.rank import GradientSpectrum, SpectrumLabel, TokenRankPoint
from gradscope.results.tokens import TokenRows

if TYPE_CHECKING:
    from gradscope.gradients.tokens.rows import TokenTable


class RowGram(Protocol):
    """The inner products of one group's token rows, by whatever the rows are derivatives."""

    @property
    def table(self) -> TokenTable:
        """The tokens and their weights, [N]."""

    @property
    def gram(self) -> Array:
        """Without advantages, [N, N]."""

    @property
    def num_columns(self) -> int:
        """P."""

    @property
    def num_buckets(self) -> int | None:
        """Numbers in a sketched row; None where inner products are exact."""


def token_spectra(
    rows: StepRows,
    tokens: Sequence[RowGram],
    advantage: str,
    group_size: int | None,
    *,
    seed: int,
    centered: bool = False,
    only: Collection[str] | None = None,
) -> tuple[list[GradientSpectrum], list[TokenRankPoint]]:
    """The spectra of each group's token rows, as ``seed`` drew them, and a point a group size, as ``step_spectra``."""
    of_group = {gram.table.group_id: gram for gram in tokens}
    parts = [part for part in sub_groups(rows, group_size) if part.group_id in of_group]
    weights = advantages_of(rows, parts, advantage)
    token_parts = [
        _token_part(rows, of_group[part.group_id], part, advantages, advantage, seed=seed, centered=centered)
        for part, advantages in zip(parts, weights, strict=True)
        if only is None or part.group_id in only
    ]
    sizes = sorted({token_part.spectrum.label.group_size for token_part in token_parts})
    points = [
        _point(
            [token_part for token_part in token_parts if token_part.spectrum.label.group_size == size],
            by_group=only is not None,
        )
        for size in sizes
    ]
    return [token_part.spectrum for token_part in token_parts], points


def _token_weights(table: TokenTable, rollouts: NDArray[np.intp], advantages: Array, advantage: str) -> Array:
    """What multiplies each token's grad log pi, [N]."""
    by_rollout = dict(zip(rollouts.tolist(), advantages.tolist(), strict=True))
    if advantage == LOGGED and table.logged_weights is not None:
        return np.where(np.isin(table.rollouts, rollouts), table.logged_weights, 0.0)
    return -np.array([by_rollout.get(rollout, 0.0) for rollout in table.rollouts.tolist()]) * table.score_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class _TokenPart:
    """One part of a group: its spectrum, and the counts of its nulls [4]."""

    spectrum: GradientSpectrum
    nulls: Mapping[str, Array]


def _point(parts: Sequence[_TokenPart], *, by_group: bool) -> TokenRankPoint:
    """Ranks of one step, advantage and group size, averaged over the live groups."""
    spectra = [part.spectrum for part in parts]
    label = spectra[0].label
    live = [part for part in parts if part.spectrum.ranks.effective_rank.is_defined]
    seen = [spectrum.tokens for spectrum in spectra if spectrum.tokens is not None]
    group_ids = [str(part.spectrum.label.group_id) for part in live]
    names = [name for name in NULLS if live and all(np.isfinite(part.nulls.get(name, np.nan)).all() for part in live)]
    mean = MeanRanks(
        counts=np.array([rank_counts(np.array(part.spectrum.singular_values)) for part in live]).reshape(-1, 4),
        nulls={name: np.array([part.nulls[name] for part in live]) for name in names},
        group_ids=group_ids,
        most=max(spectrum.label.shape[0] for spectrum in spectra),
        by_group=by_group,
    )
    num_rows = [[float(part.spectrum.label.shape[0])] for part in live]
    (rows,) = bootstrap_means(num_rows, group_ids, share=False) if live else (mean.means()["effective_rank"],)
    return TokenRankPoint(
        step=label.step,
        advantage=label.advantage,
        group_size=label.group_size,
        method=max((rows.method for rows in seen), key=("exact", "sketch", "sampled").index),
        num_groups=len(spectra),
        num_dead=len(spectra) - len(live),
        num_rows=rows,
        frac_seen=sum(rows.frac_seen * rows.num_tokens for rows in seen) / sum(rows.num_tokens for rows in seen),
        **mean.means(),
        energy_error=max((rows.energy_error for rows in seen if rows.energy_error is not None), default=None),
        nulls=mean.null_ranks(),
    )


def _token_part(
    rows: StepRows, gram: RowGram, part: SubGroup, advantages: Array, advantage: str, *, seed: int, centered: bool
) -> _TokenPart:
    """The tokens of one part of a group."""
    inside = np.flatnonzero(np.isin(gram.table.rollouts, part.index))
    weights = _token_weights(gram.table, part.index, advantages, advantage)[inside]
    scores = gram.gram[np.ix_(inside, inside)]
    weighted = weights[:, None] * scores * weights
    frac_seen = len(gram.gram) / gram.table.num_tokens
    error = None if gram.num_buckets is None else _sketch_error(weighted, gram.num_buckets)
    value_error = rows.relative_row_error if error is None else max(rows.relative_row_error, error**0.5)
    label = SpectrumLabel(
        step=rows.step,
        group_id=part.group_id,
        rows="token",
        advantage=advantage,
        group_size=len(part.index),
        samples=part.samples,
        shape=(len(inside), gram.num_columns),
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
    drawn = _null_values(gram, inside, part, weights, scalars, centered=centered)
    spectrum = spectrum_of(weighted, label, value_error, nulls=mean_null_ranks(drawn), tokens=how)
    return _TokenPart(spectrum=spectrum, nulls={name: drawn_counts(values)[0] for name, values in drawn.items()})


def _null_values(
    gram: RowGram, inside: NDArray[np.intp], part: SubGroup, weights: Array, advantages: Array | None, *, centered: bool
) -> dict[str, Array]:
    """Singular values under each null: a shuffle deals the rollouts' advantages, and tokens keep their own's."""
    scores = gram.gram[np.ix_(inside, inside)]
    norms = np.abs(weights) * np.sqrt(np.clip(np.diag(scores), 0.0, None))
    if not norms.any():
        return {}
    spread = np.zeros((len(inside), len(part.index)))
    owners = np.searchsorted(part.index, gram.table.rollouts[inside])
    spread[np.arange(len(inside)), owners] = gram.table.score_weights[inside]
    return null_values(
        scores[None],
        norms[None],
        None if advantages is None else advantages[None],
        np.zeros((1, len(part.index)), dtype=np.int64),
        num_columns=gram.num_columns,
        centered=centered,
        spread=spread,
    )


def _sketch_error(gram: Array, num_buckets: int) -> float:
    """Root mean square of |K~ - K|_F / tr K where rows were sketched: sqrt((1 + 1/PR) / k)."""
    energy = float(np.trace(gram))
    return ((1.0 + float(np.sum(gram**2)) / energy**2) / num_buckets) ** 0.5 if energy > 0 else 0.0
