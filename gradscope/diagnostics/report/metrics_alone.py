"""What a log of metrics alone answers: reward, dead groups, cut completions, the norm, other metrics, as logged."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence

import numpy as np

from gradscope.catalog.lookup import metric
from gradscope.diagnostics.logged.metrics import metric_series, verdict_series
from gradscope.diagnostics.spike.measure import spike_sentences
from gradscope.estimate import Estimate
from gradscope.findings import logged as findings
from gradscope.metrics.uncertainty.steps import MIN_NEIGHBORS
from gradscope.render.views.view import Column, lines_over, tabulate
from gradscope.results.logged import MetricCourse
from gradscope.results.report import Chart, KeyNumber, ReportSection, RunReport, Severity
from gradscope.results.source import Source
from gradscope.rollouts.run import Run
from gradscope.say import counted

_DEAD, _CUT, _NORM = "frac_reward_zero_std", "completions/clipped_ratio", "grad_norm"
_SECTIONS = {_DEAD: "signal", _CUT: "generation", _NORM: "norm", "reward": "reward"}
_LEVELS = ("entropy", "completions/mean_length", "kl", "loss")  # whose level is watched
_STRIP = (_DEAD, "reward", _CUT, _NORM, "entropy")
_LOST = "Read completions of late steps that score high, and compare with a checkpoint before the fall."


def report_of_metrics(run: Run, name: str, agreement: ReportSection | None = None) -> RunReport:
    """The page of a run of which metrics alone were logged: what they answer, and what rollouts would add.

    ``agreement`` is what they say of sampler and trainer.
    """
    metrics = metric_series(run)
    shown = [series for key in _STRIP if (series := findings.metric_named(metrics, key)) is not None]
    return RunReport(
        source=run.source,
        name=name,
        sections=(*_sections(metrics, run), *filter(None, [agreement])),
        recomputed=(),
        strip=tuple(
            KeyNumber(
                name=_SECTIONS.get(series.name, "courses"),
                title=series.title.strip(),
                value=series.mean,
                style=series.style,
                note=f"mean of {counted(len(series.steps), 'step')}, as logged",
                places=series.steps,
                course=_drawn_values(series),
            )
            for series in shown
        ),
    )


_HALF = 0.5  # a share of dead groups that is surely above this costs more rollouts than it leaves
_MANY = 0.25  # from a quarter on, resampling dead groups costs at least a third more rollouts, which is worth a look


def dead_severity(dead: Estimate, at_end: Estimate | None = None) -> Severity:
    """How much a share of dead groups asks for; ``at_end`` is that of the last steps, where it is another one."""
    if dead.value is None:
        return "unknown"
    shares = [dead] if at_end is None else [dead, at_end]
    if max(share.ends[0] for share in shares) > _HALF:
        return "problem"
    return "look" if max(share.value or 0.0 for share in shares) >= _MANY else "fine"


def dead_section(metrics: Sequence[MetricCourse], source: Source) -> ReportSection:
    """Groups without a gradient."""
    series = findings.metric_named(metrics, _DEAD)
    sentence = findings.dead_sentence(metrics)
    if series is None:
        share, _ = findings.dead_steps(metrics)
        hint = f"Name it with --metric-column {_DEAD}=NAME where one of them is."
        if share < _MANY:
            return ReportSection(name="signal", missing=f"{sentence} {hint}")
        severity: Severity = "problem" if share > _HALF else "look"
        return ReportSection(name="signal", findings=(sentence,), severity=severity, next_step=_dead_advice(metrics))
    late = findings.late_share(series)
    kinds = filter(None, (findings.metric_named(metrics, key) for key in ("frac_all_pass", "frac_all_fail")))
    return ReportSection(
        name="signal",
        findings=(sentence,),
        severity=dead_severity(series.mean, None if late is None else Estimate.exact(late)),
        is_standing=late is None or late < series.mean.ends[0],
        meaning=metric(_DEAD).meaning,
        next_step="Nothing to do." if series.mean.value == 0 else _dead_advice(metrics),
        command=f"gradscope degeneracy {shlex.quote(source.path)}",
        charts=_chart("Groups without a gradient, as logged", [series, *kinds], "share of groups"),
    )


def _dead_advice(metrics: Sequence[MetricCourse]) -> str:
    cut = findings.metric_named(metrics, _CUT)
    kind = findings.kind_of_dead(metrics)
    if findings.is_constant(metrics):
        return "Every step has one and the same reward: look at the reward function before the prompts."
    if kind is not None and kind.name == "fail" and findings.reward_direction(metrics) == "falls":
        return "The reward falls: look at what changed before making the prompts easier."
    advice = _ADVICE if kind is None else findings.TO_TRY[kind.name].capitalize()
    return findings.cut_off_advice(None if cut is None else cut.mean.value) or advice


_ADVICE = "Log rollouts to see whether prompts are too easy or too hard; then choose prompts, or enlarge the groups."


def _sections(metrics: Sequence[MetricCourse], run: Run) -> Iterator[ReportSection]:
    norm, cut = (findings.metric_named(metrics, name) for name in (_NORM, _CUT))
    spikes = spike_sentences(run)
    if (reward := _reward_section(metrics, run)) is not None:
        yield reward
    with_section = ("frac_all_pass", "frac_all_fail", *_SECTIONS)
    if other_metrics := [series for series in metrics if series.name not in with_section]:
        names = tuple(series.name for series in other_metrics)
        other_spikes = spikes if norm is None else tuple(text for text in spikes if text.startswith(names))
        yield _metrics_section(metrics, other_metrics, other_spikes)
        spikes = tuple(text for text in spikes if text not in other_spikes)
    if norm is not None:
        yield _norm_section(norm, run, spikes)
    yield dead_section(metrics, run.source)
    if cut is not None:
        yield _cut_section(cut, findings.clipped_sentence(metrics))
    why = next((text for text in run.source.missing if text.startswith("Metrics alone")), "They were not logged.")
    yield ReportSection(name="rollouts", question="What would rollouts add?", missing=why)


def _reward_section(metrics: Sequence[MetricCourse], run: Run) -> ReportSection | None:
    """Where the mean reward goes, and what else says how good answers are; None where neither was logged."""
    series, goes = findings.metric_named(metrics, "reward"), findings.reward_direction(metrics)
    lost = findings.lost_sentence(verdict_series(run), goes)
    if series is None:
        if not lost:
            return None
        return ReportSection(name="reward", findings=(lost,), severity="look", next_step=_LOST)
    broken, levels = tuple(findings.broken_sentences([series])), tuple(findings.reward_level_sentences(metrics))
    dip = "" if goes == "falls" else findings.dip_sentence(metrics)
    remarks = [*filter(None, (lost, findings.gap_sentence(series.steps), dip)), *broken, *levels]
    sentence = findings.reward_sentence(metrics, goes)
    calm: Severity = "fine" if goes == "rises" else "unknown"
    is_wrong = broken or (goes == "falls" and findings.falls_far(metrics))
    return ReportSection(
        name="reward",
        findings=(*remarks, *filter(None, [sentence])) or ("One logged step does not tell.",),
        severity="problem" if is_wrong else "look" if remarks or goes in findings.ADVICE_ON else calm,
        is_standing=not remarks and goes in ("hardly rises", "stalls"),
        next_step=_LOST if lost else findings.SPIKE_ADVICE if broken or dip else findings.ADVICE_ON.get(goes, ""),
        charts=_chart(f"{series.title}, as logged", [series], series.title),
    )


def _metrics_section(
    metrics: Sequence[MetricCourse], other_metrics: Sequence[MetricCourse], spikes: Sequence[str]
) -> ReportSection:
    """How those metrics go that have no section of their own, and a table of all."""
    broken, levels = tuple(findings.broken_sentences(other_metrics)), tuple(findings.level_sentences(metrics))
    titles = ", ".join(series.title.strip() for series in other_metrics)
    has_reward = findings.metric_named(metrics, "reward") is not None
    gap = "" if has_reward else findings.gap_sentence(max((series.steps for series in metrics), key=len))
    clipped = findings.clip_sentence(metrics)
    remarks = (*broken, *filter(None, (gap, clipped)), *spikes, *levels)
    calm: Severity = "fine" if any(series.name in _LEVELS for series in other_metrics) else "unknown"
    return ReportSection(
        name="courses",
        question="How do lengths, entropy and KL go?",
        findings=remarks or (f"Logged: {titles}.",),
        severity="problem" if broken else "look" if remarks else calm,
        next_step=findings.CLIP_ADVICE if clipped else findings.spike_advice(remarks) if remarks else "",
        charts=tuple(
            chart for series in other_metrics for chart in _chart(f"{series.title}, as logged", [series], series.title)
        ),
        tables=tabulate(
            "Each metric as the trainer logged it; a mean over steps has no interval here.", _BY_METRIC, metrics
        ),
    )


def _norm_section(norm: MetricCourse, run: Run, spikes: Sequence[str]) -> ReportSection:
    broken = tuple(findings.broken_sentences([norm]))
    remarks = (*broken, *spikes)
    largest = f"The largest gradient norm is {norm.at(norm.largest_step):.3g}, at step {norm.largest_step}"
    middle = float(np.median(norm.values))
    is_ratio = middle > 0 and not remarks
    largest += f", {norm.at(norm.largest_step) / middle:.3g} times the median." if is_ratio else "."
    is_idle = any(findings.NEVER_LEARNS in text for text in remarks)
    is_short = len(norm.steps) <= MIN_NEIGHBORS
    largest += " Fewer than nine steps do not tell whether one stands out." * is_short
    return ReportSection(
        name="norm",
        question="Which step stands out?",
        findings=(*remarks, largest),
        severity="problem" if broken or is_idle else "look" if remarks else "unknown" if is_short else "fine",
        meaning="Norm of the step's gradient as the trainer logged it, with most of them before clipping.",
        next_step=findings.spike_advice(remarks) if remarks else "" if is_short else "Nothing to do.",
        command=f"gradscope spike {shlex.quote(run.source.path)}",
        charts=_chart("Gradient norm, as logged", [norm], "norm"),
    )


def _cut_section(cut: MetricCourse, sentence: str) -> ReportSection:
    is_known = cut.mean.is_defined
    few = f"Few completions were cut off at the length limit{findings.at_most(cut)}." if is_known else ""
    advice = "Raise the length limit, or mask cut completions, and see whether the reward follows."
    severity: Severity = "problem" if findings.clipped_share(cut) > _HALF else "look" if sentence else "fine"
    return ReportSection(
        name="generation",
        question="How many completions are cut off?",
        findings=((sentence or few) if is_known else f"How many is not known: {cut.mean.undefined}.",),
        severity=severity if is_known else "unknown",
        meaning=metric("generation.frac_truncated").meaning,
        next_step=advice if sentence else "Nothing to do.",
        charts=_chart("Completions that were cut off", [cut], "share of completions"),
    )


def _chart(title: str, metrics: Sequence[MetricCourse], y_label: str) -> tuple[Chart, ...]:
    steps, values = metrics[0].steps, {series.title.strip(): _drawn_values(series) for series in metrics}
    for series in metrics[1:]:
        if series.steps != steps:
            by_step = dict(zip(series.steps, _drawn_values(series), strict=True))
            values[series.title.strip()] = [by_step.get(step) for step in steps]
    y_range = (0.0, 1.0) if metrics[0].style == "share" else None
    return lines_over(steps, title, values, y_label=y_label.strip(), y_range=y_range)


def _drawn_values(series: MetricCourse) -> Sequence[float | None]:
    """Its values, one a step, None for one that is not finite; without any these themselves, as millions may be."""
    return series.values if np.isfinite(series.values).all() else tuple(map(_drawn, series.values))


def _drawn(value: float) -> float | None:
    return value if math.isfinite(value) else None


_BY_METRIC = (
    Column("metric", "name"),
    Column("steps", lambda series: len(series.steps), "count"),
    Column("mean over steps", "mean", "norm"),
    Column("first", lambda series: _drawn(series.values[0]), "norm"),
    Column("last", lambda series: _drawn(series.values[-1]), "norm"),
    Column("smallest", lambda series: _drawn(series.at(series.smallest_step)), "norm"),
    Column("largest", lambda series: _drawn(series.at(series.largest_step)), "norm"),
    Column("at step", "largest_step", "count"),
)
