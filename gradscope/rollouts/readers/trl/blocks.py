"""How many rollouts a TRL group has: the rows come in blocks of G, and the log does not say what G is.

Grouping by the prompt's text would merge two groups of one prompt, so blocks are cut by position. Shapes: G rollouts of
a group.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradscope.errors import InputError
from gradscope.metrics.outcomes.groups import EQUAL_REWARDS
from gradscope.rollouts.readers.parsing.scalars import text_of
from gradscope.rollouts.run import TrainerSettings

_TOLERANCE = 1e-3
"""Largest deviation from the group's line, relative to the largest advantage: far above the rounding of float32, far
below what a wrong block makes."""
_SHARE_TOLERANCE = 1e-6
"""The log is float32."""
_HOW = "greatest common divisor of the runs of equal prompts"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPrompts:
    """The prompts of some rows, of which many are the same."""

    ids: tuple[str, ...]
    """Their ids, each once."""
    texts: tuple[str, ...]
    """Their texts."""
    of_row: NDArray[np.int64]
    """The place of each row's prompt in ``ids``, [N]."""

    @classmethod
    def of(cls, different: Sequence[Any], of_row: NDArray[np.int64], id_of: Callable[[Any], str]) -> RowPrompts:
        """The prompts of rows.

        Args:
            different: Prompts as the log has them, of which some may have the same id.
            of_row: The place of each row's prompt among them, [N].
            id_of: The id of a prompt.

        Returns:
            The prompts.
        """
        ids = [id_of(prompt) for prompt in different]
        texts = {name: text_of(prompt) for name, prompt in zip(reversed(ids), reversed(different), strict=True)}
        numbers = {name: at for at, name in enumerate(dict.fromkeys(ids))}
        places = np.array([numbers[name] for name in ids], dtype=np.int64)
        return cls(ids=tuple(numbers), texts=tuple(texts[name] for name in numbers), of_row=places[of_row])

    def __len__(self) -> int:
        return len(self.of_row)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The rows of one step, as far as cutting needs them."""

    path: Path
    """Their file."""
    prompts: RowPrompts
    """The prompts of its rows."""
    rewards: NDArray[np.float64]
    """Scalar rewards; NaN where there is none."""
    advantages: NDArray[np.float64]
    """Logged advantages; likewise."""
    logged_share: float | None
    """The trainer's ``frac_reward_zero_std``, where it was logged for this step alone."""


def group_size(blocks: Sequence[Block], settings: TrainerSettings) -> tuple[int, tuple[str, ...]]:
    """Rollouts per group, G, and what was inferred, in sentences.

    Args:
        blocks: All training steps.
        settings: The trainer's arguments.

    Returns:
        Both.

    Raises:
        InputError: ``num_generations`` was given and the rows are not blocks of that size.
    """
    num_generations = settings.get("num_generations")
    if num_generations is not None:
        misfit = next((block for block in blocks if not _is_cut_by(block, num_generations)), None)
        if misfit is not None:
            raise InputError(
                f"{settings.origin} gives num_generations {num_generations!r}, but the rows of {misfit.path} are not "
                "blocks of that many rollouts of one prompt.",
                hint="Check that the arguments belong to this run.",
            )
        return int(num_generations), ()
    longest = math.gcd(*(length for block in blocks for length in _runs(block.prompts.of_row)))
    sizes = [size for size in range(longest, 1, -1) if longest % size == 0]
    for evidence, fits in (("advantages", _explains), ("frac_reward_zero_std", _has_logged_share)):
        size = next((size for size in sizes if all(fits(block, size) for block in blocks)), None)
        if size is not None and size < longest:
            return size, (
                f"Groups are blocks of {size} rows: runs of {longest} equal prompts, cut by the logged {evidence}.",
            )
        if size is not None:
            return size, (f"Groups are blocks of {size} rows ({_HOW}, confirmed by the logged {evidence}).",)
    return longest, (f"Groups are blocks of {longest} rows ({_HOW}; nothing in the log confirms it).",)


def uncut(blocks: Sequence[Block], settings: TrainerSettings) -> tuple[int, ...]:
    """The places of blocks whose rows do not come in groups as those of the others do: some were lost or exchanged.

    Returns:
        None where all do, or none does.
    """
    own = [math.gcd(*_runs(block.prompts.of_row)) for block in blocks]
    usual, count = Counter(own).most_common(1)[0]
    decides = math.gcd(*own) == 1 and 2 * count > len(own)
    size = settings.get("num_generations", usual if decides else math.gcd(*own))
    wrong = tuple(place for place, block in enumerate(blocks) if not _is_cut_by(block, size))
    return wrong if len(wrong) < len(blocks) else ()


def prompts_of_groups(blocks: Sequence[RowPrompts], size: int) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """The prompts of blocks that are cut into groups.

    Args:
        blocks: The prompts of their rows.
        size: Rows of a group; the last one of a block may have fewer.

    Returns:
        Ids, each once, and the place of each group's prompt among them, [groups].
    """
    numbers: dict[str, int] = {}
    places = [
        np.array([numbers.setdefault(prompt, len(numbers)) for prompt in block.ids])[block.of_row[::size]]
        for block in blocks
    ]
    return tuple(numbers), np.concatenate(places)


def _is_cut_by(block: Block, size: Any) -> bool:
    if not isinstance(size, int) or size < 1 or len(block.prompts) % size:
        return False
    return bool(np.all(np.ptp(block.prompts.of_row.reshape(-1, size), axis=1) == 0))


def _runs(places: NDArray[np.int64]) -> list[int]:
    """The lengths of runs of equal numbers, each length once."""
    ends = np.flatnonzero(np.diff(places, append=-1))
    return list(np.unique(np.diff(ends, prepend=-1)).tolist())


@np.errstate(over="ignore", invalid="ignore")  # rewards near the largest float
def _explains(block: Block, size: int) -> bool:
    """Whether advantages are a positive multiple of reward minus mean within every block of this size.

    Holds for every group-centered formulation, whatever it divides by. A block too large mixes two means; one too small
    is not centered.

    Returns:
        True also where a row lacks its reward, which says nothing about the size.
    """
    if not (np.isfinite(block.rewards).all() and np.isfinite(block.advantages).all()):
        return True
    advantages, rewards = block.advantages.reshape(-1, size), block.rewards.reshape(-1, size)  # [groups, G]
    varies = np.ptp(rewards, axis=1, keepdims=True) > EQUAL_REWARDS
    centered = np.where(varies, rewards - rewards.mean(axis=1, keepdims=True), 0.0)
    energy = (centered**2).sum(axis=1, keepdims=True)
    slope = (advantages * centered).sum(axis=1, keepdims=True) / np.where(varies, energy, 1.0)
    deviation = np.abs(advantages - slope * centered).max()
    return bool(np.all((slope > 0) | ~varies) and deviation <= _TOLERANCE * np.abs(advantages).max())


@np.errstate(over="ignore")
def _has_logged_share(block: Block, size: int) -> bool:
    """Whether blocks of this size have the share of dead groups that the trainer logged; False where it logged none."""
    if block.logged_share is None or np.isnan(block.rewards).any():
        return False
    rewards = block.rewards.reshape(-1, size)
    return bool(abs(np.mean(np.ptp(rewards, axis=1) <= EQUAL_REWARDS) - block.logged_share) <= _SHARE_TOLERANCE)
