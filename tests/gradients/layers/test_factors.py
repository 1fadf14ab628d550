"""What one call adds to each row, slice by slice."""

from __future__ import annotations

import torch

from gradscope.gradients.layers.factors import OuterProduct, Routed, Scatter, Summed


def test_factors_move_together():
    for part in (
        OuterProduct(left=(torch.ones(2, 3),), right=(torch.ones(2, 2),)),
        Scatter(ids=(torch.tensor([1, 2]),), grads=(torch.ones(2, 2),)),
        Summed(rows=torch.ones(1, 3)),
    ):
        out, moved = (
            torch.zeros(3, 1 if isinstance(part, Summed) else 2),
            torch.zeros(3, 1 if isinstance(part, Summed) else 2),
        )
        part.add_to(0, 0, out)
        part.to(torch.device("cpu")).add_to(0, 0, moved)
        assert out.any()
        assert torch.equal(out, moved)


def test_a_slice_holds_its_part_of_each_kind_of_factor():
    eye = torch.eye(2)
    outer = OuterProduct(left=(torch.tensor([[1.0, 2.0, 3.0], [0.0, 1.0, 0.0]]),), right=(eye,))
    out = torch.zeros(2, 2)
    outer.add_to(0, 1, out)  # rows 1 and 2 of [[1, 0], [2, 1], [3, 0]]
    assert out.tolist() == [[2.0, 1.0], [3.0, 0.0]]
    table = Scatter(ids=(torch.tensor([4, 2, 4]),), grads=(torch.tensor([[1.0], [5.0], [2.0]]),))
    out = torch.zeros(2, 1)
    table.add_to(0, 3, out)  # ids 3 and 4
    assert out.tolist() == [[0.0], [3.0]]
    assert table.renumbered(torch.tensor([2, 4])).ids[0].tolist() == [1, 0, 1]
    routed = Routed(
        experts=(torch.tensor([1, 0, 1]),),
        left=(torch.tensor([[1.0], [9.0], [2.0]]),),
        right=(torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]),),
    )
    out = torch.zeros(1, 2)
    routed.add_to(0, 1, out)  # expert 1 alone
    assert out.tolist() == [[1.0, 2.0]]
    assert routed.to(torch.device("cpu")).experts[0].tolist() == [1, 0, 1]
    out = torch.ones(1, 1)
    Summed(rows=torch.tensor([[7.0, 8.0]])).add_to(0, 1, out)
    assert out.tolist() == [[9.0]]
