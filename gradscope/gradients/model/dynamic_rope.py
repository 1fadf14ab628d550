"""Rotary frequencies that follow the longest batch that a model has seen (``rope_type="dynamic"``)."""

from __future__ import annotations

from typing import Any

import torch


def pretrained_length(model: Any) -> int | None:
    """The positions up to which nothing is scaled; None where no module scales dynamically."""
    for module in model.modules():
        if getattr(module, "rope_type", None) == "dynamic":
            return int(module.original_max_seq_len)
    return None


def see_batch(model: Any, length: int) -> None:
    """Let a model see a batch of a length: its frequencies are those of that batch until a longer one comes."""
    device = next(model.parameters()).device
    with torch.no_grad():
        model(input_ids=torch.zeros(1, length, dtype=torch.long, device=device))
