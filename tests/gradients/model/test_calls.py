"""How a model of any class is called."""

from __future__ import annotations

import torch

from gradscope.gradients.model.calls import activations_kept, call_on, forward_arguments, without_adapter
from tests.gradients.models import tiny_model


def test_a_model_is_asked_for_its_own_arguments_inside_an_adapter_too():
    for lora in (False, True):
        model = tiny_model("qwen3_gqa_norms", lora=lora)
        assert {"input_ids", "attention_mask", "position_ids", "logits_to_keep"} <= forward_arguments(model)
        assert type(without_adapter(model)).__name__ == "Qwen3ForCausalLM"
        assert call_on(model, torch.tensor([[1, 2, 3]])).logits.shape == (1, 3, 23)


def test_checkpointing_is_off_for_a_while():
    model = tiny_model("qwen3_gqa_norms").train()
    model.activation_checkpointing_enable()
    with activations_kept(model):
        assert not any(getattr(module, "gradient_checkpointing", False) for module in model.modules())
    assert any(getattr(module, "gradient_checkpointing", False) for module in model.modules())
