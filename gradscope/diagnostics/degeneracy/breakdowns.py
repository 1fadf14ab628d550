"""Dead groups by prompt, environment and policy, what they cost, and what each formulation makes of the rest.

Rows of prompts are made from arrays alone, so that a million prompts cost no more than their groups.

Legend: J groups of G rollouts, P prompts that have one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from gradscope.advantages.formulation import Formulation
from gradscope.advantages.registry import CONSTANT, FORMULATIONS, compute_advantages, formulation, is_formulation
from gradscope.diagnostics.degeneracy.group_rewards import GroupRewards
from gradscope.estimate import Estimate, undefined_record
from gradscope.metrics.outcomes.degeneracy import NO_THRESHOLD, GroupTable
from gradscope.metrics.outcomes.groups import EQUAL_REWARDS, binary_threshold, passes
from gradscope.metrics.outcomes.jensen_gap import estimate_policy_gap
from gradscope.metrics.uncertainty import bootstrap
from gradscope.metrics.uncertainty.intervals import Resampling
from gradscope.results import degeneracy as results
from gradscope.results.envelope import LazyRows

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

_STATUS = np.array(["live", "never", "always"], dtype=object)
_LIVE, _NEVER, _ALWAYS = range(3)


def measure_prompts(
    chosen: GroupRewards, threshold: float | None, main: str | None, *, name: str
) -> tuple[results.PromptCounts, LazyRows]:
    """How many prompts the policy learns from by a reward, and a row each, dead ones first, by their cost."""
    groups = chosen.table
    values = chosen.values if main is None else groups.rewards[main]
    spread = groups.spread(values)
    if main is not None:
        threshold = binary_threshold(values)
    present, prompt = np.flatnonzero(np.bincount(groups.prompt)), bootstrap.cluster_numbers(groups.prompt)  # [P], [J]
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
    texts, nothing = groups.prompt_texts, np.array(None)
    columns = {
        "prompt_id": np.array(groups.prompts, dtype=object)[present[order]],
        "prompt": nothing.repeat(len(present)) if texts is None else np.array(texts, dtype=object)[present[order]],
        "num_groups": np.bincount(prompt)[order],
        "num_rollouts": rollouts[order],
        "pass_rate": np.where(np.isfinite(rate), rate.astype(object), nothing)[order],
        "status": np.where(is_known, _STATUS[status], nothing)[order],
        "first_step": first[order],
        "last_live_step": np.where(last >= 0, last.astype(object), nothing)[order],
    }
    counts = results.PromptCounts(
        live=int(np.sum(is_live)),
        frac_rollouts=float(rollouts[~((status == _LIVE) & is_known)].sum() / rollouts.sum()),
        reward=main or name,
    )
    if threshold is not None:
        live, never, always = np.bincount(status, minlength=3).tolist()
        _, never_groups, always_groups = np.bincount(status[prompt], minlength=3).tolist()
        counts = replace(
            counts, never=never, always=always, live=live, never_groups=never_groups, always_groups=always_groups
        )
    return counts, LazyRows(columns)


def measure_environments(
    chosen: GroupRewards, table: GroupTable, *, resampling: Resampling
) -> tuple[results.EnvironmentDegeneracy, ...]:
    """One row per environment, by name; none where all prompts belong to one."""
    # Readers put the environment before the last slash of a prompt's id.
    prompt_environments = environments_of(chosen.table.prompts)
    if not prompt_environments:
        return ()
    names, indices = np.unique(prompt_environments, return_inverse=True)
    environment = indices[chosen.table.prompt]
    rows = []
    for index in np.unique(environment).tolist():
        in_environment = environment == index
        columns = [table.dead[in_environment].astype(np.float64)]
        columns += [] if table.num_passing is None else [table.num_passing[in_environment] / table.size[in_environment]]
        dead, *rate = bootstrap.bootstrap_means(
            np.column_stack(columns), table.prompt[in_environment], resampling=resampling
        )
        rows.append(
            results.EnvironmentDegeneracy(
                environment=str(names[index]),
                num_groups=int(in_environment.sum()),
                num_rollouts=int(table.size[in_environment].sum()),
                frac_reward_zero_std=dead,
                pass_rate=rate[0] if rate else Estimate.undefined_because(NO_THRESHOLD, num_units=dead.num_units),
            )
        )
    return tuple(rows) if len(rows) > 1 else ()


def environments_of(prompts: Sequence[str]) -> list[str]:
    """The environment of each prompt; empty where an id names none, or where nearly every prompt has its own."""
    if not prompts or "/" not in prompts[0]:
        return []
    names = [prompt.rpartition("/")[0] for prompt in prompts]
    is_known = all(name and not name.isdecimal() for name in names)
    return names if is_known and 1 < len(set(names)) <= len(names) / 2 else []


def measure_policies(
    chosen: GroupRewards, table: GroupTable, threshold: float | None, *, resampling: Resampling
) -> tuple[tuple[results.PolicyDegeneracy, ...], results.PolicyGap | None]:
    """Each policy of a log of several, and the gap split between prompts and policies where passing is known."""
    policy = chosen.table.policy
    if policy is None or len(indices := np.unique(policy[policy >= 0]).tolist()) < 2:
        return (), None
    names = tuple(chosen.table.policies[index] for index in indices)
    passing, members = _counts(chosen, names, threshold)
    rows = []
    for column, name in enumerate(names):
        is_present = members[:, column] > 0
        prompts = table.prompt[is_present]
        rate = Estimate.undefined_because(NO_THRESHOLD, num_units=int(is_present.sum()))
        if passing is not None:
            shares = passing[is_present, column] / members[is_present, column]
            rate = bootstrap.bootstrap_mean(shares, prompts, resampling=resampling)
        is_sole = is_present & (members[:, column] == table.size)
        rows.append(
            results.PolicyDegeneracy(
                policy=name,
                num_groups=int(is_sole.sum()),
                num_rollouts=int(members[:, column].sum()),
                frac_reward_zero_std=Estimate.undefined_because("no group is of this policy alone")
                if not is_sole.any()
                else bootstrap.bootstrap_mean(
                    table.dead[is_sole].astype(np.float64), table.prompt[is_sole], resampling=resampling
                ),
                pass_rate=rate,
            )
        )
    is_known = members.sum(axis=1) == table.size  # no policy is named for the rest of a group
    if passing is None or not is_known.any():
        return tuple(rows), None
    between_prompts, between_policies = estimate_policy_gap(
        table.dead[is_known], passing[is_known], members[is_known], table.prompt[is_known], resampling=resampling
    )
    return tuple(rows), results.PolicyGap(between_prompts=between_prompts, between_policies=between_policies)


def _counts(chosen: GroupRewards, names: tuple[str, ...], threshold: float | None) -> tuple[Indices | None, Indices]:
    """Passing rollouts (None: unknown) and all rollouts of each policy in each group, [J, M] each."""
    table, policy = chosen.table, np.asarray(chosen.table.policy)
    members = np.zeros((len(table), len(names)), dtype=np.int64)
    passing = None if threshold is None else np.zeros_like(members)
    for column, name in enumerate(names):
        is_policy = np.equal(policy, table.policies.index(name))
        members[:, column] = table.sums(is_policy)
        if passing is not None and threshold is not None:
            passing[:, column] = table.sums(is_policy & passes(chosen.values, threshold))
    return passing, members


NO_TOKENS = "token ids of the completions were not logged"
NO_TIMES = "no generation time of each rollout was read from the log"


def measure_cost(
    chosen: GroupRewards, table: GroupTable, zero_std: Estimate, *, resampling: Resampling
) -> results.SignalCost:
    """The cost of a log's degenerate groups, whose share is ``zero_std``; ``table`` holds the same groups."""
    size = table.size.astype(np.float64)
    rollouts = _share_lost(size, table, resampling=resampling)
    tokens, seconds = (_totals(chosen, amounts) for amounts in (chosen.table.num_tokens, chosen.table.seconds))
    unknown = Estimate.undefined_because(NO_TOKENS, num_units=rollouts.num_units)
    num_steps = len(np.unique(table.step))
    return results.SignalCost(
        frac_rollouts=rollouts,
        frac_tokens=unknown if tokens is None else _share_lost(tokens, table, resampling=resampling),
        frac_generation_time=Estimate.undefined_because(NO_TIMES, num_units=rollouts.num_units)
        if seconds is None
        else _share_lost(seconds, table, resampling=resampling),
        tokens_per_rollout=unknown
        if tokens is None
        else Estimate.exact(float(tokens.sum() / size.sum()), num_units=int(size.sum())),
        batch_size=Estimate.exact(float(size.sum() / num_steps), num_units=num_steps),
        effective_batch_size=Estimate.exact(float(size[~table.dead].sum() / num_steps), num_units=num_steps),
        dilution=rollouts.map(lambda lost: 1.0 - lost),
        resampling_factor=_resampling_factor(zero_std),
    )


def _totals(chosen: GroupRewards, amounts: NDArray[Any] | None) -> Array | None:
    """Sums over groups of an amount that is not negative; None where it is not known of each rollout, or nowhere."""
    if amounts is None or not np.all(amounts >= 0):
        return None
    totals = chosen.table.sums(amounts).astype(np.float64)
    return totals if totals.sum() > 0 else None


def _share_lost(amount: Array, table: GroupTable, *, resampling: Resampling) -> Estimate:
    """The part of an amount per group that lies in degenerate groups; prompts weigh by their amount."""
    units = bootstrap.sums_of_columns([amount * table.dead, amount], table.prompt, len(amount))
    return bootstrap.bootstrap_shares([units[units[:, 1] > 0]], resampling=resampling)[0][0]


def _resampling_factor(zero_std: Estimate) -> Estimate:
    value = zero_std.value or 0.0
    if value >= 1.0:
        return Estimate.undefined_because(
            "no group is alive, so no number of groups would give one", num_units=zero_std.num_units
        )
    if zero_std.ends[1] >= 1.0:
        return Estimate.exact(1.0 / (1.0 - value), num_units=zero_std.num_units)
    return zero_std.map(lambda share: 1.0 / (1.0 - share))


_FEW_KINDS = 64  # kinds of groups up to which they are counted prompt by prompt


def measure_advantage_mass(
    chosen: GroupRewards, trained_with: str | None, *, resampling: Resampling
) -> tuple[results.AdvantageMass, ...]:
    """Positive and negative mass and share of zeros by formulation, and by the run's own where it has a constant."""
    groups, name = chosen.table, trained_with or ""
    by_size, kind = _two_level_kinds(chosen) if len(chosen.levels) <= 2 else _single_group_kinds(chosen)
    kinds = _Kinds(by_size=tuple(by_size), kind=kind, prompt=chosen.table.prompt)
    masses = []
    trained = [formulation(name)] if CONSTANT in name and is_formulation(name) else []
    for entry in (*FORMULATIONS.values(), *trained):
        sums = _sums(entry, kinds)
        if isinstance(sums, str):
            unknown = Estimate.undefined_because(sums, num_units=len(groups))
            masses.append(undefined_record(results.AdvantageMass, unknown, advantage=entry.name))
            continue
        units = kinds.sum_by_prompt(sums)
        positive, negative = bootstrap.bootstrap_statistics(
            bootstrap.ratios, units[:, [0, 1, 3]], bounds=(0.0, np.inf), resampling=resampling
        )
        ((zero,),) = bootstrap.bootstrap_shares([units[:, 2:]], resampling=resampling)
        masses.append(
            results.AdvantageMass(advantage=entry.name, positive_mass=positive, negative_mass=negative, frac_zero=zero)
        )
    return tuple(masses)


class _Kinds(Struct, frozen=True, kw_only=True, dict=True):
    """Groups with the same rewards, which have the same advantages: of two rewards there are few kinds."""

    by_size: tuple[Array, ...]  # the rewards of each kind, those of one size together, [k, G]
    kind: Indices  # the kind of each group, [J]
    prompt: Indices  # the prompt of each group, [J]

    def sum_by_prompt(self, sums: Array) -> Array:
        """Sums over the groups of each prompt from those of each kind, [prompts, 4]."""
        if self._counts is None:
            return bootstrap.cluster_sums(sums[self.kind], self.prompt)
        return np.asarray(self._counts @ sums, dtype=np.float64)

    @cached_property
    def _counts(self) -> Array | None:
        """How many groups of each kind a prompt has, [prompts, kinds]; None of many kinds."""
        num_kinds = sum(map(len, self.by_size))
        if num_kinds > _FEW_KINDS:
            return None
        is_kind = (self.kind == kind for kind in range(num_kinds))
        return bootstrap.sums_of_columns(is_kind, self.prompt, len(self.kind))


def _two_level_kinds(chosen: GroupRewards) -> tuple[list[Array], Indices]:
    """Groups of one size with as many of the higher reward are of one kind."""
    levels = chosen.levels
    sizes, high = chosen.table.size, chosen.table.sums(chosen.values == levels[-1])
    base = int(sizes.max()) + 1
    kinds, kind = np.unique(sizes * base + high, return_inverse=True)
    return [
        np.where(np.arange(size) < (kinds % base)[kinds // base == size, None], levels[-1], levels[0])
        for size in np.unique(kinds // base).tolist()
    ], kind


def _single_group_kinds(chosen: GroupRewards) -> tuple[list[Array], Indices]:
    by_size, kind, num_kinds = [], np.zeros(len(chosen.table), dtype=np.int64), 0
    for rows, rewards in chosen.table.by_size(chosen.values):
        by_size.append(rewards)
        kind[rows] = num_kinds + np.arange(len(rewards))
        num_kinds += len(rewards)
    return by_size, kind


def _sums(entry: Formulation, kinds: _Kinds) -> Array | str:
    """Positive mass, negative mass, zeros and rollouts of a group of each kind, [kinds, 4]; or why there are none."""
    sums = []
    for rewards in kinds.by_size:
        reason = entry.why_not(rewards)
        if reason is not None:
            return reason
        advantages = compute_advantages(entry.name, rewards)
        parts = [np.maximum(advantages, 0.0), np.maximum(-advantages, 0.0), advantages == 0.0]
        size = np.full(len(rewards), rewards.shape[1])
        sums.append(np.column_stack([*(part.sum(axis=1) for part in parts), size]))
    return np.concatenate(sums)
