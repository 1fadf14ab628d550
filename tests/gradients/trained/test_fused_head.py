from __future__ import annotations

import pytest
import torch
from torch import nn

from gradscope.gradients.trained.fused_head import fused_head
from tests.gradients.adapters import adapt
from tests.gradients.models import tiny_model


class Model(nn.Module):
    def __init__(self, *, bias: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(8, 11, bias=bias)

    def get_output_embeddings(self) -> nn.Module:
        return self.head


@pytest.mark.parametrize("bias", [False, True])
def test_in_float32_it_is_the_layer_itself(bias: bool) -> None:
    model, hidden = Model(bias=bias), torch.randn(2, 5, 8, requires_grad=True)
    expected = model.head(hidden)
    cotangent = torch.randn_like(expected)
    leaves = [hidden, *model.head.parameters()]
    gradients = torch.autograd.grad(expected, leaves, cotangent)
    with fused_head(model):
        found = model.head(hidden)
    for one, other in zip(torch.autograd.grad(found, leaves, cotangent), gradients, strict=True):
        torch.testing.assert_close(one, other)
    torch.testing.assert_close(found, expected)
    assert "forward" not in vars(model.head)


def test_in_autocast_logits_and_their_cotangents_are_rounded_and_their_products_are_not() -> None:
    model, hidden = Model(bias=True), torch.randn(2, 5, 8, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16), fused_head(model):
        logits = model.head(hidden)
    assert logits.dtype == torch.float32
    assert torch.equal(logits, logits.to(torch.bfloat16).float())
    cotangent = torch.randn_like(logits)
    to_hidden, to_weight, to_bias = torch.autograd.grad(logits, [hidden, *model.head.parameters()], cotangent)
    rounded = cotangent.to(torch.bfloat16).float().flatten(0, 1)
    inputs, weight = hidden.to(torch.bfloat16).float().flatten(0, 1), model.head.weight.to(torch.bfloat16).float()
    torch.testing.assert_close(to_weight, rounded.t() @ inputs)
    torch.testing.assert_close(to_hidden.flatten(0, 1), rounded @ weight)
    torch.testing.assert_close(to_bias, rounded.sum(0))
    assert not torch.equal(to_weight, to_weight.to(torch.bfloat16).float())


def test_where_the_trainer_kept_it_in_float32_nothing_is_rounded() -> None:
    model, hidden = Model(bias=True), torch.randn(2, 5, 8, requires_grad=True)
    expected = model.head(hidden)
    with torch.autocast("cpu", torch.bfloat16), fused_head(model, in_float32=True):
        logits = model.head(hidden)
    torch.testing.assert_close(logits, expected)
    cotangent, leaves = torch.randn_like(logits), [hidden, *model.head.parameters()]
    found = torch.autograd.grad(logits, leaves, cotangent)
    for one, other in zip(found, torch.autograd.grad(expected, leaves, cotangent), strict=True):
        torch.testing.assert_close(one, other)


def test_a_head_that_is_frozen_gets_no_gradient() -> None:
    model, hidden = Model(bias=True), torch.randn(3, 8, requires_grad=True)
    model.head.requires_grad_(False)
    with fused_head(model):
        model.head(hidden).sum().backward()
    assert hidden.grad is not None
    assert model.head.weight.grad is None


def test_a_head_that_is_no_plain_layer_stays_as_it_is() -> None:
    model = adapt(tiny_model("llama_untied_biases"), {"target_modules": ["lm_head"]})
    head = model.get_output_embeddings()
    with fused_head(model):
        assert "forward" not in vars(head)
