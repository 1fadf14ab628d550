"""Tiny models of any architecture, with nothing left at a value that hides a mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.strangers.words import EOS, VOCAB

SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
}
SEED = 11


def build(kind: str, *, dropout: float = 0.0, seed: int = SEED, **changes: Any) -> Any:
    """A model by its ``model_type``; a change to None leaves the configuration's default."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    values = {name: value for name, value in {**SHAPE, **changes}.items() if value is not None}
    config = AutoConfig.for_model(kind, **values, eos_token_id=EOS, bos_token_id=2)
    if getattr(config, "pad_token_id", None) is not None:
        config.pad_token_id = 0
    for name, value in config.to_dict().items():
        if name in changes:
            continue
        if ("drop" in name and isinstance(value, float)) and "layer" not in name:
            setattr(config, name, dropout)
        elif name == "layerdrop":
            config.layerdrop = 0.0
    torch.manual_seed(seed)
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.08 * torch.randn_like(parameter))
    return model


def of(kind: str, **changes: Any) -> Callable[[], Any]:
    """A builder of such a model."""
    return lambda: build(kind, **changes)


def plain_llama() -> Any:
    """The model of every case that is not about models."""
    return build("llama")
