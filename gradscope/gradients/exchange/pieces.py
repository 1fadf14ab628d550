"""What a part of a parameter gets from each row: factors cut along the parameter's longer side.

Of a product left right^T the cut side goes in pieces to the processes, and the other side, the shorter one, goes to all
of them. Looked-up and routed tokens go only to the process whose rows or experts they are about. An output layer in
slices is cut along the vocabulary: its tokens go to all, and each process forms the output gradients of its own ids.

Shapes: B rows, T tokens, I inputs, O outputs, P processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import torch

from gradscope.gradients.layers.factors import GradientFactor, HeadProduct, OuterProduct, Routed, Scatter, Summed


def cut_shape(shape: torch.Size, factors: Sequence[GradientFactor]) -> tuple[torch.Size, int]:
    """The shape that factors are about, and the side along which it is cut.

    Args:
        shape: The parameter's shape.
        factors: All that one process has of the parameter.

    Returns:
        A shape, and 0 or 1. A table that is only looked up is a row an id, whichever way the parameter holds it.
    """
    if factors and all(isinstance(factor, Scatter) for factor in factors):
        width = next(factor.grads[0].shape[1] for factor in factors if isinstance(factor, Scatter))
        return torch.Size((shape.numel() // width, width)), 0
    if any(isinstance(factor, HeadProduct) for factor in factors):
        return shape, 0
    return shape, int(len(shape) == 2 and shape[1] > shape[0])


def bounds_of(size: int, num_processes: int) -> list[tuple[int, int]]:
    """First and last-plus-one index of each process's piece of a side.

    Returns:
        Pieces that follow each other; empty ones where there are more processes than indices.

    Example:
        >>> bounds_of(5, 2)
        [(0, 2), (2, 5)]
    """
    edges = [size * index // num_processes for index in range(num_processes + 1)]
    return list(pairwise(edges))


def piece_of(factor: GradientFactor, side: int, start: int, stop: int) -> GradientFactor:
    """What a factor adds to a piece of its parameter.

    Args:
        side: Along which side of the parameter the piece was cut; routed experts are cut along the first.
        start: Its first index there.
        stop: Its last index plus one.

    Returns:
        A factor to the piece, whose indices begin at 0.

    Raises:
        TypeError: There is no such factor.
    """
    if isinstance(factor, OuterProduct):
        left, right = factor.left, factor.right
        if side == 0:
            return OuterProduct(left=tuple(part[:, start:stop] for part in left), right=right)
        return OuterProduct(left=left, right=tuple(part[:, start:stop] for part in right))
    if isinstance(factor, HeadProduct):
        return replace(factor, tokens=tuple(replace(each, ids=each.ids - start) for each in factor.tokens))
    if isinstance(factor, Scatter) and side == 1:
        return Scatter(ids=factor.ids, grads=tuple(part[:, start:stop] for part in factor.grads))
    if isinstance(factor, Scatter):
        inside = [(ids >= start) & (ids < stop) for ids in factor.ids]
        return Scatter(ids=_chosen(factor.ids, inside, -start), grads=_chosen(factor.grads, inside))
    if isinstance(factor, Routed):
        inside = [(experts >= start) & (experts < stop) for experts in factor.experts]
        return Routed(
            experts=_chosen(factor.experts, inside, -start),
            left=_chosen(factor.left, inside),
            right=_chosen(factor.right, inside),
        )
    if isinstance(factor, Summed):
        return Summed(rows=factor.rows[:, start:stop] if side == 0 else factor.rows[:, :, start:stop])
    raise TypeError(f"{type(factor).__name__} cannot be cut")


def _chosen(parts: Sequence[torch.Tensor], masks: Sequence[torch.Tensor], shift: int = 0) -> tuple[torch.Tensor, ...]:
    """Row by row the tokens that a mask lets through."""
    return tuple(part[mask] + shift if shift else part[mask] for part, mask in zip(parts, masks, strict=True))
