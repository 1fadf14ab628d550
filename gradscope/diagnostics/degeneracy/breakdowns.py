"""Degeneracy by prompt, by environment and by policy: the share of dead groups may be that of one of them.

A row a prompt is made of arrays alone, so that a million prompts cost what their groups do.

Legend: J groups, P prompts that have one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradscope.diagnostics.degeneracy.group_rewards import TRAINER_REWARD, GroupRewards, chosen_threshold
from gradscope.estimate import Estimate
from gradscope.metrics.outcomes.degeneracy import NO_THRESHOLD, GroupTable
from gradscope.metrics.outcomes.groups import EQUAL_REWARDS, passes
from gradscope.metrics.outcomes.own_rates import estimate_policy_gap
from gradscope.metrics.uncertainty.bootstrap import bootstrap_mean, bootstrap_means
from gradscope.metrics.uncertainty.intervals import Resampling
from gradscope.results.degeneracy import EnvironmentDegeneracy, PolicyDegeneracy, PolicyGap, PromptCounts
from gradscope.results.envelope import LazyRows

_STATUS = np.array(["live", "never", "always"], dtype=object)
_LIVE, _NEVER, _ALWAYS = range(3)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPrompts:
    """The prompts of a log."""

    counts: PromptCounts  # how many of them the policy learns from
    rows: LazyRows  # one row a prompt, as ``DegeneracyReport.by_prompt`` has them


def measure_prompts(
    chosen: GroupRewards, threshold: float | None, main: str | None = None, *, name: str = TRAINER_REWARD
) -> MeasuredPrompts:
    """A row a prompt, those first that took the most rollouts and are not live.

    Args:
        chosen: The groups, with the reward that is reported.
        threshold: From which of these rewards on a rollout passes; None: not known.
        main: The main one of several reward functions, which then tells instead; None: the reported reward does.
        name: How the reported reward is called.

    Returns:
        The rows, by the reward that should be learned.
    """
    groups = chosen.table
    values = chosen.values if main is None else groups.rewards[main]
    spread = groups.spread(values)
    if main is not None:
        threshold = chosen_threshold(
            GroupRewards(table=groups, values=values, num_singletons=0, num_incomplete=0), None
        )
    present, prompt = np.unique(groups.prompt, return_inverse=True)  # [P], [J]
    rollouts = np.bincount(prompt, weights=groups.size).astype(np.int64)
    is_live = np.bincount(prompt, weights=~(spread <= EQUAL_REWARDS)) > 0
    first, last = np.full(len(present), np.iinfo(np.int64).max), np.full(len(present), -1)
    np.minimum.at(first, prompt, groups.step)
    differs = spread > EQUAL_REWARDS
    np.maximum.at(last, prompt[differs], groups.step[differs])
    status, rate = np.full(len(present), _LIVE), np.full(len(present), np.nan)
    if threshold is not None:
        num_passing = np.bincount(prompt, weights=groups.sums(passes(values, threshold)))
        rate = num_passing / rollouts
        status[~is_live & (num_passing == 0)] = _NEVER
        status[~is_live & (num_passing == rollouts)] = _ALWAYS
    is_known = is_live | (threshold is not None)
    order = np.lexsort((present, -rollouts, (status == _LIVE) & is_known))
    texts = groups.prompt_texts
    columns = {
        "prompt_id": _take(groups.prompts, present[order]),
        "prompt": np.full(len(present), None) if texts is None else _take(texts, present[order]),
        "num_groups": np.bincount(prompt)[order],
        "num_rollouts": rollouts[order],
        "pass_rate": _or_none(rate, np.isfinite(rate))[order],
        "status": _or_none(_STATUS[status], is_known)[order],
        "first_step": first[order],
        "last_live_step": _or_none(last, last >= 0)[order],
    }
    counts = np.bincount(status, minlength=3).tolist()
    return MeasuredPrompts(
        counts=PromptCounts(
            never=None if threshold is None else counts[_NEVER],
            always=None if threshold is None else counts[_ALWAYS],
            live=int(np.sum(is_live)) if threshold is None else counts[_LIVE],
            frac_rollouts=float(rollouts[~((status == _LIVE) & is_known)].sum() / rollouts.sum()),
            reward=main or name,
        ),
        rows=LazyRows(columns),
    )


def _take(names: object, places: NDArray[np.int64]) -> NDArray[np.object_]:
    return np.array(names, dtype=object)[places]


def _or_none(values: NDArray[Any], is_known: NDArray[np.bool_]) -> NDArray[np.object_]:
    plain = values.astype(object)
    plain[~is_known] = None
    return plain


def measure_environments(
    chosen: GroupRewards, table: GroupTable, *, resampling: Resampling
) -> tuple[EnvironmentDegeneracy, ...]:
    """A row an environment, by name; none where the prompts are not of several."""
    # Readers put the environment before the last slash of a prompt's id.
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


Counts = NDArray[np.int64]


def policy_names(chosen: GroupRewards) -> tuple[str, ...]:
    """The names of a log's policies in its order; none where fewer than two have a group to judge."""
    table = chosen.table
    if table.policy is None:
        return ()
    names = tuple(table.policies[place] for place in np.unique(table.policy[table.policy >= 0]).tolist())
    return names if len(names) > 1 else ()


def measure_policies(
    chosen: GroupRewards, table: GroupTable, threshold: float | None, *, resampling: Resampling
) -> tuple[tuple[PolicyDegeneracy, ...], PolicyGap | None]:
    """Each policy of a log of several alone, and the gap split between prompts and policies where passing is known."""
    names = policy_names(chosen)
    if not names:
        return (), None
    passing, members = _counts(chosen, names, threshold)
    rows = []
    for place, name in enumerate(names):
        there = members[:, place] > 0
        prompts = table.prompt[there]
        rate = Estimate.undefined_because(NO_THRESHOLD, num_units=int(there.sum()))
        if passing is not None:
            shares = passing[there, place] / members[there, place]
            rate = bootstrap_mean(shares, prompts, resampling=resampling)
        alone = there & (members[:, place] == table.size)
        rows.append(
            PolicyDegeneracy(
                policy=name,
                num_groups=int(alone.sum()),
                num_rollouts=int(members[:, place].sum()),
                frac_reward_zero_std=_share(table, alone, resampling=resampling),
                pass_rate=rate,
            )
        )
    if passing is None:
        return tuple(rows), None
    between_prompts, between_policies = estimate_policy_gap(
        table.dead, passing, members, table.prompt, resampling=resampling
    )
    return tuple(rows), PolicyGap(between_prompts=between_prompts, between_policies=between_policies)


def _share(table: GroupTable, alone: NDArray[np.bool_], *, resampling: Resampling) -> Estimate:
    if not alone.any():
        return Estimate.undefined_because("no group is of this policy alone")
    (share,) = bootstrap_means(
        table.dead[alone].astype(np.float64)[:, None], table.prompt[alone], resampling=resampling
    )
    return share


def _counts(chosen: GroupRewards, names: tuple[str, ...], threshold: float | None) -> tuple[Counts | None, Counts]:
    """Passing rollouts (None: not known) and rollouts of each policy in each group, [J, M] each."""
    table, policy = chosen.table, np.asarray(chosen.table.policy)
    members = np.zeros((len(table), len(names)), dtype=np.int64)
    passing = None if threshold is None else np.zeros_like(members)
    for column, name in enumerate(names):
        own = np.equal(policy, table.policies.index(name))
        members[:, column] = table.sums(own)
        if passing is not None and threshold is not None:
            passing[:, column] = table.sums(own & passes(chosen.values, threshold))
    return passing, members
