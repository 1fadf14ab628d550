"""Which reward function makes the advantage, and does one of them dominate or tie groups?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradscope.catalog.lookup import metric
from gradscope.diagnostics.report.sections.inputs import ReportInputs, Unavailable, missing_section
from gradscope.estimate import Estimate
from gradscope.metrics.outcomes.groups import EQUAL_REWARDS
from gradscope.metrics.outcomes.reward_shares import reward_share
from gradscope.results.report import Cell, Chart, Column, ReportSection, ReportTable, Series
from gradscope.rollouts.groups import reward_table
from gradscope.rollouts.reward_table import RewardTable
from gradscope.rollouts.run import Run
from gradscope.say import percent, with_interval

Array = NDArray[np.float64]

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
    table = reward_table(run.groups)
    names = sorted(table.rewards)
    if not names:
        hint = "TRL writes one column a reward function with log_completions=True; give reward functions names."
        return missing_section(NAME, QUESTION, Unavailable(reason="The log has no reward per function.", hint=hint))
    missing = np.any(np.isnan([table.reward, *table.rewards.values()]), axis=0)
    groups = table.select(table.sums(missing) == 0)
    if not len(groups):
        hint = "A group counts where each of its rollouts has every reward."
        return missing_section(
            NAME, QUESTION, Unavailable(reason="No group has all rewards of all functions.", hint=hint)
        )
    functions = _functions(groups, names, _weights(run, names))
    return ReportSection(
        name=NAME,
        question=QUESTION,
        findings=_findings(functions, len(groups), weighed=run.settings.get("reward_weights") is not None),
        severity="look" if len(functions) > 1 and any(one.frac_tied == 1 for one in functions) else "fine",
        meaning=metric("reward_share").meaning,
        next_step=_next_step(functions),
        command=inputs.command("degeneracy", "--reward", _top(functions).name),
        charts=_charts(table, names),
        tables=(_table(functions),),
    )


def _weights(run: Run, names: Sequence[str]) -> dict[str, float]:
    """The trainer's weights in the order in which it logs its functions; 1 each where none are known."""
    weights = run.settings.get("reward_weights")
    logged = list(run.groups[0].rollouts[0].rewards)
    if isinstance(weights, Sequence) and len(weights) == len(logged):
        return {name: float(weight) for name, weight in zip(logged, weights, strict=True)}
    return dict.fromkeys(names, 1.0)


def _functions(groups: RewardTable, names: Sequence[str], weights: dict[str, float]) -> tuple[_Function, ...]:
    ids = np.repeat(np.arange(len(groups)), groups.size)
    prompts = groups.prompt[ids]
    tied = {name: groups.spread(groups.rewards[name]) <= EQUAL_REWARDS for name in names}
    functions = []
    for name in names:
        values = groups.rewards[name]
        others = [tied[other] for other in names if other != name]
        functions.append(
            _Function(
                name=name,
                weight=weights[name],
                mean=float(values.mean()),
                share=reward_share(weights[name] * values, groups.reward, ids, prompts),
                frac_tied=float(tied[name].mean()),
                num_sole=int(np.sum(np.all([~tied[name], *others], axis=0))),
            )
        )
    return tuple(functions)


def _findings(functions: Sequence[_Function], num_groups: int, *, weighed: bool) -> tuple[str, ...]:
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
        f"{top.name} makes {with_interval(top.share, percent)} of what differs within groups, over {num_groups} "
        "groups.",
        *(
            f"{one.name} alone keeps {one.num_sole} of {num_groups} groups alive: there, every other function is tied."
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


def _charts(table: RewardTable, names: Sequence[str]) -> tuple[Chart, ...]:
    steps = np.unique(table.step).tolist()
    if len(steps) < 2:
        return ()
    of_rollout = np.repeat(table.step, table.size)
    return (
        Chart(
            title="Mean of each reward function",
            kind="lines",
            places=tuple(steps),
            series=tuple(
                Series(name=name, values=tuple(_mean(table.rewards[name][of_rollout == step]) for step in steps))
                for name in names
            ),
            y_label="mean reward",
        ),
    )


def _mean(rewards: Array) -> float | None:
    known = rewards[~np.isnan(rewards)]
    return float(np.mean(known)) if len(known) else None


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
