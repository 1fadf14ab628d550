from __future__ import annotations

import torch
from torch import nn

from gradscope.gradients.layers.capture import Capture
from gradscope.gradients.model.backward import gradients_on
from gradscope.gradients.model.batches import pad_batch
from gradscope.gradients.model.token_sequence import TokenSequence


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


def test_nothing_is_left_behind_on_the_model():
    model = Toy()
    capture = Capture(model, dict(model.named_parameters()))
    with capture.hooks():
        assert model.head._forward_hooks
        model(torch.randn(2, 3, 4))  # outside a batch the hooks only watch
    assert not model.head._forward_hooks
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
