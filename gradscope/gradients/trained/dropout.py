"""Dropout, and whatever else was drawn while a model was trained: it makes a gradient that nobody can compute again."""

from __future__ import annotations

import torch
from torch import nn

from gradscope.gradients.model.embedding import read_tokens, token_embedding

_BY_FUNCTION = ("attention_dropout", "attn_dropout", "dropout", "activation_dropout")
"""Attributes in which modules keep the probability that they hand to a function."""
_NUM_TOKENS, _NUM_PASSES = 32, 16
"""Tokens and passes looked at: of a router's choices few are close enough for noise to change."""
_SAME = 1e-4
"""Relative difference of logits that is arithmetic: two passes take the same steps."""


def active_dropout(model: nn.Module, *, disabled: bool) -> float:
    """The largest probability with which training zeroed anything.

    Args:
        disabled: Whether TRL switched dropout off (``disable_dropout``). It switches off the modules; what a layer
            hands to a function as a number stays on.

    Returns:
        A probability; 0.0 where nothing was dropped.
    """
    modules = [module.p for module in model.modules() if isinstance(module, nn.Dropout) and not disabled]
    numbers = [getattr(module, name, None) for module in model.modules() for name in _BY_FUNCTION]
    return max([0.0, *modules, *(number for number in numbers if isinstance(number, float))])


def draws_in_training(model: nn.Module) -> bool:
    """Whether the forward pass of training depends on random numbers beside dropout's, as a router's noise does.

    Returns:
        Whether passes in training mode with different random numbers differ; the state of those is put back.
    """
    modes = {module: module.training for module in model.modules()}
    device = next(model.parameters()).device
    ids = range(min(_NUM_TOKENS, token_embedding(model).num_embeddings))
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        try:
            for module in modes:
                module.training = not isinstance(module, nn.Dropout)
            before = _random_state(device)
            first = read_tokens(model, ids)
            if torch.equal(_random_state(device), before):
                return False
            return any(_differs(first, read_tokens(model, ids)) for _ in range(_NUM_PASSES))
        finally:
            for module, mode in modes.items():
                module.training = mode


def _random_state(device: torch.device) -> torch.Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _differs(first: torch.Tensor, other: torch.Tensor) -> bool:
    return bool((first - other).abs().max() > _SAME * first.abs().max())
