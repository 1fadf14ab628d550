"""Every kind of adapter that PEFT makes, on a tiny model: are gradscope's Gram matrices those of plain autograd?

`python -m benchmarks.adapters` prints the table of adapters (docs/research/architectures_adapters.csv): each adapter is
made, moved away from where it starts, saved and read back; one step of ragged rollouts goes through the engines
`stream` and `loop`, beside one float64 backward a rollout through the adapter as it was in memory. With `--train` each
also makes three steps of TRL's GRPO, and `replay` recomputes the norms that it logged. `--only vera` names kinds.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.compared_models import Subject, run
from benchmarks.oracle import ragged
from benchmarks.tiny_models import FIRST_TEXT, SPECIAL, tiny_model

ATTENTION = ["q_proj", "v_proj"]
LORA: dict[str, tuple[str, dict[str, Any]]] = {
    "LoRA": ("llama", {}),
    "rsLoRA": ("llama", {"use_rslora": True}),
    "DoRA": ("llama", {"use_dora": True}),
    "PiSSA": ("llama", {"init_lora_weights": "pissa"}),
    "OLoRA": ("llama", {"init_lora_weights": "olora"}),
    "EVA": ("llama", {"init_lora_weights": "eva"}),
    "orthogonal start": ("llama", {"init_lora_weights": "orthogonal"}),
    "bias all": ("qwen2", {"bias": "all"}),
    "bias lora_only": ("qwen2", {"bias": "lora_only"}),
    "lora_bias": ("llama", {"lora_bias": True}),
    "rank_pattern": ("llama", {"rank_pattern": {"q_proj": 2}}),
    "alpha_pattern": ("llama", {"alpha_pattern": {"v_proj": 5}}),
    "layers_to_transform": ("llama", {"layers_to_transform": [1]}),
    "embeddings": ("qwen2", {"target_modules": ["q_proj", "embed_tokens"]}),
    "embeddings, padding": ("llama", {"target_modules": ["q_proj", "embed_tokens"]}),
    "lm_head": ("llama", {"target_modules": ["q_proj", "lm_head"]}),
    "lm_head, tied": ("gemma2", {"target_modules": ["q_proj", "lm_head"]}),
    "Conv1D, fan_in_fan_out": ("gpt2", {"target_modules": ["c_attn"], "fan_in_fan_out": True}),
    "modules_to_save": ("llama", {"modules_to_save": ["lm_head", "embed_tokens"]}),
    "modules_to_save, norms": ("qwen3", {"modules_to_save": ["q_norm"]}),
    "trainable_token_indices": ("llama", {"trainable_token_indices": [4, 5, 9]}),
    "trainable_token_indices, tied": ("gemma2", {"trainable_token_indices": [4, 5, 9]}),
    "target_parameters": ("qwen3_moe", {"target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]}),
    "all-linear": ("qwen3_next", {"target_modules": "all-linear"}),
}
"""Kind of LoRA -> model type and what its configuration says beyond rank 4 on queries and values."""
OTHERS: dict[str, dict[str, Any]] = {
    "ADALORA": {"init_r": 4, "target_r": 2, "total_step": 100, "tinit": 10, "tfinal": 10},
    "ADAPTION_PROMPT": {"adapter_len": 3, "adapter_layers": 1, "target_modules": "self_attn"},
    "BOFT": {"boft_block_size": 4},
    "C3A": {"block_size": 8},
    "CPT": {"cpt_token_ids": [5, 6, 7], "cpt_mask": [1, 1, 1], "cpt_tokens_type_mask": [1, 2, 3]},
    "FOURIERFT": {"n_frequency": 20},
    "IA3": {"target_modules": [*ATTENTION, "down_proj"], "feedforward_modules": ["down_proj"]},
    "LN_TUNING": {"target_modules": ["input_layernorm", "norm"]},
    "MULTITASK_PROMPT_TUNING": {"num_virtual_tokens": 4, "num_tasks": 1},
    "OFT": {"oft_block_size": 8},
    "PREFIX_TUNING": {"num_virtual_tokens": 4},
    "PROMPT_TUNING": {"num_virtual_tokens": 4},
    "P_TUNING": {"num_virtual_tokens": 4, "encoder_hidden_size": 16},
    "CARTRIDGE": {"num_virtual_tokens": 4},
    "ROAD": {"group_size": 8},
    "TRAINABLE_TOKENS": {"token_indices": [4, 5, 9], "target_modules": ["embed_tokens"]},
    "VBLORA": {"num_vectors": 8, "vector_length": 8, "topk": 2},
    "WAVEFT": {"n_frequency": 20},
}
"""PEFT's name of a method -> what its configuration needs beyond the modules that it is put on."""


def subjects() -> list[Subject]:
    """Every kind of LoRA, then every other method."""
    from peft import LoraConfig
    from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING

    configs = []
    for name, (model_type, options) in LORA.items():
        values = {"r": 4, "target_modules": ATTENTION, "task_type": "CAUSAL_LM", **options}
        configs.append((name, model_type, partial(LoraConfig, **values)))
    for peft_type, cls in PEFT_TYPE_TO_CONFIG_MAPPING.items():
        if peft_type.value != "LORA":
            configs.append((peft_type.value, "llama", partial(_config, cls, OTHERS.get(peft_type.value, {}))))
    return [
        Subject(name=name, model=model_type, save=partial(_save, name, model_type, config))
        for name, model_type, config in configs
    ]


def _config(cls: Any, options: dict[str, Any]) -> Any:
    """A method's configuration: on queries and values where it takes modules, with a small rank where it has one."""
    fields = {field.name: field for field in dataclasses.fields(cls)}
    values: dict[str, Any] = {"task_type": "CAUSAL_LM"}
    if "target_modules" in fields:
        values["target_modules"] = ATTENTION
    if "r" in fields and isinstance(fields["r"].default, int) and fields["r"].default > 4:
        values["r"] = 4
    return cls(**{**values, **options})


def _save(name: str, model_type: str, config: Callable[[], Any], folder: Path) -> Any:
    """Make the adapter, move it away from where it starts, and save it beside its base."""
    import torch
    from peft import get_peft_model, initialize_lora_eva_weights

    base = tiny_model(model_type)
    base.save_pretrained(folder / "base")
    base.name_or_path = str(folder / "base")
    torch.manual_seed(1)
    model = get_peft_model(base, config())
    if name == "EVA":
        rows = [torch.tensor([rollout.prompt + rollout.completion]) for rollout in ragged(FIRST_TEXT, SPECIAL)]
        batches = [{"input_ids": row, "attention_mask": torch.ones_like(row)} for row in rows]
        initialize_lora_eva_weights(model, batches, show_progress_bar=False)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder / "adapter")
    return model


if __name__ == "__main__":
    run(subjects(), "adapter", str(__doc__))
