"""Whether two ranks differ: formulations paired by group, group sizes paired by prompt."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from gradscope.estimate import Estimate
from gradscope.metrics.uncertainty.bootstrap import bootstrap_mean
from gradscope.metrics.uncertainty.bounded import bounded_means
from gradscope.results.rank import GradientSpectrum, RankComparison
from gradscope.results.ranks.curves import SizeChange

_SAME = 1e-6
"""Ranks whose relative difference is below this differ by arithmetic."""

_NOT_PAIRED = Estimate.undefined_because("no group has a rank at both sizes")
_Ranks = dict[tuple[str | None, tuple[int, ...]], float]


def compare_formulations(spectra: Sequence[GradientSpectrum]) -> tuple[RankComparison, ...]:
    """Each formulation against the first one, at the last step and the largest group size.

    Returns:
        One comparison per formulation whose ranks are not the same numbers; empty where no group has a spectrum.
    """
    groups = [spectrum for spectrum in spectra if spectrum.label.group_id is not None]
    if not groups:
        return ()
    step, size = max((spectrum.label.step, spectrum.label.group_size) for spectrum in groups)
    ranks: dict[str, _Ranks] = {}
    for spectrum in groups:
        label, rank = spectrum.label, spectrum.ranks.effective_rank.value
        if (label.step, label.group_size) == (step, size) and rank is not None:
            ranks.setdefault(label.advantage, {})[label.group_id, label.samples] = rank
    first, *others = ranks or {"": {}}
    return tuple(
        RankComparison(
            step=step,
            group_size=size,
            first=first,
            second=second,
            difference=_difference(ranks[first], ranks[second]).within(1.0 - size, size - 1.0),
        )
        for second in others
        if not _are_same(ranks[first], ranks[second])
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRank:
    """The effective rank of one matrix of one group, or of a part of it."""

    step: int
    """The trainer's step."""
    advantage: str
    """``logged``, or the formulation."""
    matrix: str
    """Which matrix: a kind of rows, or the name of a weight."""
    group_size: int
    """Rollouts of the part."""
    group_id: str
    """The group."""
    rank: float
    """Its effective rank."""
    most: int
    """The most that it can be: the smaller side of the matrix."""


def ranks_of_groups(spectra: Sequence[GradientSpectrum]) -> Iterator[GroupRank]:
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
                most=min(label.shape),
            )


def compare_sizes(ranks: Iterable[GroupRank]) -> tuple[SizeChange, ...]:
    """Each group size against the smallest, on the groups that have a rank at both: rollouts of the same prompts.

    Returns:
        One per step, advantage, matrix and larger size.
    """
    found: dict[tuple[int, str, str], dict[int, dict[str, list[float]]]] = {}
    most: dict[str, int] = {}
    for one in ranks:
        of_size = found.setdefault((one.step, one.advantage, one.matrix), {}).setdefault(one.group_size, {})
        of_size.setdefault(one.group_id, []).append(one.rank)
        most[one.matrix] = max(one.most, most.get(one.matrix, 1))
    changes = []
    for (step, advantage, matrix), by_size in found.items():
        smallest, *larger = sorted(by_size)
        for size in larger:
            first, second = by_size[smallest], by_size[size]
            apart = [[fmean(second[group]) - fmean(first[group])] for group in first if group in second]
            span = most[matrix] - 1.0
            (difference,) = bounded_means(apart, low=-span, high=span) if apart else (_NOT_PAIRED,)
            changes.append(
                SizeChange(
                    step=step,
                    advantage=advantage,
                    matrix=matrix,
                    first=smallest,
                    second=size,
                    difference=difference,
                )
            )
    return tuple(changes)


def _difference(first: _Ranks, second: _Ranks) -> Estimate:
    both = [key for key in first if key in second]
    if not both:
        return Estimate.undefined_because("no group is live under both")
    differences = [second[key] - first[key] for key in both]
    return bootstrap_mean(differences, [str(group_id) for group_id, _ in both], share=False)


def _are_same(first: _Ranks, second: _Ranks) -> bool:
    return first.keys() == second.keys() and all(
        math.isclose(rank, second[key], rel_tol=_SAME) for key, rank in first.items()
    )
