"""The rank of dL/dW of one group, averaged over the groups of a step: of each weight, and over all weights.

Shapes: n parts of one group size under one advantage, U weights.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gradscope.diagnostics.rank.comparison import GroupRank
from gradscope.diagnostics.rank.mean_ranks import MeanRanks
from gradscope.diagnostics.rank.weights.group_combinations import CombinedGroup, CombinedPart
from gradscope.metrics.gram.null_models import NULLS
from gradscope.metrics.gram.spectrum import Array
from gradscope.results.ranks.curves import WeightRankPoint

if TYPE_CHECKING:
    from gradscope.gradients.step.group_weights import GroupWeightRanks


ALL_WEIGHTS = "all weights"
"""The name of the mean over weights among the names of weights."""


def weight_curve(
    step: int, groups: Sequence[CombinedGroup], ranks: Sequence[GroupWeightRanks], *, by_group: bool = False
) -> list[WeightRankPoint]:
    """The mean ranks under each advantage at each group size.

    Args:
        ranks: What the engine found, by group and weight.
        by_group: Whether each group weighs the same, however many of its parts live.

    Returns:
        One point for all weights, then one a weight, for each advantage and group size.
    """
    parts = [_Located(group_id=group.combinations.group_id, part=part) for group in groups for part in group.parts]
    shapes = {one.tensor: one.shape for one in ranks}
    found = {(one.group_id, one.tensor): one for one in ranks}
    points = []
    for advantage, size in dict.fromkeys((one.part.advantage, one.part.group_size) for one in parts):
        chosen = [one for one in parts if (one.part.advantage, one.part.group_size) == (advantage, size)]
        counted = _counted([one for one in chosen if one.part.own is not None], list(shapes), found)
        for place, tensor in enumerate((None, *shapes)):
            mean = counted.mean_of(None if tensor is None else place - 1, _most(shapes, tensor), by_group=by_group)
            points.append(
                WeightRankPoint(
                    step=step,
                    advantage=advantage,
                    group_size=size,
                    tensor=tensor,
                    shape=None if tensor is None else shapes[tensor],
                    num_groups=len(chosen),
                    num_dead=len(chosen) - len(mean.counts),
                    **mean.means(),
                    nulls=mean.null_ranks(),
                )
            )
    return points


def weight_group_ranks(
    step: int, groups: Sequence[CombinedGroup], ranks: Sequence[GroupWeightRanks]
) -> Iterator[GroupRank]:
    """The effective rank of dL/dW of every part of every group: the mean over weights, then each weight's.

    Args:
        ranks: What the engine found, by group and weight.

    Yields:
        One a part and weight that has a rank.
    """
    tensors = list(dict.fromkeys(one.tensor for one in ranks))
    found = {(one.group_id, one.tensor): one for one in ranks}
    shapes = {one.tensor: one.shape for one in ranks}
    for group in groups:
        group_id = group.combinations.group_id
        for part in group.parts:
            if part.own is None:
                continue
            own = np.array([found[group_id, tensor].counts[part.own, 0] for tensor in tensors])
            for matrix, rank in zip((ALL_WEIGHTS, *tensors), (float(_mean(own)), *own.tolist()), strict=True):
                if np.isfinite(rank):
                    yield GroupRank(
                        step=step,
                        advantage=part.advantage,
                        matrix=matrix,
                        group_size=part.group_size,
                        group_id=group_id,
                        rank=rank,
                        most=_most(shapes, None if matrix == ALL_WEIGHTS else matrix),
                    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Located:
    """A part, and the group that it is of."""

    group_id: str
    part: CombinedPart


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counted:
    """The counts of live parts, weight by weight."""

    group_ids: list[str]
    own: Array  # [U, n, 4]
    nulls: Mapping[str, Array]  # [U, n, 4] each

    def mean_of(self, weight: int | None, most: int, *, by_group: bool) -> MeanRanks:
        """Of one weight, or of each part's mean over all weights; a matrix that is zero has no rank."""
        own, nulls = _taken(self.own, weight), {name: _taken(drawn, weight) for name, drawn in self.nulls.items()}
        ranked = np.isfinite(own[:, 0]) & np.all([np.isfinite(drawn[:, 0]) for drawn in nulls.values()], axis=0)
        return MeanRanks(
            counts=own[ranked],
            nulls={name: drawn[ranked] for name, drawn in nulls.items()},
            group_ids=[group_id for group_id, is_ranked in zip(self.group_ids, ranked, strict=True) if is_ranked],
            most=most,
            by_group=by_group,
        )


def _counted(
    live: Sequence[_Located], tensors: Sequence[str], found: Mapping[tuple[str, str], GroupWeightRanks]
) -> _Counted:
    own = np.full((len(tensors), len(live), 4), np.nan)
    names = [name for name in NULLS if name == "gaussian" or all(name in one.part.nulls for one in live)]
    nulls = {name: own.copy() for name in names}
    for row, tensor in enumerate(tensors):
        for column, one in enumerate(live):
            ranks, place = found[one.group_id, tensor], one.part.own
            own[row, column], nulls["gaussian"][row, column] = ranks.counts[place], ranks.gaussian[place]
            for name in set(names) - {"gaussian"}:
                nulls[name][row, column] = _mean(ranks.counts[list(one.part.nulls[name])])
    return _Counted(group_ids=[one.group_id for one in live], own=own, nulls=nulls)


def _taken(counts: Array, weight: int | None) -> Array:
    return _mean(counts) if weight is None else np.asarray(counts[weight])


def _mean(counts: Array) -> Array:
    """Over the first axis, without matrices that are zero; NaN where all are."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.asarray(np.nanmean(counts, axis=0), dtype=np.float64)


def _most(shapes: Mapping[str, tuple[int, int]], tensor: str | None) -> int:
    """The most that a rank can be: the smaller side, of the largest weight for the mean over all."""
    return max((min(shape) for name, shape in shapes.items() if tensor in (None, name)), default=1)
