"""What a model looks up: its tokens, under whatever PEFT put around their embedding, and its positions, if any.

A model with rotary positions runs, and trains, beyond the ``max_position_embeddings`` of its configuration.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from gradscope.gradients.model.calls import call_on

_PROBE = 3
"""Tokens enough to see what is counted up."""
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


def built_for(model: Any) -> int | None:
    """The longest sequence that the configuration names; None where it names none."""
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return int(limit) if limit is not None and limit > 0 else None


def longest_sequence(model: Any) -> int | None:
    """Tokens that the tables of positions hold; None where nothing is looked up by position."""
    limits = list(_rows_left(model))
    size = built_for(model)
    if size is not None and any(size in buffer.shape for buffer in model.buffers()):
        limits.append(size)  # sines, or a causal mask, for as many positions and no more
    return min(limits, default=None)


def _rows_left(model: Any) -> Iterator[int]:
    """Of each table that is looked up by position, the rows from its first position on.

    The model is given one token several times: a table that is asked for ascending ids is asked for positions.

    Yields:
        A number of rows.
    """
    with _Lookups(model) as lookups:
        _run(model)
    for num_rows, ids in lookups.seen:
        if len(ids) == _PROBE and ids == list(range(ids[0], ids[0] + _PROBE)):
            yield num_rows - ids[0]


class _Lookups(TorchFunctionMode):
    """Notes every tensor of a model that is looked up and the ids that it is asked for, whatever module does it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._own = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
        self.seen: list[tuple[int, list[int]]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is nn.functional.embedding:
            self._note(args[1], args[0])
        elif func is torch.Tensor.__getitem__:
            self._note(args[0], args[1])
        return func(*args, **(kwargs or {}))

    def _note(self, table: torch.Tensor, ids: Any) -> None:
        if id(table) in self._own and isinstance(ids, torch.Tensor) and ids.numel() == _PROBE:
            self.seen.append((len(table), ids.flatten().tolist()))


def _run(model: Any) -> None:
    """One token several times, which is not the padding token: some models do not count that."""
    token = 1 if getattr(model.config.get_text_config(), "pad_token_id", None) == 0 else 0
    with torch.no_grad():
        call_on(model, torch.full((1, _PROBE), token, device=model.get_input_embeddings().weight.device))
