"""The load-balancing term of a mixture of experts, taken from the forward pass that it belongs to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def router_losses(model: Any, found: list[torch.Tensor]) -> Iterator[None]:
    """Let each forward pass inside return its load-balancing term, with its graph and without a coefficient.

    Args:
        found: Gets the terms, one a pass, as they come.

    Yields:
        Nothing.
    """

    def ask(_: Any, arguments: Any, keywords: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return arguments, keywords | {"output_router_logits": True}

    def take(_: Any, arguments: Any, output: Any) -> None:
        found.append(output.aux_loss)

    handles = [model.register_forward_pre_hook(ask, with_kwargs=True), model.register_forward_hook(take)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
