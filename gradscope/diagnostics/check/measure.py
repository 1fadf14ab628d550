"""A gate on a run: each requirement passes, fails, or cannot be decided, which never counts as a pass.

The point estimate decides against a limit, because a limit is a wish about this run. Against a baseline the interval
decides, unless the rule says otherwise, because two runs differ by chance.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from gradscope.catalog.lookup import CATALOG, catalog_name, near_names, search
from gradscope.diagnostics.check.baseline import (
    baseline_verdicts,
    prompt_key,
    read_baseline,
    recipe_findings,
    recipe_of,
    refuse_other,
    write_baseline,
)
from gradscope.diagnostics.check.metric_values import (
    MetricValue,
    MetricValues,
    is_per_step,
    look_closer,
    needs_only_rewards,
)
from gradscope.diagnostics.check.requirements import (
    COMPARE,
    SELECTOR_HINT,
    CheckSettings,
    parse_requirement,
    read_settings,
    split_metric,
    with_range,
)
from gradscope.diagnostics.degeneracy.reward_functions import side_rewards
from gradscope.errors import UsageError
from gradscope.findings.degeneracy import ends_dead, sudden_sentence
from gradscope.findings.degeneracy_parts import conflict_findings
from gradscope.gradients.engine_options import EngineOptions
from gradscope.machine import process_index
from gradscope.progress import Progress, reporter
from gradscope.results import verdicts as results
from gradscope.results.source import Source
from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.run import Run
from gradscope.say import interval, with_interval

_SET_ASIDE = "frac_set_aside"
_MAX_SHARE_SET_ASIDE = 0.1
"""Share of rollouts that a gate lets pass as set aside, unless it names a limit: a reward that fails now and then and
the line at which a run was stopped stay below, a log that was damaged does not."""
__all__ = ["check_run", "parse_requirement", "read_settings"]


def check_run(
    path: str | Path,
    settings: CheckSettings | None = None,
    *,
    requirements: Sequence[results.Requirement | str] = (),
    update_baseline: bool = False,
    force: bool = False,
    read: ReadOptions | None = None,
    engine: EngineOptions | None = None,
    progress: Progress = False,
) -> results.CheckReport:
    """Hold a run against requirements and a baseline.

    One verdict per requirement, then one per metric of the baseline, then one on the rows that were set aside, if any.
    The meaning of a requirement notes when the limit lies inside the interval.

    Args:
        path: A run folder, a log, or a file of samples.
        settings: What the run is checked against.
        requirements: Requirements in place of those of the settings.
        update_baseline: Write this run's numbers into the baseline instead of comparing with it.
        force: Replace an existing baseline.
        progress: True for a line on stderr, or a callback, called while a URL is copied.

    Raises:
        UsageError: No requirement was given, or a baseline is to be updated and no file is named.
        OutputExistsError: The baseline to be updated exists and ``force`` is off, or the file is no baseline.
    """
    settings = settings or CheckSettings()
    settings = replace(settings, requirements=requirements or settings.requirements)
    track, baseline = settings.track, None if settings.baseline is None else Path(settings.baseline)
    progress = reporter(progress)
    required = [parse_requirement(item) if isinstance(item, str) else item for item in settings.requirements]
    before = None if baseline is None or update_baseline else read_baseline(baseline)
    if not (required or track) and before is not None:
        track = tuple(before.metrics)
    if not (required or track):
        hint = "--track frac_reward_zero_std" if update_baseline else "--require 'frac_reward_zero_std <= 0.5'"
        raise UsageError("No requirement was given.", hint=f"Add {hint}, or a gradscope.toml.")
    if baseline is None and (update_baseline or track):
        raise UsageError("A baseline is asked for, and no file is named.", hint="Add --baseline ci/baseline.json.")
    if baseline is not None and update_baseline and process_index() == 0:
        refuse_other(baseline, force=force)
    typed = list(dict.fromkeys([*(requirement.metric for requirement in required), *track]))
    run = read_run(path, read, rewards_only=all(map(needs_only_rewards, typed)), progress=progress, metrics_alone=True)
    values = MetricValues(
        run=run,
        success_threshold=settings.success_threshold,
        reward=settings.reward,
        resampling=settings.resampling,
        read=read,
        engine=engine or EngineOptions(),
    )
    spelled = partial(with_range, names=values.names())
    names = list(map(spelled, typed))
    spelling = dict(zip(names, typed, strict=True))
    settings = replace(
        settings,
        allow_unknown=tuple(map(spelled, settings.allow_unknown)),
        margins={spelled(name): margin for name, margin in settings.margins.items()},
    )
    for name in (*names, *settings.allow_unknown):
        _check_name(name, values)
    measured = {name: values.value(name) for name in names}
    required = [replace(item, metric=spelled(item.metric)) for item in required]
    verdicts = [_verdict(item, measured[item.metric], run.source) for item in required]
    now = {
        name: replace(value, prompts={prompt_key(prompt): mean for prompt, mean in value.prompts.items()})
        for name, value in measured.items()
    }
    if before is not None:
        advice = {name: value.advice for name, value in measured.items()}
        verdicts += baseline_verdicts(before.metrics, now, settings, advice=advice, path=run.source.path)
    elif baseline is not None and process_index() == 0:
        recipe = recipe_of(run, settings)
        write_baseline(results.Baseline(run=run.source.path, metrics=now, recipe=recipe), baseline, force=force)
    if _SET_ASIDE not in names:
        verdicts += _set_aside_verdict(run.source)
    verdicts = [
        replace(
            verdict,
            metric=spelling.get(verdict.metric, verdict.metric),
            of=_scope(measured.get(verdict.metric)),
            allowed=verdict.outcome == "unknown" and verdict.metric in settings.allow_unknown,
        )
        for verdict in verdicts
    ]
    outcomes: list[results.Outcome] = [verdict.outcome for verdict in verdicts if not verdict.allowed]
    return results.CheckReport(
        source=run.source,
        verdicts=tuple(verdicts),
        outcome="fail" if "fail" in outcomes else "unknown" if "unknown" in outcomes else "pass",
        findings=(
            *(recipe_findings(before.recipe, recipe_of(run, settings)) if before else ()),
            *_conflict_warning(run, names),
            *_late_failures(verdicts, values),
        ),
        without_interval=tuple(
            name for name, metric in now.items() if update_baseline and metric.estimate.interval is None
        ),
    )


def _conflict_warning(run: Run, names: Sequence[str]) -> tuple[str, ...]:
    """A warning from the rewards of the log, unless a requirement is about just that."""
    if any(split_metric(name)[0] == "frac_reward_conflict" for name in names):
        return ()
    sides = side_rewards(run, run.source.path)
    return () if sides is None else conflict_findings(sides.conflict)


def _late_failures(verdicts: Sequence[results.Verdict], values: MetricValues) -> Iterator[str]:
    """Which requirements hold of all groups, and not of the last fifth, which surely differs or is all dead."""
    for verdict in verdicts:
        overall = verdict.estimate.value
        if verdict.outcome != "pass" or verdict.change is not None or not is_per_step(verdict.metric):
            continue
        late = values.value(f"{verdict.metric}@last20%").estimate
        if late.value is None or overall is None or late.ends[0] <= overall <= late.ends[1]:
            continue
        if not COMPARE[verdict.op](late.value, verdict.limit):
            yield (
                f"{verdict.metric} {verdict.op} {verdict.limit:g} holds of all steps and not of the last fifth: "
                f"{with_interval(late, '.4g')}. Require {verdict.metric}@last20%, too."
            )
    defined = [split_metric(verdict.metric)[0] for verdict in verdicts if verdict.estimate.is_defined]
    if values.run.groups and any(map(is_per_step, defined)) and ends_dead(values.degeneracy()):
        yield sudden_sentence(values.degeneracy())


def _check_name(text: str, values: MetricValues) -> None:
    name, _ = split_metric(text)
    names = values.names()
    if catalog_name(name) in names:
        return
    matches = [entry.name for entry in search(name) if entry.name in names]
    near = dict.fromkeys([*near_names(name, names), *matches[:1]])
    hint = f"Did you mean {' or '.join(map(repr, near))}?" if near else "See `gradscope explain` for the list."
    raise UsageError(
        f"There is no metric {name!r}, and the trainer logged none of that name.",
        hint=SELECTOR_HINT if name.rpartition("@")[0] in names else hint,
    )


def _set_aside_verdict(source: Source) -> list[results.Verdict]:
    """A verdict without a requirement: all others presume that nearly all of the log could be read."""
    quarantined = source.quarantined
    if not quarantined.num_rows and not quarantined.lost:
        return []
    required = results.Requirement(metric=_SET_ASIDE, op="<=", limit=_MAX_SHARE_SET_ASIDE)
    reasons = (f"{entry.counted}: {entry.reason} ({entry.where})" for entry in quarantined.reasons)
    value = MetricValue(
        estimate=source.frac_set_aside,
        subject=f"{_SET_ASIDE} of {source.num_rows + quarantined.num_rollouts:,} rollouts",
        hint="Copy the files again, or leave them out of the log.",
        advice=f"Set aside: {'; '.join(reasons)}.",
    )
    return [_verdict(required, value, source)]


def _verdict(requirement: results.Requirement, value: MetricValue, source: Source) -> results.Verdict:
    estimate = value.estimate
    outcome: results.Outcome = "fail" if value.is_not_finite else "unknown"
    if estimate.value is not None:
        # a mean of tenths is off by 1e-17
        is_limit = math.isclose(estimate.value, requirement.limit, rel_tol=_ROUNDING)
        number = requirement.limit if is_limit else estimate.value
        outcome = "pass" if COMPARE[requirement.op](number, requirement.limit) else "fail"
    return results.Verdict(
        metric=requirement.metric,
        op=requirement.op,
        limit=requirement.limit,
        outcome=outcome,
        estimate=estimate,
        meaning=_meaning(requirement, value),
        **_next_step(requirement, value, outcome, source),
    )


_ROUNDING = 1e-12  # relative, of means of a million numbers


def _meaning(requirement: results.Requirement, value: MetricValue) -> str:
    estimate = value.estimate
    if value.is_not_finite:
        return f"{value.subject} is not a finite number: {estimate.undefined}. No requirement holds for that."
    if estimate.value is None:
        return f"{value.subject} is undefined: {estimate.undefined}. What is not known does not pass."
    required = f"required is {requirement.op} {requirement.limit:g}"
    ends = interval(estimate, ".4g")
    text = f"{value.subject} is {estimate.value:.6g}{ends}; {required}."
    if estimate.interval is not None and estimate.interval[0] <= requirement.limit <= estimate.interval[1]:
        return f"{text} The interval holds the limit: other prompts or steps could turn the verdict."
    return text


def _scope(value: MetricValue | None) -> str:
    """A value's steps or groups, without its metric and origin: ``step 12``, ``72 groups``."""
    if value is None or not value.estimate.is_defined:
        return ""
    parts = re.split(r" (?:of|at|in) ", re.split(r", | \(", value.subject)[0])
    return parts[-1] if len(parts) > 1 else ""


def _next_step(
    requirement: results.Requirement, value: MetricValue, outcome: results.Outcome, source: Source
) -> dict[str, Any]:
    """The next step, by fields of the verdict."""
    if outcome == "pass":
        return {"next_step": ""}
    if outcome == "unknown" or value.is_not_finite:
        return {"next_step": value.hint}
    entry = CATALOG.get(catalog_name(split_metric(requirement.metric)[0]))
    if entry is None:
        return {"next_step": ""}
    advice, command = value.advice, look_closer(entry, source.path)
    if source.kind == "metrics":
        name = "degeneracy" if entry.command == "degeneracy" else "spike"
        advice, command = "", f"gradscope {name} {shlex.quote(source.path)}"
    return {"next_step": f"{advice} Look closer: {command}".strip(), "advice": advice, "command": command}
