"""The output layer as TRL's fused head computes it: logits rounded to half precision, the products behind them not.

Shapes: N tokens, H width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from gradscope.gradients.processes.sharding import original_type


@contextmanager
def fused_head(model: Any, *, in_float32: bool = False) -> Iterator[None]:
    """Let a model's output layer compute as TRL's head does; one that is not a plain linear layer stays as it is.

    Args:
        in_float32: Whether its logits are not rounded either (``cast_lm_head_to_fp32``).

    Yields:
        Nothing.
    """
    head = model.get_output_embeddings()
    if original_type(head) is not nn.Linear:
        yield
        return
    least = torch.float32 if in_float32 else None
    vars(head)["forward"] = lambda hidden: _FusedHead.apply(hidden, head.weight, head.bias, least)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        del vars(head)["forward"]


class _FusedHead(torch.autograd.Function):
    """hidden W' + b in the dtype of products or a given one, returned in float32; gradients are float32 products."""

    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, given: torch.dtype | None
    ) -> torch.Tensor:
        kind = hidden.device.type
        dtype = given or (torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype)
        with torch.autocast(kind, enabled=False):
            ctx.save_for_backward(hidden, weight)
            ctx.dtype, ctx.bias_dtype = dtype, None if bias is None else bias.dtype
            logits = hidden.to(dtype) @ weight.to(dtype).t()
            return (logits if bias is None else logits + bias.to(dtype)).float()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden, weight = ctx.saved_tensors
        # the cotangent of a logit is rounded like the logit; its products are not
        rounded = grad.to(ctx.dtype).float()
        to_hidden = (rounded @ weight.to(ctx.dtype).float()).to(hidden.dtype) if ctx.needs_input_grad[0] else None
        to_weight = to_bias = None
        if ctx.needs_input_grad[1]:
            flat, inputs = rounded.flatten(0, -2), hidden.to(ctx.dtype).float().flatten(0, -2)
            to_weight = (flat.t() @ inputs).to(weight.dtype)
        if ctx.bias_dtype is not None and ctx.needs_input_grad[2]:
            to_bias = rounded.flatten(0, -2).sum(0).to(ctx.bias_dtype)
        return to_hidden, to_weight, to_bias, None
