from __future__ import annotations

import torch
from torch import nn

from gradscope.gradients.layers.capture import Capture
from gradscope.gradients.model.backward import gradients_on
from gradscope.gradients.model.batches import pad_batch
from gradscope.gradients.model.token_sequence import TokenSequence
from tests.gradients.heads import model_of


class GatedNorm(nn.Module):
    """Takes a second tensor, so no rule can call it again with another weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, given, gate):
        return given * gate * self.weight


class Toy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = GatedNorm()
        self.head = nn.Linear(4, 3)

    def forward(self, given):
        return self.head(self.norm(given, given.sigmoid()))


SEQUENCE = TokenSequence(
    group_id="g", sample=0, prompt_ids=(1,), completion_ids=(2, 3), mask=(True, True), inferred=False
)


def test_what_no_rule_can_do_is_uncovered_and_the_rest_arrives_once():
    model = Toy()
    trainable = dict(model.named_parameters())
    capture, arrived = Capture(model, trainable), []
    batch = pad_batch([0, 1], [SEQUENCE, SEQUENCE], torch.device("cpu"))
    collected = capture.batch(batch, lambda name, uses: arrived.append((name, len(uses))))
    with capture.hooks(), collected, gradients_on(trainable, on=False):
        model(torch.randn(2, 3, 4)).sum().backward()
    assert sorted(arrived) == [("head.bias", 1), ("head.weight", 1)]
    assert capture.uncovered == {"norm.weight"}
    assert (capture.head, capture.sliced) == (None, frozenset())


def test_parameters_of_an_output_layer_in_slices_are_known_by_name():
    model = model_of("gptj")
    capture = Capture(model, dict(model.named_parameters()))
    assert capture.head.module is model.lm_head
    assert capture.sliced == {"lm_head.weight", "lm_head.bias"}
    assert Capture(model, {"wte": model.transformer.wte.weight}).sliced == frozenset()


class InPlace(nn.Module):
    """Scales what both of its layers return, in place."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 4)
        self.layer = nn.Linear(4, 3, bias=False)

    def forward(self, ids):
        hidden = self.table(ids)
        hidden *= 2
        hidden = self.layer(hidden.sin())
        hidden *= 3
        return hidden.cos()


def test_a_model_may_write_in_place():
    model, ids = InPlace(), torch.tensor([[1, 2, 3], [3, 0, 1]])
    trainable = dict(model.named_parameters())
    capture, arrived = Capture(model, trainable), {}
    batch = pad_batch([0, 1], [SEQUENCE, SEQUENCE], torch.device("cpu"))
    collected = capture.batch(batch, lambda name, factors: arrived.update({name: factors}))
    with capture.hooks(), collected, gradients_on(trainable, on=False):
        model(ids).sum().backward()
    assert capture.uncovered == set()
    expected = dict(zip(trainable, torch.autograd.grad(model(ids[1:]).sum(), trainable.values()), strict=True))
    assert arrived.keys() == trainable.keys()
    for name, (factor,) in arrived.items():
        out = torch.zeros_like(expected[name])
        factor.add_to(1, 0, out)
        torch.testing.assert_close(out, expected[name])


class ByShape(nn.Embedding):
    """Looks positions up for a shape that it is given, as BART's family does."""

    def forward(self, shape):
        return super().forward(torch.arange(shape[1]).expand(shape))


def test_an_embedding_that_is_given_no_ids_is_uncovered():
    model = ByShape(5, 4)
    trainable = dict(model.named_parameters())
    capture = Capture(model, trainable)
    batch = pad_batch([0, 1], [SEQUENCE, SEQUENCE], torch.device("cpu"))
    with capture.hooks(), capture.batch(batch, lambda name, factors: None):
        model(torch.Size((2, 3)))
    assert capture.uncovered == {"weight"}


def test_nothing_is_left_behind_on_the_model():
    model = Toy()
    capture = Capture(model, dict(model.named_parameters()))
    with capture.hooks():
        assert model.head._forward_hooks
        model(torch.randn(2, 3, 4))  # outside a batch the hooks only watch
    assert not model.head._forward_hooks
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
