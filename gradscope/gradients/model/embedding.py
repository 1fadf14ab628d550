"""The embedding that tokens are looked up in, under whatever PEFT put around it."""

from __future__ import annotations

from typing import Any

from torch import nn

_INSIDE = ("base_layer", "original_module")
"""Where PEFT's wrappers keep what they wrap."""


def token_embedding(model: Any) -> nn.Embedding:
    """The token embedding itself: the only module that knows of a padding row."""
    module = model.get_input_embeddings()
    while not isinstance(module, nn.Embedding):
        inner = next((getattr(module, name) for name in _INSIDE if hasattr(module, name)), None)
        if inner is None:
            break
        module = inner
    return module  # type: ignore[no-any-return]


def padding_row(model: Any) -> int | None:
    """The token whose embedding gets no gradient from being read; None where every token's does."""
    return getattr(token_embedding(model), "padding_idx", None)
