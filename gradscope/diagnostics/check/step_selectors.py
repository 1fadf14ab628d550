"""Which steps of a run a requirement is about, and how their numbers become one: ``metric@last20%:max``.

``metric@<steps>``, ``metric@<steps>:<aggregate>`` or ``metric@<aggregate>``; steps are ``all``, ``5-20``
or ``5:20``, ``1,6,11-20``, ``first10``, ``last10``, ``first20%`` or ``last20%``, the aggregate is ``mean`` (of all rows
of these steps, where nothing else is said), ``max``, ``min``, ``last`` or ``trend``. ``pass@8`` is no selector: a
budget is a number alone.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, get_args

import numpy as np

from gradscope.estimate import Estimate
from gradscope.metrics.uncertainty.steps import mean_of_steps
from gradscope.metrics.uncertainty.trend import trend

Aggregate = Literal["mean", "max", "min", "last", "trend"]

_LISTED = r"[0-9]+[-:][0-9]+(?:,[0-9]+(?:[-:][0-9]+)?)*|[0-9]+(?:,[0-9]+(?:[-:][0-9]+)?)+"
_SELECTOR = re.compile(rf"(?P<steps>all|{_LISTED}|(?:first|last)[0-9]+%?)(?::(?P<aggregate>mean|max|min|last|trend))?")
_PART = re.compile(r"(first|last)([0-9]+)(%?)")
Needed = Literal["last", "most", "all"]
"""Which of the steps asked for have to have a metric: the last, all but a tenth (or one step) at the end, or all."""
_MOST_SILENT = 0.1
SELECTOR_HINT = "Write metric@last20%, metric@5-20:max or metric@trend; the aggregates are mean, max, min, last, trend."
"""For a selector that does not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """Steps and how to join their numbers."""

    steps: str
    """``all``, ``5-20``, ``1,6,11-20``, ``first10``, ``last20%``, ..."""
    aggregate: Aggregate
    """How the numbers of these steps become one."""

    def choose(self, steps: Sequence[int]) -> tuple[int, ...]:
        """Those of a run's ascending steps that are meant.

        Returns:
            The steps; a share is rounded up, so that it is never none of several.

        Example:
            >>> Selector(steps="last20%", aggregate="mean").choose(range(1, 12))
            (9, 10, 11)
        """
        if self.steps == "all":
            return tuple(steps)
        part = _PART.fullmatch(self.steps)
        if part is None:
            ends = [tuple(map(int, re.split("[-:]", listed))) for listed in self.steps.split(",")]
            return tuple(step for step in steps if any(pair[0] <= step <= pair[-1] for pair in ends))
        num_steps = math.ceil(len(steps) * int(part[2]) / 100) if part[3] else int(part[2])
        return tuple(steps[:num_steps]) if part[1] == "first" else tuple(steps[max(0, len(steps) - num_steps) :])


def split_metric(text: str) -> tuple[str, Selector | None]:
    """A metric and its selector.

    Returns:
        The metric's name and the selector; where what follows the last ``@`` is none, the text itself and None.

    Example:
        >>> split_metric("grad_norm@5-20:max")
        ('grad_norm', Selector(steps='5-20', aggregate='max'))
        >>> split_metric("pass@8")
        ('pass@8', None)
    """
    name, _, words = text.rpartition("@")
    parts = _SELECTOR.fullmatch(f"all:{words}" if words in get_args(Aggregate) else words)
    if not name or parts is None:
        return text, None
    aggregate = next(option for option in get_args(Aggregate) if option == (parts["aggregate"] or "mean"))
    return name, Selector(steps=parts["steps"], aggregate=aggregate)


def silence(known: Sequence[int], asked: Sequence[int], windows: Mapping[int, int], must_have: Needed) -> str | None:
    """Why a metric that ended before the run, or paused, does not stand for the steps that are asked for.

    A metric may be logged every so many steps, the median distance of those that have it: fewer steps than that behind
    the last of them, and than twice that before or between them, are no silence.

    Args:
        known: All steps that have the metric, ascending.
        asked: The steps of the run that are asked for, ascending.
        windows: Step -> over how many steps its metrics are means, for a metric that was logged once.
        must_have: What has to be known. Rollouts of a step may be missing where another file took their name.

    Returns:
        A few words after the metric's name; None where it is known, or at no step at all.

    Example:
        >>> silence([1, 2], range(1, 9), {}, "last")
        'is last known at step 2, and the run goes on to step 8'
        >>> silence([1, 2, 7, 8], range(1, 9), {}, "all")
        'is not known at steps 3 to 6'
        >>> silence([5, 6, 7, 8], range(1, 9), {}, "all")
        'is not known at steps 1 to 4'
        >>> silence([10, 20], range(1, 26), {}, "all")
    """
    if not known or not asked:
        return None
    every = float(np.median(np.diff(known))) if len(known) > 1 else windows.get(known[0], 1)
    before = known[: bisect_right(known, asked[-1])]
    if not before:
        return None
    num_behind = len(asked) - bisect_right(asked, before[-1])
    is_long = num_behind > (max(1, _MOST_SILENT * len(asked)) if must_have == "most" else 0)
    if is_long and asked[-1] - before[-1] >= every:
        return f"is last known at step {before[-1]}, and the run goes on to step {asked[-1]}"
    starts = [(asked[0] - 1, before[0])] if before[0] - asked[0] >= 2 * every else []
    pauses = [pair for pair in pairwise(before) if pair[1] - pair[0] >= 2 * every]
    for first, second in [*starts, *pauses] if must_have == "all" else ():
        within = asked[bisect_right(asked, first) : bisect_left(asked, second)]
        if within:
            steps = f"step {within[0]}" if len(within) == 1 else f"steps {within[0]} to {within[-1]}"
            return f"is not known at {steps}"
    return None


def aggregate_steps(values: Mapping[int, float], selector: Selector, course: Sequence[float]) -> Estimate:
    """The numbers of the chosen steps that have one as one number.

    Args:
        values: Step -> number, of the chosen steps.
        selector: How to join them.
        course: The number at every step of the run, for the interval of a mean.

    Returns:
        The number. A mean and a trend have an interval where there are steps enough; one step's number and an extreme
        have none.
    """
    if not values:
        return Estimate.undefined_because(f"none of the steps {selector.steps!r} has a value")
    steps, numbers = list(values), list(values.values())
    if selector.aggregate == "trend":
        return trend(steps, numbers)
    if selector.aggregate == "mean":
        return mean_of_steps(numbers, course)
    joined = {"max": max(numbers), "min": min(numbers), "last": numbers[-1]}
    return Estimate.exact(joined[selector.aggregate], num_units=len(numbers))
