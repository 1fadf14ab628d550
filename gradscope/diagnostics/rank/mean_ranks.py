"""Ranks averaged over the groups of a step, each beside its nulls: the difference, and the ratio.

Every kind of matrix comes here as four counts of its singular values (``rank_counts``), so that a rank of rollout rows
and one of dL/dW are averaged, given intervals and held against nulls in the same way.

Shapes: n matrices, N singular values of each, D draws of a null.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradscope.estimate import Estimate
from gradscope.metrics.gram.spectrum import Array, rank_counts
from gradscope.metrics.uncertainty.bootstrap import bootstrap_means, bootstrap_statistics
from gradscope.metrics.uncertainty.bounded import bounded_means
from gradscope.metrics.uncertainty.clusters import cluster_sums
from gradscope.results.ranks.curves import NullRank

_EVERY_GROUP_DEAD = "no group of this step has a gradient by its advantages, so its gradient matrix is zero"
_NO_DRAW = Estimate.undefined_because("every draw of this null deals all advantages to rollouts without a score vector")
_NO_RANK = NullRank(effective_rank=_NO_DRAW, difference=_NO_DRAW, ratio=_NO_DRAW, two_direction_energy=_NO_DRAW)
_RANKS = ("effective_rank", "stable_rank", "participation_ratio")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanRanks:
    """The counts of matrices that are not zero, and what they average to."""

    counts: Array
    """Effective rank, stable rank, participation ratio and energy of two directions, [n, 4]."""
    nulls: Mapping[str, Array]
    """Null -> the same, means over its draws, [n, 4]."""
    group_ids: Sequence[str]
    """The group of each matrix, which is the unit of resampling, [n]."""
    most: int
    """The most that a rank can be."""
    by_group: bool
    """Whether each group weighs the same, however many of its parts are ranked; else each part does."""

    def means(self) -> dict[str, Estimate]:
        """Each of the four; undefined without matrices."""
        if not len(self.counts):
            return dict.fromkeys((*_RANKS, "two_direction_energy"), Estimate.undefined_because(_EVERY_GROUP_DEAD))
        (energy,) = self._mean_energies(self.counts[:, 3:])
        return {**dict(zip(_RANKS, self._mean_ranks(self.counts[:, :3]), strict=True)), "two_direction_energy": energy}

    def null_ranks(self) -> dict[str, NullRank]:
        """The same under each null that could be drawn, on the same matrices; empty without matrices."""
        if not len(self.counts) or not self.nulls:
            return {}
        if not all(np.isfinite(drawn[:, 0]).all() for drawn in self.nulls.values()):
            return {name: self._only_under(name).null_ranks().get(name, _NO_RANK) for name in self.nulls}
        # all nulls at once: a bootstrap of many columns costs little more than one of one
        ranks = np.column_stack([drawn[:, 0] for drawn in self.nulls.values()])
        own, count, span = self.counts[:, :1], len(self.nulls), self.most - 1.0
        columns, groups = self._weighed(np.hstack([own - ranks, np.repeat(own, count, axis=1), ranks]))
        differences = bootstrap_means(columns[:, :count], groups, share=False)
        within = (1.0 / self.most, float(self.most))
        ratios = bootstrap_statistics(_ratios, cluster_sums(columns[:, count:], groups), within=within)
        means = self._mean_ranks(ranks)
        energies = self._mean_energies(np.column_stack([drawn[:, 3] for drawn in self.nulls.values()]))
        return {
            name: NullRank(
                effective_rank=means[place],
                difference=differences[place].within(-span, span),
                ratio=ratios[place],
                two_direction_energy=energies[place],
            )
            for place, name in enumerate(self.nulls)
        }

    def _only_under(self, null: str) -> MeanRanks:
        """The matrices that have a rank under a null."""
        return replace(self, nulls={null: self.nulls[null]})._those(np.isfinite(self.nulls[null][:, 0]))

    def _those(self, is_chosen: NDArray[np.bool_]) -> MeanRanks:
        """Some of the matrices."""
        return replace(
            self,
            counts=self.counts[is_chosen],
            nulls={name: drawn[is_chosen] for name, drawn in self.nulls.items()},
            group_ids=[self.group_ids[place] for place in np.flatnonzero(is_chosen).tolist()],
        )

    def mean_within(self, values: Array, low: float, high: float, none: str = "") -> Estimate:
        """The mean of another number of each matrix; undefined without matrices.

        Args:
            values: [n]; NaN for a matrix that does not have it and does not count.
            low: The least that it can be.
            high: The most.
            none: Why no matrix has it, where there are matrices.

        Returns:
            The mean, with an interval over groups.
        """
        if not len(values):
            return Estimate.undefined_because(_EVERY_GROUP_DEAD)
        is_known = np.isfinite(values)
        if not is_known.any():
            return Estimate.undefined_because(none, num_units=len(set(self.group_ids)))
        columns, groups = self._those(is_known)._weighed(values[is_known, None])
        (mean,) = bounded_means(columns, groups, low=low, high=high)
        return mean

    def _mean_ranks(self, ranks: Array) -> tuple[Estimate, ...]:
        columns, groups = self._weighed(ranks)
        return bounded_means(columns, groups, low=1.0, high=float(self.most))

    def _mean_energies(self, shares: Array) -> tuple[Estimate, ...]:
        columns, groups = self._weighed(shares)
        return bounded_means(columns, groups, low=min(2.0 / self.most, 1.0), high=1.0)

    def _weighed(self, columns: Array) -> tuple[Array, list[str]]:
        """Rows to average and their groups: parts as they are, or one row a group."""
        if not self.by_group:
            return columns, list(self.group_ids)
        sums = cluster_sums(np.column_stack([columns, np.ones(len(columns))]), list(self.group_ids))
        return np.asarray(sums[:, :-1] / sums[:, -1:], dtype=np.float64), list(dict.fromkeys(self.group_ids))


def drawn_counts(values: Array) -> Array:
    """The counts of a null from the singular values of its draws.

    Args:
        values: [D, n, N]. A shuffle may deal zeros to all live rows of a matrix: that draw is left out.

    Returns:
        Means over draws, [n, 4]; NaN for a matrix that every draw leaves without a rank.
    """
    counts = rank_counts(values)
    is_known = np.isfinite(counts)
    total, num = np.where(is_known, counts, 0.0).sum(axis=0), is_known.sum(axis=0)
    return np.asarray(np.divide(total, num, out=np.full(total.shape, np.nan), where=num > 0), dtype=np.float64)


def profile(values: ArrayLike) -> tuple[float, ...]:
    """Mean over matrices of each singular value's share of their sum, largest first.

    Args:
        values: Descending, [..., N]; zero matrices do not count.

    Returns:
        [N]; empty where all are zero.

    Example:
        >>> profile([[3.0, 1.0], [1.0, 1.0], [0.0, 0.0]])
        (0.625, 0.375)
    """
    array = np.asarray(values, dtype=np.float64)
    total = array.sum(axis=-1)
    shares = array[total > 0] / total[total > 0][:, None]
    return tuple(float(share) for share in shares.mean(axis=0)) if len(shares) else ()


def _ratios(sums: Array) -> Array:
    half = sums.shape[-1] // 2
    return np.asarray(sums[..., :half] / sums[..., half:], dtype=np.float64)
