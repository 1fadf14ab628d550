"""A tiny model of any causal-LM class that transformers ships: the defaults of its configuration, shrunk by rules.

The rules go by a field's name; `OVERRIDES` holds what a class needs beyond them. Layers are chosen so that every kind
of layer of the default configuration occurs once.
"""

import dataclasses
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

VOCAB = 64
WIDTH, HEADS, INNER, LAYERS = 32, 4, 48, 2
PAD, EOS, BOS = 0, 1, 2
FIRST_TEXT = 3  # ids below stand for padding, end and start
SPECIAL = 56  # ids from here on stand for images, sounds and whatever else is no text

RULES: tuple[tuple[str, int], ...] = (
    (r"type_vocab_size", -1),
    (r".*vocab_size.*", VOCAB),
    (r"hidden_size|d_model|n_embd|emb_dim|embedding_size", WIDTH),
    (r"input_embedding_size|output_embedding_size|hidden_size_global|backbone_hidden_size|vision_output_dim", WIDTH),
    (r"ext_pw_out_channel|depthwise_separable_out_channel|nemo_conv_channels", WIDTH),
    (r"embed_dim|adapter_out_dim|out_hidden_size|projector_.*dim|output_channels|.*_embed_dim", WIDTH),
    (r".*num_key_value_heads", 2),
    (r"(.*_)?(num_)?(attention_)?heads|n_heads?", HEADS),
    (r"index_head_dim", 16),
    (r"rotary_dim", 4),
    (r"mamba_d_head|mamba_headdim|mamba_head_dim", 16),
    (r".*head_dim|kv_channels|.*head_size|d_kv", 8),
    (r".*(intermediate_size|ffn_dim|ffn_hidden_size|feed_forward_size|d_ff|d_inner|mlp_dim).*", INNER),
    (r"num_experts_per_tok(en)?|moe_topk|moe_k|moe_top_k", 2),
    (r".*shared_experts|zero_expert_num", 1),
    (r"n_groups?|topk_group", 1),
    (r"(.*_)?(num|n)_(.*_)?experts", 4),
    (r".*_rank|.*lowrank|hidden_size_per_layer_input|router_hidden_size", 8),
    (r".*(state_size|d_state)", 8),
    (r"(max_|n_|max_target_|max_source_)?position(_embedding)?s(_embeddings)?|max_seq_len|context_length", 96),
    (r"original_max_position_embeddings|num_position_embeddings|rel_extent", 96),
    (r".*sliding_window(_size)?|window_size|local_attention|attention_window_size", 4),
    (r"attention_chunk_size|(mamba_)?chunk_size|block_size|.*attn_chunk_length|index_topk|index_block_size", 8),
    (r"first_k_dense_replace|max_window_layers", 1),
    (r"(encoder_|decoder_|num_|n_)?(hidden_|encoder_|decoder_)?layers?|num_blocks", LAYERS),
)
"""Pattern of a field's whole name, and its value; -1 leaves it as it is. The first that matches counts."""

_ZAMBA = ["linear_attention", "linear_attention", "hybrid", "linear_attention", "hybrid"]
_INDEXER = {
    **{"indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 16},
    **{"indexer_budget": 8, "indexer_compress_ratio": 2},
}
_DOTS3 = {
    "layer_types": ["indexed_attention", "sliding_attention"],
    "mlp_layer_types": ["dense", "sparse"],
    "num_hidden_layers": 2,
    **{f"swa_{name}": 8 for name in ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "v_head_dim")},
    **{"swa_num_attention_heads": HEADS, "swa_num_key_value_heads": HEADS, "swa_head_dim": 16},
}

OVERRIDES: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
    "blt": {"encoder_hash_byte_group_vocab": 64, "encoder_hash_byte_group_size": [3, 4]},
    "cohere_compass_text": {
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": 10000.0} for kind in ("sliding_attention", "full_attention")
        },
    },
    "cpmant": {"dim_ff": INNER, "prompt_length": 4, "position_bias_max_distance": 64},
    "ctrl": {"dff": INNER},
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "clip_qkv": 8.0}},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "dots3_note": {
        "text_config": _DOTS3,
        "audio_config": {"adapter_input_size": WIDTH},
        "vision_config": {"adapter_in_dim": WIDTH},
    },
    "dots3_note_text": _DOTS3,
    "gemma3n_text": {
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "intermediate_size": [INNER] * 4,
        "activation_sparsity_pattern": [0.5, 0.5, 0.0, 0.0],
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "use_mamba_kernels": False},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "mamba2": {"head_dim": 16},
    "nemotron": {"num_key_value_heads": 2},
    "qwen4_exp": {"text_config": _INDEXER},
    "qwen4_exp_text": _INDEXER,
    "recurrent_gemma": {"num_hidden_layers": 3},
    "reformer": {
        "is_decoder": True,
        "axial_pos_shape": [8, 12],
        "axial_pos_embds_dim": [16, 16],
        "attn_layers": ["local", "lsh"],
        "num_buckets": 4,
    },
    "xmod": {"default_language": "en_XX"},
    "zamba": {"layers_block_type": _ZAMBA, "num_hidden_layers": 5},
    "zamba2": {"layers_block_type": _ZAMBA, "num_hidden_layers": 5},
    "zaya": {"num_experts_per_tok": 1},
}
"""Model type -> what its configuration needs beyond the rules; of a part of it by the part's field."""


def tiny_config(model_type: str) -> Any:
    """The default configuration of a model type, shrunk."""
    from transformers import CONFIG_MAPPING

    return _shrunk(CONFIG_MAPPING[model_type], OVERRIDES.get(model_type, {}))


def tiny_model(model_type: str, *, seed: int = 0) -> Any:
    """A model with random weights, none left at a value that hides a bug."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(tiny_config(model_type))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def _shrunk(cls: Any, overrides: Mapping[str, Any]) -> Any:
    """One configuration, its parts included."""
    default = cls()
    own = (field for field in dataclasses.fields(cls) if field.init and not field.name.startswith("_"))
    fields = {field.name: field.default for field in own}
    values = dict(_layers(default, fields))
    for name in sorted(fields):
        value, part = vars(default).get(name, fields[name]), cls.sub_configs.get(name)
        if part is not None and value is not None:
            values[name] = _shrunk(part if isinstance(value, dict) else type(value), overrides.get(name, {}))
        elif name not in values and (small := _small(name, value, fields[name])) is not None:
            values[name] = small
    values |= _heads(default, fields)
    values |= {name: value for name, value in overrides.items() if name not in cls.sub_configs}
    return cls(**values)


def _small(name: str, value: Any, declared: Any) -> Any:
    """What a field is set to; None leaves it to the configuration."""
    if re.search("dropout|pdrop|layerdrop|drop_path|drop_rate", name) and isinstance(value, float | int):
        return type(value)(0)
    if name == "eos_token_id" and value is not None:
        return EOS
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    if re.fullmatch(r".*_(token_(id|index)|id|index)", name):
        text = {"pad_token_id": PAD, "bos_token_id": BOS, "decoder_start_token_id": BOS}
        return text.get(name, SPECIAL + len(name) % 8)
    size = next((size for pattern, size in RULES if re.fullmatch(pattern, name)), -1)
    return size if size >= 0 and value > 0 and isinstance(declared, int) else None


def _heads(default: Any, fields: Collection[str]) -> dict[str, Any]:
    """As many keys as queries where the default has as many; a head's width where none is given."""
    own = vars(default)
    values: dict[str, Any] = {}
    if own.get("num_key_value_heads") and own["num_key_value_heads"] == own.get("num_attention_heads"):
        values["num_key_value_heads"] = HEADS
    if "head_dim" in fields and own.get("head_dim") is None:
        values["head_dim"] = WIDTH // HEADS
    return values


def _layers(default: Any, fields: Collection[str]) -> Iterator[tuple[str, Any]]:
    """Lists with an entry for each layer, cut down to one layer of each kind."""
    depth = type(default).attribute_map.get("num_hidden_layers", "num_hidden_layers")
    if depth not in fields or not isinstance(getattr(default, depth), int):
        return
    lists = {
        name: list(value)
        for name in sorted(fields)
        if isinstance(value := vars(default).get(name), list | tuple) and len(value) == getattr(default, depth)
    }
    kinds = list(zip(*lists.values(), strict=True)) if lists else []
    first = [index for index, kind in enumerate(kinds) if kind not in kinds[:index]]
    if not 1 < len(first) <= 6:
        first = list(range(LAYERS))
    yield depth, len(first)
    for name, value in lists.items():
        chosen = [value[index] for index in first]
        small = [_small(name, entry, entry) for entry in chosen]
        yield name, [entry if new is None else new for entry, new in zip(chosen, small, strict=True)]
