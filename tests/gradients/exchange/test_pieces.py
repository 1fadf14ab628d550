"""Pieces of a parameter hold all of it: matrices from every kind of factor, cut and put together again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import nn

from gradscope.gradients.exchange.pieces import bounds_of, cut_shape, piece_of
from gradscope.gradients.layers.factors import GradientFactor, HeadProduct, OuterProduct, Routed, Scatter, Summed
from gradscope.gradients.model.head.sliced import HeadTokens, PlainHead

LENGTHS = (3, 5)
FIELDS = ("log_total", "rest", "entropy", "weights", "entropy_weights")


def tokens(*size: int, seed: int = 0) -> tuple[torch.Tensor, ...]:
    draw = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(length, *size, generator=draw, dtype=torch.float64) for length in LENGTHS)


def numbers(most: int, seed: int = 0) -> tuple[torch.Tensor, ...]:
    draw = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(0, most, (length,), generator=draw) for length in LENGTHS)


CASES: dict[str, tuple[tuple[int, ...], list[GradientFactor]]] = {
    "more outputs": ((7, 4), [OuterProduct(left=tokens(7), right=tokens(4, seed=1))]),
    "more inputs": ((4, 7), [OuterProduct(left=tokens(4), right=tokens(7, seed=1))]),
    "table": ((9, 4), [Scatter(ids=numbers(9), grads=tokens(4))]),
    "tied": (
        (9, 4),
        [Scatter(ids=numbers(9), grads=tokens(4)), OuterProduct(left=tokens(9), right=tokens(4, seed=1))],
    ),
    "wide table": (
        (3, 8),
        [Scatter(ids=numbers(3), grads=tokens(8)), OuterProduct(left=tokens(3), right=tokens(8, seed=1))],
    ),
    "experts": ((3, 2, 4), [Routed(experts=numbers(3), left=tokens(2), right=tokens(4, seed=1))]),
    "bias": ((5,), [Summed(rows=torch.randn(2, 5, dtype=torch.float64))]),
    "router": ((2, 6), [Summed(rows=torch.randn(2, 2, 6, dtype=torch.float64))]),
}


def rows_of(shape: Sequence[int], factors: Sequence[GradientFactor]) -> torch.Tensor:
    """The gradient of both rows, [2, *shape]."""
    made = torch.zeros(2, shape[0], torch.Size(shape[1:]).numel(), dtype=torch.float64)
    for row in range(2):
        for factor in factors:
            factor.add_to(row, 0, made[row])
    return made.view(2, *shape)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("num_processes", [1, 2, 3, 10])
def test_pieces_put_together_are_the_whole(name: str, num_processes: int) -> None:
    shape, factors = CASES[name]
    cut, side = cut_shape(torch.Size(shape), factors)
    assert cut == torch.Size(shape)
    pieces = []
    for start, stop in bounds_of(cut[side], num_processes):
        size = (*cut[:side], stop - start, *cut[side + 1 :])
        pieces.append(rows_of(size, [piece_of(factor, side, start, stop) for factor in factors]) if all(size) else None)
    whole = torch.cat([piece for piece in pieces if piece is not None], dim=side + 1)
    torch.testing.assert_close(
        whole, rows_of(shape, factors), rtol=1e-12, atol=1e-12
    )  # blocks of a product round apart


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("edges", [(0, 9), (0, 5, 9), (0, 4, 4, 9)])
def test_ids_of_an_output_layer_put_together_are_the_whole(edges: tuple[int, ...], bias: bool) -> None:
    whole = PlainHead(module=nn.Linear(16, 9).double(), scale=0.5, cap=3.0, temperature=0.7)
    beside = dict(zip(FIELDS, torch.rand(len(FIELDS), sum(LENGTHS), dtype=torch.float64), strict=True))
    states = HeadTokens(hidden=torch.cat(tokens(16)), ids=torch.cat(numbers(9)), **beside)
    factor = HeadProduct(head=whole, tokens=states.split(LENGTHS), is_bias=bias)
    shape = torch.Size((9,) if bias else (9, 16))
    assert cut_shape(shape, [factor]) == (shape, 0)
    pieces = []
    for start, stop in pairwise(edges):
        own = whole.with_rows(whole.module.weight.detach()[start:stop], whole.module.bias.detach()[start:stop])
        piece = piece_of(factor, 0, start, stop)
        assert isinstance(piece, HeadProduct)
        pieces.append(rows_of((stop - start, *shape[1:]), [replace(piece, head=own)]))
    torch.testing.assert_close(torch.cat(pieces, dim=1), rows_of(shape, [factor]), rtol=1e-12, atol=1e-12)


def test_a_table_held_the_other_way_round_is_cut_by_its_ids() -> None:
    factors = [Scatter(ids=numbers(9), grads=tokens(4))]
    assert cut_shape(torch.Size((4, 9)), factors) == (torch.Size((9, 4)), 0)


def test_the_longer_side_is_cut_so_that_the_shorter_one_goes_to_all() -> None:
    (factor,) = CASES["more inputs"][1]
    piece = piece_of(factor, 1, 2, 5)
    assert isinstance(piece, OuterProduct)
    assert [part.shape[1] for part in (*piece.left, *piece.right)] == [4, 4, 3, 3]


def test_what_is_no_known_factor_is_an_error() -> None:
    with pytest.raises(TypeError, match="str cannot be cut"):
        piece_of("factor", 0, 0, 1)  # type: ignore[arg-type]
