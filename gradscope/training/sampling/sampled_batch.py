"""Rollouts as TRL returns them, sampled and scored, and several rounds of them as one batch.

TRL pads prompts on the left and completions on the right, to the longest of a call. Rounds are padded to the longest
of all, and what no kept row needs is cut off again, so that a batch of several calls looks like one of a single call.

Shapes: R rollouts, T tokens of a completion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

_PROMPT = ("prompt_ids", "prompt_mask")
_TOTAL = "num_items_in_batch"
"""TRL's number of tokens that are in the loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """Rollouts that were generated and scored."""

    rows: Sequence[Mapping[str, Any]]
    """The rows of TRL's dataset that they answer, [R]."""
    output: dict[str, Any]
    """What TRL's method returns for them."""
    rewards: Mapping[str, Sequence[float]]
    """Reward function -> rewards, [R]."""
    trained: tuple[str, ...]
    """The reward functions that are trained on; the others are only recorded."""

    @property
    def totals(self) -> NDArray[np.float64]:
        """Scalar rewards, the sum over the reward functions that are trained on, [R]."""
        return np.asarray(np.sum([self.rewards[name] for name in self.trained], axis=0), dtype=np.float64)

    @property
    def num_tokens(self) -> NDArray[np.int64]:
        """Tokens of each completion, [R]."""
        return np.asarray(self.output["completion_mask"].sum(dim=1).cpu(), dtype=np.int64)


def merge(rounds: Sequence[Scored], kept: Sequence[int], *, padding: int) -> Scored:
    """Rows of several rounds as one batch.

    Args:
        rounds: The rounds; their rows are counted through.
        kept: The rows of the batch, in its order.
        padding: The token that pads.

    Returns:
        The batch.

    Raises:
        ValueError: TRL returned something that is not one row a rollout.
    """
    merged = {}
    for name, first in rounds[0].output.items():
        if name == _TOTAL:
            continue
        if not (isinstance(first, torch.Tensor) and first.ndim in (1, 2)):
            raise ValueError(f"{name} of TRL's batch is not one row a rollout, so rounds of it cannot be merged")
        parts = [scored.output[name] for scored in rounds]
        filler = padding if name.endswith("_ids") else 0
        merged[name] = torch.cat(_same_width(parts, filler, left=name in _PROMPT))[list(kept)]
    merged = _without_empty_columns(merged)
    if _TOTAL in rounds[0].output:
        merged[_TOTAL] = merged["completion_mask"].sum().to(rounds[0].output[_TOTAL])
    rows = [row for scored in rounds for row in scored.rows]
    rewards = {name: [value for scored in rounds for value in scored.rewards[name]] for name in rounds[0].rewards}
    return Scored(
        rows=[rows[index] for index in kept],
        output=merged,
        rewards={name: [values[index] for index in kept] for name, values in rewards.items()},
        trained=rounds[0].trained,
    )


def _same_width(parts: Sequence[torch.Tensor], filler: int, *, left: bool) -> list[torch.Tensor]:
    """Tables padded to the width of the widest; lists of one number a rollout as they are."""
    if parts[0].ndim == 1:
        return list(parts)
    width = max(part.shape[1] for part in parts)
    missing = [width - part.shape[1] for part in parts]
    return [
        torch.nn.functional.pad(part, (number, 0) if left else (0, number), value=filler)
        for part, number in zip(parts, missing, strict=True)
    ]


def _without_empty_columns(batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The batch cut to its longest prompt and completion; numbers of tokens are as wide as the completions."""
    prompt, completion = (int(batch[name].sum(dim=1).max()) for name in ("prompt_mask", "completion_mask"))
    return {
        name: part if part.ndim == 1 else part[:, part.shape[1] - prompt :] if name in _PROMPT else part[:, :completion]
        for name, part in batch.items()
    }
