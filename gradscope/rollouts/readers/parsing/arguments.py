"""Arguments of a trainer held to what they can be: a number that is text, or a batch of no rows, is damage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradscope.outside.rules import (
    ABOVE_ZERO,
    FROM_ZERO,
    NUMBER,
    NUMBERS,
    OBJECT,
    TEXT,
    FieldRule,
    require_fields,
    whole_from_to,
)

_COUNTS = (
    *("gradient_accumulation_steps", "num_iterations", "num_generations", "per_device_train_batch_size"),
    *("steps_per_generation", "generation_batch_size", "max_completion_length", "ref_model_sync_steps"),
    "pad_to_multiple_of",
)
_FROM_ZERO = (
    *("beta", "epsilon", "epsilon_high", "delta", "ref_model_mixup_alpha", "top_entropy_quantile", "learning_rate"),
    *("vllm_importance_sampling_cap", "vllm_importance_sampling_clip_max", "vllm_importance_sampling_clip_min"),
)
_NUMBERS = ("entropy_coef", "entropy_target", "off_policy_mask_threshold", "router_aux_loss_coef", "max_grad_norm")
_TEXTS = ("loss_type", "multi_objective_aggregation", "advantage")
_RULES: dict[str, FieldRule] = {
    **dict.fromkeys(_COUNTS, whole_from_to(1)),
    **dict.fromkeys(_FROM_ZERO, FROM_ZERO),
    **dict.fromkeys(_NUMBERS, NUMBER),
    **dict.fromkeys(_TEXTS, TEXT),
    "temperature": ABOVE_ZERO,
    "reward_weights": NUMBERS,
    "scale_rewards": FieldRule("text, true or false", lambda value: isinstance(value, (str, bool))),
    "chat_template_kwargs": OBJECT,
    "model_init_kwargs": OBJECT,
}
"""Argument of TRL's -> what it is where it is not null."""


def require_arguments(values: Mapping[str, Any], origin: str) -> None:
    """Refuse arguments that are not what they can be; those that are not known here are left alone.

    Args:
        values: Argument -> value, in TRL's names.
        origin: Where they come from, for the message.

    Raises:
        InputError: One is something else; null is what is not set.
    """
    told = {name: value for name, value in values.items() if value is not None}
    require_fields(told, _RULES, origin, hint="Write the arguments as the trainer had them.")
