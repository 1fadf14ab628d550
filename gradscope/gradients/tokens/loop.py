"""Token rows by one ordinary backward pass each: exact for any architecture and kernel, slow.

It serves the parameters that no layer rule covers, and checks a few rows of every Gram matrix of tokens.

Shapes: N token rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from gradscope.gradients.model.backward import gradients_on
from gradscope.gradients.model.batches import pad_batch
from gradscope.gradients.model.forward import completion_logprobs
from gradscope.gradients.tokens.rows import Chunk


def token_loop_rows(
    model: Any,
    trainable: Mapping[str, nn.Parameter],
    chunks: Sequence[Chunk],
    temperature: float,
    add: Callable[[torch.Tensor], None],
) -> None:
    """Every row, handed out parameter by parameter.

    Args:
        trainable: Name -> parameter; only these are computed.
        add: Called with each parameter's gradients over all rows, [N, elements].
    """
    num_rows, parameters = sum(len(chunk.rows) for chunk in chunks), list(trainable.values())
    kept = [
        torch.zeros(num_rows, p.numel(), dtype=torch.promote_types(p.dtype, torch.float32), device=p.device)
        for p in parameters
    ]
    with gradients_on(trainable, on=True):
        for chunk in chunks:
            batch = pad_batch([0], [chunk.prefix], parameters[0].device)
            (logprobs,) = completion_logprobs(model, batch, temperature, torch.float64)
            for row, position in zip(chunk.rows, chunk.positions, strict=True):
                last = row == chunk.rows[-1]
                grads = torch.autograd.grad(logprobs[position], parameters, retain_graph=not last, allow_unused=True)
                for rows, grad in zip(kept, grads, strict=True):
                    if grad is not None:
                        rows[row] = grad.detach().flatten()
    while kept:
        add(kept.pop(0))
