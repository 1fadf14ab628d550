"""Advantages as trainers other than TRL make them of the logged rewards, one declared function a formula.

Shapes: G rollouts of a group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from gradscope.diagnostics.replay.trl_advantages import Array, TrlBatch
from gradscope.metrics.outcomes.groups import all_equal
from gradscope.reason import Reason
from gradscope.rollouts.run import TrainerSettings
from gradscope.rollouts.types import RolloutGroup

_VERL_EPSILON = 1e-6
_NEMO_EPSILON = 1e-6

Formula = Callable[[Array], Array]
"""From the rewards of a group, [G], to its advantages, [G]."""


def trainer_batch(groups: Sequence[RolloutGroup], settings: TrainerSettings) -> TrlBatch:
    """What a trainer makes of the rewards of a step, all of which are known."""
    rewards = [np.array(group.rewards, dtype=np.float64) for group in groups]
    name, formula = FORMULAS[str(settings.get("trainer"))](settings)
    unknown = formula if isinstance(formula, Reason) else None
    parts = [np.full(len(part), np.nan) if isinstance(formula, Reason) else formula(part) for part in rewards]
    dead = [np.full(len(part), all_equal(part.tolist()), dtype=np.float64) for part in rewards]
    return TrlBatch(
        reward=float(np.mean(np.concatenate(rewards))),
        advantages=np.concatenate(parts),
        frac_zero_std=float(np.mean(np.concatenate(dead))),
        name=name,
        unknown=unknown,
    )


def _verl(settings: TrainerSettings) -> tuple[str, Formula | Reason]:
    """``algorithm.adv_estimator=grpo``; a rollout alone in its group keeps its reward."""
    estimator = str(settings.at("algorithm.adv_estimator", "gae"))
    scaled = bool(settings.at("algorithm.norm_adv_by_std_in_grpo", True))
    if settings.at("algorithm.use_kl_in_reward", False):
        return estimator, Reason("loss_not_on_disk", "the rewards that advantages are made of hold a KL penalty")
    if estimator != "grpo":
        return estimator, Reason("loss_unknown", f"adv_estimator {estimator!r} has no rule here")

    def of_group(rewards: Array) -> Array:
        if len(rewards) == 1:
            return rewards / (1 + _VERL_EPSILON) if scaled else rewards
        centered = rewards - rewards.mean()
        return np.asarray(centered / (rewards.std(ddof=1) + _VERL_EPSILON) if scaled else centered)

    return "verl's grpo of its group", of_group


def _prime_rl(settings: TrainerSettings) -> tuple[str, Formula | Reason]:
    """The reward minus the mean of its group."""
    penalties = [name for name, value in settings.values.items() if ".length_penalty" in name and value is not None]
    if penalties:
        return "grpo", Reason("loss_unknown", "rewards were shaped by length_penalty, which has no rule here")
    return "prime-rl's centred reward of its group", lambda rewards: rewards - rewards.mean()


def _nemo_rl(settings: TrainerSettings) -> tuple[str, Formula | Reason]:
    """``grpo.adv_estimator``: baseline and spread of the others of the group, or of all."""
    name = str(settings.at("grpo.adv_estimator.name", "grpo"))
    others, scaled = _of_grpo(settings, "use_leave_one_out_baseline"), _of_grpo(settings, "normalize_rewards")
    if name != "grpo":
        return name, Reason("loss_unknown", f"adv_estimator {name!r} has no rule here")
    for section in ("reward_shaping", "reward_scaling"):
        if settings.get(f"grpo.{section}.enabled", False):
            return name, Reason("loss_unknown", f"rewards went through grpo.{section}, which has no rule here")

    def of_group(rewards: Array) -> Array:
        size = len(rewards) - int(others)
        if len(rewards) <= 1:
            return np.zeros_like(rewards)
        seen = np.ones((len(rewards), len(rewards))) - (np.eye(len(rewards)) if others else 0.0)
        mean, square = seen @ rewards / size, seen @ rewards**2 / size
        centered = rewards - mean
        if not scaled or size < 2:
            return centered
        spread = np.sqrt(np.clip((square - mean**2) * size / (size - 1), 0.0, None))
        return np.where(spread > 0, centered / (spread + _NEMO_EPSILON), centered)

    return "NeMo-RL's grpo of its group", of_group


def _of_grpo(settings: TrainerSettings, name: str) -> bool:
    """An argument of the estimator, or of ``grpo`` where older releases have it; both are true by default."""
    return bool(settings.get(f"grpo.adv_estimator.{name}", settings.get(f"grpo.{name}", True)))


FORMULAS: Mapping[str, Callable[[TrainerSettings], tuple[str, Formula | Reason]]] = {
    "verl": _verl,
    "prime-rl": _prime_rl,
    "nemo-rl": _nemo_rl,
}
"""Trainer -> its formula by its arguments, with a name for a sentence."""
