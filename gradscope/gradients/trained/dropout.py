"""Dropout, and whatever else was drawn while a model was trained: it makes a gradient that nobody can compute again."""

from __future__ import annotations

import torch
from torch import nn

from gradscope.gradients.model.embedding import read_a_token

_BY_FUNCTION = ("attention_dropout", "attn_dropout", "dropout", "activation_dropout")
"""Attributes in which modules keep the probability that they hand to a function."""


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
    """Whether the forward pass of training takes random numbers for anything but dropout, as a router's noise does.

    Returns:
        Whether one pass in training mode moves the state of the random numbers, which is put back.
    """
    modes = {module: module.training for module in model.modules()}
    device = next(model.parameters()).device
    generator = torch.cuda.default_generators[device.index or 0] if device.type == "cuda" else torch.default_generator
    before = generator.get_state()
    try:
        for module in modes:
            module.training = not isinstance(module, nn.Dropout)
        read_a_token(model)
        return not torch.equal(generator.get_state(), before)
    finally:
        generator.set_state(before)
        for module, mode in modes.items():
            module.training = mode
