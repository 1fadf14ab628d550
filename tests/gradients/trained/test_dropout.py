"""What training drew at random."""

from __future__ import annotations

import torch
from transformers import MixtralForCausalLM

from gradscope.gradients.trained.dropout import active_dropout, draws_in_training
from tests.gradients.adapters import adapted
from tests.gradients.models import tiny_experts, tiny_model


def test_dropout_of_modules_and_of_functions_is_found():
    assert active_dropout(tiny_model("llama_untied_biases"), disabled=False) == 0.0
    assert active_dropout(adapted("dropout"), disabled=False) == 0.3
    assert active_dropout(adapted("dropout"), disabled=True) == 0.0
    model = tiny_model("qwen3_gqa_norms")
    model.model.layers[0].self_attn.attention_dropout = 0.2
    assert active_dropout(model, disabled=True) == 0.2


def test_noise_of_a_router_is_drawn_in_training():
    model = tiny_experts("mixtral")
    assert isinstance(model, MixtralForCausalLM)
    assert not draws_in_training(model)
    for layer in model.model.layers:
        layer.mlp.jitter_noise = 0.1
    before = torch.get_rng_state()
    assert draws_in_training(model)
    assert torch.equal(torch.get_rng_state(), before)
    assert not any(module.training for module in model.modules())


def test_dropout_is_not_counted_again():
    assert not draws_in_training(adapted("dropout"))


def test_a_number_that_is_drawn_and_changes_nothing_does_not_count():
    model = tiny_model("llama_untied_biases")
    model.model.norm.register_forward_hook(lambda module, given, output: output * (torch.rand(1) >= 0))
    assert not draws_in_training(model)
