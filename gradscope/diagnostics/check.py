"""A gate on a run: each requirement passes, fails, or cannot be decided, which never counts as a pass."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from gradscope.diagnostics.check_values import MetricValue, MetricValues
from gradscope.diagnostics.requirements import COMPARE, parse_requirement, read_requirements
from gradscope.errors import UsageError
from gradscope.estimate import Estimate
from gradscope.metrics.bootstrap import NUM_RESAMPLES
from gradscope.metrics.catalog import CATALOG, catalog_name, near_names
from gradscope.results.check import CheckReport, Outcome, Requirement, Verdict
from gradscope.rollouts.detect import read_run
from gradscope.rollouts.readers.request import ColumnNames

__all__ = ["check_run", "parse_requirement", "read_requirements"]


def check_run(
    path: str | Path,
    *,
    requirements: Sequence[Requirement | str],
    success_threshold: float | None = None,
    reward: str | None = None,
    format: str | None = None,
    columns: ColumnNames | None = None,
    model: str | None = None,
    initial: str | Path | None = None,
    run_config: str | Path | None = None,
    completion_ids: str | Path | None = None,
    device: str = "auto",
    dtype: str = "auto",
    strict: bool = False,
    seed: int = 0,
    num_resamples: int = NUM_RESAMPLES,
) -> CheckReport:
    """Hold a run against requirements.

    Args:
        path: A run folder, a log, or a file of samples.
        requirements: What is required, at least one: ``"frac_reward_zero_std <= 0.5"``, or the parsed form of it.
        success_threshold: A rollout passes when its reward reaches this; None: 1 for rewards of 0/1 or -1/1.
        reward: One reward function by name, for the metrics of groups; None: the trainer's scalar.
        format: Name of the reader; None: recognized.
        columns: Columns of a generic log, where their names are not usual.
        model: Base model of an adapter, where it moved.
        initial: Weights before the first update.
        run_config: JSON file of the trainer's arguments.
        completion_ids: File of exact completion ids.
        device: ``auto``, ``cpu`` or ``cuda``, for gradient metrics.
        dtype: ``auto``, ``float32`` or ``bfloat16``, for gradient metrics.
        strict: Whether a row that cannot be used is an error.
        seed: Seed of the resampling.
        num_resamples: Bootstrap resamples behind the intervals.

    Returns:
        One verdict a requirement. The point estimate decides; the meaning says where the interval holds the limit.

    Raises:
        UsageError: Nothing is required.
    """
    if not requirements:
        raise UsageError(
            "Nothing is required of the run.", hint="Add --require 'frac_reward_zero_std <= 0.5', or a gradscope.toml."
        )
    required = [parse_requirement(item) if isinstance(item, str) else item for item in requirements]
    files = {"model": model, "initial": initial, "completion_ids": completion_ids}
    run = read_run(path, format=format, columns=columns, run_config=run_config, strict=strict, **files)
    values = MetricValues(
        run=run,
        success_threshold=success_threshold,
        reward=reward,
        bootstrap={"seed": seed, "num_resamples": num_resamples},
        reading={"format": format, "run_config": run_config, "strict": strict},
        gradient_options={**files, "device": device, "dtype": dtype},
    )
    for requirement in required:
        _check_name(requirement.metric, values)
    verdicts = tuple(_verdict(item, values.value(item.metric), path) for item in required)
    return CheckReport(source=run.source, verdicts=verdicts, outcome=_overall([one.outcome for one in verdicts]))


def _check_name(name: str, values: MetricValues) -> None:
    known = values.names()
    if catalog_name(name) in known:
        return
    near = near_names(name, known)
    hint = f"Did you mean {' or '.join(repr(n) for n in near)}?" if near else "See `gradscope explain` for the list."
    raise UsageError(f"There is no metric {name!r}, and the trainer logged none of that name.", hint=hint)


def _verdict(requirement: Requirement, value: MetricValue, path: str | Path) -> Verdict:
    estimate = value.estimate
    outcome: Outcome = "unknown"
    if estimate.value is not None:
        outcome = "pass" if COMPARE[requirement.op](estimate.value, requirement.limit) else "fail"
    return Verdict(
        metric=requirement.metric,
        op=requirement.op,
        limit=requirement.limit,
        outcome=outcome,
        estimate=estimate,
        meaning=_meaning(requirement, value, outcome),
        next_step=_next_step(requirement, value, outcome, path),
    )


def _meaning(requirement: Requirement, value: MetricValue, outcome: Outcome) -> str:
    estimate = value.estimate
    if estimate.value is None:
        return f"{value.what} is undefined: {estimate.undefined}. What is not known does not pass."
    required = f"required is {requirement.op} {requirement.limit:g}"
    text = f"{value.what} is {estimate.value:.6g}{_interval(estimate)}; {required}."
    if estimate.low is not None and estimate.high is not None and estimate.low <= requirement.limit <= estimate.high:
        return f"{text} The interval holds the limit: other prompts could turn the verdict."
    return text


def _interval(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return ""
    return f" [{estimate.low:.4g}, {estimate.high:.4g}] over {estimate.num_units} units"


def _next_step(requirement: Requirement, value: MetricValue, outcome: Outcome, path: str | Path) -> str:
    if outcome == "pass":
        return ""
    if outcome == "unknown":
        return value.hint
    entry = CATALOG.get(catalog_name(requirement.metric))
    if entry is None:
        return "Look at the trainer's own log of this metric."
    where = f"gradscope {entry.command} {shlex.quote(str(path))}"
    return f"{entry.meaning} What moves it: {entry.moved_by} Look closer: {where}"


def _overall(outcomes: Sequence[Outcome]) -> Outcome:
    if "fail" in outcomes:
        return "fail"
    return "unknown" if "unknown" in outcomes else "pass"
