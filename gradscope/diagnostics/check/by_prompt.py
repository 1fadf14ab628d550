"""The metrics of groups on each prompt alone: what pairs a run with its baseline."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gradscope.diagnostics.degeneracy.course import group_table
from gradscope.diagnostics.degeneracy.group_rewards import group_rewards
from gradscope.metrics.outcomes.degeneracy import GroupTable
from gradscope.metrics.uncertainty.clusters import cluster_sums
from gradscope.rollouts.run import Run


def group_metric_by_prompt(run: Run, name: str, *, reward: str | None, threshold: float | None) -> dict[str, float]:
    """A metric of groups, prompt by prompt.

    Args:
        name: The metric.
        reward: One reward function by name; None: the trainer's scalar.
        threshold: A rollout passes when its reward reaches this; None where that is not known.

    Returns:
        Prompt id -> mean over the groups of that prompt; empty for a metric that is no mean over groups.
    """
    if name not in METRICS or (name == "pass_rate" and threshold is None):
        return {}
    chosen = group_rewards(run, reward)
    groups = chosen.table
    values = _values(group_table(chosen, threshold), name)
    means = cluster_sums(np.column_stack([values, np.ones(len(values))]), groups.prompt)
    first = dict.fromkeys(groups.prompt.tolist())
    return {groups.prompts[prompt]: float(total / count) for prompt, (total, count) in zip(first, means, strict=True)}


METRICS = frozenset({"frac_reward_zero_std", "frac_all_pass", "frac_all_fail", "frac_tied", "pass_rate"})
"""Those that are means over groups."""


def _values(table: GroupTable, name: str) -> NDArray[np.float64]:
    """The metric of each group, [J]."""
    if name == "frac_reward_zero_std":
        return table.dead.astype(np.float64)
    if table.num_passing is None:
        return (table.dead & (name == "frac_tied")).astype(np.float64)
    if name == "pass_rate":
        return np.asarray(table.num_passing / table.size, dtype=np.float64)
    passed = table.num_passing == table.size
    of_kind = {"frac_all_pass": passed, "frac_all_fail": ~passed, "frac_tied": np.zeros_like(passed)}[name]
    return np.asarray(table.dead & of_kind, dtype=np.float64)
