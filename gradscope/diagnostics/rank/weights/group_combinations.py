"""Which sums of one group's gradients are asked for: every advantage, every group size, and their nulls.

dL/dW of a part of a group is a combination of its rollouts' gradients, with the advantages as factors; so is each null
but the one of unrelated rows. Advantages that are proportional make the same matrix and are combined once.

Shapes: G rollouts of a group, C channels, V combinations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from gradscope.advantages.registry import LOGGED
from gradscope.diagnostics.rank.rollouts.sub_groups import SubGroup
from gradscope.metrics.gram.null_models import shuffled_within
from gradscope.metrics.gram.spectrum import Array

if TYPE_CHECKING:
    from gradscope.gradients.step.group_weights import Combinations

_SHUFFLES = 2
"""Draws of the shuffled null a part; it is averaged over all parts of a step."""
_DIGITS = 10
"""Directions that agree to so many digits are one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantagedPart:
    """A group or a part of one, with the advantages of its rollouts."""

    advantage: str
    """``logged``, or the formulation."""
    part: SubGroup
    """The rollouts."""
    weights: Array
    """Their advantages; 1 and 0 where each token has its own, [G]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CombinedPart:
    """Where the matrices of one part stand among its group's combinations."""

    advantage: str
    """``logged``, or the formulation."""
    group_size: int
    """Rollouts of the part."""
    own: int | None
    """Its own dL/dW; None where every advantage is zero."""
    nulls: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Null -> its draws."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CombinedGroup:
    """All that is asked of one group."""

    combinations: Combinations
    """The sums that the engine forms."""
    parts: tuple[CombinedPart, ...]
    """What they stand for."""


def combine_groups(asked: Sequence[AdvantagedPart], *, by_token: bool) -> tuple[CombinedGroup, ...]:
    """The combinations of each group.

    Args:
        asked: The parts, each under one advantage.
        by_token: Whether the logged gradient weighs each token on its own: by its advantage, importance ratio or clip.

    Returns:
        One for each group of which a part is asked for, in the order of the step.
    """
    of_group: dict[str, list[AdvantagedPart]] = {}
    for one in asked:
        of_group.setdefault(one.part.group_id, []).append(one)
    return tuple(_combined(group_id, parts, by_token=by_token) for group_id, parts in of_group.items())


def _combined(group_id: str, asked: Sequence[AdvantagedPart], *, by_token: bool) -> CombinedGroup:
    from gradscope.gradients.step.group_weights import Combinations

    rollouts = tuple(sorted({int(row) for one in asked for row in one.part.index}))
    by_token = by_token and any(one.advantage == LOGGED for one in asked)
    bank = _Bank(len(rollouts) * (1 + by_token))
    parts = tuple(_combine_part(one, rollouts, bank, by_token=by_token) for one in asked)
    combinations = Combinations(
        group_id=group_id,
        rollouts=rollouts,
        by_token=by_token,
        factors=np.array(bank.directions).reshape(len(bank.directions), bank.width),
        has_null=np.array(bank.has_null, dtype=bool),
    )
    return CombinedGroup(combinations=combinations, parts=parts)


@dataclass(slots=True)
class _Bank:
    """Directions in the space of a group's gradients, each once."""

    width: int
    directions: list[Array] = field(default_factory=list)
    has_null: list[bool] = field(default_factory=list)
    places: dict[bytes, int] = field(default_factory=dict)

    def place(self, factors: Array, *, with_null: bool = False) -> int:
        """Where a combination stands; its scale and sign are of no account to a rank."""
        unit = factors / np.linalg.norm(factors)
        unit = unit * np.sign(unit[np.argmax(np.abs(unit) > 10.0**-_DIGITS)])
        key = (np.round(unit, _DIGITS) + 0.0).tobytes()
        if key not in self.places:
            self.places[key] = len(self.directions)
            self.directions.append(unit)
            self.has_null.append(False)
        self.has_null[self.places[key]] |= with_null
        return self.places[key]


def _combine_part(one: AdvantagedPart, rollouts: Sequence[int], bank: _Bank, *, by_token: bool) -> CombinedPart:
    size, columns = len(one.part.index), np.searchsorted(rollouts, one.part.index)
    of_tokens = by_token and one.advantage == LOGGED
    if not np.any(one.weights != 0):
        return CombinedPart(advantage=one.advantage, group_size=size, own=None)

    def spread(weights: Array, *, channel: int = 0) -> Array:
        factors = np.zeros(bank.width)
        factors[columns + channel * len(rollouts)] = weights
        return factors

    # the second channel has the advantages in it already
    factors = spread(np.ones(size), channel=1) if of_tokens else spread(one.weights)
    own = bank.place(factors, with_null=True)
    nulls: dict[str, tuple[int, ...]] = {"unweighted": (bank.place(spread(np.ones(size))),)}
    if not of_tokens:
        dealt = shuffled_within(one.weights, np.zeros(size, dtype=np.int64), _SHUFFLES)
        nulls |= {
            "shuffled": tuple(bank.place(spread(weights)) for weights in dealt),
            "signs": (bank.place(spread(np.sign(one.weights))),),
        }
    return CombinedPart(advantage=one.advantage, group_size=size, own=own, nulls=nulls)
