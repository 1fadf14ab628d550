"""Arguments of a trainer held to what they can be: a number that is text, or a batch of no rows, is damage."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gradscope.errors import InputError

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
_RULES: dict[str, str] = {
    **dict.fromkeys(_COUNTS, "a whole number from 1 on"),
    **dict.fromkeys(_FROM_ZERO, "a finite number from 0 on"),
    **dict.fromkeys(_NUMBERS, "a finite number"),
    **dict.fromkeys(_TEXTS, "text"),
    "temperature": "a finite number above 0",
    "reward_weights": "a list of finite numbers",
    "scale_rewards": "text, true or false",
    "chat_template_kwargs": "an object",
    "model_init_kwargs": "an object",
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
    for name, rule in _RULES.items():
        value = values.get(name)
        if value is not None and not _holds(value, rule):
            raise InputError(
                f"{origin}: {name} is {str(value)[:40]!r}, and it can only be {rule}.",
                hint="Write the arguments as the trainer had them.",
            )


def _holds(value: Any, rule: str) -> bool:
    match rule:
        case "text":
            return isinstance(value, str)
        case "text, true or false":
            return isinstance(value, (str, bool))
        case "an object":
            return isinstance(value, Mapping)
        case "a list of finite numbers":
            return isinstance(value, (list, tuple)) and all(map(_is_finite, value))
        case "a whole number from 1 on":
            return type(value) is int and value >= 1
    if not _is_finite(value):
        return False
    return value > 0 if rule.endswith("above 0") else value >= 0 if rule.endswith("from 0 on") else True


def _is_finite(value: Any) -> bool:
    try:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False
