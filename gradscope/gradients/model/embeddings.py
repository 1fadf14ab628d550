"""A model's table of tokens, below whatever PEFT puts around it."""

from __future__ import annotations

from typing import Any

from torch import nn


def token_table(model: Any) -> Any:
    """The embedding that tokens are looked up in: the base layer of an adapter, the original of a copy that is trained.

    Returns:
        The first ``nn.Embedding`` in what the model names as its input; that itself where it holds none.
    """
    named = model.get_input_embeddings()
    return next((module for module in named.modules() if isinstance(module, nn.Embedding)), named)


def padding_row(model: Any) -> int | None:
    """The token whose embedding gets no gradient; None where all of them do."""
    row: int | None = getattr(token_table(model), "padding_idx", None)
    return row
