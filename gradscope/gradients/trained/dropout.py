"""Dropout that was on while a model was trained: it makes a gradient that nobody can compute again."""

from __future__ import annotations

from torch import nn

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
