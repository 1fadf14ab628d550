"""Models that scale, cap or shift what their output layer returns, and the size of the tensors that a pass makes."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import (
    Cohere2Config,
    Cohere2ForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPTJConfig,
    GPTJForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    PhiConfig,
    PhiForCausalLM,
)

from tests.gradients.models import ARCHITECTURES, VOCAB, perturbed, tiny_experts, tiny_model

SHAPE = {"vocab_size": VOCAB, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
ENDS = {"bos_token_id": 1, "eos_token_id": 1}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 32, "pad_token_id": 0, **ENDS}
TAILS = {
    "gemma2": (Gemma2ForCausalLM, Gemma2Config(**SHAPE, **HEADS, head_dim=8, final_logit_softcapping=3.0), (1.0, 3.0)),
    "cohere": (Cohere2ForCausalLM, Cohere2Config(**SHAPE, **HEADS, logit_scale=0.25), (0.25, None)),
    "granite": (GraniteForCausalLM, GraniteConfig(**SHAPE, **HEADS, logits_scaling=8.0), (0.125, None)),
    "gptj": (
        GPTJForCausalLM,
        GPTJConfig(vocab_size=VOCAB, n_embd=16, n_layer=2, n_head=2, n_positions=32, rotary_dim=4, **ENDS),
        (1.0, None),
    ),
    "phi": (PhiForCausalLM, PhiConfig(**SHAPE, **HEADS, partial_rotary_factor=0.5), (1.0, None)),
}
"""Class, configuration, and the scale and cap that the model has; the last two have a bias in the layer."""


def model_of(name: str) -> Any:
    """A tiny model by its name, here or among those of all tests."""
    if name in ARCHITECTURES:
        return tiny_model(name)
    if name.startswith(("qwen3_moe", "mixtral")):
        return tiny_experts(name)
    cls, config, _ = TAILS[name]
    torch.default_generator.manual_seed(3)
    return perturbed(cls(config))


class Largest(TorchDispatchMode):
    """Notes the elements of the largest tensor that any operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(made) if isinstance(leaf, torch.Tensor)]
        self.elements = max(self.elements, *sizes, 0)
        return made
