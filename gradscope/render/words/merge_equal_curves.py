"""Formulations whose ranks are the same numbers, such as those that differ by one factor a group: shown once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

from gradscope.estimate import Estimate
from gradscope.results.ranks.curves import RankCurvePoint, WeightRankPoint

_TOLERANCE = 1e-6
_Point = TypeVar("_Point", bound=RankCurvePoint | WeightRankPoint)


def merge_same(points: Sequence[_Point]) -> list[tuple[tuple[str, ...], list[_Point]]]:
    """Rank curves with the names of all formulations that share them, in the order of first appearance."""
    curves: dict[str, list[_Point]] = {}
    for point in points:
        curves.setdefault(point.advantage, []).append(point)
    merged: list[tuple[tuple[str, ...], list[_Point]]] = []
    for name, curve in curves.items():
        places = [place for place, (_, shared) in enumerate(merged) if _are_same(shared, curve)]
        if places:
            names, shared = merged[places[0]]
            merged[places[0]] = ((*names, name), shared)
        else:
            merged.append(((name,), curve))
    return merged


def _are_same(first: Sequence[_Point], second: Sequence[_Point]) -> bool:
    return len(first) == len(second) and all(map(_is_same, first, second))


def _is_same(first: _Point, second: _Point) -> bool:
    if (first.step, first.group_size, first.num_dead) != (second.step, second.group_size, second.num_dead):
        return False
    return _is_close(first.effective_rank, second.effective_rank) and (
        not isinstance(first, RankCurvePoint)
        or not isinstance(second, RankCurvePoint)
        # a rank is blind to signs, and a sum is not
        or _is_close(first.summed_energy, second.summed_energy)
    )


def _is_close(first: Estimate, second: Estimate) -> bool:
    if first.value is None or second.value is None:
        return first.value is second.value
    return math.isclose(first.value, second.value, rel_tol=_TOLERANCE)
