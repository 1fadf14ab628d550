"""TRL's correction of the loss for an engine of its own that sampled: how far its probabilities are from the trainer's.

Shapes: T tokens of a completion.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import torch

Mode = Literal["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]
"""Whether tokens or whole completions are weighed, and whether a ratio out of bounds is cut or drops them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerCorrection:
    """Ratios of trainer to sampler, in TRL's ``vllm_importance_sampling_*``."""

    mode: Mode = "sequence_mask"
    """What is weighed, and what happens out of bounds."""
    low: float | None = None
    """The least ratio; None without one."""
    high: float | None = 3.0
    """The largest ratio; None without one."""

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> SamplerCorrection | None:
        """The correction of a trainer's arguments.

        Returns:
            None where the loss has none.

        Raises:
            ValueError: The mode is none of TRL's.
        """
        if not values.get("use_vllm") or values.get("vllm_importance_sampling_correction", True) is False:
            return None
        mode = values.get("vllm_importance_sampling_mode") or "sequence_mask"
        if mode not in get_args(Mode):
            raise ValueError(f"vllm_importance_sampling_mode {mode!r} is none of {', '.join(get_args(Mode))}")
        capped = values.get("vllm_importance_sampling_cap")
        high = capped if capped is not None else values.get("vllm_importance_sampling_clip_max", 3.0)
        return cls(mode=cast(Mode, mode), low=values.get("vllm_importance_sampling_clip_min"), high=high)

    @property
    def by_sequence(self) -> bool:
        """Whether the whole sequence has one ratio, the product of its tokens'."""
        return self.mode.startswith("sequence")

    def ratio(self, sampler: torch.Tensor, old: torch.Tensor, counted: torch.Tensor) -> torch.Tensor:
        """What the reward part is multiplied by.

        Args:
            sampler: The sampling engine's log-probabilities, [T]; a token without a number counts as on policy.
            old: Those of the weights that sampled, by the trainer, [T].
            counted: 1 where a token is in the loss, [T].

        Returns:
            A ratio by token, [T], or one, [1].
        """
        gap = ((old - sampler) * counted).nan_to_num(nan=0.0)
        ratio = (gap.sum().unsqueeze(0) if self.by_sequence else gap).exp()
        low = -float("inf") if self.low is None else self.low
        high = float("inf") if self.high is None else self.high
        if self.mode.endswith("truncate"):
            return ratio.clamp(low, high)
        return ratio.masked_fill((ratio < low) | (ratio > high), 0.0)
