"""Which reward function makes the advantage, and does one of them dominate or tie groups?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gradscope.catalog.lookup import metric
from gradscope.diagnostics.report.sections.inputs import ReportInputs, Unavailable, missing_section
from gradscope.estimate import Estimate
from gradscope.metrics.outcomes.groups import all_equal
from gradscope.metrics.outcomes.reward_shares import reward_share
from gradscope.results.report import Cell, Chart, Column, ReportSection, ReportTable, Series
from gradscope.rollouts.run import Run
from gradscope.rollouts.types import Rollout, RolloutGroup
from gradscope.say import percent, with_interval

NAME = "rewards"
QUESTION = "Which reward function makes the advantage?"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Function:
    """One reward function over the log."""

    name: str
    weight: float
    mean: float
    share: Estimate
    frac_tied: float
    num_sole: int


def rewards_section(inputs: ReportInputs) -> ReportSection:
    """Each reward function's share of what differs within groups, its ties, and its mean over steps."""
    run = inputs.run
    names = sorted({name for group in run.groups for rollout in group.rollouts for name in rollout.rewards})
    if not names:
        hint = "TRL writes one column a reward function with log_completions=True; give reward functions names."
        return missing_section(NAME, QUESTION, Unavailable(reason="The log has no reward per function.", hint=hint))
    groups = [group for group in run.groups if _is_complete(group, names)]
    if not groups:
        hint = "A group counts where each of its rollouts has every reward."
        return missing_section(
            NAME, QUESTION, Unavailable(reason="No group has all rewards of all functions.", hint=hint)
        )
    functions = _functions(groups, names, _weights(run, names))
    return ReportSection(
        name=NAME,
        question=QUESTION,
        findings=_findings(functions, groups, weighed=run.settings.get("reward_weights") is not None),
        meaning=metric("reward_share").meaning,
        next_step=_next_step(functions),
        command=inputs.command("degeneracy", "--reward", _top(functions).name),
        charts=_charts(run, names),
        tables=(_table(functions),),
    )


def _is_complete(group: RolloutGroup, names: Sequence[str]) -> bool:
    return all(
        rollout.reward is not None and all(rollout.rewards.get(name) is not None for name in names)
        for rollout in group.rollouts
    )


def _weights(run: Run, names: Sequence[str]) -> dict[str, float]:
    """The trainer's weights in the order in which it logs its functions; 1 each where none are known."""
    weights = run.settings.get("reward_weights")
    logged = list(run.groups[0].rollouts[0].rewards)
    if isinstance(weights, Sequence) and len(weights) == len(logged):
        return {name: float(weight) for name, weight in zip(logged, weights, strict=True)}
    return dict.fromkeys(names, 1.0)


def _functions(
    groups: Sequence[RolloutGroup], names: Sequence[str], weights: dict[str, float]
) -> tuple[_Function, ...]:
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    ids = [rollout.group_id for rollout in rollouts]
    prompts = [group.prompt_id for group in groups for _ in group.rollouts]
    total = [rollout.reward or 0.0 for rollout in rollouts]
    functions = []
    for name in names:
        values = np.array(_values(rollouts, name))
        tied = [all_equal(_values(group.rollouts, name)) for group in groups]
        others = [other for other in names if other != name]
        sole = [
            not flat and all(all_equal(_values(group.rollouts, other)) for other in others)
            for group, flat in zip(groups, tied, strict=True)
        ]
        functions.append(
            _Function(
                name=name,
                weight=weights[name],
                mean=float(values.mean()),
                share=reward_share(weights[name] * values, total, ids, prompts),
                frac_tied=sum(tied) / len(tied),
                num_sole=sum(sole),
            )
        )
    return tuple(functions)


def _values(rollouts: Sequence[Rollout], name: str) -> list[float]:
    return [rollout.rewards[name] or 0.0 for rollout in rollouts]


def _findings(functions: Sequence[_Function], groups: Sequence[RolloutGroup], *, weighed: bool) -> tuple[str, ...]:
    if len(functions) == 1:
        (only,) = functions
        return (
            f"There is one reward function, {only.name}: it makes all of the advantage and ties "
            f"{percent(only.frac_tied)} of groups.",
        )
    shared = [one for one in functions if one.share.value is not None]
    if not shared:
        return (f"No function makes an advantage: {functions[0].share.undefined}.",)
    top = max(shared, key=lambda one: one.share.value or 0.0)
    sentences = [
        f"{top.name} makes {with_interval(top.share, percent)} of what differs within groups, over {len(groups)} "
        "groups.",
        *(
            f"{one.name} alone keeps {one.num_sole} of {len(groups)} groups alive: there, every other function is tied."
            for one in functions
            if one.num_sole
        ),
        *(
            f"{one.name} gives every rollout of every group the same: it adds no signal."
            for one in functions
            if one.frac_tied == 1
        ),
    ]
    total = sum(one.share.value or 0.0 for one in shared)
    if abs(total - 1) > 0.01:
        why = "the scalar reward is not their weighted sum" if weighed else "the weights of the functions are not known"
        sentences.append(f"The shares add up to {percent(total)}: {why}.")
    return tuple(sentences)


def _top(functions: Sequence[_Function]) -> _Function:
    return max(functions, key=lambda one: one.share.value or 0.0)


def _next_step(functions: Sequence[_Function]) -> str:
    top = _top(functions)
    if len(functions) > 1:
        return (
            f"If {top.name} is not what should be learned, lower its weight (reward_weights), and look at one function "
            "alone."
        )
    if not top.frac_tied:
        return "Nothing to do: it tells the rollouts of every group apart."
    return f"It ties {percent(top.frac_tied)} of groups: partial credit or a second function would untie some."


def _charts(run: Run, names: Sequence[str]) -> tuple[Chart, ...]:
    steps = run.steps
    if len(steps) < 2:
        return ()
    return (
        Chart(
            title="Mean of each reward function",
            kind="lines",
            places=tuple(steps),
            series=tuple(Series(name=name, values=tuple(_mean(run, step, name) for step in steps)) for name in names),
        ),
    )


def _mean(run: Run, step: int, name: str) -> float | None:
    values = [
        value
        for group in run.groups_at(step)
        for rollout in group.rollouts
        if (value := rollout.rewards.get(name)) is not None
    ]
    return float(np.mean(values)) if values else None


def _table(functions: Sequence[_Function]) -> ReportTable:
    rows: list[tuple[Cell, ...]] = [
        (one.name, one.weight, one.mean, one.share, one.frac_tied, one.num_sole) for one in functions
    ]
    return ReportTable(
        caption=f"share of the advantage = {metric('reward_share').formula}; intervals resample prompts",
        columns=(
            Column(title="reward function"),
            Column(title="weight", style="norm"),
            Column(title="mean", style="norm"),
            Column(title="share of the advantage", style="gap"),
            Column(title="groups tied", style="share"),
            Column(title="groups it alone keeps alive", style="count"),
        ),
        rows=tuple(rows),
    )
