"""One call of a module, as a layer rule sees it, and what a rule is.

A :class:`Rule` says which modules it is for, whether it is exact for one :class:`ForwardCall` of such a module, and
what a :class:`LayerCall`, the same call once its output gradient has come, adds to each of the module's parameters.

Shapes: B rows, S padded length, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gradscope.gradients.layers.factors import GradientFactor, Scatter, Summed

Spans = Sequence[tuple[int, int]]
Verdict = bool | torch.Tensor
"""Whether a rule fits: known at once, or a number on the device that is not waited for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardCall:
    """One call of a module during a forward pass, its gradient still to come."""

    module: nn.Module
    """The module."""
    input: torch.Tensor
    """What it was given, [B, ...]; of experts and routers tokens alone, [B S, ...]."""
    output: torch.Tensor
    """What it returned, likewise."""
    extra: tuple[torch.Tensor, ...] = ()
    """What it was given beside its input."""
    num_rows: int
    """B."""
    length: int
    """S."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCall:
    """One call of a module during one forward pass."""

    module: nn.Module
    """The module."""
    input: torch.Tensor
    """What it was given, [B, ...]; one row expanded to B where all share it."""
    grad: torch.Tensor
    """The gradient of what it returned, [B, ...]."""
    extra: tuple[torch.Tensor, ...] = ()
    """What it was given beside its input: an expert layer's routes."""
    spans: Spans
    """First and last-plus-one position of each row's tokens, [B]."""
    length: int
    """The padded length, S."""

    def tokens(self, tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """A tensor's real tokens, row by row.

        A head that was only given the last positions has a shorter token axis, aligned at its end.

        Args:
            tensor: [B, at most S, ...].

        Returns:
            Per row, [B][T, ...].
        """
        missing = self.length - tensor.shape[1]
        return tuple(
            tensor[row, max(start - missing, 0) : stop - missing] for row, (start, stop) in enumerate(self.spans)
        )

    def summed(self, grad: torch.Tensor) -> Summed:
        """A gradient [B, ..., O] summed over every axis but the first and last; padding has no gradient."""
        wide = grad.to(torch.promote_types(grad.dtype, torch.float32))
        return Summed(rows=wide.flatten(1, -2).sum(1))

    def lookup(self, grads: torch.Tensor, padding: int | None) -> Scatter:
        """The gradients of what the input's ids looked up.

        Args:
            padding: The id that gets no gradient; None without one.

        Returns:
            Ids and gradients, row by row.
        """
        ids, rows = self.tokens(self.input), self.tokens(grads)
        if padding is not None:
            # PyTorch gives this id no gradient, also where it was sampled and not padded.
            # It stays with a gradient of zero: to leave it out is to wait for how often it occurs.
            rows = tuple(row.masked_fill((of == padding)[:, None], 0.0) for of, row in zip(ids, rows, strict=True))
        return Scatter(ids=ids, grads=rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How the rows' gradients of one kind of layer come about."""

    matches: Callable[[nn.Module], bool]
    """Whether a module is of this kind."""
    fits: Callable[[ForwardCall], Verdict]
    """Whether the rule is exact for one call of such a module; it may call the module again."""
    factors: Callable[[LayerCall], Mapping[str, GradientFactor]]
    """What one call adds to each of the module's own parameters, by their local names."""


def begin_graph(output: torch.Tensor, returned: Any) -> torch.Tensor | None:
    """Let the graph start at an output that nothing trainable led to, as nothing does while weight gradients are off.

    Args:
        returned: All that the module returned; the output itself, or what holds it.

    Returns:
        What the module hands on in its place: a copy, which the model may change in place as it may not the start of a
        graph. None where the output stays: it has a graph already, or is one of several.
    """
    if output.requires_grad:
        return None
    output.requires_grad_(True)
    return output.clone() if output is returned else None


def once(inputs: torch.Tensor, compute: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """What a function makes of each row, [B, ...]; of one row that was expanded to many it is computed once."""
    if len(inputs) > 1 and inputs.stride(0) == 0:
        result = compute(inputs[:1])
        return result.expand(len(inputs), *result.shape[1:])
    return compute(inputs)


def is_close(rebuilt: torch.Tensor, expected: torch.Tensor) -> Verdict:
    """Whether a layer's output was computed again, to the rounding of its dtype; numbers are not waited for."""
    if rebuilt.shape != expected.shape:
        return False
    tolerance = 64 * torch.finfo(expected.dtype).eps * expected.abs().max().clamp(min=1e-30)
    return (rebuilt - expected).abs().max() <= tolerance
