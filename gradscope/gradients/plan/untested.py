"""Arguments that a step's gradient does not depend on: a norm that is met says nothing of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

import numpy as np
import torch
from msgspec.structs import asdict, replace

from gradscope.gradients.plan.losses import LOSSES
from gradscope.gradients.plan.rows import Row, RowPlan
from gradscope.gradients.plan.trainers import AGGREGATIONS, objective_of
from gradscope.rollouts.run import TrainerSettings

_BOUNDS = """epsilon epsilon_high delta off_policy_mask_threshold clip_ratio clip_ratio_low clip_ratio_high clip_ratio_c
    ratio_clip_min ratio_clip_max ratio_clip_c dppo_mask_low dppo_mask_high ipo_threshold ipo_mask_low ipo_mask_high
    vllm_importance_sampling_cap vllm_importance_sampling_clip_max rollout_is_threshold
    truncated_importance_sampling_ratio"""
_SHAPES = """sapo_temperature_pos sapo_temperature_neg tau_pos tau_neg vespo_k_pos vespo_k_neg vespo_lambda_pos
    vespo_lambda_neg"""
_FLAGS = "use_bias_correction_kl sequence_level_importance_ratios disable_ppo_ratio use_cispo token_level_loss"
_OTHER_VALUES: Mapping[str, Sequence[object]] = {
    **dict.fromkeys(_BOUNDS.split(), (1e9,)),
    **dict.fromkeys(_SHAPES.split(), (7.0,)),
    **dict.fromkeys(_FLAGS.split(), (True, False)),
    **dict.fromkeys(("beta", "kl_loss_coef", "reference_policy_kl_penalty", "kl_tau"), (0.0,)),
    "importance_sampling_level": ("token", "sequence"),
    "loss_type": tuple(LOSSES),
    "loss_agg_mode": tuple(AGGREGATIONS),
    "loss_mode": ("vanilla", "gpg", "cispo", "gspo", "sapo"),
}
"""Last name of an argument -> values that mean another loss, where anything depends on the argument."""
_ALIKE = 1e-6  # relative difference of weights that is rounding


def untested_arguments(
    plan: RowPlan, settings: TrainerSettings, logprobs: Sequence[np.ndarray], within: float = _ALIKE
) -> Iterator[str]:
    """Arguments that could have other values, or names of losses and averages alike, as ``loss_type = bnpo``.

    Args:
        logprobs: The policy's log-probabilities, [R][T].
        within: Relative difference of weights that the norm would not show.
    """
    if any(advantages is None for advantages in plan.advantages):
        return
    at = [torch.as_tensor(row, dtype=torch.float64) for row in logprobs]
    stated, off_policy = asdict(objective_of(settings)), _off_policy(plan, at)
    for path, value in settings.values.items():
        name = path.rpartition(".")[2]
        for other in _OTHER_VALUES.get(name, ()) if value is not None and value != {} else ():
            if other == value:
                continue
            as_other = objective_of(replace(settings, values={**settings.values, path: other}))
            changes = {field: new for field, new in asdict(as_other).items() if new != stated[field]}
            if as_other.cannot is not None:
                continue
            with suppress(ValueError):  # an average that needs what is not known
                is_used = isinstance(other, str) or not _is_alike(off_policy, changes, at, _ALIKE)
                if changes and is_used and _is_alike(plan, changes, at, within):
                    yield f"{name} = {other}" if isinstance(other, str) else name


def _is_alike(plan: RowPlan, changes: Mapping[str, object], at: Sequence[torch.Tensor], within: float) -> bool:
    """Whether all weights of grad log pi stay as they are."""
    own, changed = plan.objective, replace(plan.objective, **changes)
    masks = [completion.counted.bool().tolist() for completion in plan.completions]
    factors = [
        new / old if old else 1.0
        for new, old in zip(changed.token_weights(masks), own.token_weights(masks), strict=True)
    ]
    of_kl = changed.beta / own.beta if own.beta else 1.0
    other = replace(
        plan,
        objective=changed,
        weights=tuple(row * factor for row, factor in zip(plan.weights, factors, strict=True)),
        kl_weights=tuple(row * factor * of_kl for row, factor in zip(plan.kl_weights, factors, strict=True)),
    )
    slopes = [(_slope(plan, sequence, row), _slope(other, sequence, row)) for sequence, row in enumerate(at)]
    most = max((float(row.abs().max()) for row, _ in slopes if len(row)), default=0.0)
    return all(torch.allclose(row, new, rtol=0.0, atol=within * most) for row, new in slopes)


def _slope(plan: RowPlan, sequence: int, logprobs: torch.Tensor) -> torch.Tensor:
    slope = plan.cotangent(Row(sequence=sequence, channel="logged"), logprobs)
    has_kl = plan.completions[sequence].reference is not None
    return slope + plan.cotangent(Row(sequence=sequence, channel="kl"), logprobs) if has_kl else slope


def _off_policy(plan: RowPlan, at: Sequence[torch.Tensor]) -> RowPlan:
    """The plan with advantages of both signs and ratios of all sizes, where every argument in use has an effect."""
    completions, advantages = [], []
    for number, (completion, row) in enumerate(zip(plan.completions, at, strict=True)):
        position = torch.arange(number, number + len(row))
        moved = row + torch.tensor([-2.0, -0.1, 0.1, 2.0], dtype=row.dtype)[position // 2 % 4] + number % 2
        sampler, reference = (
            None if each is None else moved + 1.0 for each in (completion.sampler, completion.reference)
        )
        completions.append(replace(completion, old=moved, sampler=sampler, reference=reference))
        advantages.append(1.0 - 2.0 * (position % 2).to(row))
    return replace(plan, completions=tuple(completions), advantages=tuple(advantages))
