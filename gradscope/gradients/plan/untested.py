"""Arguments that a step's gradient does not depend on: a norm that is met says nothing of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from msgspec.structs import asdict, replace

from gradscope.gradients.plan.losses import LOSSES
from gradscope.gradients.plan.objective import Objective
from gradscope.gradients.plan.rows import RowPlan
from gradscope.gradients.plan.trainers import AGGREGATIONS, objective_of
from gradscope.rollouts.run import TrainerSettings

_NUMBERS = """epsilon epsilon_high delta off_policy_mask_threshold clip_ratio clip_ratio_low clip_ratio_high
    clip_ratio_c ratio_clip_min ratio_clip_max ratio_clip_c dppo_mask_low dppo_mask_high ipo_threshold ipo_mask_low
    ipo_mask_high vllm_importance_sampling_cap vllm_importance_sampling_clip_max rollout_is_threshold
    truncated_importance_sampling_ratio sapo_temperature_pos sapo_temperature_neg vespo_k_pos vespo_k_neg
    vespo_lambda_pos vespo_lambda_neg"""
_FLAGS = "use_bias_correction_kl sequence_level_importance_ratios disable_ppo_ratio use_cispo token_level_loss"
_OTHER_VALUES: Mapping[str, Sequence[object]] = {
    **dict.fromkeys(_NUMBERS.split(), (1e9,)),
    **dict.fromkeys(_FLAGS.split(), (True, False)),
    **dict.fromkeys(("beta", "kl_loss_coef", "reference_policy_kl_penalty", "kl_tau"), (0.0,)),
    "importance_sampling_level": ("token", "sequence"),
    "loss_type": [name for name in LOSSES if name != "dr_grpo"],  # its divisor may not be known
    "loss_agg_mode": tuple(AGGREGATIONS),
    "loss_mode": ("vanilla", "gpg", "cispo", "gspo", "sapo"),
}
"""Last name of an argument -> values that mean another loss, where anything depends on the argument."""


def untested_arguments(
    plan: RowPlan, settings: TrainerSettings, logprobs: Sequence[np.ndarray], tolerance: float
) -> Iterator[str]:
    """Arguments that could have other values, and other losses and averages, as ``loss_type = bnpo``.

    Args:
        plan: Of a step whose rollouts all have advantages.
        logprobs: The policy's log-probabilities, [R][T].
        tolerance: Difference of weights, relative to the largest, that the norm would not show.
    """
    stated, weights = asdict(objective_of(settings)), _weights(plan, plan.objective, logprobs)
    for path, value in settings.values.items():
        name = path.rpartition(".")[2]
        is_foreign = name.startswith(("sapo_", "vespo_")) and not name.startswith(plan.objective.loss_type)
        if value is None or is_foreign or (name == "use_bias_correction_kl" and not plan.index("kl")):
            continue
        for other in (candidate for candidate in _OTHER_VALUES.get(name, ()) if candidate != value):
            objective = objective_of(settings.with_values({path: other}))
            changes = {field: new for field, new in asdict(objective).items() if new != stated[field]}
            if changes and "cannot" not in changes:
                changed = _weights(plan, replace(plan.objective, **changes), logprobs)
                if np.allclose(weights, changed, rtol=0.0, atol=tolerance * np.abs(weights).max()):
                    yield f"{name} = {other}" if isinstance(other, str) else name


def _weights(plan: RowPlan, objective: Objective, logprobs: Sequence[np.ndarray]) -> np.ndarray:
    """The weights of all tokens' grad log pi under a loss."""
    factors = objective.token_weights([completion.counted.bool().tolist() for completion in plan.completions])
    weights = tuple((row != 0) * weight for row, weight in zip(plan.weights, factors, strict=True))
    kl = tuple((row != 0) * weight * objective.beta for row, weight in zip(plan.kl_weights, factors, strict=True))
    plan = replace(plan, objective=objective, weights=weights, kl_weights=kl)
    outputs = [torch.as_tensor(row, dtype=torch.float64).repeat(1 + plan.has_entropies) for row in logprobs]
    return torch.cat([plan.gradient(number, row) for number, row in enumerate(outputs)]).numpy()
