"""Log-probabilities, entropies and their gradients from slices of the vocabulary, against plain autograd over all."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gradscope.gradients.model.head import sliced
from gradscope.gradients.model.head.sliced import PlainHead, sliced_outputs
from tests.gradients.heads import Largest

TOKENS, WIDTH, VOCAB = 7, 5, 29
KINDS = {"plain": (1.0, None), "scaled": (0.25, None), "capped": (3.0, 2.0)}


def head_of(kind: str, *, bias: bool, dtype: torch.dtype = torch.float64) -> PlainHead:
    torch.manual_seed(1)
    scale, cap = KINDS[kind]
    module = nn.Linear(WIDTH, VOCAB, bias=bias).to(dtype)
    with torch.no_grad():
        module.weight.mul_(4)
    return PlainHead(module=module, scale=scale, cap=cap, temperature=0.7)


def whole(head: PlainHead, hidden: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same by ordinary operations on all logits."""
    logits = head.module(hidden) * head.scale
    logits = logits if head.cap is None else head.cap * torch.tanh(logits / head.cap)
    logs = torch.log_softmax(logits / head.temperature, dim=1)
    return logs[torch.arange(len(ids)), ids], -(logs.exp() * logs).sum(1)


def given() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(2)
    hidden = torch.randn(TOKENS, WIDTH, dtype=torch.float64, requires_grad=True)
    return hidden, torch.tensor([0, 28, 3, 3, 14, 7, 21])  # the first and the last of the vocabulary, and one twice


@pytest.mark.parametrize("width", [1, 4, 29, 1000])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", list(KINDS))
def test_values_and_gradients_are_those_of_all_logits(kind, bias, width, monkeypatch):
    monkeypatch.setattr(sliced, "SLICE_BYTES", 4 * TOKENS * width)
    head, (hidden, ids) = head_of(kind, bias=bias), given()
    targets = [hidden, *head.module.parameters()]
    first, second = torch.randn(2, TOKENS, dtype=torch.float64)
    for entropies in (False, True):
        expected = whole(head, hidden, ids)
        found = sliced_outputs(head, hidden, ids, torch.float64, entropies=entropies)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
        total = [first @ outputs[0] + (second @ outputs[1] if entropies else 0) for outputs in (found, expected)]
        for one, other in zip(*(torch.autograd.grad(each, targets) for each in total), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)
    assert not found[0].requires_grad or found[1].requires_grad


def test_an_entropy_that_was_not_asked_for_has_no_gradient():
    head, (hidden, ids) = head_of("plain", bias=False), given()
    logprobs, entropies = sliced_outputs(head, hidden, ids, torch.float64, entropies=False)
    assert (logprobs.requires_grad, entropies.requires_grad) == (True, False)
    with torch.no_grad():
        assert not sliced_outputs(head, hidden, ids, torch.float64, entropies=True)[0].requires_grad


def test_the_gradient_of_a_token_that_is_all_but_certain_keeps_its_digits():
    """Of 1 - p = 1e-9 whole float32 logits keep nothing."""
    module = nn.Linear(1, 3, bias=False)
    with torch.no_grad():
        module.weight.copy_(torch.tensor([[20.0], [-1.0], [-2.0]]))
    head = PlainHead(module=module, scale=1.0, cap=None)
    grads = {}
    for dtype in (torch.float32, torch.float64):
        hidden = torch.ones(1, 1, dtype=dtype, requires_grad=True)
        (logprob, _) = sliced_outputs(head, hidden, torch.tensor([0]), dtype, entropies=False)
        (grads[dtype],) = torch.autograd.grad(logprob.sum(), hidden)
    exact = grads[torch.float64].item()
    assert 0 < exact < 1e-7
    assert grads[torch.float32].item() == pytest.approx(exact, rel=1e-5)


def test_cotangents_of_some_columns_are_those_of_the_layers_output():
    for kind in KINDS:
        head, (hidden, ids) = head_of(kind, bias=True), given()
        watched: list[sliced.HeadTokens] = []
        for parameter in head.module.parameters():
            parameter.requires_grad_(False)
        outputs = sliced_outputs(
            head, hidden, ids, torch.float64, entropies=True, watch=lambda _, tokens, to=watched: to.append(tokens)
        )
        weights, beside = torch.randn(2, TOKENS, dtype=torch.float64)
        (weights @ outputs[0] + beside @ outputs[1]).backward()
        (tokens,) = watched
        made = head.module(hidden.detach()).requires_grad_(True)
        alone = PlainHead(module=nn.Identity(), scale=head.scale, cap=head.cap, temperature=head.temperature)
        expected = whole(alone, made, ids)
        (grad,) = torch.autograd.grad(weights @ expected[0] + beside @ expected[1], made)
        torch.testing.assert_close(tokens.cotangents(head, 3, 17), grad[:, 3:17])
        rows = [part.cotangents(head, 0, VOCAB) for part in tokens.split([3, 4])]
        torch.testing.assert_close(torch.cat(rows), grad)


def test_a_frozen_hidden_state_gets_a_graph_for_whoever_watches():
    head, (hidden, ids) = head_of("plain", bias=False), given()
    watched = []
    outputs = sliced_outputs(
        head, hidden.detach(), ids, torch.float64, entropies=False, watch=lambda *told: watched.append(told)
    )
    outputs[0].sum().backward()
    assert len(watched) == 1


@pytest.mark.parametrize("kind", list(KINDS))
def test_no_pass_makes_a_tensor_of_tokens_by_vocabulary(kind, monkeypatch):
    monkeypatch.setattr(sliced, "SLICE_BYTES", 4 * TOKENS * 4)
    head, (hidden, ids) = head_of(kind, bias=True), given()
    with Largest() as seen:
        outputs = sliced_outputs(head, hidden, ids, torch.float64, entropies=True)
        (outputs[0].sum() + outputs[1].sum()).backward()
    assert seen.elements == VOCAB * WIDTH < TOKENS * VOCAB
