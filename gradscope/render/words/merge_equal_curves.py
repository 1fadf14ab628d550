"""Formulations whose ranks are the same numbers, such as those that differ by one factor a group: shown once."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gradscope.results.rank import RankCurvePoint

_TOLERANCE = 1e-6


def merge_same(points: Sequence[RankCurvePoint]) -> list[tuple[tuple[str, ...], list[RankCurvePoint]]]:
    """Rank curves with the names of all formulations that share them, in the order of first appearance."""
    curves: dict[str, list[RankCurvePoint]] = {}
    for point in points:
        curves.setdefault(point.advantage, []).append(point)
    merged: list[tuple[tuple[str, ...], list[RankCurvePoint]]] = []
    for name, curve in curves.items():
        index = next((index for index, (_, shared) in enumerate(merged) if _are_same(shared, curve)), None)
        if index is None:
            merged.append(((name,), curve))
        else:
            merged[index] = ((*merged[index][0], name), merged[index][1])
    return merged


def _are_same(first: Sequence[RankCurvePoint], second: Sequence[RankCurvePoint]) -> bool:
    return len(first) == len(second) and all(map(_is_same, first, second))


def _is_same(first: RankCurvePoint, second: RankCurvePoint) -> bool:
    if (first.step, first.group_size, first.num_dead) != (second.step, second.group_size, second.num_dead):
        return False
    one, other = first.effective_rank.value, second.effective_rank.value
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=_TOLERANCE)
