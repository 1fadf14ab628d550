"""A baseline: a small file of a run's metrics, with which later runs are compared."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from functools import partial
from operator import mul
from pathlib import Path
from statistics import mode
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from gradscope.catalog.entry import Direction
from gradscope.catalog.lookup import CATALOG, catalog_name
from gradscope.diagnostics.check.metric_values import look_closer
from gradscope.diagnostics.check.requirements import CheckSettings, split_metric
from gradscope.errors import InputError, OutputExistsError
from gradscope.estimate import Estimate
from gradscope.metrics.uncertainty.bootstrap import bootstrap_mean
from gradscope.metrics.uncertainty.intervals import Resampling, difference_of
from gradscope.metrics.uncertainty.paired import holm, rise_by_flips, rise_by_interval
from gradscope.metrics.uncertainty.steps import mean_difference, mean_of_steps, trend, widened_by_steps
from gradscope.outside.limits import open_file
from gradscope.outside.plain_json import read_json
from gradscope.outside.rules import is_finite
from gradscope.results import verdicts as results
from gradscope.results.envelope import render_json, to_jsonable
from gradscope.rollouts.groups import sizes_of
from gradscope.rollouts.readers.metrics_alone.naming import is_verdict
from gradscope.rollouts.run import Run
from gradscope.say import listed, with_interval
from gradscope.version import __version__
from gradscope.writing import atomic_write, refuse_existing

_SCHEMA = "gradscope/baseline"
_SCHEMA_VERSION = 1
MAX_PROMPTS = 5000  # with more prompts or steps a baseline would not be small; metrics are then compared as wholes
_START = 4096  # bytes in which a baseline names its schema
_MIN_PAIRED = 5
_MIN_SHARE = 0.5
"""Pairs decide only where they are at least half of both sides: a few common prompts are another population."""


def prompt_key(prompt_id: str) -> str:
    """A prompt's name in a baseline: twelve digits of its SHA-256, because a prompt id may be the whole prompt.

    >>> prompt_key("3+6=?")
    '676893b77726'
    """
    return hashlib.sha256(prompt_id.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def write_baseline(baseline: results.Baseline, path: Path, *, force: bool = False) -> None:
    """Write a baseline, whole or not at all; one that is there is replaced with ``force``."""
    document = {
        "schema": _SCHEMA,
        "schema_version": _SCHEMA_VERSION,
        "gradscope": __version__,
        "run": baseline.run,
        "recipe": dict(sorted(baseline.recipe.items())),
        "metrics": {name: _metric_document(metric) for name, metric in sorted(baseline.metrics.items())},
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


def _metric_document(metric: results.BaselineMetric) -> dict[str, Any]:
    parts = {name: getattr(metric, name) for name in ("prompts", "course", "deviations")}
    small = {name: dict(sorted(part.items())) if len(part) <= MAX_PROMPTS else {} for name, part in parts.items()}
    return {**to_jsonable(metric.estimate), **{name: small[name] for name in small if small[name] or name == "prompts"}}


def read_baseline(path: Path) -> results.Baseline:
    """The numbers of a baseline file; an ``InputError`` where it cannot be read or is of another version."""
    rewrite = "Write it again: --update-baseline --force"
    try:
        document = read_json(path)
    except OSError as error:
        hint = "Write one from a good run: gradscope check RUN --baseline FILE --update-baseline"
        raise InputError(f"The baseline {path} cannot be read: {error.strerror}.", hint=hint) from error
    except ValueError as error:
        raise InputError(f"The baseline {path} is not JSON: {error}.", hint=rewrite) from error
    is_baseline = isinstance(document, dict) and document.get("schema") == _SCHEMA
    version = document.get("schema_version") if is_baseline else None
    if type(version) is not int or version != _SCHEMA_VERSION:
        raise InputError(f"{path} is no baseline of version {_SCHEMA_VERSION}.", hint=rewrite)
    try:
        metrics = {name: _read_metric(values) for name, values in document["metrics"].items()}
        recipe = {str(name): str(value) for name, value in document.get("recipe", {}).items()}
        return results.Baseline(run=str(document["run"]), metrics=metrics, recipe=recipe)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise InputError(f"The baseline {path} is damaged: {type(error).__name__} {error}.", hint=rewrite) from error


def _read_metric(values: Mapping[str, Any]) -> results.BaselineMetric:
    value, low, high = (None if values[name] is None else _finite(values[name]) for name in ("value", "low", "high"))
    num_units, undefined = values["num_units"], values["undefined"]
    if type(num_units) is not int:
        raise ValueError(f"num_units is {num_units!r}")
    if undefined is not None and not isinstance(undefined, str):
        raise ValueError(f"undefined is {undefined!r}")
    series, deviations = (
        {int(step): _finite(number) for step, number in values.get(name, {}).items()}
        for name in ("course", "deviations")
    )
    return results.BaselineMetric(
        estimate=Estimate(value=value, low=low, high=high, num_units=num_units, undefined=undefined),
        prompts={prompt: _finite(mean) for prompt, mean in values["prompts"].items()},
        course=series,
        deviations=deviations,
    )


def _finite(value: Any) -> float:
    if not is_finite(value):
        raise ValueError(f"{str(value)[:40]!r} is no finite number")
    return float(value)


_LONGEST, _MOST_NAMED = 40, 4  # characters of a setting, and settings in a sentence


def recipe_of(run: Run, settings: CheckSettings) -> dict[str, str]:
    """What a run's numbers follow from besides the policy, as :class:`~gradscope.results.verdicts.Baseline` has it."""
    chosen = {"reward": settings.reward, "success threshold": settings.success_threshold}
    recipe = {name: str(value) for name, value in chosen.items() if value is not None}
    if run.groups:
        table, sizes = run.judged_rewards, sizes_of(run.groups)
        levels = np.unique(table.reward[~np.isnan(table.reward)]).tolist()
        recipe |= {
            "rollouts a group": " to ".join(map(str, dict.fromkeys((sizes[0], sizes[-1])))),
            "groups a step": str(mode(np.unique(table.step, return_counts=True)[1].tolist())),
            **({"reward functions": listed(sorted(table.rewards))} if table.rewards else {}),
            **({"rewards": listed([f"{level:g}" for level in levels])} if len(levels) == 2 else {}),
        }
    stated = {name: str(value) for name, value in run.settings.of_recipe.items() if not isinstance(value, dict | list)}
    return recipe | {name: value for name, value in stated.items() if len(value) <= _LONGEST}


def recipe_findings(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    """That a run is of another recipe than the baseline, by what both hold: a number may change by that alone."""
    differing = [f"{name} {now}, not {before[name]}" for name, now in after.items() if before.get(name, now) != now]
    if differing:
        more = [f"{len(differing) - _MOST_NAMED} more"] * (len(differing) > _MOST_NAMED)
        yield (
            f"Another recipe than the baseline's: {'; '.join([*differing[:_MOST_NAMED], *more])}. That alone may "
            "change a number: compare runs of one recipe, or write the baseline again (--update-baseline --force)."
        )


def _difference(
    name: str, before: results.BaselineMetric, after: results.BaselineMetric, resampling: Resampling
) -> tuple[Estimate, NDArray[np.float64], Estimate]:
    """After minus before: step by step where both join the same steps, paired by prompt where enough are shared.

    The change, that of each prompt where these are paired, and the change with the interval that steps give it.
    """
    _, selector = split_metric(name)
    if before.course and before.course.keys() == after.course.keys():
        steps = sorted(before.course)
        differences = [after.course[step] - before.course[step] for step in steps]
        is_trend = selector is not None and selector.aggregate == "trend"
        change = trend(steps, differences) if is_trend else mean_of_steps(differences)
        return change, np.zeros(0), change
    change, paired = _over_prompts(before, after, resampling)
    by_steps = mean_difference(before.deviations, after.deviations)
    if change.value is not None:
        by_steps = by_steps.map(lambda end: end - (by_steps.value or 0.0) + (change.value or 0.0))
    return widened_by_steps(change, by_steps), paired, by_steps


def _decides_nothing(change: Estimate, before: results.BaselineMetric, after: results.BaselineMetric) -> bool:
    """Whether the interval of a change reaches further than all numbers of both are apart, as of a few steps' trend."""
    numbers = [*before.course.values(), *after.course.values()]
    return bool(change.value is not None and numbers and change.ends[1] - change.value > np.ptp(numbers) > 0)


def _over_prompts(
    before: results.BaselineMetric, after: results.BaselineMetric, resampling: Resampling
) -> tuple[Estimate, NDArray[np.float64]]:
    common = sorted(before.prompts.keys() & after.prompts.keys())
    enough = max(len(before.prompts), len(after.prompts)) * _MIN_SHARE
    if len(common) >= max(_MIN_PAIRED, enough):
        differences = np.array([after.prompts[prompt] - before.prompts[prompt] for prompt in common])
        return bootstrap_mean(differences, resampling=resampling, share=False), differences
    old, new = before.estimate, after.estimate
    if old.value is not None and new.value is not None and None in (old.interval, new.interval):
        return Estimate.exact(new.value - old.value), np.zeros(0)
    return difference_of(old, new), np.zeros(0)


FAMILY_RATE = 0.05  # how often a run that is no worse may fail, all metrics of a check together
_OPERATORS: dict[Direction, results.Operator] = {"lower": "<=", "higher": ">=", "neither": "=="}
_WORSE: dict[Direction, tuple[int, ...]] = {"lower": (1,), "higher": (-1,), "neither": (1, -1)}
"""Better side of a metric -> the signs of a change to the worse."""
_NOT_HELD = results.BaselineMetric(estimate=Estimate.undefined_because("the baseline does not hold this metric"))


class _Compared(Struct, frozen=True, kw_only=True):
    """One metric and its baseline, before the size of the family of tests is known."""

    name: str
    before: results.BaselineMetric
    after: results.BaselineMetric
    change: Estimate
    paired: NDArray[np.float64]  # that of each prompt that both have, where these are enough
    by_steps: Estimate  # the change with the interval that steps give it, where these tell
    margin: float
    advice: str


def baseline_verdicts(
    before: Mapping[str, results.BaselineMetric],
    after: Mapping[str, results.BaselineMetric],
    settings: CheckSettings | None = None,
    *,
    advice: Mapping[str, str] | None = None,
    path: str,
) -> list[results.Verdict]:
    """One verdict a metric of this run; unknown where a side has no value, or under ``interval`` no interval."""
    settings, compared = settings or CheckSettings(), []
    rule, resampling = settings.rule, settings.resampling
    for name, metric in after.items():
        old = before.get(name, _NOT_HELD)
        change, paired, by_steps = _difference(name, old, metric, resampling)
        if name not in settings.margins and _decides_nothing(change, old, metric):  # a pass would say nothing
            change = by_steps = Estimate.exact(change.value or 0.0, num_units=change.num_units)
        compared.append(
            _Compared(
                name=name,
                before=old,
                after=metric,
                change=change,
                paired=paired,
                by_steps=by_steps,
                margin=settings.margins.get(name, 0.0),
                advice=(advice or {}).get(name, ""),
            )
        )
    p_values = holm([_p_value(metric) if rule == "interval" else None for metric in compared])
    num_tests = sum(p_value is not None for p_value in p_values)
    return [_change_verdict(metric, p, num_tests, rule, path) for metric, p in zip(compared, p_values, strict=True)]


def _p_value(compared: _Compared) -> float | None:
    """Two-sided p-value of a change this far beyond the margin; None where the change has no interval."""
    # 0.05 is where the near end of the 95 % interval of this metric alone is the margin.
    sides = _WORSE[_better(compared.name)]
    tails = [0.0 for _ in sides]
    if len(compared.paired):
        tails = [rise_by_flips(side * compared.paired, compared.margin) for side in sides]
    elif compared.change.interval is None:
        return None
    for estimate in (compared.by_steps, *([] if len(compared.paired) else [compared.change])):
        if estimate.interval is not None:
            by_interval = [rise_by_interval(estimate.map(partial(mul, side)), compared.margin) for side in sides]
            tails = list(map(max, tails, by_interval))
    return min(1.0, 2 * min(tails))


def _better(name: str) -> Direction:
    metric, selector = split_metric(name)
    entry = CATALOG.get(catalog_name(metric))
    # A trend has no better side of its own: a share that falls from high is not worse than one that stays low.
    if selector and selector.aggregate == "trend":
        return "neither"
    if entry is None:
        return "higher" if metric == "reward" or is_verdict(metric) else "neither"
    return entry.better


def _change_verdict(
    compared: _Compared, p_value: float | None, num_tests: int, rule: results.BaselineRule, path: str
) -> results.Verdict:
    better, old = _better(compared.name), compared.before.estimate
    outcome = _outcome(compared, p_value, rule)
    return results.Verdict(
        metric=compared.name,
        op=_OPERATORS[better],
        limit=0.0 if old.value is None else old.value + sum(_WORSE[better]) * compared.margin,
        outcome=outcome,
        estimate=compared.after.estimate,
        meaning=_change_meaning(compared, p_value, num_tests),
        **_change_advice(compared, outcome, path),
        change=results.Change(
            baseline=old,
            change=compared.change,
            margin=compared.margin,
            rule=rule,
            num_paired=len(compared.paired),
            p_value=p_value,
            num_tests=num_tests,
        ),
    )


def _outcome(compared: _Compared, p_value: float | None, rule: results.BaselineRule) -> results.Outcome:
    if compared.change.value is None:
        return "fail" if compared.after.is_not_finite else "unknown"
    if rule == "value":
        sides = _WORSE[_better(compared.name)]
        return "fail" if any(side * compared.change.value > compared.margin for side in sides) else "pass"
    if p_value is None:
        return "unknown" if compared.change.value else "pass"
    return "fail" if p_value <= FAMILY_RATE else "pass"


def _change_meaning(compared: _Compared, p_value: float | None, num_tests: int) -> str:
    old = compared.before.estimate.value
    if old is None or compared.after.estimate.value is None:
        return (
            f"{compared.name} cannot be compared with the baseline: {compared.change.undefined}. What is not "
            "known does not pass."
        )
    number = len(compared.paired)  # whose change may have another sign than that of all groups
    pairing = f"on the {number} prompts of both, each counted once" if number else "not paired by prompt"
    if compared.change.interval and compared.after.course and compared.by_steps is compared.change:
        pairing = f"step by step over {len(compared.after.course)} steps"
    better, change, margin = _better(compared.name), compared.change, compared.margin
    text = (
        f"{compared.name} was {old:.6g} in the baseline and is "
        f"{compared.after.estimate.value:.6g}; the change is {with_interval(change, '+.4g')}, {pairing}; allowed is "
        f"{margin:g} {'either way' if better == 'neither' else 'to the worse'}"
    )
    if p_value is not None:
        family = f", corrected for {num_tests} metrics" if num_tests > 1 else ""
        sources = "prompts, samples and steps" if compared.by_steps.is_defined else "prompts and samples"
        chance = f"by the chance of {sources} alone" if len(compared.paired) else "by chance alone"
        text = f"{text}; {chance} p = {p_value:.2g}{family}."
        if len(compared.paired) and not compared.by_steps.is_defined:
            text += " How much another seed would change is not in it: a margin allows for that."
        if p_value <= FAMILY_RATE or change.value is None:
            return text
        reaches = {"lower": change.value - change.ends[0], "higher": change.ends[1] - change.value}
        reach = reaches.get(better, max(reaches.values())) + margin  # a pass is no evidence of less than this
        return f"{text} A change of less than {reach:.2g} could not have failed." if reach > 0 else text
    if compared.change.interval is None and compared.change.value:
        return f"{text}. How much of that is chance is not known, for a number without an interval."
    return f"{text}."


def _change_advice(compared: _Compared, outcome: results.Outcome, path: str) -> dict[str, Any]:
    if outcome == "pass":
        return {"next_step": ""}
    metric, selector = split_metric(compared.name)
    entry = CATALOG.get(catalog_name(metric))
    if compared.before is _NOT_HELD:
        return {"next_step": "Write the baseline again from a good run: --update-baseline --force"}
    if outcome == "unknown" and compared.change.value is not None:
        # of a mean that has no interval the steps are too few
        steps = "last20%" if selector is None or selector.steps == "all" else f"{selector.steps}:mean"
        mean = f"{metric}@{'last10' if selector and selector.aggregate == 'mean' else steps}"
        return {
            "next_step": f"Compare a mean over ten steps or more, such as {mean}, and write the baseline again with "
            "it; or let the change itself decide, with a margin: --decide-by value"
        }
    if outcome == "unknown" or entry is None:
        return {"next_step": "Look at the trainer's own log of this metric, or at the requirement on it above."}
    command = look_closer(entry, path)
    accept = (
        "Where the change is meant, accept it: --update-baseline --force. Where another seed changes as much, allow it "
        "a margin."
    )
    text = f"{compared.advice} Look closer: {command}. {accept}".strip()
    return {"next_step": text, "advice": compared.advice, "command": command}
