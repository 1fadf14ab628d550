"""The reward functions behind a reward: each by itself, and which columns of a log add up to the reward.

Shapes: R rollouts of a step, F reward functions, N rollouts of a log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

import numpy as np
from msgspec import Struct

from gradscope.rollouts.arrays import Floats
from gradscope.rollouts.groups import RolloutGroup
from gradscope.rollouts.run import TrainerSettings

_SMALLEST, _LARGEST = 1e-100, 1e100
"""Of a reward function; the squares of larger ones, and their sums, are no floats, those of smaller ones are 0."""
_TOLERANCE = 1e-6  # largest residual, relative to the largest sum of absolute terms: a few roundings of float32
_MAX_TERMS = 4
_MAX_COLUMNS = 12  # columns that are tried: 12 have 793 sums of up to 4
_ROWS = 2048  # rows that are tried first; a sum that fits them is then confirmed on all
_BLOCK = 1 << 17  # rows whose sums are in memory at a time
_ROWS_PER_TERM = 8  # fewer rows a weight could fit by chance


class FunctionRewards(Struct, frozen=True, kw_only=True):
    """The rewards of all functions over a step."""

    table: Floats  # before weighing, group by group; NaN where a function gave none, [R, F]
    weights: Floats  # of the functions, [F]

    def summed(self, weights: Sequence[float] | Floats) -> Floats:
        """The rewards with some weights, [R]; NaN where no function gave one."""
        return np.where(np.isnan(self.table).all(axis=1), np.nan, np.nansum(self.table * weights, axis=1))


def function_rewards(groups: Sequence[RolloutGroup], settings: TrainerSettings) -> FunctionRewards | None:
    """The logged rewards of each function, with the trainer's weights or 1; None where their numbers differ."""
    names = list(dict.fromkeys(name for group in groups for rollout in group.rollouts for name in rollout.rewards))
    weights = settings.get("reward_weights") or [1.0] * len(names)
    if not names or len(weights) != len(names):
        return None
    rows = [
        [np.nan if (reward := rollout.rewards.get(name)) is None else reward for name in names]
        for group in groups
        for rollout in group.rollouts
    ]
    return FunctionRewards(table=np.array(rows, dtype=np.float64), weights=np.array(weights, dtype=np.float64))


def adds_up(reward: Floats, columns: Mapping[str, Floats], weights: Mapping[str, float]) -> bool:
    """Whether a reward [N] is the weighted sum of columns, [N] each, up to the rounding of float32.

    Rows without a reward are skipped; NaN in a column, where a function does not apply, adds nothing, as in TRL.
    """
    largest_difference, largest_scale = 0.0, 0.0
    with np.errstate(over="ignore", invalid="ignore"):  # an infinite sum is no reward
        for start in range(0, len(reward), _BLOCK):
            rows = slice(start, start + _BLOCK)
            total, scale = -reward[rows], np.zeros_like(reward[rows])
            for name, weight in weights.items():
                term = weight * np.nan_to_num(columns[name][rows])
                total, scale = total + term, scale + np.abs(term)
            has_reward = ~np.isnan(reward[rows])
            largest_difference = np.abs(total[has_reward]).max(initial=largest_difference)
            largest_scale = scale[has_reward].max(initial=largest_scale)
    return bool(largest_difference <= _TOLERANCE * largest_scale)


def reward_terms(reward: Floats, columns: Mapping[str, Floats]) -> dict[str, float] | None:
    """The columns that a reward is the weighted sum of, and their weights.

    Args:
        reward: [N]; NaN where it is missing.
        columns: Name -> numbers, [N]; NaN adds nothing. Of columns that are multiples of each other the first counts.

    Returns:
        Name -> weight, of the fewest columns that add up to it; None where none do in every row, where several sets of
        as many do, and where too few rows or different values make that a coincidence.

    Example:
        >>> correct, length = np.array([1.0, 0.0, 1.0, 0.0] * 5), np.arange(20.0)
        >>> reward_terms(correct - 0.01 * length, {"correct": correct, "length": length})
        {'correct': 1.0, 'length': -0.01}
    """
    rows = np.flatnonzero(~np.isnan(reward)) if columns else np.arange(0)
    if len(rows):
        rows = rows[np.unique(np.linspace(0, len(rows) - 1, _ROWS).astype(np.int64))]
    names = _independent({name: np.nan_to_num(values[rows]) for name, values in columns.items()})
    if not names or len(rows) < _ROWS_PER_TERM:
        return None
    table = np.column_stack([np.nan_to_num(columns[name][rows]) for name in names])
    for size in range(1, min(_MAX_TERMS, len(names), len(rows) // _ROWS_PER_TERM) + 1):
        exact = [
            {names[index]: weight for index, weight in zip(chosen, weights, strict=True)}
            for chosen, weights in _solutions(table, reward[rows], size)
            if _outnumber_weights(table[:, chosen], reward[rows])
        ]
        exact = [terms for terms in exact if adds_up(reward, columns, terms)]
        if exact:
            return exact[0] if len(exact) == 1 else None
    return None


def _outnumber_weights(terms: Floats, reward: Floats) -> bool:
    """Whether more different rows than weights fit; of a verdict, which two values have, a row of zeros is no test."""
    different = np.unique(terms, axis=0)
    is_verdict = len(np.unique(reward)) < 3 and terms.shape[1] > 1
    return len(different) - bool(is_verdict and not different.any(axis=1).all()) > int(terms.shape[1])


def _independent(columns: Mapping[str, Floats]) -> list[str]:
    """The first columns that can be squared, are not 0 throughout, and are no multiple of an earlier one."""
    names: list[str] = []
    for name, values in columns.items():
        if len(names) == _MAX_COLUMNS:
            break
        if _SMALLEST < np.abs(values).max(initial=0) < _LARGEST and not any(
            _is_multiple(values, columns[other]) for other in names
        ):
            names.append(name)
    return names


def _is_multiple(first: Floats, second: Floats) -> bool:
    ratio = float(first @ second) / float(second @ second)
    return bool(np.abs(first - ratio * second).max() <= _TOLERANCE * np.abs(first).max())


def _solutions(table: Floats, reward: Floats, size: int) -> Iterator[tuple[list[int], Sequence[float]]]:
    """Sets of ``size`` columns that may add up to the reward, with rounded weights, none of them negligible."""
    # least squares of the triangular factor has the same solutions and the same residual, of a dozen rows
    factor: Floats = np.asarray(np.linalg.qr(np.column_stack([table, reward]), mode="r"))
    lengths = np.sqrt(np.sum(factor**2, axis=0))
    for chosen in (list(columns) for columns in combinations(range(table.shape[1]), size)):
        weights, _, rank, _ = np.linalg.lstsq(factor[:, chosen], factor[:, -1], rcond=None)
        residual = float(np.linalg.norm(factor[:, chosen] @ weights - factor[:, -1]))
        terms = np.abs(weights) * lengths[chosen]
        if rank == size and residual <= 10 * _TOLERANCE * terms.sum() and terms.min() > 30 * _TOLERANCE * terms.max():
            yield chosen, [_rounded(float(weight)) for weight in weights]


def _rounded(weight: float) -> float:
    """A weight as somebody would write it, where that is within rounding of it."""
    short = float(f"{weight:.4g}")
    return short if abs(short - weight) <= _TOLERANCE / 10 * abs(weight) else weight
