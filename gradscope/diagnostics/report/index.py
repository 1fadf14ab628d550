"""Several runs: each in a few numbers and curves of its log, and a few of them side by side.

No model is loaded; a run's own page has the rest.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gradscope.copies import as_named
from gradscope.diagnostics.degeneracy.measure import degeneracy_of_run
from gradscope.diagnostics.report.beside import MOST_BESIDE, NamedRun, mean_rewards, side_by_side
from gradscope.errors import GradscopeError, InputError
from gradscope.estimate import Estimate
from gradscope.metrics.uncertainty.trend import trend
from gradscope.progress import Progress, ProgressCallback, no_progress, part, reporter
from gradscope.results.report import RunIndex, RunSummary
from gradscope.results.source import Source
from gradscope.rollouts.places.fetch import fetched
from gradscope.rollouts.places.naming import names_of
from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.readers.detect import read_run, runs_below
from gradscope.rollouts.run import Run
from gradscope.say import percent, with_interval

__all__ = ["report_index", "report_runs", "runs_below"]


def report_index(
    folder: str | Path,
    runs: Sequence[Path],
    *,
    success_threshold: float | None = None,
    strict: bool = False,
    progress: ProgressCallback = no_progress,
) -> RunIndex:
    """The runs of a folder, each in a line.

    Args:
        runs: The runs in it.
        success_threshold: A rollout passes when its reward reaches this; None: 1 for rewards of 0/1 or -1/1.
        strict: Whether a run or a row that cannot be used is an error.
        progress: Called before each run and at the end, with how many are done, of how many, and the next one's name.

    Returns:
        One summary a run; those that cannot be read are named with the reason.

    Raises:
        InputError: No run can be read, or under ``strict`` one cannot.
    """
    folder = fetched(folder)
    named = {str(path.relative_to(folder)): path for path in runs}
    read, left_out = _read(named, ReadOptions(strict=strict), success_threshold, progress)
    if not read or (strict and left_out):
        name, reason = left_out[0]
        raise InputError(f"{folder / name} cannot be summarized: {reason}", hint="Name one run of the folder.")
    return _index(read, left_out, str(folder), as_named(str(folder.resolve())).rpartition(os.sep)[2])


def report_runs(
    paths: Sequence[str | Path],
    *,
    success_threshold: float | None = None,
    read: ReadOptions | None = None,
    progress: Progress = False,
) -> RunIndex:
    """Runs of any reader, the first of which the others are held against.

    Args:
        paths: At least two runs.
        success_threshold: A rollout passes when its reward reaches this; None: 1 for rewards of 0/1 or -1/1.
        read: How to read each of them; None: recognize everything.
        progress: True for a line on stderr, or a callback, told before each run and at the end, with how many are done,
            of how many, and the next one's name.

    Returns:
        One summary a run, and up to twelve of them side by side.

    Raises:
        InputError: A run cannot be read.
    """
    progress = reporter(progress)
    local = [fetched(path, progress) for path in paths]
    named = dict(zip(names_of(local), local, strict=True))
    runs, left_out = _read(named, read or ReadOptions(), success_threshold, progress)
    if left_out:
        name, reason = left_out[0]
        raise InputError(f"{name} cannot be summarized: {reason}", hint="Name runs, not folders that hold several.")
    listed = ", ".join(as_named(str(path)) for path in local)
    return _index(runs, (), listed, " and ".join(named))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Summarized:
    """A run in its numbers; itself only where it is set beside others."""

    summary: RunSummary
    source: Source
    run: NamedRun | None


def _read(
    named: Mapping[str, Path], read: ReadOptions, success_threshold: float | None, progress: ProgressCallback
) -> tuple[list[_Summarized], list[tuple[str, str]]]:
    """The runs that can be read, of many one after the other in memory, and name and reason of the others."""
    runs: list[_Summarized] = []
    left_out: list[tuple[str, str]] = []
    for done, (name, path) in enumerate(named.items()):
        progress(done, len(named), name)
        try:
            told = part(progress, done, len(named), name)
            run = read_run(path, read, rewards_only=True, progress=told, metrics_alone=True)
            summary = _summary(run, name, success_threshold)
        except GradscopeError as error:
            left_out.append((name, error.message))
            continue
        kept = NamedRun(name=name, run=run) if len(named) <= MOST_BESIDE else None
        runs.append(_Summarized(summary=summary, source=run.source, run=kept))
    progress(len(named), len(named), "runs")
    return runs, left_out


def _index(runs: Sequence[_Summarized], left_out: Sequence[tuple[str, str]], path: str, name: str) -> RunIndex:
    summaries = [one.summary for one in runs]
    beside = [one.run for one in runs if one.run is not None]
    sections = side_by_side(beside) if len(beside) > 1 else ()
    return RunIndex(
        source=_source(path, [one.source for one in runs]),
        name=name,
        runs=tuple(summaries),
        left_out=tuple(left_out),
        findings=(*(finding for section in sections for finding in section.findings), *_findings(summaries)),
        sections=sections,
    )


def _summary(run: Run, name: str, success_threshold: float | None) -> RunSummary:
    report = degeneracy_of_run(run, success_threshold=success_threshold)
    dead = {row.step: row.frac_reward_zero_std.value for row in report.by_step}
    means = mean_rewards(run)
    steps = run.steps or run.every_step
    rewards = tuple(means.get(step) for step in steps)
    measured = [(step, value) for step, value in zip(steps, rewards, strict=True) if value is not None]
    return RunSummary(
        name=name,
        command=shlex.join(["gradscope", "report", run.source.path]),
        steps=steps,
        num_rollouts=report.num_rollouts,
        frac_reward_zero_std=report.frac_reward_zero_std,
        reward=Estimate.exact(float(np.mean([value for _, value in measured])), num_units=len(measured))
        if measured
        else Estimate.undefined_because("no mean reward was logged"),
        reward_change=trend([step for step, _ in measured], [value for _, value in measured]),
        reward_by_step=rewards,
        degenerate_by_step=tuple(dead.get(step) for step in steps),
        grad_norm_by_step=tuple(run.metrics.get(step, {}).get("grad_norm") for step in steps),
    )


def _source(path: str, sources: Sequence[Source]) -> Source:
    return Source(
        path=as_named(path),
        format="folder",
        recognized=f"{len(sources)} runs",
        kind="metrics" if all(source.kind == "metrics" for source in sources) else "rollouts",
        files=tuple(file for source in sources for file in source.files),
        num_rows=sum(source.num_rows for source in sources),
    )


def _findings(runs: Sequence[RunSummary]) -> tuple[str, ...]:
    """Where most and fewest groups are dead, and where the reward rises; nothing is claimed where intervals meet."""
    measured = [run for run in runs if run.frac_reward_zero_std.value is not None]
    rising = [run for run in runs if run.reward_change.side_of_zero > 0]
    falling = [run for run in runs if run.reward_change.side_of_zero < 0]
    sentences = [
        f"The reward rises beyond chance in {len(rising)} of {len(runs)} runs and falls in {len(falling)}, along the "
        "line through its steps."
    ]
    if len(measured) > 1:
        most = max(measured, key=lambda run: run.frac_reward_zero_std.value or 0.0)
        least = min(measured, key=lambda run: run.frac_reward_zero_std.value or 0.0)
        sentences.append(
            f"Groups without a gradient: most in {most.name} ({with_interval(most.frac_reward_zero_std, percent)}), "
            f"fewest in {least.name} ({with_interval(least.frac_reward_zero_std, percent)})."
        )
    return tuple(sentences)
