"""Whether two ranks differ: formulations paired by group, checkpoints by their intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gradscope.estimate import Estimate
from gradscope.metrics.uncertainty.bootstrap import bootstrap_mean
from gradscope.results.rank import GradientSpectrum, RankComparison

_SAME = 1e-6
"""Ranks whose relative difference is below this differ by arithmetic."""

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
