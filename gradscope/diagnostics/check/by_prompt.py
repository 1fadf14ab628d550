"""The metrics of groups on each prompt alone: what pairs a run with its baseline."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gradscope.diagnostics.degeneracy.group_rewards import group_rewards
from gradscope.metrics.outcomes.groups import GroupKind, classify_group, passes
from gradscope.rollouts.run import Run

_KINDS: dict[str, tuple[GroupKind, ...]] = {
    "frac_reward_zero_std": ("all_pass", "all_fail", "tied"),
    "frac_all_pass": ("all_pass",),
    "frac_all_fail": ("all_fail",),
    "frac_tied": ("tied",),
}


def group_metric_by_prompt(run: Run, name: str, *, reward: str | None, threshold: float | None) -> dict[str, float]:
    """A metric of groups, prompt by prompt.

    Args:
        name: The metric.
        reward: One reward function by name; None: the trainer's scalar.
        threshold: A rollout passes when its reward reaches this; None where that is not known.

    Returns:
        Prompt id -> mean over the groups of that prompt; empty for a metric that is no mean over groups.
    """
    measure = _measure(name, threshold)
    if measure is None:
        return {}
    by_prompt: dict[str, list[float]] = {}
    for group, rewards in group_rewards(run, reward).groups:
        by_prompt.setdefault(group.prompt_id, []).append(measure(rewards))
    return {prompt: float(np.mean(values)) for prompt, values in by_prompt.items()}


def _measure(name: str, threshold: float | None) -> Callable[[Sequence[float]], float] | None:
    if name == "pass_rate" and threshold is not None:
        return lambda rewards: float(passes(rewards, threshold).mean())
    kinds = _KINDS.get(name)
    if kinds is None:
        return None
    return lambda rewards: float(classify_group(rewards, threshold) in kinds)
