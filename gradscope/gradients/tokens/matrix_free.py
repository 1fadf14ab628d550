"""Products with the matrix of all token rows of a group, without a single row: X' u and X x by two backward passes.

One forward pass gives log pi of all N tokens. X' u is one backward pass from them with weights u. It is linear in u, so
a graph of it, made once, sends x back to X x: reverse mode over reverse mode. Graphs are kept, so a product costs
neither a forward pass nor anything that grows with N times the parameters; memory is that of two graphs of the group.

Shapes: N token rows, P parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from gradscope.gradients.model.backward import gradients_on
from gradscope.gradients.model.batches import pad_batch, split_rows
from gradscope.gradients.model.forward import completion_logprobs
from gradscope.gradients.model.tokenize import TokenSequence
from gradscope.gradients.tokens.rows import TokenRow
from gradscope.metrics.gram.spectrum import Array


class TokenProducts:
    """K u = X X' u for the rows grad log pi of some tokens.

    Args:
        rows: The tokens, [N].
        batch_tokens: Most padded tokens of a forward pass.
    """

    def __init__(
        self,
        model: Any,
        trainable: Mapping[str, nn.Parameter],
        sequences: Sequence[TokenSequence],
        rows: Sequence[TokenRow],
        temperature: float,
        batch_tokens: int,
    ) -> None:
        wanted = sorted({row.sequence for row in rows})
        device = next(iter(trainable.values())).device
        with gradients_on(trainable, on=True), sdpa_kernel(SDPBackend.MATH):  # fused attention has one derivative only
            self._parts = [
                _Part(model, trainable, [wanted[index] for index in part], sequences, rows, temperature, device)
                for part in split_rows([sequences[sequence].length for sequence in wanted], batch_tokens)
            ]
        self._num_rows = len(rows)

    def __call__(self, vector: Array) -> Array:
        """X X' times a vector [N]."""
        total: list[torch.Tensor | None] = []
        for part in self._parts:
            grads = part.transposed(vector)
            total = [_sum(a, b) for a, b in zip(total or [None] * len(grads), grads, strict=True)]
        result = np.zeros(self._num_rows)
        for part in self._parts:
            result[part.rows] = part.forward(total)
        return result


class _Part:
    """The rows of one batch: log pi with its graph, and the graph of its gradient as a function of weights."""

    def __init__(
        self,
        model: Any,
        trainable: Mapping[str, nn.Parameter],
        members: Sequence[int],
        sequences: Sequence[TokenSequence],
        rows: Sequence[TokenRow],
        temperature: float,
        device: torch.device,
    ) -> None:
        batch = pad_batch(range(len(members)), [sequences[sequence] for sequence in members], device)
        logprobs = completion_logprobs(model, batch, temperature, torch.float64)
        of_member = dict(zip(members, logprobs, strict=True))
        self.rows = [index for index, row in enumerate(rows) if row.sequence in of_member]
        self._logprobs = torch.stack([of_member[rows[index].sequence][rows[index].position] for index in self.rows])
        self._parameters = list(trainable.values())
        self._weights = torch.zeros_like(self._logprobs, requires_grad=True)
        self._gradient = torch.autograd.grad(
            self._logprobs, self._parameters, self._weights, create_graph=True, allow_unused=True
        )

    def transposed(self, vector: Array) -> list[torch.Tensor | None]:
        """X' u by parameter; None where a parameter has no part in these rows."""
        weights = torch.as_tensor(vector[self.rows]).to(self._logprobs)
        grads = torch.autograd.grad(self._logprobs, self._parameters, weights, retain_graph=True, allow_unused=True)
        return list(grads)

    def forward(self, direction: Sequence[torch.Tensor | None]) -> Array:
        """X x, [rows of the batch]."""
        pairs = [
            (grad, part)
            for grad, part in zip(self._gradient, direction, strict=True)
            if grad is not None and part is not None
        ]
        (product,) = torch.autograd.grad(
            [grad for grad, _ in pairs], [self._weights], [part for _, part in pairs], retain_graph=True
        )
        return np.asarray(product.double().cpu().numpy())


def _sum(first: torch.Tensor | None, second: torch.Tensor | None) -> torch.Tensor | None:
    if first is None or second is None:
        return second if first is None else first
    return first + second
