"""What one call adds to each row, slice by slice."""

from __future__ import annotations

import torch
from torch import nn

from gradscope.gradients.layers.factors import HeadProduct, OuterProduct, Routed, Scatter, Summed
from gradscope.gradients.model.head import sliced
from gradscope.gradients.model.head.sliced import HeadTokens, PlainHead


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


def test_an_output_layer_forms_the_gradient_of_its_output_slice_by_slice(monkeypatch):
    torch.manual_seed(0)
    module = nn.Linear(4, 11).double()
    hidden, ids = torch.randn(3, 4, dtype=torch.float64), torch.tensor([10, 0, 6])
    logs = torch.log_softmax(module(hidden), dim=1)
    weights = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    expected = torch.autograd.grad(weights @ logs[range(3), ids], list(module.parameters()))
    own = logs.detach()[range(3), ids]
    tokens = HeadTokens(
        hidden=hidden,
        ids=ids,
        log_total=module(hidden).detach().logsumexp(1),
        rest=-own.expm1(),
        entropy=torch.zeros_like(own),
        weights=weights,
    )
    monkeypatch.setattr(sliced, "SLICE_BYTES", 4 * 3 * 2)  # two columns at a time
    head = PlainHead(module=module, scale=1.0, cap=None)
    for is_bias, grad in zip((False, True), expected, strict=True):
        factor = HeadProduct(head=head, tokens=(tokens, tokens), is_bias=is_bias).to(torch.device("cpu"))
        out = torch.zeros(7, grad.numel() // 11, dtype=torch.float64)
        factor.add_to(1, 3, out)
        torch.testing.assert_close(out, grad.view(11, -1)[3:10])
