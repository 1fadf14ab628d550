"""Environments, data sources or agents of a log, each alone: a share of dead groups may be that of one of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradscope.diagnostics.degeneracy.group_rewards import GroupRewards
from gradscope.estimate import Estimate
from gradscope.metrics.outcomes.degeneracy import NO_THRESHOLD, GroupTable
from gradscope.metrics.uncertainty.bootstrap import bootstrap_means
from gradscope.metrics.uncertainty.intervals import Resampling
from gradscope.results.degeneracy import EnvironmentDegeneracy


def measure_environments(
    chosen: GroupRewards, table: GroupTable, *, resampling: Resampling
) -> tuple[EnvironmentDegeneracy, ...]:
    """The groups of each environment, by name; none where the prompts are not of several.

    Args:
        chosen: The groups, whose prompts have their environment before the last slash of their ids, as readers put it.
        table: The same groups, judged.
        resampling: How often, and from which seed.

    Returns:
        A row an environment.
    """
    prompts = chosen.table.prompts
    named = environments_of(prompts)
    if not named:
        return ()
    names, of_prompt = np.unique(named, return_inverse=True)
    of_group = of_prompt[chosen.table.prompt]
    rows = []
    for place in np.unique(of_group).tolist():
        there = of_group == place
        columns = [table.dead[there].astype(np.float64)]
        columns += [] if table.num_passing is None else [table.num_passing[there] / table.size[there]]
        dead, *rate = bootstrap_means(np.column_stack(columns), table.prompt[there], resampling=resampling)
        rows.append(
            EnvironmentDegeneracy(
                environment=str(names[place]),
                num_groups=int(there.sum()),
                num_rollouts=int(table.size[there].sum()),
                frac_reward_zero_std=dead,
                pass_rate=rate[0] if rate else Estimate.undefined_because(NO_THRESHOLD, num_units=dead.num_units),
            )
        )
    return tuple(rows) if len(rows) > 1 else ()


def environments_of(prompts: Sequence[str]) -> list[str]:
    """The environment of each prompt; nothing where an id names none, or where each prompt has one of its own."""
    if not prompts or "/" not in prompts[0]:
        return []
    names = [prompt.rpartition("/")[0] for prompt in prompts]
    is_known = all(name and not name.isdecimal() for name in names)
    return names if is_known and 1 < len(set(names)) <= len(names) / 2 else []
