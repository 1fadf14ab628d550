"""Tiny models with every kind of adapter that peft trains and saves, no value left at its start."""

import warnings
from typing import Any

import torch
from peft import LoraConfig, PeftConfig, get_peft_model

from tests.gradients.models import tiny_experts, tiny_model

_LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
_GPT2 = {"target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True}

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "rslora": ("qwen3_gqa_norms", {"use_rslora": True, "r": 4}),
    "patterns": ("llama_untied_biases", {"rank_pattern": {"q_proj": 5}, "alpha_pattern": {"down_proj": 3}}),
    "dropout": ("llama_untied_biases", {"lora_dropout": 0.3}),
    "bias all": ("llama_untied_biases", {"bias": "all"}),
    "bias lora_only": ("llama_untied_biases", {"bias": "lora_only"}),
    "lora_bias": ("llama_untied_biases", {"lora_bias": True}),
    "head": ("llama_untied_biases", {"target_modules": ["q_proj", "lm_head"]}),
    "head, tied": ("qwen3_gqa_norms", {"target_modules": ["q_proj", "lm_head"]}),
    "saved head": ("llama_untied_biases", {"modules_to_save": ["lm_head"]}),
    "saved head, tied": ("qwen3_gqa_norms", {"modules_to_save": ["lm_head"]}),
    "saved embedding, tied": ("qwen3_gqa_norms", {"modules_to_save": ["embed_tokens"]}),
    "saved embedding and head": ("qwen3_gqa_norms", {"modules_to_save": ["embed_tokens", "lm_head"]}),
    "saved norms": ("qwen3_gqa_norms", {"modules_to_save": ["norm", "q_norm", "input_layernorm"]}),
    "embedding": ("llama_untied_biases", {"target_modules": [*_LINEAR, "embed_tokens"]}),
    "embedding, tied": ("qwen3_gqa_norms", {"target_modules": ["q_proj", "embed_tokens"]}),
    "embedding and head": ("qwen3_gqa_norms", {"target_modules": ["embed_tokens", "lm_head"]}),
    "embedding, scaled": ("gemma3_scaled", {"target_modules": ["q_proj", "embed_tokens"]}),
    "embedding, positions": ("gpt2_tied_conv1d", {"target_modules": ["c_attn", "wte", "wpe"], "fan_in_fan_out": True}),
    "dora": ("qwen3_gqa_norms", {"use_dora": True}),
    "dora, rslora, biases": ("llama_untied_biases", {"use_dora": True, "use_rslora": True, "bias": "all"}),
    "dora, conv1d": ("gpt2_tied_conv1d", {"use_dora": True, **_GPT2}),
    "dora, head": ("llama_untied_biases", {"use_dora": True, "target_modules": ["q_proj", "lm_head"]}),
    "dora, embedding": ("gemma3_scaled", {"use_dora": True, "target_modules": ["q_proj", "embed_tokens"]}),
}
"""Kind -> architecture and what its ``LoraConfig`` says beyond rank 3 on the linear layers."""


def adapted(kind: str, *, dtype: torch.dtype = torch.float32, perturbed: bool = True) -> Any:
    """A model with an adapter of one kind."""
    name, options = KINDS[kind]
    return adapt(tiny_model(name, dtype=dtype), options, perturbed=perturbed)


def adapted_experts(name: str, *, implementation: str = "grouped_mm") -> Any:
    """A mixture of experts whose fused matrices have an adapter, beside one on the attention."""
    options = {
        "target_modules": ["q_proj", "v_proj"],
        "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
    }
    return adapt(tiny_experts(name, implementation=implementation), options)


def adapt(model: Any, options: dict[str, Any], *, perturbed: bool = True) -> Any:
    """A model with a LoRA adapter, its values moved away from where they start."""
    return adapt_with(model, LoraConfig(**{"r": 3, "target_modules": _LINEAR, **options}), perturbed=perturbed)


def adapt_with(model: Any, config: PeftConfig, *, perturbed: bool = True) -> Any:
    """A model with an adapter of any method, its values moved away from where they start."""
    torch.manual_seed(7)
    config.task_type = "CAUSAL_LM"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft warns of what these tests are about
        model = get_peft_model(model, config).to(model.dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            if perturbed and parameter.requires_grad:
                parameter.add_(0.15 * torch.randn_like(parameter))
    return model.eval()
