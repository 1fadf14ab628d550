"""Ranks of one matrix, averages over the matrices of a step, their null models, and whether two of them differ.

A row weighs its score vector by its rollout's advantage, so every null but ``gaussian`` exchanges the advantages alone;
of tokens, all rows of a rollout get that rollout's.

Shapes: n matrices of N rows, G rollouts of a matrix, D draws of a null, J groups of a step, P parameters.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import ArrayLike, NDArray

from gradscope.estimate import Estimate
from gradscope.metrics.gram import spectrum as gram_spectrum
from gradscope.metrics.uncertainty import bootstrap
from gradscope.results import rank as results


def spectrum_of(
    gram: gram_spectrum.Array,
    label: results.SpectrumLabel,
    relative_row_error: float,
    *,
    values: gram_spectrum.Array | None = None,
    nulls: Mapping[str, Estimate] | None = None,
    tokens: results.TokenRows | None = None,
) -> results.GradientSpectrum:
    """The spectrum of the matrix whose Gram matrix, before any centering, is given."""
    # An error E of the rows moves no singular value by more than its norm, at most (relative error) x |X|_F, so that
    # is the noise floor; below it, squaring the rows in float64 and taking the root again loses the rest.
    if values is None:
        gram_of_rows = gram_spectrum.center_grams(gram_spectrum.checked_gram(gram)) if label.centered else gram
        values = gram_spectrum.singular_values_from_gram(gram_of_rows)
    floor = max(relative_row_error * float(np.sqrt(np.trace(gram))), gram_spectrum.noise_floor(gram, 0.0))
    return results.GradientSpectrum(
        label=label,
        singular_values=tuple(float(value) for value in values),
        noise_floor=floor,
        ranks=results.Ranks(**gram_spectrum.rank_estimates(values, floor)),
        nulls=nulls or {},
        tokens=tokens,
    )


TOKEN_ADVANTAGES = "each token has its own advantage, so there is no scalar to shuffle or to take the sign of"


class ScoreVectors(Struct, frozen=True, kw_only=True):
    """Score vectors of rollouts or tokens: their Gram matrices and, where these are larger, the vectors themselves."""

    gram: gram_spectrum.Array  # [n, N, N]
    rows: gram_spectrum.Array | None = None  # of one matrix, [N, C], where C is less than its number of rows
    sums: gram_spectrum.Array | None = None  # adds them up to the rows of the matrix, [J, N]; None: they are its rows

    def singular_values(self, weights: gram_spectrum.Array, *, centered: bool) -> gram_spectrum.Array:
        """Those of the gradient matrices of weighted vectors, [..., N] or [..., J]; ``weights`` are [..., N]."""
        if self.rows is not None:
            matrix = weights[..., None] * self.rows
            matrix = matrix if self.sums is None else self.sums @ matrix
            return gram_spectrum.singular_values_of_rows(matrix, centered=centered)
        grams = weights[..., :, None] * self.gram * weights[..., None, :]
        grams = grams if self.sums is None else self.sums @ grams @ self.sums.T
        return gram_spectrum.singular_values_from_grams(gram_spectrum.center_grams(grams) if centered else grams)


def null_values(
    scores: ScoreVectors,
    norms: gram_spectrum.Array,
    advantages: gram_spectrum.Array | None,
    groups: NDArray[np.int64],
    *,
    num_columns: int,
    centered: bool,
    spread: gram_spectrum.Array | None = None,
) -> dict[str, gram_spectrum.Array]:
    """Null model -> what the singular values of gradient matrices would be under it, [D, n, N] or [D, n, J].

    Args:
        scores: The score vectors.
        norms: Norms of the rows of the gradient matrices that the nulls are compared with, [n, N] or [n, J].
        advantages: [n, G]; None where each token has its own: then there is no ``shuffled`` and no ``signs``.
        groups: The group of each rollout, among which advantages are shuffled, [n, G].
        num_columns: P.
        centered: Whether the mean row is subtracted.
        spread: What each row gets of each rollout's advantage, [N, G]; None: a row is a rollout.
    """

    def weighted(factors: gram_spectrum.Array) -> gram_spectrum.Array:
        weights = factors if spread is None else np.asarray(factors @ spread.T, dtype=np.float64)
        return scores.singular_values(weights, centered=centered)

    draws = gram_spectrum.num_draws(scores.gram.shape[-1])
    drawn = {"unweighted": weighted(np.ones((1, *groups.shape)))}
    if advantages is not None:
        dealt = gram_spectrum.shuffled_within(advantages.ravel(), groups.ravel(), draws).reshape(
            draws, *advantages.shape
        )
        # signs without a zero are a rotation of the rows
        is_rotation = scores.sums is None and not centered and bool(advantages.all())
        signs = drawn["unweighted"] if is_rotation else weighted(np.sign(advantages)[None])
        drawn |= {"shuffled": weighted(dealt), "signs": signs}
    matrix = norms[..., None] * gram_spectrum.gaussian_directions(norms.shape[-1], num_columns, draws)[:, None]
    return drawn | {"gaussian": gram_spectrum.singular_values_of_rows(matrix, centered=centered)}


def mean_null_ranks(values: Mapping[str, gram_spectrum.Array], *, num_units: int = 1) -> dict[str, Estimate]:
    """The effective rank under each null, a mean over the draws that left a matrix to rank."""
    missing = Estimate.undefined_because(TOKEN_ADVANTAGES if values else gram_spectrum.ZERO_MATRIX)
    means = dict.fromkeys(gram_spectrum.NULLS, missing)
    for name, null_draws in values.items():
        ranks = gram_spectrum.effective_ranks(null_draws)
        finite = ranks[np.isfinite(ranks)]
        means[name] = Estimate.undefined_because(gram_spectrum.ZERO_MATRIX)
        if len(finite):
            means[name] = Estimate.exact(float(finite.mean()), num_units=num_units)
    return means


_EVERY_GROUP_DEAD = "no group of this step has a gradient by its advantages, so its gradient matrix is zero"
_NO_DRAW = Estimate.undefined_because("every draw of this null deals all advantages to rollouts without a score vector")
_NO_RANK = results.NullRank(effective_rank=_NO_DRAW, difference=_NO_DRAW, ratio=_NO_DRAW, two_direction_energy=_NO_DRAW)
_RANKS = ("effective_rank", "stable_rank", "participation_ratio")


class MeanRanks(Struct, frozen=True, kw_only=True):
    """The counts of matrices that are not zero, and what they average to."""

    counts: gram_spectrum.Array  # effective rank, stable rank, participation ratio and energy of two directions, [n, 4]
    nulls: Mapping[str, gram_spectrum.Array]  # null -> the same, means over its draws, [n, 4]
    group_ids: Sequence[str]  # the group of each matrix, which is the unit of resampling, [n]
    max_rank: int  # the largest rank that there can be
    by_group: bool  # whether each group weighs the same, however many of its parts are ranked; else each part does

    def means(self) -> dict[str, Estimate]:
        """Each of the four; undefined without matrices."""
        if not len(self.counts):
            return dict.fromkeys((*_RANKS, "two_direction_energy"), Estimate.undefined_because(_EVERY_GROUP_DEAD))
        columns, groups = self._weighed(self.counts)
        ranks = bootstrap.bounded_means(columns[:, :3], groups, low=1.0, high=float(self.max_rank))
        (energy,) = bootstrap.bounded_means(columns[:, 3:], groups, low=min(2.0 / self.max_rank, 1.0), high=1.0)
        return {**dict(zip(_RANKS, ranks, strict=True)), "two_direction_energy": energy}

    def null_ranks(self) -> dict[str, results.NullRank]:
        """The same under each null that could be drawn, on the same matrices; empty without matrices."""
        if not len(self.counts) or not self.nulls:
            return {}
        if not all(np.isfinite(drawn[:, 0]).all() for drawn in self.nulls.values()):
            separate = {}
            for name, drawn in self.nulls.items():
                ranked = replace(self, nulls={name: drawn})._those(np.isfinite(drawn[:, 0]))
                separate[name] = ranked.null_ranks().get(name, _NO_RANK)
            return separate
        # all nulls in a single bootstrap: many columns cost little more than one
        ranks, shares = (np.column_stack([drawn[:, column] for drawn in self.nulls.values()]) for column in (0, 3))
        real, count, span = self.counts[:, :1], len(self.nulls), self.max_rank - 1.0
        columns, groups = self._weighed(np.hstack([real - ranks, np.repeat(real, count, axis=1), ranks, shares]))
        gaps, _, null_columns, energy = np.split(columns, 4, axis=1)
        differences = bootstrap.bootstrap_means(gaps, groups, share=False)
        ratios = bootstrap.bootstrap_statistics(
            lambda sums: np.asarray(sums[..., :count] / sums[..., count:], dtype=np.float64),
            bootstrap.cluster_sums(columns[:, count : 3 * count], groups),
            bounds=(1.0 / self.max_rank, float(self.max_rank)),
        )
        means = bootstrap.bounded_means(null_columns, groups, low=1.0, high=float(self.max_rank))
        energies = bootstrap.bounded_means(energy, groups, low=min(2.0 / self.max_rank, 1.0), high=1.0)
        return {
            name: results.NullRank(
                effective_rank=means[index],
                difference=differences[index].within(-span, span),
                ratio=ratios[index],
                two_direction_energy=energies[index],
            )
            for index, name in enumerate(self.nulls)
        }

    def _those(self, is_chosen: NDArray[np.bool_]) -> MeanRanks:
        return replace(
            self,
            counts=self.counts[is_chosen],
            nulls={name: drawn[is_chosen] for name, drawn in self.nulls.items()},
            group_ids=[self.group_ids[index] for index in np.flatnonzero(is_chosen).tolist()],
        )

    def mean_up_to(self, high: float, values: gram_spectrum.Array, reason: str = "") -> Estimate:
        """The mean of another number of each matrix, from 0 on, NaN where it has none, which ``reason`` explains."""
        if not len(values):
            return Estimate.undefined_because(_EVERY_GROUP_DEAD)
        is_known = np.isfinite(values)
        if not is_known.any():
            return Estimate.undefined_because(reason, num_units=len(set(self.group_ids)))
        columns, groups = self._those(is_known)._weighed(values[is_known, None])
        (mean,) = bootstrap.bounded_means(columns, groups, low=0.0, high=high)
        return mean

    def _weighed(self, columns: gram_spectrum.Array) -> tuple[gram_spectrum.Array, list[str]]:
        """Rows to average and their groups: parts as they are, or one row a group."""
        if not self.by_group:
            return columns, list(self.group_ids)
        sums = bootstrap.unit_sums(columns.T, list(self.group_ids), len(columns))
        return np.asarray(sums[:, :-1] / sums[:, -1:], dtype=np.float64), list(dict.fromkeys(self.group_ids))


def drawn_counts(values: gram_spectrum.Array) -> gram_spectrum.Array:
    """The counts of a null from the singular values of its draws [D, n, N]: means over draws, [n, 4]."""
    # A shuffle may deal zeros to all live rows of a matrix: that draw is left out. NaN where every draw is.
    counts = gram_spectrum.rank_counts(values)
    is_known = np.isfinite(counts)
    total, num = np.where(is_known, counts, 0.0).sum(axis=0), is_known.sum(axis=0)
    return np.asarray(np.divide(total, num, out=np.full(total.shape, np.nan), where=num > 0), dtype=np.float64)


def profile(values: ArrayLike) -> tuple[float, ...]:
    """Mean over nonzero matrices of each singular value's share of their sum, [N], from descending ones, [..., N].

    >>> profile([[3.0, 1.0], [1.0, 1.0], [0.0, 0.0]])
    (0.625, 0.375)
    """
    array = np.asarray(values, dtype=np.float64)
    total = array.sum(axis=-1)
    shares = array[total > 0] / total[total > 0][:, None]
    return tuple(float(share) for share in shares.mean(axis=0)) if len(shares) else ()


_SAME = 1e-6  # ranks whose relative difference is below this differ by arithmetic

_NOT_PAIRED = Estimate.undefined_because("no group has a rank at both sizes")


def compare_formulations(spectra: Sequence[results.GradientSpectrum]) -> tuple[results.RankComparison, ...]:
    """Each formulation whose ranks are not the same against the first one, at the last step and largest group size."""
    groups = [spectrum for spectrum in spectra if spectrum.label.group_id is not None]
    if not groups:
        return ()
    step, size = max((spectrum.label.step, spectrum.label.group_size) for spectrum in groups)
    ranks: dict[str, dict[tuple[str | None, tuple[int, ...]], float]] = {}
    for spectrum in groups:
        label, rank = spectrum.label, spectrum.ranks.effective_rank.value
        if (label.step, label.group_size) == (step, size) and rank is not None:
            ranks.setdefault(label.advantage, {})[label.group_id, label.samples] = rank
    comparisons: list[results.RankComparison] = []
    first, *rest = ranks or {"": {}}
    for second in rest:
        base, other = ranks[first], ranks[second]
        shared = [key for key in base if key in other]
        are_close = all(math.isclose(base[key], other[key], rel_tol=_SAME) for key in shared)
        if are_close and len(shared) == len(base) == len(other):
            continue
        difference = Estimate.undefined_because("no group is live under both")
        if shared:
            changes, group_ids = [other[key] - base[key] for key in shared], [str(group_id) for group_id, _ in shared]
            difference = bootstrap.bootstrap_mean(changes, group_ids, share=False).within(1.0 - size, size - 1.0)
        comparisons.append(
            results.RankComparison(step=step, group_size=size, first=first, second=second, difference=difference)
        )
    return tuple(comparisons)


class GroupRank(Struct, frozen=True, kw_only=True):
    """The effective rank of one matrix of one group, or of a part of it."""

    step: int
    advantage: str  # ``logged``, or the formulation
    matrix: str  # which matrix: a kind of rows, or the name of a weight
    group_size: int  # rollouts of the part
    group_id: str
    rank: float  # its effective rank
    max_rank: int  # the smaller side of the matrix


def ranks_of_groups(spectra: Sequence[results.GradientSpectrum]) -> Iterator[GroupRank]:
    """The ranks of the groups among some spectra; those of whole steps and of zero matrices are left out."""
    for spectrum in spectra:
        label, rank = spectrum.label, spectrum.ranks.effective_rank.value
        if label.group_id is not None and rank is not None:
            yield GroupRank(
                step=label.step,
                advantage=label.advantage,
                matrix=label.rows,
                group_size=label.group_size,
                group_id=label.group_id,
                rank=rank,
                max_rank=min(label.shape),
            )


def compare_sizes(ranks: Iterable[GroupRank]) -> tuple[results.SizeChange, ...]:
    """Each group size against the smallest, on the groups that have a rank at both: rollouts of the same prompts."""
    ranks_of: dict[tuple[int, str, str], dict[int, dict[str, list[float]]]] = {}
    max_ranks: dict[str, int] = {}
    for group_rank in ranks:
        by_size = ranks_of.setdefault((group_rank.step, group_rank.advantage, group_rank.matrix), {})
        by_size.setdefault(group_rank.group_size, {}).setdefault(group_rank.group_id, []).append(group_rank.rank)
        max_ranks[group_rank.matrix] = max(group_rank.max_rank, max_ranks.get(group_rank.matrix, 1))
    changes = []
    for (step, advantage, matrix), by_size in ranks_of.items():
        smallest, *larger = sorted(by_size)
        for size in larger:
            first, second = by_size[smallest], by_size[size]
            pairs = [[fmean(second[group]) - fmean(first[group])] for group in first if group in second]
            span = max_ranks[matrix] - 1.0
            (difference,) = bootstrap.bounded_means(pairs, low=-span, high=span) if pairs else (_NOT_PAIRED,)
            changes.append(
                results.SizeChange(
                    step=step, advantage=advantage, matrix=matrix, first=smallest, second=size, difference=difference
                )
            )
    return tuple(changes)
