"""The requirements of `gradscope check`: what they say, the steps that they name, and the file they stand in."""

from __future__ import annotations

import math
import operator
import re
import tomllib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from msgspec import Struct
from msgspec.structs import force_setattr

from gradscope.catalog.lookup import catalog_name
from gradscope.errors import InputError, UsageError
from gradscope.estimate import Estimate
from gradscope.metrics.uncertainty.intervals import RESAMPLING, Resampling
from gradscope.metrics.uncertainty.steps import mean_of_steps, trend
from gradscope.outside.limits import read_limited
from gradscope.outside.numerals import number_from
from gradscope.outside.rules import is_finite
from gradscope.results.verdicts import BaselineRule, Operator, Requirement


def read_toml(path: str | Path) -> dict[str, Any]:
    """The tables of a TOML file; an ``InputError`` where it cannot be read."""
    file = Path(path)
    try:
        return tomllib.loads(read_limited(file).decode("utf-8"))
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}.", hint="Check the path.") from error
    except ValueError as error:
        raise InputError(f"{file} is not TOML: {error}.", hint="Repair the line that it names.") from error


Aggregate = Literal["mean", "max", "min", "last", "trend"]

_LISTED = r"[0-9]+[-:][0-9]+(?:,[0-9]+(?:[-:][0-9]+)?)*|[0-9]+(?:,[0-9]+(?:[-:][0-9]+)?)+"
_SELECTOR = re.compile(
    rf"(?P<steps>all|{_LISTED}|(?:first|last)(?:[0-9]+|[1-9]?[0-9]%|100%))(?::(?P<aggregate>mean|max|min|last|trend))?"
)
_STEP = re.compile(r"(.+)@([0-9]+)((?::[a-z]+)?)")
_PART = re.compile(r"(first|last)([0-9]+)(%?)")
Needed = Literal["last", "most", "all"]
"""Which of the chosen steps have to have a metric: the last, all but a tenth (or one step) at the end, or all."""
_MAX_SILENT_SHARE = 0.1
SELECTOR_HINT = (
    "Write metric@last20%, metric@5, metric@5-20:max or metric@trend; aggregates: mean, max, min, last, trend."
)
"""For a selector that does not read."""


class Selector(Struct, frozen=True, kw_only=True):
    """Steps and how to join their numbers."""

    steps: str  # ``all``, ``5-20``, ``1,6,11-20``, ``first10``, ``last20%``
    aggregate: Aggregate  # how the numbers of these steps become one

    def choose(self, steps: Sequence[int]) -> tuple[int, ...]:
        """Those of a run's ascending steps that are meant; a share is rounded up, so that it is never none of several.

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
    """A metric and its selector; the text itself and None where what follows the last ``@`` is none.

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


def with_range(text: str, names: Collection[str]) -> str:
    """A metric of a single step as one of a range, where there is such a metric and no number of the whole name.

    >>> with_range("kl@5:max", ["kl"]), with_range("val/mean@8", ["val/mean", "val/mean@8"])
    ('kl@5-5:max', 'val/mean@8')
    """
    parts = None if text in names else _STEP.fullmatch(text)
    if parts is None or catalog_name(parts[1]) not in names:
        return text
    ranged = f"{parts[1]}@{parts[2]}-{parts[2]}{parts[3]}"
    return ranged if split_metric(ranged)[1] else text


def coverage_gap(
    logged: Sequence[int], steps: Sequence[int], windows: Mapping[int, int], must_have: Needed
) -> str | None:
    """Why a metric that ended before the run, or paused, does not stand for the chosen steps; None if it does.

    A metric may be logged every so many steps: the upper quartile of the distances between those that have it. Fewer
    steps than that behind the last of them, and than twice that before or between them, are no gap. Steps ascend;
    ``windows`` says over how many steps metrics are means, for one that was logged once. Rollouts of a step may be
    missing where another file took their name, so not always all steps must have it.

    >>> coverage_gap([1, 2], range(1, 9), {}, "last")
    'is last known at step 2, and the run goes on to step 8'
    >>> coverage_gap([1, 2, 7, 8], range(1, 9), {}, "all")
    'is not known at steps 3 to 6'
    >>> coverage_gap([5, 6, 7, 8], range(1, 9), {}, "all")
    'is not known at steps 1 to 4'
    >>> coverage_gap([10, 20], range(1, 26), {}, "all")
    >>> coverage_gap([1, 2, 4, 5, 7, 8], range(1, 10), {}, "last")  # TRL's, of two updates in three
    """
    before = logged[: bisect_right(logged, steps[-1])] if steps else []
    if not before:
        return None
    distances = np.diff(logged)
    interval = float(np.quantile(distances, 0.75, method="lower")) if len(distances) else windows.get(logged[0], 1)
    num_behind = len(steps) - bisect_right(steps, before[-1])
    is_long = num_behind > (max(1, _MAX_SILENT_SHARE * len(steps)) if must_have == "most" else 0)
    if is_long and steps[-1] - before[-1] >= interval:
        return f"is last known at step {before[-1]}, and the run goes on to step {steps[-1]}"
    starts = [(steps[0] - 1, before[0])] if before[0] - steps[0] >= 2 * interval else []
    pauses = [pair for pair in pairwise(before) if pair[1] - pair[0] >= 2 * interval]
    for first, second in [*starts, *pauses] if must_have == "all" else ():
        silent = steps[bisect_right(steps, first) : bisect_left(steps, second)]
        if silent:
            span = f"step {silent[0]}" if len(silent) == 1 else f"steps {silent[0]} to {silent[-1]}"
            return f"is not known at {span}"
    return None


def aggregate_steps(values: Mapping[int, float], selector: Selector) -> Estimate:
    """The numbers of the chosen steps that have one, as one number.

    A mean and a trend have an interval where there are steps enough; one step's number and an extreme have none.
    """
    if not values:
        return Estimate.undefined_because(f"none of the steps {selector.steps!r} has a value")
    steps, numbers = list(values), list(values.values())
    if selector.aggregate == "trend":
        return trend(steps, numbers)
    if selector.aggregate == "mean":
        return mean_of_steps(numbers)
    joined = {"max": max(numbers), "min": min(numbers), "last": numbers[-1]}
    return Estimate.exact(joined[selector.aggregate], num_units=len(numbers))


COMPARE: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}

_GRAMMAR = re.compile(r"\s*(?P<metric>[^\s<>=!]+)\s*(?P<op>[<>=!]+)\s*(?P<limit>\S+)\s*")
_MISSPELLED = {"=": "==", "=<": "<=", "=>": ">=", "<>": "!=", "=!": "!="}
"""Operators as other languages and tired people write them."""
_EXAMPLE = "Write a metric, an operator and a number: 'frac_reward_zero_std <= 0.5'"


def parse_requirement(text: str) -> Requirement:
    """Reads ``<metric> <op> <number>``.

    Whether there is such a metric is decided by :func:`check_run`, which knows what the trainer logged; its error names
    the nearest one.

    Raises:
        UsageError: The text does not read so, the operator is none, or the limit is not a finite number.

    >>> parse_requirement("pass@8 >= 0.25")
    Requirement(metric='pass@8', op='>=', limit=0.25)
    """
    parts = _GRAMMAR.fullmatch(text)
    if parts is None:
        raise UsageError(f"The requirement {text!r} is not '<metric> <op> <number>'.", hint=_EXAMPLE)
    op = next((option for option in get_args(Operator) if option == parts["op"]), None)
    if op is None:
        corrected = _MISSPELLED.get(parts["op"])
        example = f"Write '{parts['metric']} {corrected} {parts['limit']}'"
        hint = example if corrected else f"The operators are {', '.join(COMPARE)}."
        raise UsageError(f"There is no operator {parts['op']!r} in the requirement {text!r}.", hint=hint)
    try:
        limit = number_from(parts["limit"])
    except ValueError:
        limit = math.nan
    if not math.isfinite(limit):
        raise UsageError(
            f"The limit {parts['limit']!r} of the requirement {text!r} is not a finite number.",
            hint=f"Write '{parts['metric']} {op} {_share(parts['limit'])}'",
        )
    return Requirement(metric=parts["metric"], op=op, limit=limit)


def _share(limit: str) -> str:
    """A limit as it is to be written: 50% as 0.5, what is no number as an example."""
    try:
        percent = float(limit.removesuffix("%"))
    except ValueError:
        return "0.5"
    return f"{percent / 100:g}" if math.isfinite(percent) else "0.5"


class CheckSettings(Struct, frozen=True, kw_only=True):
    """What a run is held against: the table ``[tool.gradscope.check]`` of a file, its keys and what no file says.

    >>> CheckSettings(requirements=["pass@4 >= 0.6"], track=["pass@8"], baseline="good.json").rule
    'interval'
    """

    requirements: Sequence[Requirement | str] = ()
    """``require``: ``"frac_reward_zero_std@last20% <= 0.5"``, or the parsed form of it."""
    track: Sequence[str] = ()  # metrics that are compared with the baseline without a limit of their own
    allow_unknown: Sequence[str] = ()  # metrics that may be undecided without failing the check
    baseline: str | Path | None = None
    """File of a good run's numbers, relative to the configuration; each metric named here is compared with it."""
    rule: BaselineRule = "interval"
    """What decides against it: ``interval`` (whether chance explains the change) or ``value`` (the change itself)."""
    margins: Mapping[str, float] = {}
    """Metric -> how much worse than the baseline it may be; 0 where it is not named."""
    success_threshold: float | None = None
    """A rollout passes when its reward reaches this; None: 1 for rewards of 0/1 or -1/1. No key of a file."""
    reward: str | None = None
    """One reward function by name, for the metrics of groups; None: the trainer's scalar. No key of a file."""
    resampling: Resampling = RESAMPLING  # how often, and from which seed; no key of a file

    def __post_init__(self) -> None:
        for name in ("requirements", "track", "allow_unknown"):
            if isinstance(text := getattr(self, name), str):  # else its letters are the list
                force_setattr(self, name, (text,))
        if self.rule not in get_args(BaselineRule):
            raise UsageError(f"`rule` is {self.rule!r}.", hint='Write rule = "interval" or rule = "value".')


def read_settings(path: str | Path) -> CheckSettings:
    """The table ``[tool.gradscope.check]`` of pyproject.toml; any other TOML file may call it ``[check]``."""
    file = Path(path)
    document = read_toml(file)
    table = _table(document, "tool", "gradscope", "check")
    if not table and file.name != "pyproject.toml":
        table = _table(document, "check")
    unknown = sorted(set(table) - set(_KEYS))
    if unknown:
        raise UsageError(
            f"{file} sets {unknown[0]!r}, which check does not know.", hint=f"It knows {', '.join(_KEYS)}."
        )
    baseline, rule = table.get("baseline"), table.get("rule", "interval")
    if baseline is not None and not isinstance(baseline, str):
        raise UsageError(f"`baseline` in {file} is not a path.", hint='Write baseline = "ci/baseline.json".')
    margins = table.get("margins", {})
    if not isinstance(margins, dict) or not all(is_finite(value) and value >= 0 for value in margins.values()):
        raise UsageError(
            f"`margins` in {file} is not a table of numbers from 0 on.", hint='Write margins = { "pass@8" = 0.02 }.'
        )
    return CheckSettings(
        requirements=tuple(parse_requirement(text) for text in _texts(table, "require", file)),
        track=_texts(table, "track", file),
        allow_unknown=_texts(table, "allow_unknown", file),
        baseline=None if baseline is None else file.parent / baseline,
        rule=rule,
        margins={name: float(value) for name, value in margins.items()},
    )


_KEYS = {
    "require": 'require = ["frac_reward_zero_std <= 0.5"]',
    "track": 'track = ["pass@8"]',
    "allow_unknown": 'allow_unknown = ["pass@8"]',
    "baseline": "",
    "rule": "",
    "margins": "",
}
"""Key -> how a list of it is written."""


def _texts(table: dict[str, Any], key: str, file: Path) -> tuple[str, ...]:
    texts = table.get(key, [])
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise UsageError(f"`{key}` in {file} is not a list of strings.", hint=f"Write {_KEYS[key]}.")
    return tuple(texts)


def _table(document: Any, *keys: str) -> dict[str, Any]:
    for key in keys:
        document = document.get(key, {}) if isinstance(document, dict) else {}
    return document if isinstance(document, dict) else {}
