"""Which reward function makes the advantage, which one ties groups, and which groups the main one does not decide.

A reward that is the weighted sum of functions, R = sum_k w_k r_k, has an advantage that is the sum of parts:
A_i = s_g (R_i - mean_g R) = sum_k s_g w_k (r_ik - mean_g r_k), whatever the scale s_g of its group or step. Shares of
the squared advantage, sum_i A_i A_ik / sum_i A_i^2 with A_ik the part of function k, therefore add up to 1; s_g is what
the logged advantages have, else what the trainer's arguments make it.

Legend: J groups, N rollouts of all of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import combinations

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from gradscope.advantages.group import TRL_EPSILON, TRL_SCALES
from gradscope.diagnostics.degeneracy.group_rewards import GroupRewards, group_rewards, group_table
from gradscope.errors import GradscopeError
from gradscope.estimate import Estimate
from gradscope.metrics.outcomes.degeneracy import GroupTable
from gradscope.metrics.outcomes.groups import EQUAL_REWARDS, binary_threshold
from gradscope.metrics.outcomes.reward_shares import ratio_or_zero
from gradscope.metrics.uncertainty.bootstrap import bootstrap_mean, bootstrap_statistics, cluster_sums
from gradscope.metrics.uncertainty.intervals import RESAMPLING, Resampling
from gradscope.results.degeneracy import RewardConflict, RewardFunction, SideRewards
from gradscope.rollouts.function_rewards import adds_up, reward_terms
from gradscope.rollouts.groups import RewardTable
from gradscope.rollouts.run import Run, TrainerSettings

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]

_LINEAR = 1e-4
"""Share of the squared advantages up to which they may differ from a multiple of the reward's deviations: trainers log
float32, and add an epsilon to the standard deviation."""
_MAIN = re.compile(r"correct|accura|(^|[_/.])acc($|[_/.])|solv|success|pass|answer|exact|outcome|verif", re.IGNORECASE)
"""Names of a function that is the goal."""
_SIDE = re.compile(r"format|style|tag|xml|length|short|long|penal|repet|langu|tidy|bonus", re.IGNORECASE)
"""Names of functions that are not, though they be 0 or 1."""
_PENALTY = re.compile(r"penal|punish|cost|overlong|repet", re.IGNORECASE)
"""Names of functions that take something away, if anything."""
_VERL_EPSILON = 1e-6
_LARGEST = 1e150  # of a ratio; functions of 1e300 that cancel have larger ones, which no interval can be drawn around
_MAX_CORRELATED = 32
"""Functions of which all pairs are correlated: of 200 numbers that a verifier logs, 20,000 pairs took 2 GB."""
_NO_DIVISION = {"verl": "algorithm.norm_adv_by_std_in_grpo=False", "trl": 'scale_rewards="none"'}
"""Trainer -> its argument that divides no advantage by a standard deviation."""
NO_ADVANTAGES = "the log has no advantages, and no arguments of the trainer that name them"


class MeasuredRewards(Struct, frozen=True, kw_only=True):
    """What the reward functions of a log do."""

    functions: tuple[RewardFunction, ...] = ()  # by name; none where the log has fewer than two
    advantages_of: str = ""  # whose advantages the shares are of, in words; empty where there are none
    frac_conflict: Estimate  # share of groups that the main function ties and others decide
    conflict: RewardConflict | None = None  # what is known of them, where there are any
    main: str | None = None  # the main one of several functions that count, where it is known
    part: str | None = None  # the function that the reported reward is, where the reward is a larger sum
    frac_main_differs: Estimate
    """Share of groups in which the main function differs between rollouts; the scalar, if it is 0 or 1, without one."""


class _Scaled(Struct, frozen=True, kw_only=True):
    """Advantages, and what each rollout's deviation is multiplied by to become its own, [N] each."""

    advantage: Array
    scale: Array
    name: str
    is_divided: bool  # whether groups have scales of their own, so that small differences count like large ones


def measure_reward_functions(
    run: Run, chosen: GroupRewards, reward: str | None = None, *, resampling: Resampling = RESAMPLING
) -> MeasuredRewards:
    """Each reward function on the same groups, and the groups that the main one does not decide.

    ``reward`` is the function that a person named as the main one; None: the one of 0 and 1 whose name says that it is
    the goal, or, where no name does, the only one that is of no side reward by its name. The share of conflict is
    undefined where the reward is no weighted sum of functions, or where the main one is not known.
    """
    groups = chosen.table.select(chosen.table.sums(np.isnan(chosen.table.reward)) == 0)
    unknown = partial(Estimate.undefined_because, num_units=len(groups))
    if not len(groups) or not groups.rewards:
        reason = "the log has no reward per function"
        is_main = binary_threshold(groups.reward) is not None
        frac_differs = _mean(groups.spread(groups.reward) > EQUAL_REWARDS, groups, resampling)
        return MeasuredRewards(
            frac_conflict=unknown(reason), frac_main_differs=frac_differs if is_main else unknown(reason)
        )
    with_total, main = _with_total_reward(groups, reward)
    part = None if with_total is groups or reward else main
    groups, reward = with_total, main
    weights = weights_of_functions(groups, run.settings)
    names = [key for key in sorted(groups.rewards) if weights is None or key in weights or not _is_reward(groups, key)]
    spreads = {name: groups.spread(groups.rewards[name]) for name in names}
    differs = {name: spread > EQUAL_REWARDS for name, spread in spreads.items()}  # not where one of a group is missing
    main = main_function(groups, weights, reward)
    # where the main one does not apply, as to another task, it is not tied
    is_tied = spreads[main] <= EQUAL_REWARDS if main in spreads else np.zeros(len(groups), dtype=np.bool_)
    decided = is_tied & (groups.spread(groups.reward) > EQUAL_REWARDS)
    measured = MeasuredRewards(
        main=main if main in differs and _are_several(weights) else None,
        part=part,
        frac_conflict=_mean(decided, groups, resampling) if main in differs else unknown(main),
        frac_main_differs=_mean(differs[main], groups, resampling) if main in differs else unknown(main),
    )
    if len(names) < 2:
        return measured
    scaled = _scaled_advantages(run, groups)
    pairs = [pair for pair in combinations(names, 2) if len(names) <= _MAX_CORRELATED or (reward or main) in pair]
    with np.errstate(over="ignore", invalid="ignore"):  # what cannot be squared is undefined, with that reason
        sums = _sums(groups, names, pairs, weights or {}, scaled, decided)
    ratios = _ratios(sums, groups.prompt, resampling)
    dead = chosen.table.spread(chosen.values) <= EQUAL_REWARDS
    functions = tuple(
        RewardFunction(
            name=name,
            weight=None if weights is None else weights.get(name, 0.0),
            frac_tied=unknown(f"it is missing in {missing} of {len(groups)} groups")
            if (missing := int(np.sum(np.isnan(spreads[name]))))
            else _mean(spreads[name] <= EQUAL_REWARDS, groups, resampling),
            advantage_share=_share(name, weights, ratios["advantage", name], scaled),
            difference_share=_share(name, weights, ratios["difference", name]),
            correlation={
                other: ratios[pair] for other in names if (pair := ("correlation", *sorted((name, other)))) in ratios
            },
            num_alone=int(np.sum(differs[name] & (np.sum(list(differs.values()), axis=0) == 1))),
            num_rescuable=int(np.sum(dead & (chosen.table.spread(chosen.table.rewards[name]) > EQUAL_REWARDS))),
        )
        for name in names
    )
    measured = replace(measured, functions=functions, advantages_of="" if isinstance(scaled, str) else scaled.name)
    side_functions = [name for name, weight in (weights or {}).items() if weight and name != main]
    if not decided.any() or not side_functions:  # next to a reward of 4e18 the main function may pass as the whole sum
        return measured
    part = "difference" if isinstance(scaled, str) else "advantage"
    conflict = RewardConflict(
        main=main,
        deciding=max(side_functions, key=lambda name: float(sums[part, name][decided].sum())),
        is_alone=bool(np.all(np.sum([differs[name] for name in side_functions], axis=0)[decided] == 1)),
        num_groups=int(decided.sum()),
        frac_groups=measured.frac_conflict,
        advantage_share=_or_reason(ratios["advantage", ""], scaled),
        difference_share=ratios["difference", ""],
        remedy=_remedy(run) if isinstance(scaled, str) or scaled.is_divided else "",
    )
    return replace(measured, conflict=conflict)


def judged_groups(
    run: Run, success_threshold: float | None = None, reward: str | None = None
) -> tuple[GroupRewards, GroupTable]:
    """The groups that can be judged, and which of them pass: by the threshold, else by the goal within the reward."""
    chosen, main = group_rewards(run, reward), None
    threshold = binary_threshold(chosen.levels) if success_threshold is None else success_threshold
    if threshold is not None and success_threshold is None and reward is None:
        groups, part = _with_total_reward(chosen.table, None)
        weights = weights_of_functions(groups, run.settings) if part is None else None
        goal = main_function(groups, weights, None)
        main = goal if goal in groups.rewards and _are_several(weights) else None
    return chosen, group_table(chosen, threshold, main)


def silent_functions(rewards: Mapping[str, Array]) -> tuple[str, ...]:
    """Reward functions, of several, that are 0 or missing for every rollout; a penalty may well be."""
    named = [name for name in rewards if len(rewards) > 1 and not _PENALTY.search(name)]
    return tuple(name for name in named if not np.nan_to_num(rewards[name]).any())


def _are_several(weights: Mapping[str, float] | None) -> bool:
    return sum(map(bool, (weights or {}).values())) > 1


def side_rewards(run: Run, name: str) -> SideRewards | None:
    """The groups that a run's main reward and its side rewards decide, called ``name``; None without groups."""
    try:
        chosen = group_rewards(run)
    except GradscopeError:
        return None
    measured = measure_reward_functions(run, chosen)
    dead = chosen.table.spread(chosen.values) <= EQUAL_REWARDS
    return SideRewards(
        run=name,
        frac_reward_zero_std=_mean(dead, chosen.table, RESAMPLING),
        frac_main_differs=measured.frac_main_differs,
        conflict=measured.conflict,
    )


def _with_total_reward(groups: RewardTable, named: str | None) -> tuple[RewardTable, str | None]:
    """Groups with the total reward and the name of its part, where the scalar of the log is part of another reward."""
    for part in groups.rewards:
        for total, values in groups.rewards.items() if _is_reward(groups, part) else ():
            candidates = {name: column for name, column in groups.rewards.items() if name != total}
            if not np.isnan(values).any() and not _is_reward(groups, total) and total in ("reward", "score"):
                terms = reward_terms(values, candidates) or {}
                if part in terms and len(terms) > 1:
                    return replace(groups, reward=values), named or part
    return groups, named


def weights_of_functions(groups: RewardTable, settings: TrainerSettings) -> dict[str, float] | None:
    """Function -> its weight in the reward, of those that count; None where none add up to every reward."""
    # As the trainer's arguments say; where they say nothing 1 each, else as fitted to all rollouts, else 1 of a
    # function that is the reward itself.
    candidates = {name: values for name, values in groups.rewards.items() if not _is_reward(groups, name)}
    configured = settings.get("reward_weights")
    if isinstance(configured, Sequence) and len(configured) == len(groups.rewards):
        weights = dict(zip(groups.rewards, map(float, configured), strict=True))
        return weights if adds_up(groups.reward, groups.rewards, weights) else None
    equal = dict.fromkeys(candidates, 1.0)
    if equal and adds_up(groups.reward, candidates, equal):
        return equal
    same = dict.fromkeys([name for name in groups.rewards if _is_reward(groups, name)][:1], 1.0)
    # a goal that no rollout reaches adds nothing, and the rest of the sum equals the reward
    everything = dict.fromkeys(groups.rewards, 1.0)
    has_other_goal = any(map(_MAIN.search, candidates)) and not any(map(_MAIN.search, same))
    if has_other_goal and adds_up(groups.reward, groups.rewards, everything):
        return everything
    return reward_terms(groups.reward, candidates) or same or None


def main_function(groups: RewardTable, weights: Mapping[str, float] | None, named: str | None) -> str:
    """The function that should be learned, or a sentence that says why it is not known."""
    if weights is None:
        return "the reward is no weighted sum of the functions in the log"
    counted = [name for name, weight in weights.items() if weight]
    if named in counted or len(counted) == 1:
        return named if named in counted else counted[0]
    logged = {name: groups.rewards[name][~np.isnan(groups.rewards[name])] for name in counted}
    binary = [name for name, values in logged.items() if binary_threshold(values) is not None]
    by_name = any(map(_MAIN.search, counted))
    goals = [name for name in binary if (_MAIN.search(name) if by_name else not _SIDE.search(name))]
    if len(goals) == 1:
        return goals[0]
    return f"which of {', '.join(counted)} should be learned is not known: name it with --reward"


def _is_reward(groups: RewardTable, name: str) -> bool:
    """Whether a function is the reward itself under another name."""
    return np.array_equal(groups.rewards[name], groups.reward)


def _mean(flags: Flags, groups: RewardTable, resampling: Resampling) -> Estimate:
    return bootstrap_mean(flags.astype(np.float64), groups.prompt, resampling=resampling)


def _deviations(groups: RewardTable, values: Array) -> Array:
    """Each number minus the mean of its group; a function that does not apply adds 0 to a reward, as in TRL."""
    numbers = np.nan_to_num(values)
    return np.asarray(numbers - np.repeat(groups.sums(numbers) / groups.size, groups.size))


def _scaled_advantages(run: Run, groups: RewardTable) -> _Scaled | str:
    """The advantages that were logged, else those of the trainer's arguments; or why there are none."""
    deviation = _deviations(groups, groups.reward)
    squares = groups.sums(deviation**2)
    if groups.advantage is not None:
        is_known = groups.sums(np.isnan(groups.advantage)) == 0
        advantage = np.where(np.repeat(is_known, groups.size), groups.advantage, 0.0)
        slope = ratio_or_zero(groups.sums(advantage * deviation), squares)
        scale = np.repeat(slope, groups.size)
        total = float(np.sum(advantage**2))
        if not total:
            return "every logged advantage is 0"
        if float(np.sum((advantage - scale * deviation) ** 2)) > _LINEAR * total:
            return "the logged advantages are no multiple of the reward's deviations from its group's mean"
        live = slope > 0
        spreads, slopes = np.log(squares[live] / groups.size[live]) / 2, np.log(slope[live])
        is_divided = bool(np.std(slopes + spreads) < np.std(slopes))
        return _Scaled(advantage=advantage, scale=scale, name="the logged advantages", is_divided=is_divided)
    kind, epsilon, name = _formulation(run)
    if not kind:
        return name
    spread = np.ones(len(groups))
    if kind == "group":
        spread = np.sqrt(squares / np.maximum(groups.size - 1, 1)) + epsilon
    elif kind == "batch":
        step = np.unique(groups.step, return_inverse=True)[1]
        rows = np.repeat(step, groups.size)
        count = np.bincount(rows)
        mean = np.bincount(rows, weights=groups.reward) / count
        step_squares = np.bincount(rows, weights=(groups.reward - mean[rows]) ** 2)
        spread = (np.sqrt(step_squares / np.maximum(count - 1, 1)) + epsilon)[step]
    scale = np.repeat(1.0 / spread, groups.size)
    return _Scaled(advantage=scale * deviation, scale=scale, name=name, is_divided=kind == "group")


def _formulation(run: Run) -> tuple[str, float, str]:
    """The scale of advantages (``group``, ``batch``, ``none``; empty: not known), an epsilon, and a sentence."""
    settings = run.settings
    if settings.get("trainer") == "verl" and settings.lookup("algorithm.adv_estimator") == "grpo":
        is_divided = bool(settings.lookup("algorithm.norm_adv_by_std_in_grpo", True))
        name = f"the advantages of norm_adv_by_std_in_grpo={is_divided}"
        return "group" if is_divided else "none", _VERL_EPSILON, name
    if settings.origin is None or not (run.source.format == "trl" or "scale_rewards" in settings.values):
        return "", 0.0, NO_ADVANTAGES
    if settings.get("multi_objective_aggregation", "sum_then_normalize") != "sum_then_normalize":
        return "", 0.0, "the functions are scaled one by one (multi_objective_aggregation), so no sum has a scale"
    kind = TRL_SCALES.get(str(settings.get("scale_rewards", "group")), "")
    if not kind:
        return "", 0.0, f"scale_rewards = {settings.get('scale_rewards')} is not known here"
    return kind, TRL_EPSILON, f'the advantages of scale_rewards="{kind}"'


def _remedy(run: Run) -> str:
    trainer = str(run.settings.get("trainer", run.source.format))
    if trainer in ("gradscope", "generic", "ms-swift"):
        trainer = "trl"
    return _NO_DIVISION.get(trainer, "advantages that are not divided by their group's standard deviation")


_Key = tuple[str, ...]


def _sums(
    groups: RewardTable,
    names: Sequence[str],
    pairs: Sequence[tuple[str, str]],
    weights: Mapping[str, float],
    scaled: _Scaled | str,
    decided: Flags,
) -> dict[_Key, Array]:
    """Sums over the rollouts of each group: squares, and the part of each function in them, [J] each."""
    # ``("advantage",)`` is the whole and ``("advantage", NAME)`` a function's part of it, ``("advantage", "")`` that
    # of the groups in conflict; ``difference`` is the same without a scale; ``("product", A, B)`` is of two functions.
    deviations = _deviations(groups, groups.reward)
    parts = {name: _deviations(groups, groups.rewards[name]) for name in names}
    sums: dict[_Key, Array] = {("difference",): groups.sums(deviations * deviations)}
    if not isinstance(scaled, str):
        sums["advantage",] = groups.sums(scaled.advantage**2)
    for name in names:
        weighted = weights.get(name, 0.0) * parts[name]
        sums["difference", name] = groups.sums(deviations * weighted)
        if not isinstance(scaled, str):
            sums["advantage", name] = groups.sums(scaled.advantage * scaled.scale * weighted)
    for first, second in (*zip(names, names, strict=True), *pairs):
        sums["product", first, second] = groups.sums(parts[first] * parts[second])
    for kind in ("advantage", "difference"):
        if (kind,) in sums:
            sums[kind, ""] = sums[kind,] * decided
    return sums


def _ratios(sums: Mapping[_Key, Array], prompts: NDArray[np.int64], resampling: Resampling) -> dict[_Key, Estimate]:
    """Each function's share of the sums of squares, and the correlation of each pair, from the same resamples."""
    products = [(first, second) for kind, first, second in (key for key in sums if len(key) == 3)]
    names, pairs = [first for first, second in products if first == second], [p for p in products if p[0] != p[1]]
    column_of = {key: column for column, key in enumerate(sums)}
    units = cluster_sums(np.column_stack(list(sums.values())), prompts)
    is_known = np.isfinite(np.abs(units).sum(axis=0))
    units = np.where(is_known, units, 0.0)
    wanted: dict[_Key, tuple[int, int, int]] = {}
    ratios: dict[_Key, Estimate] = {}
    totals = {key: float(units[:, column].sum()) for key, column in column_of.items()}
    unknown = partial(Estimate.undefined_because, num_units=len(units))
    too_large = unknown("rewards differ by more than can be squared")
    for kind in ("advantage", "difference"):
        for name in (*names, ""):
            if any(key in column_of and not is_known[column_of[key]] for key in ((kind, name), (kind,))):
                ratios[kind, name] = too_large
            elif totals.get((kind,), 0.0) > 0:
                wanted[kind, name] = (column_of[kind, name], column_of[kind,], column_of[kind,])
            else:
                ratios[kind, name] = unknown("no group has rewards that differ")
    for first, second in pairs:
        keys = [("product", first, second), *(("product", name, name) for name in (first, second))]
        if not all(is_known[column_of[key]] for key in keys):
            ratios["correlation", first, second] = too_large
        elif all(totals[key] > 0 for key in keys[1:]):
            wanted["correlation", first, second] = (column_of[keys[0]], column_of[keys[1]], column_of[keys[2]])
        else:
            ratios["correlation", first, second] = unknown("one of the two never differs within a group")
    if not wanted:
        return ratios
    above, left, right = np.array(list(wanted.values())).T
    is_correlation = np.array([key[0] == "correlation" for key in wanted])
    is_share = np.array([key[0] != "correlation" and key[1] == "" for key in wanted])  # of the groups in conflict

    def clipped_ratios(totals: Array) -> Array:
        roots = [np.sqrt(np.clip(totals[..., columns], 0.0, None)) for columns in (left, right)]
        return np.clip(ratio_or_zero(totals[..., above], roots[0] * roots[1]), -_LARGEST, _LARGEST)

    low = np.where(is_correlation, -1.0, np.where(is_share, 0.0, -np.inf))
    high = np.where(is_correlation | is_share, 1.0, np.inf)
    estimates = bootstrap_statistics(clipped_ratios, units, bounds=(low, high), resampling=resampling)
    return ratios | dict(zip(wanted, estimates, strict=True))


def _share(
    name: str, weights: Mapping[str, float] | None, ratio: Estimate, scaled: _Scaled | str | None = None
) -> Estimate:
    if weights is None:
        return Estimate.undefined_because("the weights of the functions are not known", num_units=ratio.num_units)
    if name not in weights:
        return Estimate.undefined_because("it is no part of the reward", num_units=ratio.num_units)
    return ratio if scaled is None else _or_reason(ratio, scaled)


def _or_reason(ratio: Estimate, scaled: _Scaled | str) -> Estimate:
    return Estimate.undefined_because(scaled, num_units=ratio.num_units) if isinstance(scaled, str) else ratio
