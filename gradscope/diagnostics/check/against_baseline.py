"""Verdicts against a baseline: is the run worse than it was, by more than is allowed and more than chance?

All metrics that are compared are one family: their p-values are corrected by Holm's rule, so that a run that is no
worse fails in at most one check of twenty, however many metrics it holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradscope.catalog.entry import Direction
from gradscope.catalog.lookup import CATALOG, catalog_name
from gradscope.diagnostics.check.baseline_file import change_of
from gradscope.diagnostics.check.recomputed_numbers import look_closer
from gradscope.diagnostics.check.step_selectors import split_metric
from gradscope.estimate import Estimate
from gradscope.metrics.uncertainty.one_sided import rise_by_flips, rise_by_interval
from gradscope.metrics.uncertainty.paired import holm
from gradscope.metrics.uncertainty.resampling import RESAMPLING, Resampling
from gradscope.results.check import BaselineMetric, BaselineRule, Change, Operator, Outcome, Verdict
from gradscope.say import with_interval

FAMILY_RATE = 0.05
"""How often a run that is no worse may fail, all metrics of a check together."""
_OPERATORS: dict[Direction, Operator] = {"lower": "<=", "higher": ">=", "neither": "=="}
_NOT_HELD = Estimate.undefined_because("the baseline does not hold this metric")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compared:
    """One metric beside its baseline, before the family is known."""

    name: str
    before: BaselineMetric | None
    after: BaselineMetric
    change: Estimate
    paired: NDArray[np.float64]
    margin: float
    advice: str

    @property
    def old(self) -> Estimate:
        return _NOT_HELD if self.before is None else self.before.estimate


def baseline_verdicts(
    before: Mapping[str, BaselineMetric],
    after: Mapping[str, BaselineMetric],
    *,
    margins: Mapping[str, float] | None = None,
    advice: Mapping[str, str] | None = None,
    rule: BaselineRule = "interval",
    path: str,
    resampling: Resampling = RESAMPLING,
) -> list[Verdict]:
    """Each metric beside its baseline.

    Worse is higher where lower is better, lower where higher is better, and either where the catalogue names no
    better side.

    Args:
        before: The baseline's metrics, by name with selectors.
        after: This run's.
        margins: How much worse each may be; 0 where it is not named.
        advice: What this run's numbers say to try, by metric.
        rule: What decides.
        path: The run, for the command that looks closer.
        resampling: How often, and from which seed.

    Returns:
        One verdict a metric of this run; unknown where a side has no value, or under ``interval`` no interval.
    """
    compared = []
    for name, metric in after.items():
        old = before.get(name)
        change, paired = change_of(old or BaselineMetric(estimate=_NOT_HELD), metric, resampling=resampling)
        compared.append(
            _Compared(
                name=name,
                before=old,
                after=metric,
                change=change,
                paired=paired,
                margin=(margins or {}).get(name, 0.0),
                advice=(advice or {}).get(name, ""),
            )
        )
    p_values = holm([_p_value(one, resampling) if rule == "interval" else None for one in compared])
    num_tests = sum(p_value is not None for p_value in p_values)
    return [_verdict(one, p_value, num_tests, rule, path) for one, p_value in zip(compared, p_values, strict=True)]


def _p_value(one: _Compared, resampling: Resampling) -> float | None:
    """How often chance makes a change as far beyond the margin, both sides counted; None where it cannot be said."""
    # 0.05 is where the near end of the 95 % interval of this metric alone is the margin.
    sides = {"lower": (1,), "higher": (-1,), "neither": (1, -1)}[_better(one.name)]
    if len(one.paired):
        tails = [rise_by_flips(side * one.paired, one.margin, seed=resampling.seed) for side in sides]
    elif one.change.interval is not None:
        tails = [rise_by_interval(one.change if side > 0 else _mirrored(one.change), one.margin) for side in sides]
    else:
        return None
    return min(1.0, 2 * min(tails))


def _mirrored(change: Estimate) -> Estimate:
    return change.map(lambda value: -value)


def _better(name: str) -> Direction:
    metric, selector = split_metric(name)
    entry = CATALOG.get(catalog_name(metric))
    # A trend has no better side of its own: a share that falls from high is not worse than one that stays low.
    return "neither" if entry is None or (selector and selector.aggregate == "trend") else entry.better


def _verdict(one: _Compared, p_value: float | None, num_tests: int, rule: BaselineRule, path: str) -> Verdict:
    better = _better(one.name)
    outcome = _outcome(one, p_value, rule)
    return Verdict(
        metric=one.name,
        op=_OPERATORS[better],
        limit=_limit(one.old, better, one.margin),
        outcome=outcome,
        estimate=one.after.estimate,
        meaning=_meaning(one, p_value, num_tests),
        next_step=_next_step(one, outcome, path),
        change=Change(
            baseline=one.old,
            change=one.change,
            margin=one.margin,
            rule=rule,
            num_paired=len(one.paired),
            p_value=p_value,
            num_tests=num_tests,
        ),
    )


def _outcome(one: _Compared, p_value: float | None, rule: BaselineRule) -> Outcome:
    if one.change.value is None:
        return "fail" if one.after.is_not_finite else "unknown"
    if rule == "value":
        return "fail" if _is_worse(one.change.value, _better(one.name), one.margin) else "pass"
    if p_value is None:
        return "unknown" if one.change.value else "pass"
    return "fail" if p_value <= FAMILY_RATE else "pass"


def _is_worse(change: float, better: Direction, margin: float) -> bool:
    rose, fell = change > margin, change < -margin
    return {"lower": rose, "higher": fell, "neither": rose or fell}[better]


def _limit(before: Estimate, better: Direction, margin: float) -> float:
    if before.value is None:
        return 0.0
    return before.value + {"lower": margin, "higher": -margin, "neither": 0.0}[better]


def _meaning(one: _Compared, p_value: float | None, num_tests: int) -> str:
    if one.old.value is None or one.after.estimate.value is None:
        return (
            f"{one.name} cannot be compared with the baseline: {one.change.undefined}. What is not known does not pass."
        )
    how = f"paired over {len(one.paired)} prompts" if len(one.paired) else "not paired by prompt"
    text = (
        f"{one.name} was {one.old.value:.6g} in the baseline and is {one.after.estimate.value:.6g}; the change is "
        f"{with_interval(one.change, '+.4g')}, {how}; allowed is {one.margin:g} to the worse"
    )
    if p_value is not None:
        family = f", corrected for {num_tests} metrics" if num_tests > 1 else ""
        return f"{text}; by chance alone p = {p_value:.2g}{family}."
    if one.change.interval is None and one.change.value:
        return f"{text}. How much of that is chance is not known, for a number without an interval."
    return f"{text}."


def _next_step(one: _Compared, outcome: Outcome, path: str) -> str:
    if outcome == "pass":
        return ""
    metric, selector = split_metric(one.name)
    entry = CATALOG.get(catalog_name(metric))
    if one.before is None:
        return "Write the baseline again from a good run: --update-baseline --force"
    if outcome == "unknown" and one.change.value is not None:
        mean = f"{metric}@{selector.steps}:mean" if selector and selector.steps != "all" else f"{metric}@last20%"
        return (
            f"Compare a mean over ten steps or more, such as {mean}, and write the baseline again with it; or let the "
            "change itself decide, with a margin: --decide-by value"
        )
    if outcome == "unknown" or entry is None:
        return "Look at the trainer's own log of this metric, or at the requirement on it above."
    closer = f"{look_closer(entry, path)}."
    accept = "Where the change is meant, accept it: --update-baseline --force"
    return " ".join(part for part in (one.advice, closer, accept) if part)
