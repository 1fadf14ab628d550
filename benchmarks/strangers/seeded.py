"""Combinations that nobody chose: settings drawn from every axis by a seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.strangers.architectures import MODELS, ONE_MICRO_BATCH
from benchmarks.strangers.case import Case
from benchmarks.strangers.combined import CHAT_EOS, MIXTRAL
from benchmarks.strangers.folders import frozen_embeddings, frozen_first_layer, lora, peft_of
from benchmarks.strangers.losses import GSPO, TWICE
from benchmarks.strangers.models import of
from benchmarks.strangers.texts import CHAT
from benchmarks.strangers.words import WORDS, TokenizerChoice, mostly_scored

NUM_CASES = 40
FAMILIES: Mapping[str, Callable[[], Any]] = {
    **{
        name: MODELS[name]
        for name in (
            "llama",
            "qwen3",
            "gpt2",
            "opt",
            "gpt_neox",
            "gemma2, soft caps",
            "cohere",
            "granite",
            "llama, dynamic scaling, beyond",
            "phi3, longrope, beyond",
            "mamba2",
            "falcon_h1",
            "gpt_neo",
            "bloom",
        )
    },
    "mixtral with router loss": MIXTRAL,
    "tied llama": of("llama", tie_word_embeddings=True),
}
WITHOUT_ADAPTER = ("gpt2", "mamba2", "falcon_h1")
"""PEFT has none of its adapters on all of their linear layers."""
LOSSES: tuple[Mapping[str, Any], ...] = (
    {},
    {"loss_type": "grpo"},
    {"loss_type": "dr_grpo"},
    {"loss_type": "cispo"},
    {"loss_type": "sapo"},
    {"loss_type": "luspo", "importance_sampling_level": "sequence"},
    {"loss_type": "vespo"},
    GSPO,
)
ADAPTERS: tuple[Callable[[], Any] | None, ...] = (
    None,
    None,
    lora(target_modules="all-linear"),
    lora(target_modules="all-linear", use_rslora=True),
    peft_of("LoHaConfig", r=2, target_modules="all-linear"),
)
MORE: tuple[Mapping[str, Any], ...] = (
    {},
    {"mask_truncated_completions": True},
    {"temperature": 0.5},
    {"pad_to_multiple_of": 8},
    {"gradient_checkpointing": True},
    {"max_grad_norm": 1e-3, "warmup_steps": 1},
    {"scale_rewards": "batch"},
    {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4},
    {"num_generations": 2},
    {"top_entropy_quantile": 0.6, **ONE_MICRO_BATCH},
    {"entropy_coef": 0.1, **ONE_MICRO_BATCH},
    {"optim": "adafactor"},
    {"cast_lm_head_to_fp32": True},
)
TEXTS: tuple[TokenizerChoice, ...] = (WORDS, WORDS, CHAT, CHAT_EOS, TokenizerChoice(bos=True))


def seeded_cases() -> list[Case]:
    """The same cases each time."""
    return [_drawn(seed) for seed in range(NUM_CASES)]


def _drawn(seed: int) -> Case:
    draw = random.Random(seed)
    family, adapter = draw.choice(list(FAMILIES)), draw.choice(ADAPTERS)
    adapter = None if family in WITHOUT_ADAPTER else adapter
    dtype, bf16 = draw.choice((("float32", False), ("float32", False), ("float32", True), ("bfloat16", True)))
    arguments = {
        **draw.choice(LOSSES),
        **draw.choice(({}, {"beta": 0.2})),
        **draw.choice(({}, TWICE)),
        **draw.choice(MORE),
        "bf16": bf16,
    }
    if arguments.get("cast_lm_head_to_fp32") and family not in ("llama", "qwen3"):
        arguments["cast_lm_head_to_fp32"] = False
    freeze = None if adapter else draw.choice((None, None, frozen_embeddings, frozen_first_layer))
    if freeze is frozen_first_layer and family not in ("llama", "qwen3", "tied llama"):
        freeze = None
    exact = not bf16 and (family != "mixtral with router loss" or arguments.get("gradient_accumulation_steps") == 1)
    return Case(
        name=f"{seed:02} {family}",
        axis="seeded",
        model=FAMILIES[family],
        dtype=dtype,
        peft=adapter,
        prepare=freeze,
        args=arguments,
        tokenizer=draw.choice(TEXTS),
        rewards=draw.choice(((), (), (mostly_scored,))),
        saved="trainer" if adapter else draw.choice(("model", "trainer")),
        expect="match" if exact else "match_within",
        rank="match" if dtype == "float32" else "as replay",
    )
