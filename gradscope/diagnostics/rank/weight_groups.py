"""dL/dW of every group under every advantage and group size, and its ranks.

dL/dW of a part of a group is a combination of its rollouts' gradients, with the advantages as factors; so is each null
but the one of unrelated rows. Advantages that are proportional make the same matrix and are combined once.

Shapes: G rollouts of a group, C channels, V combinations.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import compress
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from gradscope.advantages.registry import LOGGED
from gradscope.diagnostics.rank.rows import RankRequest, StepRows, SubGroup, advantages_of, step_rows, sub_groups
from gradscope.diagnostics.rank.spectrum import GroupRank, MeanRanks
from gradscope.errors import GradscopeError
from gradscope.metrics.gram.spectrum import NULLS, Array, shuffled_within
from gradscope.progress import ProgressCallback, no_progress
from gradscope.results.rank import WeightRankPoint

if TYPE_CHECKING:
    from gradscope.gradients.plan.prepared_step import PreparedStep
    from gradscope.gradients.step.directions import Combinations, GroupWeightRanks, WeightSpectrum
    from gradscope.gradients.step.step_gram import StepGram


_SHUFFLES = 2  # draws of the shuffled null a part; it is averaged over all parts of a step
_DIGITS = 10  # directions that agree to so many digits are one


class AdvantagedPart(Struct, frozen=True, kw_only=True):
    """A group or a part of one, with the advantages of its rollouts."""

    advantage: str  # ``logged``, or the formulation
    part: SubGroup  # the rollouts
    weights: Array  # their advantages; 1 and 0 where each token has its own, [G]


class CombinedPart(Struct, frozen=True, kw_only=True):
    """Where the matrices of one part stand among its group's combinations."""

    group_id: str  # its group
    advantage: str  # ``logged``, or the formulation
    group_size: int  # rollouts of the part
    matrix: int | None  # its dL/dW; None where every advantage is zero
    nulls: Mapping[str, tuple[int, ...]] = {}  # null -> its draws


class CombinedGroup(Struct, frozen=True, kw_only=True):
    """All that is asked of one group."""

    combinations: Combinations  # the sums that the engine forms
    parts: tuple[CombinedPart, ...]  # what they stand for


def _combine_groups(parts: Sequence[AdvantagedPart], *, by_token: bool) -> tuple[CombinedGroup, ...]:
    parts_of: dict[str, list[AdvantagedPart]] = {}
    for advantaged in parts:
        parts_of.setdefault(advantaged.part.group_id, []).append(advantaged)
    from gradscope.gradients.step.directions import Combinations

    combined = []
    for group_id, members in parts_of.items():
        rollouts = tuple(sorted({int(row) for advantaged in members for row in advantaged.part.index}))
        has_tokens = by_token and any(advantaged.advantage == LOGGED for advantaged in members)
        bank = _Bank(len(rollouts) * (1 + has_tokens))
        combined_parts = tuple(_combine_part(advantaged, rollouts, bank, by_token=has_tokens) for advantaged in members)
        combinations = Combinations(
            group_id=group_id,
            rollouts=rollouts,
            by_token=has_tokens,
            factors=np.array(bank.directions).reshape(len(bank.directions), bank.width),
            has_null=np.array(bank.has_null, dtype=bool),
        )
        combined.append(CombinedGroup(combinations=combinations, parts=combined_parts))
    return tuple(combined)


class _Bank(Struct):
    """Directions in the space of a group's gradients, each once."""

    width: int
    directions: list[Array] = []
    has_null: list[bool] = []
    indices: dict[bytes, int] = {}

    def index_of(self, factors: Array, *, with_null: bool = False) -> int:
        """Where a combination stands; its scale and sign are of no account to a rank."""
        unit = factors / np.linalg.norm(factors)
        unit = unit * np.sign(unit[np.argmax(np.abs(unit) > 10.0**-_DIGITS)])
        key = (np.round(unit, _DIGITS) + 0.0).tobytes()
        if key not in self.indices:
            self.indices[key] = len(self.directions)
            self.directions.append(unit)
            self.has_null.append(False)
        self.has_null[self.indices[key]] |= with_null
        return self.indices[key]


def _combine_part(advantaged: AdvantagedPart, rollouts: Sequence[int], bank: _Bank, *, by_token: bool) -> CombinedPart:
    size, columns = len(advantaged.part.index), np.searchsorted(rollouts, advantaged.part.index)
    is_weighed = by_token and advantaged.advantage == LOGGED
    dead = CombinedPart(group_id=advantaged.part.group_id, advantage=advantaged.advantage, group_size=size, matrix=None)
    if not np.any(advantaged.weights != 0):
        return dead

    def spread(weights: Array, *, channel: int = 0) -> Array:
        factors = np.zeros(bank.width)
        factors[columns + channel * len(rollouts)] = weights
        return factors

    # the second channel has the advantages in it already
    factors = spread(np.ones(size), channel=1) if is_weighed else spread(advantaged.weights)
    matrix = bank.index_of(factors, with_null=True)
    nulls: dict[str, tuple[int, ...]] = {"unweighted": (bank.index_of(spread(np.ones(size))),)}
    if not is_weighed:
        dealt = shuffled_within(advantaged.weights, np.zeros(size, dtype=np.int64), _SHUFFLES)
        nulls |= {
            "shuffled": tuple(bank.index_of(spread(weights)) for weights in dealt),
            "signs": (bank.index_of(spread(np.sign(advantaged.weights))),),
        }
    return replace(dead, matrix=matrix, nulls=nulls)


class WeightAnswer(Struct, frozen=True, kw_only=True):
    """Spectra and ranks of dL/dW at one step."""

    spectra: tuple[WeightSpectrum, ...]  # of the whole step as the optimizer saw it; none where no advantage was logged
    groups: tuple[CombinedGroup, ...]  # what was asked of each group
    ranks: tuple[GroupWeightRanks, ...]  # the ranks, by group and weight
    refused: Mapping[str, str]  # formulations that these rollouts do not have, with the reason
    num_weights: int  # matrices of the model, drawn or not


def weight_rows(
    prepared: PreparedStep,
    gram: StepGram,
    *,
    progress: ProgressCallback = no_progress,
    request: RankRequest,
    max_weights: int | None = None,
) -> WeightAnswer:
    """Rows of each weight's gradient, of at most ``max_weights`` drawn at random, the output head besides."""
    from gradscope.gradients.step.directions import matrix_names, measure_group_weights, measure_weight_spectra

    refused: dict[str, str] = {}
    parts = _advantaged_parts(step_rows(gram), request, refused)
    groups = _combine_groups(parts, by_token=any(row.channel == "logged" for row in gram.rows))
    live = [group.combinations for group in groups if len(group.combinations.factors)]
    names = matrix_names(prepared.policy.trainable)
    weights = frozenset(names)
    if max_weights is not None and len(names) > max_weights:
        drawn = np.random.default_rng(request.options.seed).choice(len(names), max_weights, replace=False)
        weights = frozenset(names[index] for index in drawn) | frozenset(filter(is_output_head, names))
    ranks = measure_group_weights(prepared, gram, live, weights=weights, progress=progress)
    logged = all(advantages is not None for advantages in prepared.plan.advantages)
    spectra = measure_weight_spectra(prepared, progress, weights=weights) if logged else ()
    return WeightAnswer(spectra=spectra, groups=groups, ranks=ranks, refused=refused, num_weights=len(names))


def is_output_head(name: str) -> bool:
    """Whether a weight is the output head alone, by its name in transformers' models."""
    return "lm_head" in name or "embed_out" in name


def _advantaged_parts(rows: StepRows, request: RankRequest, refused: dict[str, str]) -> list[AdvantagedPart]:
    """Every part of every group under every advantage, but for what these rollouts do not have."""
    advantaged = []
    for advantage in request.advantages:
        try:
            chosen = request.groups(rows, advantage)
            for size in request.sizes(rows, advantage):
                parts = sub_groups(rows, size)
                for part, weights in zip(parts, advantages_of(rows, parts, advantage), strict=True):
                    if chosen is None or part.group_id in chosen:
                        advantaged.append(AdvantagedPart(advantage=advantage, part=part, weights=weights))
        except GradscopeError as error:
            refused[advantage] = error.message
    return advantaged


ALL_WEIGHTS = "all weights"  # the name of the mean over weights among the names of weights


def weight_curve(
    step: int, groups: Sequence[CombinedGroup], ranks: Sequence[GroupWeightRanks], *, by_group: bool = False
) -> list[WeightRankPoint]:
    """The mean ranks under each advantage at each group size: one point for all weights, then one a weight."""
    parts = [part for group in groups for part in group.parts]
    shapes = {weight.tensor: weight.shape for weight in ranks}
    ranks_of = {(weight.group_id, weight.tensor): weight for weight in ranks}
    points = []
    for advantage, size in dict.fromkeys((part.advantage, part.group_size) for part in parts):
        chosen = [part for part in parts if (part.advantage, part.group_size) == (advantage, size)]
        live = [part for part in chosen if part.matrix is not None]
        weight_counts, weight_nulls = _counted(live, list(shapes), ranks_of)
        for index, tensor in enumerate((None, *shapes)):
            selected = _mean if tensor is None else itemgetter(index - 1)
            counts, nulls = selected(weight_counts), {name: selected(drawn) for name, drawn in weight_nulls.items()}
            # a matrix that is zero has no rank
            ranked = np.isfinite(counts[:, 0]) & np.all([np.isfinite(drawn[:, 0]) for drawn in nulls.values()], axis=0)
            mean = MeanRanks(
                counts=counts[ranked],
                nulls={name: drawn[ranked] for name, drawn in nulls.items()},
                group_ids=[part.group_id for part in compress(live, ranked)],
                max_rank=_max_rank(shapes, tensor),
                by_group=by_group,
            )
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
    """The effective rank of dL/dW of every part of every group: the mean over weights, then each weight's."""
    tensors = list(dict.fromkeys(weight.tensor for weight in ranks))
    ranks_of = {(weight.group_id, weight.tensor): weight for weight in ranks}
    shapes = {weight.tensor: weight.shape for weight in ranks}
    for part in (part for group in groups for part in group.parts if part.matrix is not None):
        part_ranks = np.array([ranks_of[part.group_id, tensor].counts[part.matrix, 0] for tensor in tensors])
        by_matrix = (float(_mean(part_ranks)), *part_ranks.tolist())
        for matrix, rank in zip((ALL_WEIGHTS, *tensors), by_matrix, strict=True):
            if np.isfinite(rank):
                yield GroupRank(
                    step=step,
                    advantage=part.advantage,
                    matrix=matrix,
                    group_size=part.group_size,
                    group_id=part.group_id,
                    rank=rank,
                    max_rank=_max_rank(shapes, None if matrix == ALL_WEIGHTS else matrix),
                )


def _counted(
    live: Sequence[CombinedPart], tensors: Sequence[str], ranks_of: Mapping[tuple[str, str], GroupWeightRanks]
) -> tuple[Array, dict[str, Array]]:
    """The counts of live parts, weight by weight, [U, n, 4], and those of each null."""
    counts = np.full((len(tensors), len(live), 4), np.nan)
    names = [name for name in NULLS if name == "gaussian" or all(name in part.nulls for part in live)]
    nulls = {name: counts.copy() for name in names}
    for row, tensor in enumerate(tensors):
        for column, part in enumerate(live):
            ranks, index = ranks_of[part.group_id, tensor], part.matrix
            counts[row, column], nulls["gaussian"][row, column] = ranks.counts[index], ranks.gaussian[index]
            for name in set(names) - {"gaussian"}:
                nulls[name][row, column] = _mean(ranks.counts[list(part.nulls[name])])
    return counts, nulls


def _mean(counts: Array) -> Array:
    """Over the first axis, without matrices that are zero; NaN where all are."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.asarray(np.nanmean(counts, axis=0), dtype=np.float64)


def _max_rank(shapes: Mapping[str, tuple[int, int]], tensor: str | None) -> int:
    """The smaller side of a weight; for the mean over all weights that of the largest."""
    return max((min(shape) for name, shape in shapes.items() if tensor in (None, name)), default=1)
