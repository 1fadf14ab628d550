"""Which modules own trainable parameters and have a rule."""

from __future__ import annotations

import torch
from torch import nn

from gradscope.gradients.layers import rules
from gradscope.gradients.layers.coverage import CoveredLayers
from tests.gradients.adapters import adapted


class Scale(nn.Module):
    """Multiplies by a weight that it shares with a layer; there is no rule for it."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)
        self.scale = Scale(self.first.weight)


def test_a_parameter_is_covered_where_every_call_with_it_has_a_rule():
    model = Model()
    layers = CoveredLayers(model, dict(model.named_parameters()))
    assert layers.uncovered == {"first.weight"}  # the second module that holds it has no rule
    assert layers.covered_by(model.first) == {"bias": "first.bias"}
    assert layers.covered_by(model.second) == {"weight": "second.weight", "bias": "second.bias"}
    assert layers.rules[model.second] is rules.LINEAR
    assert model.scale not in layers.owned


def test_engines_may_add_what_they_find_on_the_way():
    model = Model()
    layers = CoveredLayers(model, dict(model.named_parameters()))
    layers.uncovered.add("second.bias")
    assert layers.covered_by(model.second) == {"weight": "second.weight"}


def test_frozen_parameters_have_no_owner():
    model = Model()
    layers = CoveredLayers(model, {"second.bias": model.second.bias})
    assert list(layers.owned) == [model.second]
    assert layers.uncovered == set()


def test_a_layer_around_others_owns_what_it_computes_with():
    model = adapted("dora")
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    layers = CoveredLayers(model, trainable)
    module = model.base_model.model.model.layers[0].self_attn.q_proj
    assert layers.rules[module] is rules.ADAPTER
    assert len(layers.covered_by(module)) == 3  # A, B and the magnitudes
    assert module.lora_A["default"] not in layers.owned
    assert layers.uncovered == set()


def test_a_rule_that_is_taken_to_fit_is_asked_about_once():
    model = Model()
    layers = CoveredLayers(model, dict(model.named_parameters()))
    assert layers.assume(True, ["second.weight"])
    assert not layers.assume(False, ["first.bias"])
    assert layers.uncovered == {"first.weight", "first.bias"}
    assert layers.assume(torch.tensor(True), ["second.weight"])
    assert layers.assume(torch.tensor(False), ["second.bias"])
    assert "second.bias" not in layers.uncovered
    layers.settle()
    assert layers.uncovered == {"first.weight", "first.bias", "second.bias"}
    layers.settle()
    assert layers.covered_by(model.second) == {"weight": "second.weight"}
