"""A verdict against a baseline: is the run worse than it was, by more than is allowed and more than chance?"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from gradscope.catalog.entry import Direction
from gradscope.catalog.lookup import CATALOG, catalog_name
from gradscope.diagnostics.check.baseline_file import change_of
from gradscope.diagnostics.check.step_selectors import split_metric
from gradscope.estimate import Estimate
from gradscope.results.check import BaselineMetric, BaselineRule, Change, Operator, Outcome, Verdict
from gradscope.say import with_interval

_OPERATORS: dict[Direction, Operator] = {"lower": "<=", "higher": ">=", "neither": "=="}


def baseline_verdict(
    name: str,
    before: BaselineMetric | None,
    after: BaselineMetric,
    margin: float,
    rule: BaselineRule,
    path: str | Path,
    **bootstrap: Any,
) -> Verdict:
    """One metric beside its baseline.

    Worse is higher where lower is better, lower where higher is better, and either where the catalogue names no
    better side.

    Args:
        name: The metric, its selector included.
        before: The baseline's; None where it has none.
        after: This run's.
        margin: How much worse it may be.
        rule: What decides.
        path: The run, for the command that looks closer.
        **bootstrap: ``seed`` and ``num_resamples``.

    Returns:
        The verdict; unknown where a side has no value.
    """
    absent = Estimate.undefined_because("the baseline does not hold this metric")
    old = BaselineMetric(estimate=absent) if before is None else before
    change, num_paired = change_of(old, after, **bootstrap)
    better = _better(name)
    outcome: Outcome = "unknown" if change.value is None else judge(change, better, margin, rule)
    return Verdict(
        metric=name,
        op=_OPERATORS[better],
        limit=_limit(old.estimate, better, margin),
        outcome=outcome,
        estimate=after.estimate,
        meaning=_meaning(name, old.estimate, after.estimate, change, num_paired, margin),
        next_step=_next_step(name, before, outcome, path),
        change=Change(baseline=old.estimate, change=change, margin=margin, rule=rule, num_paired=num_paired),
    )


def _better(name: str) -> Direction:
    entry = CATALOG.get(catalog_name(split_metric(name)[0]))
    selector = split_metric(name)[1]
    # A trend has no better side of its own: a share that falls from high is not worse than one that stays low.
    return "neither" if entry is None or (selector and selector.aggregate == "trend") else entry.better


def judge(change: Estimate, better: Direction, margin: float, rule: BaselineRule) -> Outcome:
    """``fail`` if the change, or under ``interval`` the near end of its interval, is worse than the margin."""
    value = change.value or 0.0
    near_rise, near_fall = (value, value) if rule == "value" else change.ends
    rose, fell = near_rise > margin, near_fall < -margin
    worse = {"lower": rose, "higher": fell, "neither": rose or fell}[better]
    return "fail" if worse else "pass"


def _limit(before: Estimate, better: Direction, margin: float) -> float:
    if before.value is None:
        return 0.0
    return before.value + {"lower": margin, "higher": -margin, "neither": 0.0}[better]


def _meaning(name: str, before: Estimate, after: Estimate, change: Estimate, num_paired: int, margin: float) -> str:
    if change.value is None:
        return f"{name} cannot be compared with the baseline: {change.undefined}. What is not known does not pass."
    how = f"paired over {num_paired} prompts" if num_paired else "not paired by prompt"
    return (
        f"{name} was {before.value:.6g} in the baseline and is {after.value:.6g}; the change is "
        f"{with_interval(change, '+.4g')}, {how}; allowed is {margin:g} to the worse."
    )


def _next_step(name: str, before: BaselineMetric | None, outcome: Outcome, path: str | Path) -> str:
    if outcome == "pass":
        return ""
    entry = CATALOG.get(catalog_name(split_metric(name)[0]))
    if before is None:
        return "Write the baseline again from a good run: --update-baseline"
    if outcome == "unknown" or entry is None:
        return "Look at the trainer's own log of this metric, or at the requirement on it above."
    return (
        f"What moves it: {entry.moved_by} Look closer: gradscope {entry.command} {shlex.quote(str(path))}. Where the "
        "change is meant, accept it: --update-baseline"
    )
