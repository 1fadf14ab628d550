"""What one call with a parameter adds to the gradient of each row, kept in factors until a slice of it is asked for.

A row's weight gradient is never stored whole: it is formed for a slice of the parameter's first dimension, added to a
buffer, and dropped. Tied weights need no rule of their own: their calls add to the same buffer.

Shapes: B rows, T tokens, I inputs, O outputs, V vocabulary, H width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from gradscope.gradients.model.head.sliced import HeadTokens, PlainHead
from gradscope.gradients.model.precision import exact_products


class GradientFactor(Protocol):
    """The gradient of one parameter through one call, row by row."""

    def add_to(self, row: int, start: int, out: torch.Tensor) -> None:
        """Add a slice of one row's gradient.

        Args:
            row: The row within its batch.
            start: First index of the slice along the parameter's first dimension.
            out: Where to add; its first dimension is the slice, the rest the parameter's other dimensions, flat.
        """

    def to(self, device: torch.device) -> GradientFactor:
        """The same factor on another device; itself where nothing moves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterProduct:
    """sum_t left_t right_t^T: a matrix that multiplies tokens (linear layers)."""

    left: tuple[torch.Tensor, ...]
    """The factor along the parameter's first dimension, per row, [B][T, O]."""
    right: tuple[torch.Tensor, ...]
    """The factor along its second dimension, per row, [B][T, I]."""

    @property
    def num_bytes(self) -> int:
        """What both take when they are kept."""
        return sum(part.numel() * part.itemsize for part in (*self.left, *self.right))

    def add_to(self, row: int, start: int, out: torch.Tensor) -> None:
        """Add rows ``start:start + len(out)`` of the outer product to ``out``, [slice, I]."""
        left, right = self.left[row][:, start : start + out.shape[0]], self.right[row]
        with exact_products(left.dtype, right.dtype):
            out.addmm_(left.to(out).t(), right.to(out))

    def to(self, device: torch.device) -> OuterProduct:
        """The same factors on another device."""
        return OuterProduct(
            left=tuple(part.to(device) for part in self.left), right=tuple(part.to(device) for part in self.right)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadProduct:
    """sum_t d_t a_t^T of an output layer, d_t formed anew for each slice of the vocabulary; for its bias a_t is 1."""

    head: PlainHead
    """The layer, which stays where it is."""
    tokens: tuple[HeadTokens, ...]
    """Its tokens per row, [B][T]."""
    is_bias: bool = False
    """Whether the parameter is the bias, [V], and not the weight, [V, H]."""

    def add_to(self, row: int, start: int, out: torch.Tensor) -> None:
        """Add the gradients of ids ``start:start + len(out)`` to ``out``, [slice, H] or [slice, 1]."""
        tokens = self.tokens[row]
        inputs = tokens.hidden.new_ones(len(tokens.ids), 1) if self.is_bias else tokens.hidden
        inputs = inputs.to(out)
        for first, last in self.head.slices(len(inputs), start, start + len(out)):
            out[first - start : last - start].addmm_(tokens.cotangents(self.head, first, last).t().to(out), inputs)

    def to(self, device: torch.device) -> HeadProduct:
        """The same tokens on another device."""
        return replace(self, tokens=tuple(tokens.to(device) for tokens in self.tokens))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scatter:
    """sum over tokens with an id of the output gradient: a table that is looked up (embeddings)."""

    ids: tuple[torch.Tensor, ...]
    """The ids looked up, per row, [B][T]."""
    grads: tuple[torch.Tensor, ...]
    """The gradient of what was looked up, zero for an id that gets none, per row, [B][T, H]."""

    def add_to(self, row: int, start: int, out: torch.Tensor) -> None:
        """Add the gradients of ids ``start:start + len(out)`` to ``out``, [slice, H]."""
        ids, grads = self.ids[row].to(out.device) - start, self.grads[row].to(out)
        inside = (ids >= 0) & (ids < out.shape[0])
        if out.device.type == "cpu":
            out.index_add_(0, ids[inside], grads[inside])
        else:  # choosing would wait for how many they are
            out.index_add_(0, ids.clamp(0, out.shape[0] - 1), grads.masked_fill(~inside[:, None], 0.0))

    def to(self, device: torch.device) -> Scatter:
        """The same ids and gradients on another device."""
        return Scatter(
            ids=tuple(part.to(device) for part in self.ids), grads=tuple(part.to(device) for part in self.grads)
        )

    def renumbered(self, seen: torch.Tensor) -> Scatter:
        """The same with ids counted among the sorted ids that occur: a table's unused rows cost nothing."""
        return Scatter(ids=tuple(torch.searchsorted(seen, ids) for ids in self.ids), grads=self.grads)


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """sum over a row's (token, expert) pairs of left right^T, in the matrix of the expert: mixtures of experts."""

    experts: tuple[torch.Tensor, ...]
    """The expert of each pair, per row, [B][pairs]."""
    left: tuple[torch.Tensor, ...]
    """The factor along the expert's first dimension, per row, [B][pairs, O]."""
    right: tuple[torch.Tensor, ...]
    """The factor along its second dimension, per row, [B][pairs, I]."""

    def add_to(self, row: int, start: int, out: torch.Tensor) -> None:
        """Add the matrices of experts ``start:start + len(out)`` to ``out``, [slice, O * I]."""
        experts = self.experts[row].to(out.device)
        left, right = self.left[row].to(out), self.right[row].to(out)
        for expert in torch.unique(experts).tolist():
            if start <= expert < start + out.shape[0]:
                chosen = experts == expert
                out[expert - start].view(left.shape[1], right.shape[1]).addmm_(left[chosen].t(), right[chosen])

    def to(self, device: torch.device) -> Routed:
        """The same pairs on another device."""
        experts, left, right = (
            tuple(part.to(device) for part in parts) for parts in (self.experts, self.left, self.right)
        )
        return Routed(experts=experts, left=left, right=right)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summed:
    """A gradient small enough to be kept whole: biases, norm weights, routers."""

    rows: torch.Tensor
    """The gradient of each row, [B, O] or [B, O, I]."""

    def add_to(self, row: int, start: int, out: torch.Tensor) -> None:
        """Add elements ``start:start + len(out)`` to ``out``, [slice, 1] or [slice, I]."""
        out += self.rows[row, start : start + out.shape[0]].to(out).view_as(out)

    def to(self, device: torch.device) -> Summed:
        """The same on another device."""
        return Summed(rows=self.rows.to(device))


def compact(factors: Sequence[GradientFactor]) -> list[GradientFactor]:
    """What the calls of one batch add to a parameter, in as few bytes as it takes until other batches come.

    Of T tokens a product left right^T is T (I + O) numbers, and its matrix I O. So matrices are formed at once where
    they are less: of the adapters of any model as soon as a row has more tokens than their rank, of a whole weight for
    long rows of narrow layers.

    Returns:
        The factors, all products among them as one sum where its rows take fewer bytes.
    """
    products = [factor for factor in factors if isinstance(factor, OuterProduct)]
    if not products:
        return list(factors)
    left, right = products[0].left, products[0].right
    dtype = torch.promote_types(torch.promote_types(left[0].dtype, right[0].dtype), torch.float32)
    shape = (len(left), left[0].shape[1], right[0].shape[1])
    if torch.Size(shape).numel() * dtype.itemsize >= sum(product.num_bytes for product in products):
        return list(factors)
    rows = torch.zeros(shape, dtype=dtype, device=left[0].device)
    for row, out in enumerate(rows):
        for product in products:
            product.add_to(row, 0, out)
    return [*(factor for factor in factors if not isinstance(factor, OuterProduct)), Summed(rows=rows)]


Part = tuple[tuple[int, ...], list[GradientFactor]]
"""The indices of some rows among the step's, and what each call with a parameter adds to them."""
