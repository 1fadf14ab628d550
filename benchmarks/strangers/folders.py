"""What is on disk: precision, weights before the first update, adapters of many kinds, damaged checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.strangers.case import Case, Folders
from benchmarks.strangers.damaged import damaged_cases
from benchmarks.strangers.models import of

TARGETS = ["q_proj", "v_proj", "down_proj"]
LORA: dict[str, Any] = {"r": 3, "target_modules": TARGETS, "task_type": "CAUSAL_LM"}
BF16 = {"bf16": True}


def lora(**changes: Any) -> Callable[[], Any]:
    """A LoraConfig in the making."""

    def build() -> Any:
        from peft import LoraConfig

        return LoraConfig(**{**LORA, **changes})

    return build


def peft_of(name: str, **changes: Any) -> Callable[[], Any]:
    """Another of PEFT's configurations."""

    def build() -> Any:
        import peft

        return getattr(peft, name)(task_type="CAUSAL_LM", **{"target_modules": TARGETS, **changes})

    return build


def frozen_embeddings(model: Any, folders: Folders) -> Any:
    """The script freezes the input embeddings."""
    model.get_input_embeddings().weight.requires_grad_(False)
    return model


def saved_in_shards(model: Any, folders: Folders) -> Any:
    """The base is large, so that its file is several."""
    (folders.base / "model.safetensors").unlink()
    model.save_pretrained(folders.base, max_shard_size="20KB")
    return model


def save_adapter(folders: Folders) -> None:
    """An adapter that the run has nothing to do with."""
    from peft import get_peft_model
    from transformers import AutoModelForCausalLM

    get_peft_model(AutoModelForCausalLM.from_pretrained(folders.base), lora()()).save_pretrained(folders.other)


def frozen_first_layer(model: Any, folders: Folders) -> Any:
    """The script freezes the first layer."""
    model.model.layers[0].requires_grad_(False)
    return model


def existing_adapter(model: Any, folders: Folders) -> Any:
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


def folder_cases() -> list[Case]:
    """Precision, weights and adapters."""
    return [*_precision(), *_weights(), *_adapters(), *_adapter_starts(), *damaged_cases()]


def _precision() -> list[Case]:
    common: dict[str, Any] = {"axis": "precision", "expect": "match_bf16"}
    return [
        Case(name="bf16 autocast", args=BF16, **common),
        Case(
            name="bf16 autocast, grpo, gradient checkpointing",
            args={**BF16, "loss_type": "grpo", "gradient_checkpointing": True},
            **common,
        ),
        Case(
            name="bf16 autocast, gpt2",
            model=of("gpt2", num_key_value_heads=None, head_dim=None, intermediate_size=None),
            args=BF16,
            **common,
        ),
        Case(name="bf16 autocast, qwen3", model=of("qwen3"), args=BF16, **common),
        Case(name="bf16 autocast, lora", peft=lora(), saved="trainer", args=BF16, **common),
        Case(name="bf16 weights", dtype="bfloat16", args=BF16, **common),
        Case(name="bf16 weights, no autocast", dtype="bfloat16", **common),
    ]


def _weights() -> list[Case]:
    no_first: dict[str, Any] = {"at": {1: "cannot"}, "word": "--initial", "saved": "nothing"}
    return [
        Case(name="W0 by the trainer", axis="weights", saved="trainer"),
        Case(
            name="W0 by the trainer, gpt_neox",
            axis="weights",
            saved="trainer",
            model=of("gpt_neox", num_key_value_heads=None, head_dim=None),
        ),
        Case(
            name="W0 by the trainer, opt",
            axis="weights",
            saved="trainer",
            model=of(
                "opt",
                num_key_value_heads=None,
                head_dim=None,
                intermediate_size=None,
                ffn_dim=48,
                word_embed_proj_dim=32,
            ),
        ),
        Case(name="no W0", axis="weights", **no_first),
        Case(
            name="no W0, beta",
            axis="weights",
            args={"beta": 0.3},
            saved="nothing",
            expect="cannot",
            word="--initial",
            oracle=False,
        ),
        Case(
            name="no W0, gpt_neox",
            axis="weights",
            model=of("gpt_neox", num_key_value_heads=None, head_dim=None),
            **no_first,
        ),
        Case(name="frozen embeddings", axis="weights", prepare=frozen_embeddings),
        Case(
            name="frozen embeddings, no W0",
            axis="weights",
            prepare=frozen_embeddings,
            args={"max_steps": 3},
            **no_first,
        ),
        Case(name="frozen first layer", axis="weights", prepare=frozen_first_layer, args={"max_steps": 3}),
        Case(
            name="save_steps = 2",
            axis="weights",
            args={"save_steps": 2, "max_steps": 3},
            at={2: "cannot"},
            word="not on disk",
        ),
        Case(name="W0 in shards", axis="weights", prepare=saved_in_shards),
        Case(
            name="full run, --initial ADAPTER",
            axis="weights",
            saved="wrong",
            initial="other",
            spoil=save_adapter,
            expect="cannot",
            word="adapter",
            oracle=False,
            unjudged=(2,),
        ),
        Case(name="tied embeddings", axis="weights", model=of("llama", tie_word_embeddings=True)),
        Case(name="save_only_model", axis="weights", args={"save_only_model": True}),
    ]


KINDS: Mapping[str, Callable[[], Any]] = {
    "lora": lora(),
    "rslora": lora(use_rslora=True, lora_alpha=5),
    "dora": lora(use_dora=True),
    "pissa": lora(init_lora_weights="pissa"),
    "olora": lora(init_lora_weights="olora"),
    "gaussian": lora(init_lora_weights="gaussian"),
    "lora, all linear": lora(target_modules="all-linear"),
    "lora, modules_to_save": lora(modules_to_save=["embed_tokens", "lm_head"]),
    "lora, trainable tokens": lora(trainable_token_indices=[3, 4, 5, 6, 7]),
    "lora, on embeddings": lora(target_modules=["embed_tokens", "q_proj"]),
    "lora, biases": lora(bias="all"),
    "lora, one layer, rank pattern": lora(layers_to_transform=[1], rank_pattern={"q_proj": 2}),
    "ia3": peft_of("IA3Config", feedforward_modules=["down_proj"]),
    "vera": peft_of("VeraConfig", r=3, target_modules=["q_proj"], save_projection=True),
    "loha": peft_of("LoHaConfig", r=2),
    "lokr": peft_of("LoKrConfig", r=2),
}


def _adapters() -> list[Case]:
    """Fresh adapters, saved by the trainer before the first update."""
    return [Case(name=name, axis="adapters", peft=kind, saved="trainer") for name, kind in KINDS.items()]


def _adapter_starts() -> list[Case]:
    """Where an adapter starts from, and what the KL term holds it to."""
    beta = {"beta": 0.3}
    common: dict[str, Any] = {"axis": "adapters", "saved": "trainer"}
    wrong: dict[str, Any] = {"axis": "adapters", "saved": "wrong", "initial": "base", "peft": lora()}
    return [
        Case(name="lora, beta", peft=lora(), args=beta, **common),
        Case(name="pissa, beta", peft=lora(init_lora_weights="pissa"), args=beta, **common),
        Case(name="olora, beta", peft=lora(init_lora_weights="olora"), args=beta, **common),
        Case(name="lora from an adapter", prepare=existing_adapter, **common),
        Case(name="lora from an adapter, beta", prepare=existing_adapter, args=beta, **common),
        Case(name="lora, no W0", axis="adapters", peft=lora(), saved="nothing", at={1: "cannot"}, word="--initial"),
        Case(name="lora, --initial BASE_MODEL", expect="cannot", word="adapter", oracle=False, unjudged=(2,), **wrong),
        Case(
            name="lora, --initial BASE_MODEL, beta", args=beta, expect="cannot", word="adapter", oracle=False, **wrong
        ),
        Case(
            name="lora, gpt_neox",
            peft=lora(target_modules=["query_key_value"]),
            model=of("gpt_neox", num_key_value_heads=None, head_dim=None),
            **common,
        ),
        Case(
            name="lora, gpt2",
            peft=lora(target_modules=["c_attn"], fan_in_fan_out=True),
            model=of("gpt2", num_key_value_heads=None, head_dim=None, intermediate_size=None),
            **common,
        ),
        Case(
            name="lora, experts",
            peft=lora(target_modules=["q_proj", "v_proj"]),
            model=of("mixtral", head_dim=None, num_local_experts=4),
            args={"router_aux_loss_coef": 0.0},
            **common,
        ),
    ]
