"""Settings that meet each other: precision, models, adapters, losses and the schedule of a run, several at once."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from benchmarks.strangers.architectures import COEFFICIENT, EXPERTS, MODELS, ONE_MICRO_BATCH
from benchmarks.strangers.case import Case, Folders
from benchmarks.strangers.folders import KINDS, frozen_embeddings, frozen_first_layer, lora
from benchmarks.strangers.losses import GSPO, TWICE
from benchmarks.strangers.models import of
from benchmarks.strangers.texts import CHAT
from benchmarks.strangers.words import (
    EOS_TEMPLATE,
    KEYWORD_TEMPLATE,
    WORDS,
    TokenizerChoice,
    by_ids,
    by_length,
    sometimes_none,
)

AXIS = "combined"
GPT2 = MODELS["gpt2"]
GEMMA2 = MODELS["gemma2, soft caps"]
MIXTRAL = of("mixtral", **EXPERTS["mixtral"], **COEFFICIENT)
TIED = of("llama", tie_word_embeddings=True)
LORA_GPT2 = lora(target_modules=["c_attn"], fan_in_fan_out=True)
BETA = {"beta": 0.3}
MEANS = ("reward", "frac_reward_zero_std")
MEANS_AND_KL = (*MEANS, "advantage")
CHAT_EOS = TokenizerChoice(chat=True, has_pad=False, saved_template=EOS_TEMPLATE)
BOS_TEMPLATE = "w4 " + KEYWORD_TEMPLATE


def _talks(*texts: str) -> tuple[Any, ...]:
    system = {"role": "system", "content": "w20 w21"}
    return tuple([system, {"role": "user", "content": text}] for text in texts)


TALKS = _talks("w3 w4", "w5", "w6 w7 w8 w9", "w10 w11 w12", "w13 w14", "w30")
ONE_TOKEN = tuple(f"w{number}" for number in range(3, 15))
MIXED_LENGTHS = ("w3", " ".join(f"w{3 + number}" for number in range(20)), "w9 w10", "w11", "w12 w13 w14")

IN_FLOAT32: Mapping[str, Mapping[str, Any]] = {
    "gpt2, beta, two iterations": {"model": GPT2, "args": {**TWICE, **BETA}},
    "gpt2, accumulation of 4, pad_to_multiple_of": {
        "model": GPT2,
        "args": {
            "per_device_train_batch_size": 2,
            "gradient_accumulation_steps": 4,
            "pad_to_multiple_of": 8,
            "loss_type": "grpo",
        },
    },
    "gpt2, lora, beta, two iterations": {
        "model": GPT2,
        "peft": LORA_GPT2,
        "saved": "trainer",
        "args": {**TWICE, **BETA},
    },
    "gpt2, mask truncated": {"model": GPT2, "args": {"mask_truncated_completions": True}},
    "opt, mask truncated, beta": {"model": MODELS["opt"], "args": {"mask_truncated_completions": True, **BETA}},
    "gpt2, entropy quantile and bonus": {
        "model": GPT2,
        "args": {"top_entropy_quantile": 0.5, "entropy_coef": 0.05, **ONE_MICRO_BATCH},
    },
    "gpt2, frozen embeddings, pad = eos": {"model": GPT2, "tokenizer": CHAT_EOS, "prepare": frozen_embeddings},
    "pad = eos, tied, W0 by the trainer": {"model": TIED, "tokenizer": CHAT_EOS, "saved": "trainer"},
    "pad = eos, frozen first layer, beta, W0 by the trainer": {
        "tokenizer": CHAT_EOS,
        "saved": "trainer",
        "prepare": frozen_first_layer,
        "args": {**BETA, "max_steps": 3},
    },
    "pad = eos, lora on embeddings": {
        "tokenizer": CHAT_EOS,
        "saved": "trainer",
        "peft": KINDS["lora, on embeddings"],
    },
    "pad = eos, lora, modules_to_save": {
        "tokenizer": CHAT_EOS,
        "saved": "trainer",
        "peft": KINDS["lora, modules_to_save"],
    },
    "dynamic rope, beyond, beta, two iterations": {
        "model": MODELS["llama, dynamic scaling, beyond"],
        "args": {**TWICE, **BETA},
    },
    "longrope, beyond, beta, two iterations": {
        "model": MODELS["phi3, longrope, beyond"],
        "args": {**TWICE, **BETA},
    },
    "dora, beta, two iterations": {"peft": KINDS["dora"], "saved": "trainer", "args": {**TWICE, **BETA}},
    "olora, two iterations": {"peft": KINDS["olora"], "saved": "trainer", "args": TWICE},
    "lora, modules_to_save, beta": {
        "peft": KINDS["lora, modules_to_save"],
        "saved": "trainer",
        "args": {**BETA, "max_steps": 3},
    },
    "lora, trainable tokens, beta, two iterations": {
        "peft": KINDS["lora, trainable tokens"],
        "saved": "trainer",
        "args": {**TWICE, **BETA},
    },
    "lora, biases, gspo, beta": {"peft": KINDS["lora, biases"], "saved": "trainer", "args": {**GSPO, **BETA}},
    "lora, logging_steps = 3, beta": {
        "peft": lora(),
        "saved": "trainer",
        "args": {"logging_steps": 3, "max_steps": 3, **BETA},
        "partly": MEANS,
    },
    "two iterations, logging_steps = 2": {"args": {**TWICE, "logging_steps": 2, "max_steps": 4}, "partly": MEANS},
    "two iterations, save_steps = 2": {
        "args": {**TWICE, "save_steps": 2, "max_steps": 4},
        "at": {2: "cannot", 4: "cannot"},
        "word": "not on disk",
    },
    "two iterations, save_steps = 3": {
        "args": {**TWICE, "save_steps": 3, "max_steps": 4},
        "at": {2: "cannot", 3: "cannot", 4: "cannot"},
        "word": "not on disk|log-probabilities",
    },
    "three iterations, sapo, delta": {"args": {**TWICE, "num_iterations": 3, "max_steps": 4, "delta": 1.3}},
    "two iterations, mixtral, router loss, one micro-batch": {"model": MIXTRAL, "args": {**TWICE, **ONE_MICRO_BATCH}},
    "mixtral, router loss, mask truncated, one micro-batch": {
        "model": MIXTRAL,
        "args": {"mask_truncated_completions": True, **ONE_MICRO_BATCH},
    },
    "falcon_mamba, mask truncated": {"model": MODELS["falcon_mamba"], "args": {"mask_truncated_completions": True}},
    "two iterations, entropy quantile": {"args": {**TWICE, **ONE_MICRO_BATCH, "top_entropy_quantile": 0.4}},
    "evaluation between the steps": {
        "args": {"eval_strategy": "steps", "eval_steps": 2, "max_steps": 3},
        "at": {2: "cannot", 3: "cannot"},
        "word": "evaluation|not in the report",
        "partly": MEANS_AND_KL,
    },
    "evaluation of half a batch, two iterations": {
        "args": {**TWICE, "eval_strategy": "steps", "eval_steps": 2, "num_generations_eval": 2},
        "at": {3: "cannot"},
        "oracle": False,
        "word": "evaluation|not in the report",
        "partly": MEANS_AND_KL,
    },
    "several epochs of few prompts": {"args": {"max_steps": 5}, "prompts": ONE_TOKEN[:5]},
    "resumed": {"args": {"max_steps": 4}, "stops_after": 2},
    "resumed, beta": {"args": {"max_steps": 4, **BETA}, "stops_after": 2},
    "resumed, lora, beta": {
        "args": {"max_steps": 4, **BETA},
        "stops_after": 2,
        "peft": lora(),
        "saved": "trainer",
    },
    "tokenizer with BOS": {"tokenizer": replace(WORDS, bos=True)},
    "tokenizer with BOS, gpt2, pad = eos": {"tokenizer": replace(WORDS, bos=True, has_pad=False), "model": GPT2},
    "chat, BOS, template with keywords": {
        "tokenizer": replace(CHAT, bos=True, saved_template=BOS_TEMPLATE),
        "args": {"chat_template_kwargs": {"thinking": True}},
    },
    "chat, system prompts": {"tokenizer": CHAT, "prompts": TALKS},
    "chat, system prompts, gpt2, keywords": {
        "tokenizer": replace(CHAT, saved_template=KEYWORD_TEMPLATE),
        "prompts": TALKS,
        "model": GPT2,
        "args": {"chat_template_kwargs": {"thinking": True}},
    },
    "weights and None, scale batch": {
        "rewards": (by_ids, by_length, sometimes_none),
        "args": {"reward_weights": [1.0, 0.3, -0.5], "scale_rewards": "batch"},
    },
    "32 groups of two": {
        "args": {"num_generations": 2, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 8},
        "prompts": tuple(f"w{3 + n % 29} w{3 + n // 2}" for n in range(40)),
    },
    "very long and very short completions": {"args": {"max_completion_length": 40}, "prompts": MIXED_LENGTHS},
    "very long and very short completions, gpt2": {
        "args": {"max_completion_length": 40, "loss_type": "grpo"},
        "prompts": MIXED_LENGTHS,
        "model": GPT2,
    },
    "prompts of one token, beta": {"prompts": ONE_TOKEN, "args": BETA},
    "temperature 0.3, beta": {"args": {"temperature": 0.3, **BETA}},
    "temperature 2, two iterations": {"args": {**TWICE, "temperature": 2.0}},
    "tiny max_grad_norm, warm-up, adafactor": {
        "args": {"max_grad_norm": 1e-4, "warmup_steps": 2, "optim": "adafactor", "max_steps": 3}
    },
    "sharded checkpoints": {},
    "only later checkpoints": {},
    "W0 in bf16, trained in float32": {"model": lambda: of("llama")().bfloat16()},
    "W0 in bf16, trained in float32, lora": {
        "model": lambda: of("llama")().bfloat16(),
        "peft": lora(),
        "saved": "trainer",
    },
    "gemma2, beta, gspo, tied": {"model": GEMMA2, "args": {**GSPO, **BETA}},
    "cohere, entropy bonus": {"model": MODELS["cohere"], "args": {"entropy_coef": 0.3, **ONE_MICRO_BATCH}},
    "gemma2, entropy bonus and quantile": {
        "model": GEMMA2,
        "args": {"entropy_coef": 0.3, "top_entropy_quantile": 0.5, **ONE_MICRO_BATCH},
    },
    "max_completion_length of one": {"args": {"max_completion_length": 1}},
}


def combined_cases() -> list[Case]:
    """Combinations in float32."""
    return [Case(name=name, axis=AXIS, **{**case, **SPECIAL.get(name, {})}) for name, case in IN_FLOAT32.items()]


def in_shards(folders: Folders) -> None:
    """The checkpoint's file is several, as those of large models are."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folders.checkpoint(1))
    (folders.checkpoint(1) / "model.safetensors").unlink()
    model.save_pretrained(folders.checkpoint(1), max_shard_size="20KB")


def drop_first(folders: Folders) -> None:
    """The first checkpoint was deleted."""
    shutil.rmtree(folders.checkpoint(1))


SPECIAL: Mapping[str, Mapping[str, Any]] = {
    "sharded checkpoints": {"spoil": in_shards},
    "only later checkpoints": {
        "spoil": drop_first,
        "args": {"max_steps": 3},
        "at": {2: "cannot"},
        "word": "not on disk",
    },
}
