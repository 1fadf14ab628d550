"""Losses and options of GRPOConfig that shape a gradient, or seem to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.strangers.architectures import ONE_MICRO_BATCH
from benchmarks.strangers.case import Case
from benchmarks.strangers.models import of
from benchmarks.strangers.words import (
    always_none,
    by_ids,
    by_length,
    constant,
    half_dead,
    mostly_scored,
    sometimes_none,
)

GSPO = {"loss_type": "grpo", "importance_sampling_level": "sequence"}
TWICE = {"num_iterations": 2, "max_steps": 3, "learning_rate": 0.02}

EXACT: dict[str, Mapping[str, Any]] = {
    "dapo": {},
    "grpo": {"loss_type": "grpo"},
    "dr_grpo": {"loss_type": "dr_grpo", "scale_rewards": "none"},
    "bnpo, one micro-batch": {"loss_type": "bnpo", **ONE_MICRO_BATCH},
    "cispo": {"loss_type": "cispo", "epsilon_high": 5.0},
    "cispo, low bound": {"loss_type": "cispo"},
    "sapo": {"loss_type": "sapo"},
    "luspo": {"loss_type": "luspo", "importance_sampling_level": "sequence"},
    "luspo, token": {"loss_type": "luspo"},
    "vespo": {"loss_type": "vespo"},
    "gspo": GSPO,
    "gspo, dapo": {"importance_sampling_level": "sequence"},
    "gspo, beta": {**GSPO, "beta": 0.3},
    "gspo, plain beta": {**GSPO, "beta": 0.3, "use_bias_correction_kl": False},
    "beta": {"beta": 0.3, "max_steps": 3},
    "plain beta": {"loss_type": "grpo", "beta": 0.3, "use_bias_correction_kl": False},
    "cispo, beta": {"loss_type": "cispo", "epsilon_high": 5.0, "beta": 0.1},
    "delta": {"delta": 1.5},
    "epsilon_high": {"epsilon_high": 0.28},
    "entropy bonus, one micro-batch": {"entropy_coef": 0.05, **ONE_MICRO_BATCH},
    "entropy quantile, one micro-batch": {"top_entropy_quantile": 0.5, **ONE_MICRO_BATCH},
    "entropy quantile and bonus, one micro-batch": {
        "top_entropy_quantile": 0.5,
        "entropy_coef": 0.05,
        **ONE_MICRO_BATCH,
    },
    "scale none": {"scale_rewards": "none"},
    "scale batch": {"scale_rewards": "batch"},
    "mask truncated, dapo": {"mask_truncated_completions": True},
    "mask truncated, grpo": {"mask_truncated_completions": True, "loss_type": "grpo", "max_completion_length": 12},
    "synced reference, before its first sync": {"beta": 0.3, "sync_ref_model": True},
    "synced reference, every step": {
        "beta": 0.3,
        "sync_ref_model": True,
        "ref_model_sync_steps": 1,
        "max_steps": 3,
    },
    "temperature": {"temperature": 0.7},
    "top_k, top_p, min_p": {"top_k": 8, "top_p": 0.9, "min_p": 0.02},
    "repetition penalty": {"repetition_penalty": 1.2},
    "accumulation of 4": {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "loss_type": "grpo"},
    "G = 2": {"num_generations": 2},
    "G = 8": {"num_generations": 8},
    "G = 16": {"num_generations": 16, "per_device_train_batch_size": 8},
    "off-policy mask": {"off_policy_mask_threshold": 0.01},
    "pad_to_multiple_of": {"pad_to_multiple_of": 8},
    "warm-up": {"warmup_steps": 2, "max_steps": 3},
    "max_grad_norm": {"max_grad_norm": 0.01},
    "weight decay": {"weight_decay": 0.5, "max_steps": 3},
    "gradient checkpointing": {"gradient_checkpointing": True},
    "sgd": {"optim": "sgd", "learning_rate": 0.1},
    "steps_per_generation = accumulation": {"steps_per_generation": 2},
    "cast_lm_head_to_fp32": {"cast_lm_head_to_fp32": True},
}

TWICE_USED: dict[str, Mapping[str, Any]] = {
    "two iterations, dapo": {},
    "two iterations, grpo, beta": {"loss_type": "grpo", "beta": 0.3},
    "two iterations, gspo": GSPO,
    "two iterations, gspo, beta": {**GSPO, "beta": 0.3},
    "two iterations, cispo": {"loss_type": "cispo", "epsilon_high": 1.1},
    "two iterations, sapo": {"loss_type": "sapo"},
    "two iterations, vespo": {"loss_type": "vespo"},
    "two iterations, delta, epsilon_high": {"delta": 1.1, "epsilon_high": 0.05},
    "two iterations, off-policy mask": {"off_policy_mask_threshold": 0.002},
}


def loss_cases() -> list[Case]:
    """Losses, options and rewards."""
    return [
        *(Case(name=name, axis="loss", args=args) for name, args in EXACT.items()),
        *(Case(name=name, axis="loss", args={**TWICE, **args}) for name, args in TWICE_USED.items()),
        *_of_micro_batches(),
        *_of_rewards(),
        *_of_logging(),
        *_of_dropout(),
    ]


def _of_micro_batches() -> list[Case]:
    """What depends on which rollouts shared a micro-batch, and generation batches that are not the update's."""
    reasons: dict[str, tuple[dict[str, Any], str]] = {
        "bnpo, two micro-batches": ({"loss_type": "bnpo"}, "micro-batch"),
        "entropy bonus, two micro-batches": ({"entropy_coef": 0.05}, "entropy"),
        "entropy quantile, two micro-batches": ({"top_entropy_quantile": 0.5}, "entropy"),
        "steps_per_generation < accumulation": ({"steps_per_generation": 1}, "last generation"),
        "steps_per_generation > accumulation": ({"steps_per_generation": 4, "max_steps": 1}, "which|shuffled"),
    }
    return [
        Case(
            name=name,
            axis="loss",
            args=args,
            expect="cannot",
            word=word,
            rank="any" if "bonus" in name else "as replay",
            partly=("reward", "advantage", "frac_reward_zero_std"),
            oracle=False,
        )
        for name, (args, word) in reasons.items()
    ]


def _of_rewards() -> list[Case]:
    several = (by_ids, by_length)
    weights = {"reward_weights": [1.0, 0.3]}
    return [
        Case(name="two reward functions", axis="reward", rewards=several, args=weights),
        Case(
            name="normalize_then_sum",
            axis="reward",
            rewards=several,
            args={**weights, "multi_objective_aggregation": "normalize_then_sum"},
        ),
        Case(name="one function sometimes None", axis="reward", rewards=(by_ids, sometimes_none)),
        Case(
            name="one function sometimes None, normalize_then_sum",
            axis="reward",
            rewards=(by_ids, sometimes_none),
            args={"multi_objective_aggregation": "normalize_then_sum"},
        ),
        Case(name="one function always None", axis="reward", rewards=(by_ids, always_none)),
        Case(name="some completions without a reward", axis="reward", rewards=(mostly_scored,)),
        Case(
            name="some completions without a reward, scale batch",
            axis="reward",
            rewards=(mostly_scored,),
            args={"scale_rewards": "batch"},
        ),
        Case(name="all rewards equal", axis="reward", rewards=(constant,)),
        Case(name="all rewards equal, beta", axis="reward", rewards=(constant,), args={"beta": 0.2}),
        Case(name="one dead group", axis="reward", rewards=(half_dead,)),
    ]


def _of_logging() -> list[Case]:
    means = ("reward", "frac_reward_zero_std")
    return [
        Case(name="logging_steps = 2", axis="logging", args={"logging_steps": 2}, partly=means),
        Case(name="logging_steps = 3", axis="logging", args={"logging_steps": 3, "max_steps": 3}, partly=means),
        Case(
            name="logging_steps = 10",
            axis="logging",
            args={"logging_steps": 10, "max_steps": 10, "learning_rate": 1e-3},
            partly=means,
        ),
    ]


def _of_dropout() -> list[Case]:
    modules = of("phi", head_dim=None, dropout=0.2, attention_dropout=0.0)
    everywhere = of("gpt_neox", num_key_value_heads=None, head_dim=None, dropout=0.2)
    cannot: dict[str, Any] = {"axis": "dropout", "expect": "cannot", "word": "dropout", "oracle": False}
    off = {"disable_dropout": True}
    return [
        Case(name="dropout switched off", axis="dropout", model=modules, args=off),
        Case(name="dropout on", model=modules, **cannot),
        Case(name="dropout on, attention too", model=everywhere, **cannot),
        # TRL sets p = 0 in layers of the kind Dropout; attention takes its own from the configuration
        Case(name="dropout switched off, which leaves attention's", model=everywhere, args=off, **cannot),
    ]
