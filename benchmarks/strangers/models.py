"""Tiny models of any architecture with nothing left at a value that hides a mistake, and what scripts do to them."""

from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.strangers.texts import EOS, VOCAB

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
TARGETS = ["q_proj", "v_proj", "down_proj"]


def build(kind: str, *, dropout: float = 0.0, seed: int = SEED, dtype: str = "float32", **changes: Any) -> Any:
    """A model by its ``model_type``; a change to None leaves the configuration's default."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    values = {name: value for name, value in {**SHAPE, **changes}.items() if value is not None}
    config = AutoConfig.for_model(kind, **values, eos_token_id=EOS, bos_token_id=2)
    if getattr(config, "pad_token_id", None) is not None:
        config.pad_token_id = 0
    for name, value in config.to_dict().items():
        if name == "layerdrop":
            config.layerdrop = 0.0
        elif "drop" in name and "layer" not in name and isinstance(value, float) and name not in changes:
            setattr(config, name, dropout)
    torch.manual_seed(seed)
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.08 * torch.randn_like(parameter))
    return model.to(getattr(torch, dtype))


def adapter_config(config: str = "LoraConfig", **changes: Any) -> Any:
    """One of PEFT's configurations; a LoRA has rank 3 where nothing else is said."""
    import peft

    rank = {"r": 3} if config == "LoraConfig" else {}
    return getattr(peft, config)(task_type="CAUSAL_LM", **{"target_modules": TARGETS, **rank, **changes})


def frozen_embeddings(model: Any, folders: Any) -> Any:
    """The script freezes the input embeddings."""
    model.get_input_embeddings().weight.requires_grad_(False)
    return model


def frozen_first_layer(model: Any, folders: Any) -> Any:
    """The script freezes the first layer."""
    model.model.layers[0].requires_grad_(False)
    return model


def saved_in_shards(model: Any, folders: Any) -> Any:
    """The base is large, so that its file is several."""
    (folders.base / "model.safetensors").unlink()
    model.save_pretrained(folders.base, max_shard_size="20KB")
    return model


def existing_adapter(model: Any, folders: Any) -> Any:
    """The script goes on from an adapter that was trained before."""
    import torch
    from peft import PeftModel, get_peft_model

    adapted = get_peft_model(model, adapter_config())
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.add_(0.1 * torch.randn_like(parameter))
    adapted.save_pretrained(folders.root / "earlier")
    base = adapted.unload()
    return PeftModel.from_pretrained(base, folders.root / "earlier", is_trainable=True)


def second_adapter(changes: Mapping[str, Any], active: str) -> Callable[[Any, Any], Any]:
    """A model with two adapters, of which one is trained."""

    def prepare(model: Any, folders: Any) -> Any:
        from peft import get_peft_model

        adapted = get_peft_model(model, adapter_config())
        adapted.add_adapter("second", adapter_config(**changes))
        adapted.set_adapter(active)
        return adapted

    return prepare
