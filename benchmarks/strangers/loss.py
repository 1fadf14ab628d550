"""TRL's loss as the sum of one term a rollout, written from its formulas and nothing else.

Shapes: R rollouts of an update, T tokens of a completion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

Tensor = Any
"""torch.Tensor, whose methods are not typed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What the losses of all rollouts of an update share."""

    arguments: Mapping[str, Any]
    """``GRPOConfig.to_dict()``."""
    masks: Sequence[Tensor]
    """Which tokens are in the loss, [R][T]."""
    chosen: Sequence[Tensor]
    """Which tokens are kept for their entropy, [R][T]."""

    def average(self, values: Tensor, place: int) -> Tensor:
        """The share of one rollout's token terms in the update's loss."""
        kind, mask = self.arguments["loss_type"], self.masks[place]
        total = (values * mask).sum()
        num_rollouts, num_tokens = len(self.masks), max(float(sum(one.sum() for one in self.masks)), 1.0)
        if kind in ("grpo", "sapo"):
            return total / mask.sum().clamp(min=1.0) / num_rollouts
        if kind == "dr_grpo":
            return total / (num_rollouts * self.arguments["max_completion_length"])
        if kind == "luspo":
            return total / num_rollouts
        return total / num_tokens

    def log_weight(self, log_ratio: Tensor, place: int) -> Tensor:
        """The log of the importance ratio, one a token or one a completion."""
        if self.arguments["importance_sampling_level"] == "token":
            return log_ratio
        mask = self.masks[place]
        return ((log_ratio * mask).sum() / mask.sum().clamp(min=1.0)).reshape(1)

    def policy(self, logps: Tensor, old: Tensor | None, advantage: float, place: int) -> Tensor:
        """The part of one rollout's loss that comes of its reward."""
        mask = self.masks[place]
        old = logps.detach() if old is None else old
        values = self._surrogate(logps, logps - old, advantage, place)
        threshold = self.arguments["off_policy_mask_threshold"]
        if threshold is not None and advantage < 0:
            drift = ((old - logps.detach()) * mask).sum() / mask.sum().clamp(min=1.0)
            values = values * float(drift <= threshold)
        return self.average(values * self.chosen[place], place)

    def _surrogate(self, logps: Tensor, log_ratio: Tensor, advantage: float, place: int) -> Tensor:
        arguments, kind = self.arguments, self.arguments["loss_type"]
        ratio = torch.exp(self.log_weight(log_ratio, place))
        high = arguments["epsilon"] if arguments["epsilon_high"] is None else arguments["epsilon_high"]
        if kind == "cispo":
            return -ratio.clamp(max=high).detach() * advantage * logps
        if kind == "sapo":
            heat = arguments["sapo_temperature_pos"] if advantage > 0 else arguments["sapo_temperature_neg"]
            return -torch.sigmoid(heat * (ratio - 1)) * 4 / heat * advantage
        if kind == "vespo":
            return -self._gamma(log_ratio.detach(), advantage, place) * advantage * logps
        bounded = ratio.clamp(1 - arguments["epsilon"], 1 + high)
        free = ratio if arguments["delta"] is None else ratio.clamp(max=arguments["delta"])
        return -torch.minimum(free * advantage, bounded * advantage)

    def _gamma(self, log_ratio: Tensor, advantage: float, place: int) -> Tensor:
        side = "pos" if advantage >= 0 else "neg"
        power, rate = self.arguments[f"vespo_k_{side}"], max(self.arguments[f"vespo_lambda_{side}"], 1e-4)
        log_w = (log_ratio.clamp(-20, 20) * self.masks[place]).sum().clamp(-18.420680743952367, 20)
        return torch.exp(rate + power * log_w - rate * torch.exp(log_w))

    def divergence(self, logps: Tensor, old: Tensor | None, reference: Tensor, place: int) -> Tensor:
        """The part of one rollout's loss that holds it to the reference."""
        gap = reference - logps
        values = torch.exp(gap) - gap - 1
        if self.arguments["use_bias_correction_kl"]:
            values = values * torch.exp(self.log_weight(logps - (logps.detach() if old is None else old), place))
        return self.arguments["beta"] * self.average(values, place)

    def bonus(self, entropy: Tensor, place: int) -> Tensor:
        """The part of one rollout's loss that rewards entropy, where all rollouts are one micro-batch."""
        kept = [mask * chosen for mask, chosen in zip(self.masks, self.chosen, strict=True)]
        number = max(float(sum(one.sum() for one in kept)), 1.0)
        return -float(self.arguments.get("entropy_coef", 0.0)) * (entropy * kept[place]).sum() / number
