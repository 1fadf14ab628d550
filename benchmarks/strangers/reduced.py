"""Settings that meet bfloat16, under autocast and in the weights, and what must be told from a match there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.strangers.architectures import MODELS, ONE_MICRO_BATCH
from benchmarks.strangers.case import Case, Folders
from benchmarks.strangers.combined import BETA, CHAT_EOS, GEMMA2, GPT2, LORA_GPT2, MEANS, MIXTRAL, TIED
from benchmarks.strangers.folders import KINDS, frozen_embeddings, frozen_first_layer, lora
from benchmarks.strangers.losses import GSPO, TWICE
from benchmarks.strangers.spoiled import edit, one_token, other_advantages, other_step, other_token
from benchmarks.strangers.words import unlogged

AXIS = "reduced"

IN_BF16: Mapping[str, Mapping[str, Any]] = {
    "lora, beta": {"peft": lora(), "saved": "trainer", "args": BETA},
    "lora on embeddings, two iterations": {"peft": KINDS["lora, on embeddings"], "saved": "trainer", "args": TWICE},
    "dora, beta, two iterations": {"peft": KINDS["dora"], "saved": "trainer", "args": {**TWICE, **BETA}},
    "mixtral with router loss": {"model": MIXTRAL},
    "mixtral with router loss, one micro-batch": {"model": MIXTRAL, "args": ONE_MICRO_BATCH},
    "gpt2, beta": {"model": GPT2, "args": BETA},
    "gpt2, lora": {"model": GPT2, "peft": LORA_GPT2, "saved": "trainer"},
    "gpt_bigcode, two iterations": {"model": MODELS["gpt_bigcode"], "args": TWICE},
    "micro-batches of one": {"args": {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 8}},
    "one micro-batch": {"args": ONE_MICRO_BATCH},
    "two iterations": {"args": TWICE},
    "two iterations, grpo, beta": {"args": {**TWICE, **BETA, "loss_type": "grpo"}},
    "two iterations, gspo, beta": {"args": {**TWICE, **GSPO, **BETA}},
    "entropy bonus": {"args": {"entropy_coef": 0.3, **ONE_MICRO_BATCH}},
    "entropy quantile": {"args": {"top_entropy_quantile": 0.5, **ONE_MICRO_BATCH}},
    "frozen embeddings": {"prepare": frozen_embeddings},
    "frozen first layer, tied": {"model": TIED, "prepare": frozen_first_layer},
    "pad = eos, W0 by the trainer": {"tokenizer": CHAT_EOS, "saved": "trainer"},
    "pad = eos, gpt_neox": {"tokenizer": CHAT_EOS, "model": MODELS["gpt_neox"]},
    "mask truncated": {"args": {"mask_truncated_completions": True}},
    "gspo, beta": {"args": {**GSPO, **BETA}},
    "gemma2, soft caps": {"model": GEMMA2},
    "gemma2, soft caps, one micro-batch": {"model": GEMMA2, "args": ONE_MICRO_BATCH},
    "cohere, logit scale, beta": {"model": MODELS["cohere"], "args": BETA},
    "granite, logit scale, two iterations": {"model": MODELS["granite"], "args": TWICE},
    "tied": {"model": TIED},
    "gradient checkpointing, lora": {"peft": lora(), "saved": "trainer", "args": {"gradient_checkpointing": True}},
    "dynamic rope, beyond, beta": {"model": MODELS["llama, dynamic scaling, beyond"], "args": BETA},
    "cast_lm_head_to_fp32": {"args": {"cast_lm_head_to_fp32": True}},
    "logging_steps = 3, beta": {
        "args": {**BETA, "logging_steps": 3, "max_steps": 3},
        "partly": MEANS,
    },
    "temperature 0.3": {"args": {"temperature": 0.3}},
    "falcon_mamba": {"model": MODELS["falcon_mamba"]},
    "scale none, cispo, accumulation of 4": {
        "args": {
            "per_device_train_batch_size": 2,
            "gradient_accumulation_steps": 4,
            "loss_type": "cispo",
            "scale_rewards": "none",
        }
    },
}

IN_BF16_WEIGHTS: Mapping[str, Mapping[str, Any]] = {
    "lora": {"peft": lora(), "saved": "trainer"},
    "lora, beta, two iterations": {"peft": lora(), "saved": "trainer", "args": {**TWICE, **BETA}},
    "lora, no autocast, one micro-batch": {
        "peft": lora(),
        "saved": "trainer",
        "args": {"bf16": False, **ONE_MICRO_BATCH},
    },
    "dora, beta": {"peft": KINDS["dora"], "saved": "trainer", "args": BETA},
    "beta": {"args": BETA},
    "accumulation of 4": {"args": {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}},
    "gpt2": {"model": GPT2},
    "two iterations, no autocast": {"args": {**TWICE, "bf16": False}},
    # the scale of Gemma's embedding is rounded too, which float32 rows do not have
    "gemma2, no autocast, one micro-batch": {
        "model": GEMMA2,
        "args": {"bf16": False, **ONE_MICRO_BATCH},
        "rank": "as replay",
    },
    "mixtral with router loss": {"model": MIXTRAL, "args": ONE_MICRO_BATCH},
    "tied, frozen first layer, beta": {"model": TIED, "prepare": frozen_first_layer, "args": BETA},
}


def reduced_cases() -> list[Case]:
    """Combinations, then what was spoiled in each precision."""
    within: dict[str, Any] = {"axis": AXIS, "expect": "match_within", "rank": "match"}
    cases = [Case(name=f"bf16, {name}", **within, **_with(case, bf16=True)) for name, case in IN_BF16.items()]
    for name, case in IN_BF16_WEIGHTS.items():
        values = {"bf16": True, **case.get("args", {})}
        cases.append(Case(name=f"bf16 weights, {name}", dtype="bfloat16", **{**within, **_with(case, **values)}))
    return [*cases, *_spoiled(), *_texts()]


def _with(case: Mapping[str, Any], **arguments: Any) -> dict[str, Any]:
    return {**case, "args": {**case.get("args", {}), **arguments}}


def _texts() -> list[Case]:
    """Ids that were not logged: whatever is said of the norm, it is not a match of something else."""
    common: dict[str, Any] = {"axis": AXIS, "rewards": (unlogged,), "expect": "cannot", "oracle": False, "rank": "any"}
    return [
        Case(name="gpt2, text only", model=GPT2, word="inferred", **common),
        Case(name="bf16, text only", args={"bf16": True}, word="inferred", **common),
    ]


def _spoiled() -> list[Case]:
    """In each precision what is wrong on purpose is no match."""
    first: dict[str, Any] = {"axis": AXIS, "expect": "mismatch", "oracle": False, "unjudged": (2,)}
    both: dict[str, Any] = {"axis": AXIS, "expect": "mismatch", "oracle": False}
    second: dict[str, Any] = {**both, "unjudged": (1,)}
    kinds: Mapping[str, dict[str, Any]] = {
        "bf16, lora": {"peft": lora(), "saved": "trainer", "args": {"bf16": True}},
        "bf16, mixtral with router loss": {"model": MIXTRAL, "args": {"bf16": True}},
        "mixtral with router loss": {"model": MIXTRAL},
        "bf16 weights": {"dtype": "bfloat16", "args": {"bf16": True}},
        "bf16, gpt2": {"model": GPT2, "args": {"bf16": True}},
    }
    spoils: Mapping[str, Callable[[Folders], None]] = {
        "ids altered": edit(other_token),
        "an advantage edited": edit(other_advantages),
    }
    cases = [
        Case(name=f"{kind}, {name}", spoil=spoil, **first, **given)
        for kind, given in kinds.items()
        for name, spoil in spoils.items()
    ]
    for kind, given in kinds.items():
        cases.append(Case(name=f"{kind}, another loss", config_change={"loss_type": "dr_grpo"}, **both, **given))
        cases.append(Case(name=f"{kind}, another temperature", config_change={"temperature": 0.8}, **both, **given))
        cases.append(Case(name=f"{kind}, weights of another step", spoil=other_step, **second, **given))
    return [
        *cases,
        Case(
            name="gpt2, lora, one id altered",
            model=GPT2,
            peft=LORA_GPT2,
            saved="trainer",
            spoil=edit(one_token),
            **first,
        ),
        Case(
            name="two iterations said to be one",
            args=TWICE,
            config_change={"num_iterations": 1},
            **{**both, "unjudged": (1, 3)},
        ),
    ]
