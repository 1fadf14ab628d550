"""Causal language models of many families, and mixtures of experts with and without their router's loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.strangers.case import Case
from benchmarks.strangers.models import of
from benchmarks.strangers.words import TokenizerChoice

NO_HEADS: dict[str, Any] = {"num_key_value_heads": None, "head_dim": None}
GPT: dict[str, Any] = {**NO_HEADS, "intermediate_size": None}
OLD_GPT: dict[str, Any] = {**GPT, "n_inner": 48}
THETA = {"rope_theta": 10000.0}
BEYOND = 10
"""Positions that a model names where its rollouts are longer."""

MODELS: dict[str, Callable[[], Any]] = {
    "llama": of("llama"),
    "llama, biases, tied": of("llama", attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
    "llama, linear scaling": of("llama", rope_scaling={"rope_type": "linear", "factor": 2.0, **THETA}),
    "llama, llama3 scaling": of(
        "llama",
        rope_scaling={
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
            **THETA,
        },
    ),
    "llama, dynamic scaling, beyond": of(
        "llama", rope_scaling={"rope_type": "dynamic", "factor": 4.0, **THETA}, max_position_embeddings=BEYOND
    ),
    "llama, yarn, beyond": of(
        "llama",
        rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8, **THETA},
        max_position_embeddings=BEYOND,
    ),
    "llama, beyond": of("llama", max_position_embeddings=BEYOND),
    "qwen2, sliding": of("qwen2", use_sliding_window=True, sliding_window=4, max_window_layers=1, head_dim=None),
    "qwen2": of("qwen2", head_dim=None),
    "qwen3": of("qwen3", tie_word_embeddings=True),
    "qwen3_5": of(
        "qwen3_5_text",
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        linear_num_key_heads=2,
        linear_num_value_heads=2,
        layer_types=["linear_attention", "full_attention"],
    ),
    "mistral, sliding": of("mistral", sliding_window=4),
    "ministral": of("ministral", sliding_window=4),
    "gemma": of("gemma"),
    "gemma2, soft caps": of(
        "gemma2", attn_logit_softcapping=2.0, final_logit_softcapping=3.0, sliding_window=4, query_pre_attn_scalar=8
    ),
    "gemma3, soft caps": of(
        "gemma3_text",
        attn_logit_softcapping=2.0,
        final_logit_softcapping=3.0,
        sliding_window=4,
        query_pre_attn_scalar=8,
    ),
    "phi": of("phi", head_dim=None),
    "phi3": of("phi3", head_dim=None, sliding_window=None),
    "phi3, longrope, beyond": of(
        "phi3",
        head_dim=None,
        original_max_position_embeddings=BEYOND,
        rope_scaling={
            "type": "longrope",
            "rope_type": "longrope",
            "short_factor": [1.0, 1.1, 1.2, 1.3],
            "long_factor": [2.0, 2.5, 3.0, 4.0],
            **THETA,
        },
    ),
    "olmo": of("olmo", head_dim=None),
    "olmo2": of("olmo2", head_dim=None),
    "olmo3": of("olmo3", head_dim=None, sliding_window=4),
    "gpt2": of("gpt2", **OLD_GPT),
    "gpt_bigcode": of("gpt_bigcode", **OLD_GPT),
    "gpt_neo": of("gpt_neo", **GPT, attention_types=[[["global", "local"], 1]], window_size=4),
    "gpt_neox": of("gpt_neox", **NO_HEADS),
    "gptj": of("gptj", **OLD_GPT, rotary_dim=4),
    "codegen": of("codegen", **{**OLD_GPT, "num_attention_heads": None}, rotary_dim=4, n_head=4),
    "falcon": of("falcon", **GPT, new_decoder_architecture=False),
    "falcon, alibi": of("falcon", **GPT, alibi=True),
    "falcon_mamba": of("falcon_mamba", **GPT, state_size=4, time_step_rank=4),
    "falcon_h1": of("falcon_h1", mamba_d_ssm=32, mamba_n_heads=4, mamba_d_head=8, mamba_d_state=8, mamba_chunk_size=8),
    "opt": of("opt", **GPT, ffn_dim=48, word_embed_proj_dim=32),
    "bloom": of("bloom", **GPT),
    "mpt": of("mpt", **GPT, d_model=32, n_heads=4, n_layers=2, expansion_ratio=2, max_seq_len=64),
    "xglm": of(
        "xglm",
        **GPT,
        num_attention_heads=None,
        attention_heads=4,
        num_hidden_layers=None,
        num_layers=2,
        d_model=32,
        ffn_dim=48,
        hidden_size=None,
    ),
    "biogpt": of("biogpt", **NO_HEADS),
    "mamba": of("mamba", **GPT, state_size=4, time_step_rank=4),
    "mamba2": of(
        "mamba2", num_key_value_heads=None, intermediate_size=None, state_size=8, num_heads=8, n_groups=1, chunk_size=8
    ),
    "bamba": of(
        "bamba",
        mamba_n_heads=8,
        mamba_d_head=8,
        mamba_d_state=8,
        mamba_chunk_size=8,
        attn_layer_indices=[1],
        head_dim=None,
    ),
    "granite": of("granite", embedding_multiplier=2.0, logits_scaling=1.5, residual_multiplier=0.5, head_dim=None),
    "smollm3": of("smollm3", head_dim=None, no_rope_layer_interval=2),
    "cohere": of("cohere", head_dim=None, logit_scale=0.5),
    "cohere2": of("cohere2", logit_scale=0.5, sliding_window=4),
    "stablelm": of("stablelm", head_dim=None),
    "starcoder2": of("starcoder2", head_dim=None, sliding_window=4),
    "glm": of("glm"),
    "glm4": of("glm4"),
    "nemotron": of("nemotron"),
    "exaone4": of("exaone4", sliding_window=4, head_dim=None),
    "lfm2": of("lfm2", layer_types=["conv", "full_attention"], block_auto_adjust_ff_dim=False, head_dim=None),
    "arcee": of("arcee"),
    "seed_oss": of("seed_oss"),
    "helium": of("helium"),
    "apertus": of("apertus", head_dim=None),
    "ernie4_5": of("ernie4_5"),
    "hunyuan dense": of("hunyuan_v1_dense"),
    "diffllama": of("diffllama"),
    "persimmon": of("persimmon", **NO_HEADS),
    "nanochat": of("nanochat", head_dim=None),
    "openai-gpt": of("openai-gpt", **GPT, n_positions=64),
    "ctrl": of("ctrl", **GPT, dff=48),
    "jamba": of(
        "jamba",
        head_dim=None,
        mamba_d_state=4,
        mamba_dt_rank=4,
        num_experts=2,
        num_experts_per_tok=1,
        attn_layer_period=2,
        attn_layer_offset=1,
        expert_layer_period=4,
        expert_layer_offset=3,
        use_mamba_kernels=False,
    ),
    "nemotron_h": of(
        "nemotron_h",
        num_hidden_layers=3,
        hybrid_override_pattern="M*-",
        mamba_num_heads=8,
        mamba_head_dim=8,
        ssm_state_size=8,
        n_groups=1,
        chunk_size=8,
    ),
    "granitemoehybrid": of(
        "granitemoehybrid",
        head_dim=None,
        num_local_experts=4,
        shared_intermediate_size=48,
        layer_types=["mamba", "attention"],
        mamba_n_heads=8,
        mamba_d_head=8,
        mamba_d_state=8,
        mamba_chunk_size=8,
    ),
    "qwen3_next": of(
        "qwen3_next",
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        linear_num_key_heads=2,
        linear_num_value_heads=2,
        layer_types=["linear_attention", "full_attention"],
        num_experts=0,
        mlp_only_layers=[0, 1],
    ),
    "vaultgemma": of("vaultgemma", sliding_window=4, query_pre_attn_scalar=8),
    "gemma4": of(
        "gemma4_text",
        sliding_window=4,
        global_head_dim=8,
        vocab_size_per_layer_input=32,
        hidden_size_per_layer_input=8,
        num_kv_shared_layers=0,
    ),
    "bitnet": of("bitnet", head_dim=None),
    "jais2": of("jais2", head_dim=None),
    "doge": of("doge", head_dim=None),
}

EXPERTS: dict[str, dict[str, Any]] = {
    "mixtral": {"head_dim": None, "num_local_experts": 4},
    "qwen2_moe": {
        "head_dim": None,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 24,
    },
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
    "olmoe": {"head_dim": None, "num_experts": 4, "num_experts_per_tok": 2},
    "granitemoe": {"head_dim": None, "num_local_experts": 4, "num_experts_per_tok": 2},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 4},
    "deepseek_v3": {
        "head_dim": None,
        "num_key_value_heads": 4,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 2,
        "topk_group": 1,
        "moe_intermediate_size": 24,
        "first_k_dense_replace": 1,
        "q_lora_rank": 8,
        "kv_lora_rank": 8,
        "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 4,
        "v_head_dim": 8,
    },
    "glm4_moe": {
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "moe_intermediate_size": 24,
        "first_k_dense_replace": 1,
    },
    "phimoe": {
        "head_dim": None,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "router_jitter_noise": 0.0,
        "input_jitter_noise": 0.0,
    },
}
WITH_EXPERTS = ("jamba", "granitemoehybrid", "qwen3_next", "doge")
"""Families whose configuration has a router's coefficient even where no layer has experts."""
COEFFICIENT = {"router_aux_loss_coef": 0.05}
ONE_MICRO_BATCH = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1}


def architecture_cases() -> list[Case]:
    """One run of each family."""
    cases = [
        Case(
            name=name,
            axis="architecture",
            model=model,
            args={"router_aux_loss_coef": 0.0} if name in WITH_EXPERTS else {},
            tokenizer=TokenizerChoice(of_qwen2=name.startswith("qwen2")),
        )
        for name, model in MODELS.items()
    ]
    for kind, changes in EXPERTS.items():
        cases.append(
            Case(
                name=f"{kind}, no router loss",
                axis="experts",
                model=of(kind, **changes),
                args={"router_aux_loss_coef": 0.0} if kind not in ("deepseek_v3", "glm4_moe") else {},
            )
        )
    cases.append(
        Case(
            name="phimoe, with its jitter",
            axis="experts",
            model=of("phimoe", **{**EXPERTS["phimoe"], "router_jitter_noise": 0.01, "input_jitter_noise": 0.01}),
            args={"router_aux_loss_coef": 0.0},
            expect="cannot",
            word="jitter|noise|random",
            oracle=False,
        )
    )
    for kind in ("mixtral", "qwen2_moe", "qwen3_moe"):
        model = of(kind, **EXPERTS[kind], **COEFFICIENT)
        cases.append(
            Case(name=f"{kind}, router loss, one micro-batch", axis="experts", model=model, args=ONE_MICRO_BATCH)
        )
        cases.append(
            Case(
                name=f"{kind}, router loss, two micro-batches",
                axis="experts",
                model=model,
                expect="match_within",
                rank="match",
            )
        )
    return cases
