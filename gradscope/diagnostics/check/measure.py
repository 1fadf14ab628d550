"""A gate on a run: each requirement passes, fails, or cannot be decided, which never counts as a pass.

The point estimate decides against a limit, because a limit is a wish about this run. Against a baseline the interval
decides, unless the rule says otherwise, because two runs differ by chance.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gradscope.catalog.lookup import CATALOG, catalog_name, near_names, search
from gradscope.diagnostics.check.baseline import (
    baseline_verdicts,
    prompt_key,
    read_baseline,
    refuse_other,
    write_baseline,
)
from gradscope.diagnostics.check.metric_values import MetricValue, MetricValues, look_closer, needs_only_rewards
from gradscope.diagnostics.check.requirements import (
    COMPARE,
    SELECTOR_HINT,
    parse_requirement,
    read_requirements,
    read_settings,
    split_metric,
)
from gradscope.diagnostics.degeneracy.measure import frac_set_aside
from gradscope.diagnostics.degeneracy.reward_functions import side_rewards
from gradscope.errors import UsageError
from gradscope.findings.degeneracy import conflict_findings
from gradscope.gradients.engine_options import EngineOptions
from gradscope.machine.processes import process_index
from gradscope.metrics.uncertainty.intervals import RESAMPLING, Resampling
from gradscope.progress import Progress, reporter
from gradscope.results.source import Source
from gradscope.results.verdicts import (
    Baseline,
    BaselineMetric,
    BaselineRule,
    CheckReport,
    Outcome,
    Requirement,
    Verdict,
)
from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.run import Run
from gradscope.say import interval

_SET_ASIDE = "frac_set_aside"
_MOST_SET_ASIDE = 0.1
"""Share of rollouts that a gate lets pass as set aside, unless it names a limit: a reward that fails now and then and
the line at which a run was stopped stay below, a log that was damaged does not."""
__all__ = ["check_run", "parse_requirement", "read_requirements", "read_settings"]


def check_run(
    path: str | Path,
    *,
    requirements: Sequence[Requirement | str] = (),
    track: Sequence[str] = (),
    allow_unknown: Sequence[str] = (),
    baseline: str | Path | None = None,
    update_baseline: bool = False,
    force: bool = False,
    rule: BaselineRule = "interval",
    margins: Mapping[str, float] | None = None,
    success_threshold: float | None = None,
    reward: str | None = None,
    resampling: Resampling = RESAMPLING,
    read: ReadOptions | None = None,
    engine: EngineOptions | None = None,
    progress: Progress = False,
) -> CheckReport:
    """Hold a run against requirements and a baseline.

    Args:
        path: A run folder, a log, or a file of samples.
        requirements: What is required: ``"frac_reward_zero_std@last20% <= 0.5"``, or the parsed form of it.
        track: Metrics that are compared with the baseline without a limit of their own.
        allow_unknown: Metrics that may be undecided without failing the check.
        baseline: File of a good run's numbers; every required and tracked metric is compared with it.
        update_baseline: Write this run's numbers into that file instead of comparing with it.
        force: Replace the baseline that is there.
        rule: What decides against the baseline: ``interval`` (whether chance explains the change) or ``value`` (the
            change itself).
        margins: Metric -> how much worse than the baseline it may be; 0 where it is not named.
        success_threshold: A rollout passes when its reward reaches this; None: 1 for rewards of 0/1 or -1/1.
        reward: One reward function by name, for the metrics of groups; None: the trainer's scalar.
        resampling: How often, and from which seed.
        read: How to read the run; None: recognize everything.
        engine: How to compute gradient metrics; None: the defaults.
        progress: True for a line on stderr, or a callback, told how far the copying of a URL is.

    Returns:
        One verdict a requirement, then one a metric of the baseline, then one on the rows that were set aside where any
        were. A requirement's meaning says where the interval
        holds the limit.

    Raises:
        UsageError: Nothing is required, or a baseline is to be updated and no file is named.
        OutputExistsError: The baseline to be updated is there and ``force`` is off, or it is none.
    """
    progress = reporter(progress)
    required = [parse_requirement(item) if isinstance(item, str) else item for item in requirements]
    if not required and not track:
        raise UsageError(
            "Nothing is required of the run.", hint="Add --require 'frac_reward_zero_std <= 0.5', or a gradscope.toml."
        )
    if baseline is None and (update_baseline or track):
        raise UsageError("A baseline is asked for, and no file is named.", hint="Add --baseline ci/baseline.json.")
    if baseline is not None and update_baseline and process_index() == 0:
        refuse_other(Path(baseline), force=force)
    before = None if baseline is None or update_baseline else read_baseline(Path(baseline))
    names = list(dict.fromkeys([*(requirement.metric for requirement in required), *track]))
    run = read_run(path, read, rewards_only=all(map(needs_only_rewards, names)), progress=progress, metrics_alone=True)
    values = MetricValues(
        run=run, success_threshold=success_threshold, reward=reward, resampling=resampling, read=read, engine=engine
    )
    for name in (*names, *allow_unknown):
        _check_name(name, values)
    measured = {name: values.value(name) for name in names}
    verdicts = [_verdict(item, measured[item.metric], run.source) for item in required]
    now = {name: _baseline_metric(value) for name, value in measured.items()}
    if before is not None:
        advice = {name: value.advice for name, value in measured.items()}
        verdicts += baseline_verdicts(
            before.metrics, now, advice=advice, margins=margins, rule=rule, path=run.source.path, resampling=resampling
        )
    elif baseline is not None and process_index() == 0:
        write_baseline(Baseline(run=run.source.path, metrics=now), Path(baseline), force=force)
    if _SET_ASIDE not in names:
        verdicts += _of_rows_set_aside(run.source)
    verdicts = [replace(one, allowed=one.outcome == "unknown" and one.metric in allow_unknown) for one in verdicts]
    outcomes: list[Outcome] = [one.outcome for one in verdicts if not one.allowed]
    return CheckReport(
        source=run.source,
        verdicts=tuple(verdicts),
        outcome=_overall(outcomes),
        findings=_findings(run, names),
        without_interval=tuple(name for name, one in now.items() if update_baseline and one.estimate.interval is None),
    )


def _findings(run: Run, names: Sequence[str]) -> tuple[str, ...]:
    """What the rewards of a log say against a gate that passes; nothing where it asks for just that."""
    if any(split_metric(name)[0] == "frac_reward_conflict" for name in names):
        return ()
    found = side_rewards(run, run.source.path)
    return () if found is None else conflict_findings(found.conflict)


def _baseline_metric(value: MetricValue) -> BaselineMetric:
    prompts = {prompt_key(prompt): mean for prompt, mean in value.prompts.items()}
    return BaselineMetric(estimate=value.estimate, prompts=prompts, is_not_finite=value.is_not_finite)


def _check_name(text: str, values: MetricValues) -> None:
    name, _ = split_metric(text)
    names = values.names()
    if catalog_name(name) in names:
        return
    raise UsageError(f"There is no metric {name!r}, and the trainer logged none of that name.", hint=_hint(name, names))


def _hint(name: str, names: Sequence[str]) -> str:
    if name.rpartition("@")[0] in names:
        return SELECTOR_HINT
    found = [entry.name for entry in search(name) if entry.name in names]
    near = dict.fromkeys([*near_names(name, names), *found[:1]])
    return f"Did you mean {' or '.join(repr(n) for n in near)}?" if near else "See `gradscope explain` for the list."


def _of_rows_set_aside(source: Source) -> list[Verdict]:
    """What nobody has to require: the other verdicts are about a log of which nearly all could be read."""
    quarantined = source.quarantined
    if not quarantined.num_rows and not quarantined.lost:
        return []
    required = Requirement(metric=_SET_ASIDE, op="<=", limit=_MOST_SET_ASIDE)
    reasons = (f"{one.counted}: {one.reason} ({one.where})" for one in quarantined.reasons)
    value = MetricValue(
        estimate=frac_set_aside(source),
        subject=f"{_SET_ASIDE} of {source.num_rows + quarantined.num_rollouts:,} rollouts",
        hint="Copy the files again, or leave them out of the log.",
        advice=f"Set aside: {'; '.join(reasons)}.",
    )
    return [_verdict(required, value, source)]


def _verdict(requirement: Requirement, value: MetricValue, source: Source) -> Verdict:
    estimate = value.estimate
    outcome: Outcome = "fail" if value.is_not_finite else "unknown"
    if estimate.value is not None:
        outcome = "pass" if COMPARE[requirement.op](estimate.value, requirement.limit) else "fail"
    return Verdict(
        metric=requirement.metric,
        op=requirement.op,
        limit=requirement.limit,
        outcome=outcome,
        estimate=estimate,
        meaning=_meaning(requirement, value, outcome),
        next_step=_next_step(requirement, value, outcome, source),
    )


def _meaning(requirement: Requirement, value: MetricValue, outcome: Outcome) -> str:
    estimate = value.estimate
    if value.is_not_finite:
        return f"{value.subject} is not a finite number: {estimate.undefined}. No requirement holds for that."
    if estimate.value is None:
        return f"{value.subject} is undefined: {estimate.undefined}. What is not known does not pass."
    required = f"required is {requirement.op} {requirement.limit:g}"
    ends = f"{interval(estimate, '.4g')} over {estimate.num_units} units" if estimate.interval else ""
    text = f"{value.subject} is {estimate.value:.6g}{ends}; {required}."
    if estimate.interval is not None and estimate.interval[0] <= requirement.limit <= estimate.interval[1]:
        return f"{text} The interval holds the limit: other prompts could turn the verdict."
    return text


def _next_step(requirement: Requirement, value: MetricValue, outcome: Outcome, source: Source) -> str:
    if outcome == "pass":
        return ""
    if outcome == "unknown" or value.is_not_finite:
        return value.hint
    entry = CATALOG.get(catalog_name(split_metric(requirement.metric)[0]))
    if entry is None:
        return "Look at the trainer's own log of this metric."
    if source.kind == "metrics":
        command = "degeneracy" if entry.command == "degeneracy" else "spike"
        return f"Look closer: gradscope {command} {shlex.quote(source.path)}"
    return f"{value.advice} {look_closer(entry, source.path)}".strip()


def _overall(outcomes: Sequence[Outcome]) -> Outcome:
    if "fail" in outcomes:
        return "fail"
    return "unknown" if "unknown" in outcomes else "pass"
