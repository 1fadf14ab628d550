"""TRL's log entry of a step that was sampled in several rounds: TRL averages over its calls, these are of the batch.

Legend: N groups of the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from gradscope.metrics.outcomes.groups import all_equal
from gradscope.rollouts.types import Rollout, RolloutGroup


def batch_numbers(groups: Sequence[RolloutGroup]) -> dict[str, float]:
    """What TRL logs of rewards and lengths, by its names.

    Args:
        groups: The groups of the batch, whose rewards are all known, [N].

    Returns:
        Name -> value. ``frac_reward_zero_std`` is the share of groups, whatever their size; standard deviations are of
        the whole batch, with R - 1. Without a completion that ended, lengths of ended ones are 0, as TRL has them.
    """
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    by_name = {name: [rollout.rewards[name] or 0.0 for rollout in rollouts] for name in rollouts[0].rewards}
    ended = [rollout for rollout in rollouts if rollout.status == "completed"]
    total = [rollout.reward or 0.0 for rollout in rollouts]
    numbers = {"reward": float(np.mean(total)), "reward_std": float(np.std(total, ddof=1))}
    for name, values in by_name.items():
        numbers |= {
            f"rewards/{name}/mean": float(np.mean(values)),
            f"rewards/{name}/std": float(np.std(values, ddof=1)),
        }
    numbers["frac_reward_zero_std"] = float(np.mean([is_degenerate(group) for group in groups]))
    numbers["completions/clipped_ratio"] = 1.0 - len(ended) / len(rollouts)
    return numbers | dict(_lengths("", rollouts)) | dict(_lengths("terminated_", ended))


def is_degenerate(group: RolloutGroup) -> bool:
    """Whether the rewards of a group that was just scored are all equal: a group-mean baseline leaves it nothing."""
    return all_equal([reward for reward in group.rewards if reward is not None])


def _lengths(which: str, rollouts: Sequence[Rollout]) -> Iterator[tuple[str, float]]:
    lengths = [len(rollout.completion_ids or ()) for rollout in rollouts] or [0]
    for name, statistic in (("mean", np.mean), ("min", np.min), ("max", np.max)):
        yield f"completions/{name}_{which}length", float(statistic(lengths))
