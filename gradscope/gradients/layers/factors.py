"""The contribution of one call with a parameter to the gradient of each row, as factors until a slice is needed.

A row's weight gradient is never stored in full: it is formed for a slice of the parameter's first dimension, added to a
buffer, and dropped. Tied weights need no rule of their own: their calls add to the same buffer.

Shapes: B rows, T tokens, I inputs, O outputs, V vocabulary, H width, S padded length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, cast

import torch
from msgspec import Struct
from msgspec.structs import asdict, replace
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from gradscope.gradients.model.calls import exact_products
from gradscope.gradients.model.head import HeadTokens, PlainHead


class GradientFactor(Protocol):
    """The gradient of one parameter through one call, row by row."""

    def add_to(self, row: int, start: int, target: torch.Tensor) -> None:
        """Add a slice of one row's gradient, along the parameter's first dimension, to ``target`` [slice, the rest]."""


Part = tuple[tuple[int, ...], list[GradientFactor]]
"""Indices of rows among the step's, and the contribution of each call with a parameter to them."""


class OuterProduct(Struct, frozen=True, kw_only=True):
    """sum_t left_t right_t^T: a matrix that multiplies tokens (linear layers)."""

    left: tuple[torch.Tensor, ...]  # the factor along the parameter's first dimension, per row, [B][T, O]
    right: tuple[torch.Tensor, ...]  # the factor along its second dimension, per row, [B][T, I]

    @property
    def num_bytes(self) -> int:
        """Bytes that both factors take when stored."""
        return sum(part.numel() * part.itemsize for part in (*self.left, *self.right))

    def add_to(self, row: int, start: int, target: torch.Tensor) -> None:
        """Add rows ``start:start + len(target)`` of the outer product to ``target``, [slice, I]."""
        left, right = self.left[row][:, start : start + target.shape[0]], self.right[row]
        with exact_products(left.dtype, right.dtype):
            target.addmm_(left.to(target).t(), right.to(target))

    @property
    def padded_bytes(self) -> int:
        """Bytes that both take with all rows as long as the longest; inputs that all rows share stay as they are."""
        sides = (self.left,) if self._shared_right is not None else (self.left, self.right)
        return sum(len(side) * max(map(len, side)) * side[0].shape[1] * side[0].itemsize for side in sides)

    @property
    def _shared_right(self) -> torch.Tensor | None:
        """The longest right factor where the others are its beginnings, as those of one sequence's tokens are."""
        longest = max(self.right, key=len)
        is_shared = all(x.data_ptr() == longest.data_ptr() and x.stride() == longest.stride() for x in self.right)
        return longest if is_shared else None

    def padded(self, order: Sequence[int]) -> PaddedProduct:
        """The products of all rows in some order."""
        left = pad_sequence([self.left[row] for row in order], batch_first=True)
        if (shared := self._shared_right) is not None:
            return PaddedProduct(left=left, right=shared.expand(len(order), *shared.shape))
        return PaddedProduct(left=left, right=pad_sequence([self.right[row] for row in order], batch_first=True))


class PaddedProduct(Struct, frozen=True, kw_only=True):
    """The same for all rows at once, [B, T, O] and [B, T, I], shorter rows filled with zeros."""

    left: torch.Tensor
    right: torch.Tensor

    def write_all(self, start: int, target: torch.Tensor) -> None:
        """Write rows ``start:start + target.shape[1]`` of the outer products to ``target``, [B, slice, I]."""
        left = self.left[:, :, start : start + target.shape[1]]
        with exact_products(left.dtype, self.right.dtype):
            torch.bmm(left.to(target).transpose(1, 2), self.right.to(target), out=target)


class HeadProduct(Struct, frozen=True, kw_only=True):
    """sum_t d_t a_t^T of an output layer, d_t formed anew for each slice of the vocabulary; for its bias a_t is 1."""

    head: PlainHead  # the layer, which stays where it is
    tokens: tuple[HeadTokens, ...]  # its tokens per row, [B][T]
    is_bias: bool = False  # whether the parameter is the bias, [V], and not the weight, [V, H]

    def add_to(self, row: int, start: int, target: torch.Tensor) -> None:
        """Add the gradients of ids ``start:start + len(target)`` to ``target``, [slice, H] or [slice, 1]."""
        tokens = self.tokens[row]
        inputs = tokens.hidden.new_ones(len(tokens.ids), 1) if self.is_bias else tokens.hidden
        inputs = inputs.to(target)
        for first, last in self.head.slices(len(inputs), start, start + len(target)):
            cotangents = tokens.cotangents(self.head, first, last)
            target[first - start : last - start].addmm_(cotangents.t().to(target), inputs)


class Scatter(Struct, frozen=True, kw_only=True):
    """sum over tokens with an id of the output gradient: a table that is looked up (embeddings)."""

    ids: tuple[torch.Tensor, ...]  # the ids looked up, per row, [B][T]
    grads: tuple[torch.Tensor, ...]
    """The gradient of what was looked up, zero for an id that gets none, per row, [B][T, H]."""

    def add_to(self, row: int, start: int, target: torch.Tensor) -> None:
        """Add the gradients of ids ``start:start + len(target)`` to ``target``, [slice, H]."""
        ids, grads = self.ids[row].to(target.device) - start, self.grads[row].to(target)
        is_inside = (ids >= 0) & (ids < target.shape[0])
        if target.device.type == "cpu":
            target.index_add_(0, ids[is_inside], grads[is_inside])
        else:  # choosing would wait for how many they are
            target.index_add_(0, ids.clamp(0, target.shape[0] - 1), grads.masked_fill(~is_inside[:, None], 0.0))

    def renumbered(self, seen: torch.Tensor) -> Scatter:
        """The same with ids counted among the sorted ids that occur: a table's unused rows cost nothing."""
        return Scatter(ids=tuple(torch.searchsorted(seen, ids) for ids in self.ids), grads=self.grads)


class Routed(Struct, frozen=True, kw_only=True):
    """sum over a row's (token, expert) pairs of left right^T, in the matrix of the expert: mixtures of experts."""

    experts: tuple[torch.Tensor, ...]  # the expert of each pair, per row, [B][pairs]
    left: tuple[torch.Tensor, ...]  # the factor along the expert's first dimension, per row, [B][pairs, O]
    right: tuple[torch.Tensor, ...]  # the factor along its second dimension, per row, [B][pairs, I]

    def add_to(self, row: int, start: int, target: torch.Tensor) -> None:
        """Add the matrices of experts ``start:start + len(target)`` to ``target``, [slice, O * I]."""
        experts = self.experts[row].to(target.device)
        left, right = self.left[row].to(target), self.right[row].to(target)
        for expert in torch.unique(experts[(experts >= start) & (experts < start + target.shape[0])]).tolist():
            chosen = experts == expert
            target[expert - start].view(left.shape[1], right.shape[1]).addmm_(left[chosen].t(), right[chosen])


class Summed(Struct, frozen=True, kw_only=True):
    """A gradient small enough to be stored in full: biases, norm weights, routers."""

    rows: torch.Tensor  # the gradient of each row, [B, O] or [B, O, I]

    def add_to(self, row: int, start: int, target: torch.Tensor) -> None:
        """Add elements ``start:start + len(target)`` to ``target``, [slice, 1] or [slice, I]."""
        target += self.rows[row, start : start + target.shape[0]].to(target).view_as(target)


def looked_up_ids(factors: Iterable[GradientFactor]) -> torch.Tensor:
    """The sorted ids that occur among factors, of which one or more look up a table."""
    ids = torch.cat([ids for factor in factors if isinstance(factor, Scatter) for ids in factor.ids])
    seen: torch.Tensor = torch.unique(ids)
    return seen


def renumbered(parts: Sequence[Part], seen: torch.Tensor) -> list[Part]:
    """What looks up a table, with ids counted among those that occur; other factors are left out."""
    return [(rows, [f.renumbered(seen) for f in factors if isinstance(f, Scatter)]) for rows, factors in parts]


def changed(value: Any, change: Callable[[Any], Any]) -> Any:
    """A factor with everything that it holds changed, in records and tuples too; an output layer stays as it is."""
    if isinstance(value, tuple):
        return tuple(changed(part, change) for part in value)
    if isinstance(value, (OuterProduct, HeadProduct, Scatter, Routed, Summed, HeadTokens)):
        return replace(value, **{name: changed(part, change) for name, part in asdict(value).items()})
    return change(value)


def moved(factor: GradientFactor, device: torch.device) -> GradientFactor:
    """The same factor on another device; an output layer stays where it is."""
    return cast(GradientFactor, changed(factor, lambda x: x.to(device) if isinstance(x, torch.Tensor) else x))


def compact(factors: Sequence[GradientFactor]) -> list[GradientFactor]:
    """The contributions of the calls of one batch to a parameter, in as few bytes as possible until other batches come.

    Of T tokens a product left right^T is T (I + O) numbers, and its matrix I O. So matrices are formed at once where
    they are less: of the adapters of any model as soon as a row has more tokens than their rank, of a full weight for
    long rows of narrow layers.
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
    for row, matrix in enumerate(rows):
        for product in products:
            product.add_to(row, 0, matrix)
    return [*(factor for factor in factors if not isinstance(factor, OuterProduct)), Summed(rows=rows)]


# One call of a module, as a layer rule sees it, and the interface of a rule.
#
# A :class:`Rule` says which modules it is for, whether it is exact for one :class:`ForwardCall` of such a module, and
# the contribution of a :class:`LayerCall`, the call with its output gradient, to each of the module's parameters.
Spans = Sequence[tuple[int, int]]
Verdict = bool | torch.Tensor  # whether a rule fits: known at once, or a number on the device that is not waited for


class ForwardCall(Struct, frozen=True, kw_only=True):
    """One call of a module during a forward pass, its gradient still to come."""

    module: nn.Module
    input: torch.Tensor  # its first argument, [B, ...]; of experts and routers tokens alone, [B S, ...]
    output: torch.Tensor  # its return value, likewise
    extra: tuple[torch.Tensor, ...] = ()  # its other tensor arguments
    num_rows: int  # B
    length: int  # S


class LayerCall(Struct, frozen=True, kw_only=True):
    """One call of a module during one forward pass."""

    module: nn.Module
    input: torch.Tensor  # its first argument, [B, ...]; one row expanded to B where all share it
    grad: torch.Tensor  # the gradient of its output, [B, ...]
    extra: tuple[torch.Tensor, ...] = ()  # its other tensor arguments: an expert layer's routes
    spans: Spans  # first and last-plus-one position of each row's tokens, [B]
    length: int  # the padded length, S

    def tokens(self, tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """A tensor's real tokens, row by row, [B, at most S, ...] to [B][T, ...].

        A head that was only given the last positions has a shorter token axis, aligned at its end.
        """
        missing = self.length - tensor.shape[1]
        return tuple(tensor[i, max(start - missing, 0) : stop - missing] for i, (start, stop) in enumerate(self.spans))

    def summed(self, grad: torch.Tensor) -> Summed:
        """A gradient [B, ..., O] summed over every axis but the first and last; padding has no gradient."""
        wide = grad.to(torch.promote_types(grad.dtype, torch.float32))
        return Summed(rows=wide.flatten(1, -2).sum(1))

    def lookup(self, grads: torch.Tensor, padding: int | None) -> Scatter:
        """The gradients of what the input's ids looked up, row by row; ``padding`` is the id that gets none."""
        ids, rows = self.tokens(self.input), self.tokens(grads)
        if padding is not None:
            # PyTorch gives this id no gradient, also where it was sampled and not padded.
            # It stays with a gradient of zero: to leave it out is to wait for how often it occurs.
            masks = ((row == padding)[:, None] for row in ids)
            rows = tuple(row.masked_fill(mask, 0.0) for row, mask in zip(rows, masks, strict=True))
        return Scatter(ids=ids, grads=rows)


class Rule(Struct, frozen=True, kw_only=True):
    """How the rows' gradients of one kind of layer come about."""

    matches: Callable[[nn.Module], bool]  # whether a module is of this kind
    fits: Callable[[ForwardCall], Verdict]
    """Whether the rule is exact for one call of such a module; it may call the module again."""
    factors: Callable[[LayerCall], Mapping[str, GradientFactor]]
    """The contribution of one call to each of the module's own parameters, by their local names."""


def begin_graph(output: torch.Tensor, returned: Any) -> torch.Tensor | None:
    """Let the graph start at an output that nothing trainable led to, as nothing does while weight gradients are off.

    Returns the output's replacement: a copy, which the model may change in place as it may not the start
    of a graph. None where the output stays: it has a graph already, or is one of several.
    """
    if output.requires_grad:
        return None
    output.requires_grad_(True)
    return output.clone() if output is returned else None


def once(inputs: torch.Tensor, compute: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """A function applied to each row, [B, ...]; for one row that was expanded to many it is computed once."""
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
