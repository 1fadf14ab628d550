"""A run held against the numbers of an earlier one: the file they are kept in, and the test of each metric."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradscope.catalog.entry import Direction
from gradscope.catalog.lookup import CATALOG, catalog_name
from gradscope.diagnostics.check.metric_values import look_closer
from gradscope.diagnostics.check.requirements import split_metric
from gradscope.errors import InputError, OutputExistsError
from gradscope.estimate import Estimate
from gradscope.metrics.uncertainty.bootstrap import bootstrap_mean
from gradscope.metrics.uncertainty.intervals import RESAMPLING, Resampling, difference_of
from gradscope.metrics.uncertainty.paired import holm, rise_by_flips, rise_by_interval
from gradscope.outside.limits import open_file
from gradscope.outside.plain_json import read_json
from gradscope.outside.rules import is_finite
from gradscope.results.envelope import render_json, to_jsonable
from gradscope.results.verdicts import Baseline, BaselineMetric, BaselineRule, Change, Operator, Outcome, Verdict
from gradscope.say import with_interval
from gradscope.version import __version__
from gradscope.writing import atomic_write, refuse_existing

_SCHEMA = "gradscope/baseline"
_SCHEMA_VERSION = 1
MOST_PROMPTS = 5000
"""With more prompts a baseline would not be small; metrics are then compared as wholes."""
_START = 4096
"""Bytes in which a baseline names its schema."""
_LEAST_PAIRED = 5
_LEAST_SHARE = 0.5
"""Pairs decide only where they are at least half of both sides: a few common prompts are another population."""


def prompt_key(prompt_id: str) -> str:
    """A prompt's name in a baseline: a digest, because a prompt id may be the whole prompt.

    Returns:
        Twelve hexadecimal digits of its SHA-256.

    Example:
        >>> prompt_key("3+6=?")
        '676893b77726'
    """
    return hashlib.sha256(prompt_id.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def write_baseline(baseline: Baseline, path: Path, *, force: bool = False) -> None:
    """Write a baseline, whole or not at all; one that is there is replaced with ``force``."""
    document = {
        "schema": _SCHEMA,
        "schema_version": _SCHEMA_VERSION,
        "gradscope": __version__,
        "run": baseline.run,
        "metrics": {name: _plain(metric) for name, metric in sorted(baseline.metrics.items())},
    }
    atomic_write(path, render_json(document), force=force)


def refuse_other(path: Path, *, force: bool) -> None:
    """Refuse, before any work, to overwrite what is no baseline, and a baseline without ``force``."""
    # The path may be that of the log by mistake; a baseline that is damaged or empty may be replaced.
    refuse_existing(path, force=force)
    if not path.exists():
        return
    with open_file(path) as stream:
        start = stream.read(_START)
    if start.strip() and f'"{_SCHEMA}"'.encode() not in start:
        raise OutputExistsError(
            f"{path} is no baseline, and --force replaces baselines only.", hint="Name another file with --baseline."
        )


def _plain(metric: BaselineMetric) -> dict[str, Any]:
    prompts = metric.prompts if len(metric.prompts) <= MOST_PROMPTS else {}
    return {**to_jsonable(metric.estimate), "prompts": dict(sorted(prompts.items()))}


def read_baseline(path: Path) -> Baseline:
    """The numbers of a baseline file; an ``InputError`` where it cannot be read or is of another version."""
    try:
        document = read_json(path)
    except OSError as error:
        hint = "Write one from a good run: gradscope check RUN --baseline FILE --update-baseline"
        raise InputError(f"The baseline {path} cannot be read: {error.strerror}.", hint=hint) from error
    except ValueError as error:
        raise InputError(
            f"The baseline {path} is not JSON: {error}.", hint="Write it again: --update-baseline --force"
        ) from error
    is_baseline = isinstance(document, dict) and document.get("schema") == _SCHEMA
    if not is_baseline or not _is_version(document.get("schema_version")):
        raise InputError(
            f"{path} is no baseline of version {_SCHEMA_VERSION}.", hint="Write it again: --update-baseline --force"
        )
    try:
        metrics = {name: _metric(values) for name, values in document["metrics"].items()}
        return Baseline(run=str(document["run"]), metrics=metrics)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise InputError(
            f"The baseline {path} is damaged: {type(error).__name__} {error}.",
            hint="Write it again: --update-baseline --force",
        ) from error


def _is_version(value: Any) -> bool:
    return type(value) is int and value == _SCHEMA_VERSION


def _metric(values: Mapping[str, Any]) -> BaselineMetric:
    value, low, high = (None if values[name] is None else _finite(values[name]) for name in ("value", "low", "high"))
    num_units, undefined = values["num_units"], values["undefined"]
    if type(num_units) is not int:
        raise ValueError(f"num_units is {num_units!r}")
    if undefined is not None and not isinstance(undefined, str):
        raise ValueError(f"undefined is {undefined!r}")
    estimate = Estimate(value=value, low=low, high=high, num_units=num_units, undefined=undefined)
    return BaselineMetric(
        estimate=estimate, prompts={prompt: _finite(mean) for prompt, mean in values["prompts"].items()}
    )


def _finite(value: Any) -> float:
    if not is_finite(value):
        raise ValueError(f"{str(value)[:40]!r} is no finite number")
    return float(value)


def _change_of(
    before: BaselineMetric, after: BaselineMetric, *, resampling: Resampling = RESAMPLING
) -> tuple[Estimate, NDArray[np.float64]]:
    """After minus before, paired by prompt where enough prompts are common."""
    common = sorted(before.prompts.keys() & after.prompts.keys())
    enough = max(len(before.prompts), len(after.prompts)) * _LEAST_SHARE
    if len(common) >= max(_LEAST_PAIRED, enough):
        differences = np.array([after.prompts[prompt] - before.prompts[prompt] for prompt in common])
        return bootstrap_mean(differences, resampling=resampling, share=False), differences
    if (
        before.estimate.is_defined
        and after.estimate.is_defined
        and None in (before.estimate.interval, after.estimate.interval)
    ):
        return Estimate.exact((after.estimate.value or 0.0) - (before.estimate.value or 0.0)), np.zeros(0)
    return difference_of(before.estimate, after.estimate), np.zeros(0)


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
    """One verdict a metric of this run; unknown where a side has no value, or under ``interval`` no interval."""
    # Worse is higher where lower is better, lower where higher is, and either where the catalogue names no better
    # side.
    compared = []
    for name, metric in after.items():
        old = before.get(name)
        change, paired = _change_of(old or BaselineMetric(estimate=_NOT_HELD), metric, resampling=resampling)
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
