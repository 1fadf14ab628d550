"""Fewer columns for the same inner products: what token rows share is taken out before any row is formed.

Two things are special about token rows. All rows of a sequence have the same input to a layer; only output gradients
are a row's own. Inner products of sum_p d_p a_p' see no more of the inputs than the space that they span, so in an
orthonormal basis of it a row's matrix has as many columns as there are positions, where that is less than the layer's
inputs. And above the decoder layers a row is one position, so its matrix has rank one: (d_t . d_s)(h_t . h_s) is the
inner product, and the head's O x I matrix need not exist.

Shapes: N token rows, S positions, O outputs, I inputs, K positions of all sequences.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gradscope.gradients.engines.accumulator import GramAccumulator
from gradscope.gradients.layers.factors import OuterProduct, Part, Scatter


def add_token_parameter(
    accumulator: GramAccumulator, shape: torch.Size, dtype: torch.dtype, parts: Sequence[Part]
) -> None:
    """Add one parameter's gradients of token rows, by chunk, in the fewest columns that keep products."""
    alone = [(rows, factor) for rows, factors in parts for factor in factors if isinstance(factor, OuterProduct)]
    others = [(rows, [factor for factor in factors if not isinstance(factor, OuterProduct)]) for rows, factors in parts]
    others = [(rows, factors) for rows, factors in others if factors]
    if (
        alone
        and _is_one_position_a_row(alone)
        and all(isinstance(factor, Scatter) for _, factors in others for factor in factors)
    ):
        _add_rank_one(accumulator, shape, dtype, alone, others)
    elif alone and not others and (narrower := _in_common_basis(alone)):
        accumulator.add_slices(narrower[0], dtype, narrower[1])
    else:
        accumulator.add_parameter(shape, dtype, parts)
        return
    accumulator.num_parameters += shape.numel()


Uses = list[tuple[tuple[int, ...], OuterProduct]]


def _is_one_position_a_row(alone: Uses) -> bool:
    """Whether each row is one outer product."""
    rows = [row for rows, _ in alone for row in rows]
    return len(rows) == len(set(rows)) and all(len(left) == 1 for _, factor in alone for left in factor.left)


def _add_rank_one(
    accumulator: GramAccumulator, shape: torch.Size, dtype: torch.dtype, alone: Uses, looked_up: Sequence[Part]
) -> None:
    """Matrices d h', and what a tied table adds to the ids that occur: of those, rows are formed."""
    left, right = (torch.zeros(accumulator.num_rows, size, dtype=dtype, device=accumulator.device) for size in shape)
    for rows, factor in alone:
        left[list(rows)], right[list(rows)] = torch.cat(factor.left).to(left), torch.cat(factor.right).to(right)
    scatters = [factor for _, factors in looked_up for factor in factors if isinstance(factor, Scatter)]
    if scatters:
        seen = torch.unique(torch.cat([ids for factor in scatters for ids in factor.ids]))
        of_seen = [
            (rows, [OuterProduct(left=tuple(part[:, seen] for part in factor.left), right=factor.right)])
            for rows, factor in alone
        ]
        renumbered = [
            (rows, [factor.renumbered(seen) for factor in factors if isinstance(factor, Scatter)])
            for rows, factors in looked_up
        ]
        accumulator.add_slices((len(seen), shape[1]), dtype, [*of_seen, *renumbered])
        left[:, seen] = 0
    accumulator.add_products(accumulator.products(left) * accumulator.products(right))


def _in_common_basis(alone: Uses) -> tuple[tuple[int, int], list[Part]] | None:
    """Matrices [O, K] with the same inner products; None where that is not less."""
    # a transposed layer (GPT-2's Conv1D) shares its left factor
    for turned in (alone, [(rows, OuterProduct(left=factor.right, right=factor.left)) for rows, factor in alone]):
        shared: dict[tuple[int, ...], torch.Tensor] = {}
        for right in (right for _, factor in turned for right in factor.right):
            if len(right) > len(shared.get(_place(right), ())):
                shared[_place(right)] = right
        num_columns = sum(len(part) for part in shared.values())
        if num_columns < next(iter(shared.values())).shape[1]:
            turn = _coordinates(shared)
            parts: list[Part] = [
                (rows, [OuterProduct(left=factor.left, right=tuple(turn[_place(r)][: len(r)] for r in factor.right))])
                for rows, factor in turned
            ]
            return (turned[0][1].left[0].shape[1], num_columns), parts
    return None


def _place(tensor: torch.Tensor) -> tuple[int, ...]:
    """Where a factor starts in memory: rows of one sequence have prefixes of one tensor."""
    return (tensor.data_ptr(), *tensor.stride())


def _coordinates(shared: dict[tuple[int, ...], torch.Tensor]) -> dict[tuple[int, ...], torch.Tensor]:
    """Each input's coordinates in an orthonormal basis of all of them."""
    stacked = torch.cat(list(shared.values()))
    triangle = torch.linalg.qr(stacked.double().t(), mode="r").R
    wide = torch.promote_types(stacked.dtype, torch.float32)
    parts = triangle.t().to(wide).split([len(part) for part in shared.values()])
    return dict(zip(shared, parts, strict=True))
