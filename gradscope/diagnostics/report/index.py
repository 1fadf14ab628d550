"""Several runs: each in a few numbers and curves of its log, and a few of them side by side.

No model is loaded; a run's own page has the rest. Side by side stand what differs from the first run, the series of
all in one chart, and their settings. Letters: J groups of a run.
"""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from gradscope.copies import as_named
from gradscope.diagnostics.compare import means as means_of_runs
from gradscope.diagnostics.compare.runs import unlike_levels
from gradscope.diagnostics.degeneracy.group_rewards import NoGroupError
from gradscope.diagnostics.degeneracy.measure import degeneracy_of_run
from gradscope.diagnostics.degeneracy.reward_functions import side_rewards
from gradscope.diagnostics.logged.metrics import common_metrics, metric_series
from gradscope.diagnostics.report.metrics_alone import dead_severity
from gradscope.diagnostics.spike.measure import levels_left
from gradscope.errors import GradscopeError, InputError
from gradscope.estimate import Estimate
from gradscope.findings.compare import parting_sentence, shared_prompts
from gradscope.findings.degeneracy_parts import conflicts_of_runs
from gradscope.findings.logged import broken_sentences, drop_clause, late_sentence
from gradscope.metrics.uncertainty.intervals import bonferroni
from gradscope.metrics.uncertainty.levels import late_change
from gradscope.metrics.uncertainty.steps import MIN_STEPS, trend
from gradscope.progress import Progress, ProgressCallback, no_progress, part, reporter
from gradscope.render.views.view import lines_over, table_of_cells
from gradscope.results.report import SEVERITIES, Chart, ReportSection, ReportTable, RunIndex, RunSummary
from gradscope.results.source import Source
from gradscope.rollouts.fetch import fetched, names_of
from gradscope.rollouts.groups import groups_of_steps, sizes_of
from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.run import Run, StepMetrics
from gradscope.say import counted, number, percent, points, with_interval


def report_index(
    folder: str | Path,
    runs: Sequence[Path],
    *,
    success_threshold: float | None = None,
    strict: bool = False,
    progress: ProgressCallback = no_progress,
) -> RunIndex:
    """The runs of a folder, one line each; those that cannot be read are named with the reason."""
    # Under ``strict`` a run or a row that cannot be used is an error; so is a folder of which no run can be read.
    folder = fetched(folder)
    named = {str(path.relative_to(folder)): path for path in runs}
    read, left_out = _read(named, ReadOptions(strict=strict), success_threshold, progress)
    if not read or (strict and left_out):
        name, error = left_out[0]
        raise InputError(f"{folder / name} cannot be summarized: {error.message}", hint="Name one run of the folder.")
    return _index(read, left_out, str(folder), as_named(str(folder.resolve())).rpartition(os.sep)[2])


def report_runs(
    paths: Sequence[str | Path],
    *,
    success_threshold: float | None = None,
    read: ReadOptions | None = None,
    progress: Progress = False,
) -> RunIndex:
    """Runs of any reader, up to twelve of them side by side, each compared with the first."""
    progress = reporter(progress)
    local = [fetched(path, progress) for path in paths]
    named = dict(zip(names_of(local), local, strict=True))
    runs, left_out = _read(named, read or ReadOptions(), success_threshold, progress)
    if left_out:
        name, error = left_out[0]
        hint = "Name runs, not folders that hold several."
        if isinstance(error, NoGroupError) and all(source.kind == "rollouts" for _, source, _ in runs):
            hint = shlex.join(["gradscope", "passk", *(as_named(str(path)) for path in local)])
        raise InputError(f"{name} cannot be summarized: {error.message}", hint=hint)
    listed = ", ".join(as_named(str(path)) for path in local)
    return _index(runs, (), listed, " and ".join(named))


_Summarized = tuple[RunSummary, Source, Run | None]
"""A run in its numbers, its source, and the run itself only where it is compared with others."""


def _read(
    named: Mapping[str, Path], read: ReadOptions, success_threshold: float | None, progress: ProgressCallback
) -> tuple[list[_Summarized], list[tuple[str, GradscopeError]]]:
    """The runs that can be read, of many one after the other in memory, and name and error of the others."""
    runs: list[_Summarized] = []
    left_out: list[tuple[str, GradscopeError]] = []
    for done, (name, path) in enumerate(named.items()):
        progress(done, len(named), name)
        try:
            read_progress, is_compared = part(progress, done, len(named), name), len(named) <= MAX_COMPARED
            run = read_run(
                path,
                read,
                rewards_only=True,
                measured="completions" if is_compared else None,
                progress=read_progress,
                metrics_alone=True,
            )
            summary = _summary(run, name, success_threshold)
        except GradscopeError as error:
            left_out.append((name, error))
            continue
        runs.append((summary, run.source, run if is_compared else None))
    progress(len(named), len(named), "runs")
    return runs, left_out


def _index(
    runs: Sequence[_Summarized], left_out: Sequence[tuple[str, GradscopeError]], path: str, name: str
) -> RunIndex:
    summaries = [summary for summary, _, _ in runs]
    compared = {summary.name: run for summary, _, run in runs if run is not None}
    sections = side_by_side(compared, summaries) if len(compared) > 1 else ()
    sources = [source for _, source, _ in runs]
    return RunIndex(
        source=Source(
            path=as_named(path),
            format="folder",
            recognized=f"{len(sources)} runs",
            kind="metrics" if all(source.kind == "metrics" for source in sources) else "rollouts",
            files=tuple(file for source in sources for file in source.files),
            num_rows=sum(source.num_rows for source in sources),
        ),
        name=name,
        runs=tuple(summaries),
        left_out=tuple((name, error.message) for name, error in left_out),
        findings=(
            *(section.missing for section in sections[:1] if section.missing),
            *(finding for section in sections for finding in section.findings),
            *_trends(summaries),
            *(() if sections else _dead_groups(summaries)),
        ),
        sections=sections,
    )


def _summary(run: Run, name: str, success_threshold: float | None) -> RunSummary:
    report = degeneracy_of_run(run, success_threshold=success_threshold)
    dead = dict(zip(report.course.step, report.course.frac_reward_zero_std, strict=True))
    means = mean_rewards(run)
    steps, norms = run.steps or run.every_step, run.step_metrics.by_step("grad_norm")
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
        grad_norm_by_step=tuple(map(norms.get, steps)),
    )


def _trends(runs: Sequence[RunSummary]) -> Iterator[str]:
    """Where the reward rises and falls; nothing is claimed within its interval."""
    rising = [run for run in runs if run.reward_change.side_of_zero > 0]
    falling = [run for run in runs if run.reward_change.side_of_zero < 0]
    num_trends = sum(run.reward_change.is_defined for run in runs)
    drops = {run.name: sentence for run in runs if (sentence := _drop_sentence(run))}
    num_more = len(drops.keys() - {run.name for run in falling})
    if num_trends:
        more = f"; in {num_more} more it drops, which no line follows" if num_more else ""
        yield (
            f"The reward rises beyond chance in {len(rising)} of {counted(num_trends, 'run')} and falls in "
            f"{len(falling)}, along the line through its steps, at 95 % each{more}."
        )
    elif any(len(run.reward_by_step) - run.reward_by_step.count(None) > 1 for run in runs):
        yield "The reward rises beyond chance in none of these runs: a trend needs three steps."
    yield from drops.values()


def _dead_groups(runs: Sequence[RunSummary]) -> Iterator[str]:
    """Where most and fewest groups are dead."""
    measured = [run for run in runs if run.frac_reward_zero_std.value is not None]
    if len(measured) > 1:
        worst = max(measured, key=lambda run: run.frac_reward_zero_std.value or 0.0)
        best = min(measured, key=lambda run: run.frac_reward_zero_std.value or 0.0)
        high, low = worst.frac_reward_zero_std, best.frac_reward_zero_std
        if high.value == low.value:
            yield f"Groups without a gradient: {percent(high.value or 0.0)} in each run."
        else:
            yield (
                f"Groups without a gradient: most in {worst.name} ({with_interval(high, percent)}), fewest in "
                f"{best.name} ({with_interval(low, percent)})."
            )


def _drop_sentence(run: RunSummary) -> str:
    """That a run's reward ends far lower than it was, or drops for good; empty where it does neither."""
    rewards = zip(run.steps, run.reward_by_step, strict=True)
    by_step = {step: value for step, value in rewards if value is not None}
    change = late_change(by_step, factor=2.0)
    if change is not None and change.side < 0:
        return late_sentence(f"The reward of {run.name}", change)
    drop = drop_clause([*by_step], [*by_step.values()]).removeprefix("; it ")
    return f"The reward of {run.name} {drop}." if drop else ""


MAX_COMPARED = 12
"""Runs side by side: their rewards are in memory together, and a table of differences has a row a number and run."""
_IN_A_CHART = 4  # runs in one chart, the first among them: dashes and markers of more lines are hard to distinguish

_LOGGED = {
    "grad_norm": "gradient norm, as logged",
    "entropy": "entropy, as logged",
    "kl": "KL, as logged",
    "completions/mean_length": "tokens of a completion, as logged",
    "completions/clipped_ratio": "completions cut off, as logged",
}
"""The trainer's own metric -> its title."""
_REWARD, _TREND, _DEAD = "mean reward", "mean reward, trend", "groups without a gradient"
_METRICS_ALONE = {"reward": _REWARD, "frac_reward_zero_std": _DEAD}
"""What the trainer logged of rollouts that are not in the log."""
_UNSTATED = "not known"
_SHOWN = 40  # characters of a setting's value; a longer one is cut
_FOLDER_SETTINGS = ("output_dir", "logging_dir", "run_name", "output", "default_local_dir", "experiment_name")
"""Settings that name where a run is and not what it does, by their last part."""


def side_by_side(runs: Mapping[str, Run], summaries: Sequence[RunSummary]) -> tuple[ReportSection, ...]:
    """Differences from the first run, series, and settings; the runs by the names that the page calls them."""
    steps = tuple(sorted(set.intersection(*(set(run.steps or run.every_step) for run in runs.values()))))
    return (_differences(runs, steps), _series(runs, summaries), _settings(runs))


def _differences(runs: Mapping[str, Run], steps: Sequence[int]) -> ReportSection:
    name, question = "differences", "What differs from the first run?"
    if not steps:
        return ReportSection(
            name=name, question=question, missing="The runs have no step in common, so no steps can be compared."
        )
    first, *rest = [(name, _numbers(run, steps)) for name, run in runs.items()]
    tables = {name: run.judged_rewards for name, run in runs.items()}
    unlike = {name: unlike_levels(tables[first[0]], table) for name, table in tables.items()}
    rows: list[_Row] = []
    differences = {other: means_of_runs.changes(first[1], numbers) for other, numbers in rest}
    for title in [title for title in first[1] if all(title in numbers for _, numbers in rest)]:
        for other, numbers in rest:
            difference = differences[other][title]
            if title.startswith(_REWARD) and unlike[other]:
                difference = replace(difference, low=None, high=None)
            rows.append(_Row(title, other, first[1][title].estimate, numbers[title].estimate, difference))
    rewards = {name: mean_rewards(run) for name, run in runs.items()}
    moves = {name: means_of_runs.parting(rewards[first[0]], rewards[name]) for name, _ in rest if not unlike[name]}
    partings = [parting_sentence(first[0], name, moved) for name, moved in moves.items() if moved is not None]
    same_steps = {name: replace(run, groups=groups_of_steps(run.groups, steps)) for name, run in runs.items()}
    sides = [side for name, run in same_steps.items() if (side := side_rewards(run, name)) is not None]
    sure = [row for row in rows if bonferroni(row.difference, len(rows)).side_of_zero]
    broken = [f"{name}: {text}" for name, run in runs.items() for text in broken_sentences(metric_series(run))]
    moved = [f"{name}: {text}" for name, run in runs.items() for text in levels_left(run)]
    differs = sure or partings or moved or any(side.conflict for side in sides)
    return ReportSection(
        name=name,
        question=question,
        severity="problem" if broken else "look" if differs else "fine",
        findings=(
            *broken,
            *partings,
            *(() if sure else moved),
            *_sentences(first[0], [other for other, _ in rest], rows, sure),
            *(moved if sure else ()),
            *conflicts_of_runs(sides),
            *filter(None, dict.fromkeys(unlike.values())),
            *_cautions(tuple(runs.values()), steps),
        ),
        meaning="Intervals of rewards and dead groups resample the prompts of each run and allow for the correlation "
        "of steps, as those of logged metrics do. Runs that share nearly all prompts are paired by prompt; others "
        "count as independent. "
        f"The first sentence names differences that hold for all {len(rows)} at once (Bonferroni). No interval "
        "covers other seeds.",
        next_step="Run each setting with several seeds: gradscope compare pairs them.",
        tables=_table(first[0], rows, steps),
    )


def _numbers(run: Run, steps: Sequence[int]) -> means_of_runs.Means:
    """What a run is compared by, over these steps: title -> mean or trend, as far as they are logged."""
    table = run.judged_rewards
    table = table.select(table.is_complete & np.isin(table.step, list(steps)))
    means = mean_rewards(run)
    rewards = {step: means[step] for step in steps if step in means}
    numbers: dict[str, means_of_runs.Number] = {}
    if len(table):
        numbers[_REWARD] = means_of_runs.reward_over_steps(table)
        if len(steps) >= 4 * MIN_STEPS:  # of fewer nothing tells how far a policy wanders
            last = table.select(table.step >= steps[-(len(steps) // 4)])
            if len(last):
                numbers["mean reward, last quarter"] = means_of_runs.reward_over_steps(last)
        judged = table.select(table.size > 1)
        if len(judged):
            numbers[_DEAD] = means_of_runs.dead_over_steps(judged)
        for metric, lengths in means_of_runs.completion_lengths(table).items():
            _, unit, *trend = metric.split("_")
            numbers[", ".join((f"{unit} of a completion", *trend))] = lengths
    logged = common_metrics(run)
    for metric, title in (_LOGGED if run.groups else _METRICS_ALONE | _LOGGED).items():
        by_step = _finite(logged, metric)
        chosen = tuple(step for step in steps if step in by_step)
        if chosen:
            numbers[title] = means_of_runs.SeriesMean(chosen, np.array([by_step[step] for step in chosen]))
    if len(rewards) >= 3:
        numbers[_TREND] = means_of_runs.SeriesTrend(tuple(rewards), np.array(list(rewards.values())))
    return numbers


class _Row(NamedTuple):
    """A number of one run next to that of the first."""

    title: str
    run: str
    before: Estimate
    after: Estimate
    difference: Estimate


def _sentences(first: str, other_runs: Sequence[str], rows: Sequence[_Row], sure: Sequence[_Row]) -> Iterator[str]:
    """For each other run, what is beyond chance, most important first; runs without any together at the end."""
    unclear = []
    for other in other_runs:
        run_rows = [row for row in sure if row.run == other]
        if len(other_runs) == 1:  # of two runs the surest alone, in its one unit
            run_rows.sort(key=lambda row: -row.difference.effect_over_interval)
        sentences = [f"{row.title} {_formatted(row.difference, row.title, signed=True)}" for row in run_rows]
        if not sentences:
            unclear.append(other)
            continue
        at_once = 1 if len(other_runs) == 1 else len(sentences)
        yield f"{other} against {first}: {'; '.join(sentences[:at_once])}."
        if sentences[at_once:]:
            yield f"Beyond chance, too: {'; '.join(sentences[at_once:])}."
    if unclear:
        num = sum(row.run in unclear for row in rows)
        yield f"{', '.join(unclear)} against {first}: none of {counted(num, 'difference')} is beyond chance."


def _cautions(runs: Sequence[Run], steps: Sequence[int]) -> Iterator[str]:
    longest = max(len(run.steps or run.every_step) for run in runs)
    if len(steps) < longest:
        ends = f"at step {steps[0]}, the only one" if len(steps) == 1 else f"over the {len(steps)} steps"
        span = "" if len(steps) == 1 else f", {steps[0]} to {steps[-1]}"
        yield f"Compared {ends} that all runs have{span}."
    if not all(run.groups for run in runs):
        return
    sizes = [", ".join(map(str, sizes_of(run.groups))) for run in runs]
    if len(set(sizes)) > 1:
        yield f"Groups differ in size ({'; '.join(sizes)}), and larger ones are less often without a gradient."
    prompts = list(map(set, means_of_runs.prompt_names([run.judged_rewards for run in runs])))
    yield shared_prompts(len(set.intersection(*prompts)), len(set.union(*prompts)), "all of them")


def _table(first: str, rows: Sequence[_Row], steps: Sequence[int]) -> tuple[ReportTable, ...]:
    """A row a number and run; where only two runs are compared, no column names the second."""
    other_runs = list(dict.fromkeys(row.run for row in rows))
    many = len(other_runs) > 1
    cells = (
        (
            row.title,
            *((row.run,) * many),
            _formatted(row.before, row.title),
            _formatted(row.after, row.title),
            _formatted(row.difference, row.title, signed=True),
        )
        for row in rows
    )
    names = ("what", *(("run",) * many), first, "the run" if many else "".join(other_runs), "difference")
    over = f"Over {len(steps)} steps" if len(steps) > 1 else f"Step {steps[0]}"
    caption = f"{over}, 95 % intervals; difference: the later run minus {first}"
    return table_of_cells(caption, [(name, "text") for name in names], cells)


def _formatted(estimate: Estimate, title: str, *, signed: bool = False) -> str:
    """A number by its own kind: a table of several kinds has no style of its own."""
    if title == _DEAD:
        return f"{with_interval(estimate, points)} points" if signed else with_interval(estimate, percent)
    is_large = estimate.is_defined and max(map(abs, estimate.ends)) >= 1000
    return with_interval(estimate, "+" * signed + (",.0f" if is_large else ".3g"))


def _series(runs: Mapping[str, Run], summaries: Sequence[RunSummary]) -> ReportSection:
    """Reward, dead groups and what the trainers logged, each run a line."""
    rewards, logged = [mean_rewards(run) for run in runs.values()], [common_metrics(run) for run in runs.values()]
    drawn: list[tuple[str, str, list[dict[int, float]], tuple[float, float] | None]] = [
        ("Mean reward", "reward", rewards, None),
        ("Groups without a gradient", "share of groups", [_dead_shares(run) for run in runs.values()], (0.0, 1.0)),
        *(
            (f"{title[0].upper()}{title[1:]}", metric, [metrics.by_step(metric) for metrics in logged], None)
            for metric, title in _LOGGED.items()
        ),
    ]
    ends = [
        f"{name} {' to '.join(number(by_step[step], '.3g') for step in sorted({min(by_step), max(by_step)}))}"
        for name, by_step in zip(runs, rewards, strict=True)
        if by_step
    ]
    between = ", first to last step" if any(len(by_step) > 1 for by_step in rewards) else ""
    finding = f"Mean reward{between}: {'; '.join(ends)}." if ends else "No step of these runs has all rewards."
    charts = (chart for lines in drawn if sum(map(bool, lines[2])) > 1 for chart in _overlaid(tuple(runs), *lines))
    severity = min((dead_severity(run.frac_reward_zero_std) for run in summaries), key=SEVERITIES.index)
    findings = (finding, *_dead_groups(summaries))
    return ReportSection(
        name="courses",
        question="How do the runs go?",
        severity=severity,
        findings=findings if severity == "fine" else findings[::-1],
        charts=tuple(charts),
    )


def _overlaid(
    names: Sequence[str],
    title: str,
    y_label: str,
    values: Sequence[dict[int, float]],
    y_range: tuple[float, float] | None,
) -> Iterator[Chart]:
    """The runs as lines of one scale; more than a chart can hold in several, the first run in each."""
    steps = sorted(set().union(*values))
    finite = [value for by_step in values for value in by_step.values() if math.isfinite(value)] or [0.0]
    first, *rest = zip(names, values, strict=True)
    batches = [rest[start : start + _IN_A_CHART - 1] for start in range(0, len(rest), _IN_A_CHART - 1)]
    for part_number, batch in enumerate(batches, start=1):
        yield from lines_over(
            steps,
            title if len(batches) == 1 else f"{title}, {part_number} of {len(batches)}",
            {name: map(by_step.get, steps) for name, by_step in (first, *batch)},
            y_label=y_label,
            y_range=y_range or ((min(finite), max(finite)) if len(batches) > 1 and min(finite) < max(finite) else None),
        )


def mean_rewards(run: Run) -> dict[int, float]:
    """Step -> mean of the rewards of its whole groups, or as logged where rollouts are not."""
    return run.judged_rewards.mean_reward_by_step() if run.groups else _finite(run.step_metrics, "reward")


def _dead_shares(run: Run) -> dict[int, float]:
    """Step -> share of its groups of several rollouts that are dead, or as logged where there are no rollouts."""
    if not run.groups:
        return _finite(run.step_metrics, "frac_reward_zero_std")
    table = run.judged_rewards
    table = table.select(table.is_complete & (table.size > 1))
    return table.mean_by_step(table.is_dead, np.ones(len(table)))


def _finite(metrics: StepMetrics, metric: str) -> dict[int, float]:
    return {step: value for step, value in metrics.by_step(metric).items() if math.isfinite(value)}


def _settings(runs: Mapping[str, Run]) -> ReportSection:
    """The trainer's arguments in which the runs differ, as far as they are logged."""
    name, question = "settings", "Which settings differ?"
    settings: list[dict[str, str]] = []
    for run in runs.values():
        group_sizes = ", ".join(map(str, sizes_of(run.groups)))
        settings.append({"rollouts of a group": group_sizes} if group_sizes else {})
        for key, value in run.settings.values.items():
            if key.rpartition(".")[2] not in _FOLDER_SETTINGS:
                text = str(value)
                settings[-1][key] = text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
    unlogged = [name for name, run in runs.items() if run.settings.origin is None]
    if len(unlogged) == len(runs):
        return ReportSection(
            name=name,
            question=question,
            missing="None of the logs tells its trainer's arguments. Keep them beside the log, as your trainer writes "
            "them; of one run --run-config names them.",
        )
    values_of = {key: [values[key] for values in settings if key in values] for key in sorted(set().union(*settings))}
    stated = {key: values for key, values in values_of.items() if len(values) > 1}
    differing = [key for key, values in stated.items() if len(set(values)) > 1]
    caveats = [f"The arguments of {', '.join(unlogged)} are not in the log."] if unlogged else []
    if unshared := len(values_of) - len(stated):
        caveats.append(
            f"{unshared} more {'is' if unshared == 1 else 'are'} stated by one run alone, and unknown of the others."
        )
    summary = f"{len(differing)} of {counted(len(stated), 'setting')} differ{'s' * (len(differing) == 1)}" + (
        f": {', '.join(differing[:6])}" if differing else ""
    )
    ellipsis = ", ..." if len(differing) > 6 else ""
    attribution = ["What differs between the runs may be due to any of them."] if len(differing) > 1 else []
    rows = tuple((key, *(values.get(key, _UNSTATED) for values in settings)) for key in differing)
    titles = ("setting", *runs)
    return ReportSection(
        name=name,
        question=question,
        severity="unknown" if unlogged else "look" if len(differing) > 1 else "fine",
        findings=(f"{summary}{ellipsis}.", *attribution, *caveats),
        tables=table_of_cells("As the logs tell them", [(title, "text") for title in titles], rows),
    )
