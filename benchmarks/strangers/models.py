"""Tiny models of any architecture with nothing left at a value that hides a mistake, and what scripts do to them."""

from collections.abc import Callable
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


def lora(**changes: Any) -> Callable[[], Any]:
    """A LoraConfig in the making."""
    return peft_of("LoraConfig", **{"r": 3, **changes})


def peft_of(name: str, **changes: Any) -> Callable[[], Any]:
    """One of PEFT's configurations in the making."""

    def build() -> Any:
        import peft

        return getattr(peft, name)(task_type="CAUSAL_LM", **{"target_modules": TARGETS, **changes})

    return build


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

    adapted = get_peft_model(model, lora()())
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.add_(0.1 * torch.randn_like(parameter))
    adapted.save_pretrained(folders.root / "earlier")
    base = adapted.unload()
    return PeftModel.from_pretrained(base, folders.root / "earlier", is_trainable=True)


def second_adapter(kind: Callable[[], Any], active: str) -> Callable[[Any, Any], Any]:
    """A model with two adapters, of which one is trained."""

    def prepare(model: Any, folders: Any) -> Any:
        from peft import get_peft_model

        adapted = get_peft_model(model, lora()())
        adapted.add_adapter("second", kind())
        adapted.set_adapter(active)
        return adapted

    return prepare


def trainer_of(name: str, module: str = "trl") -> Callable[[], tuple[Any, Any]]:
    """Another of TRL's trainers and its arguments' class."""

    def load() -> tuple[Any, Any]:
        from importlib import import_module

        found = import_module(module)
        return getattr(found, f"{name}Trainer"), getattr(found, f"{name}Config")

    return load
