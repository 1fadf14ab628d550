"""Sentences about a step that was analyzed."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace

from gradscope.results.norms import SpikeMetric, SpikeReport, SpikeRollout
from gradscope.say import percent

OTHER_GRADIENT = 1e-3
"""Relative difference from the logged norm from which on the recomputed gradient is another one than the trainer's."""
LARGE_PART = 5.0  # times the equal share from which on a rollout or a parameter is named
MUCH_REPEATED = 0.5  # share of repeated runs of tokens from which on a text is named


def spike_findings(report: SpikeReport) -> SpikeReport:
    """The report with its sentences: whether the step stands out, then what its gradient is made of."""
    headline = spike_headline(report.step, report.metrics, was_named=report.was_named)
    sentences = (headline, *_norms(report), *_rollouts(report), *_repeats(report), *_tensors(report))
    return replace(report, findings=sentences)


def spike_headline(step: int, metrics: Sequence[SpikeMetric], *, was_named: bool) -> str:
    """Whether a step stands out, by its logged numbers against those of the steps around it."""
    broken = [metric.name for metric in metrics if not metric.value.is_defined]
    if broken:
        return f"Step {step} is broken: {_listed(broken)} was logged as NaN or infinity."
    unusual = [metric for metric in metrics if metric.is_unusual]
    if unusual:
        also = (
            f"; also {_listed([f'{metric.name} ({metric.value.value:.3g})' for metric in unusual[1:]])}"
            if unusual[1:]
            else ""
        )
        return f"Step {step} stands out: {_described(unusual[0], was_named=was_named)}{also}."
    compared = [metric for metric in metrics if metric.deviation.is_defined]
    if not compared:
        reason = metrics[0].typical.undefined if metrics else "no gradient norm, KL or loss was logged at it"
        return f"It is unknown whether step {step} stands out: {reason}."
    text = _described(compared[0], was_named=was_named)
    if was_named:
        return f"Step {step} does not stand out: {text}."
    return f"No step stands out. The furthest is step {step}: {text}."


def _described(metric: SpikeMetric, *, was_named: bool) -> str:
    values = (metric.value.value, metric.typical.value, metric.deviation.value, metric.by_chance.value)
    value, typical, deviation, by_chance = (0.0 if number is None else number for number in values)
    times = f", {value / typical:.3g} times" if value > 0 and typical > 0 else ", against"
    chance = f"chance reaches {by_chance:.1f} in one {'step' if was_named else 'run'} of twenty"
    return (
        f"{metric.name} {value:.3g}{times} the {typical:.3g} of the {metric.typical.num_units} steps around it, "
        f"{deviation:.1f} standard deviations, where {chance}"
    )


def _norms(report: SpikeReport) -> Iterator[str]:
    if report.grad_norm.value is None:
        yield f"Its gradient could not be recomputed: {report.grad_norm.undefined}."
        return
    logged = next((metric.value.value for metric in report.metrics if metric.name == "grad_norm"), None)
    if logged is not None and abs(report.grad_norm.value - logged) > OTHER_GRADIENT * abs(logged):
        yield (
            f"The recomputed norm is {report.grad_norm.value:.4g}, the logged one {logged:.4g}: what follows describes "
            "another gradient than the trainer's; `gradscope replay` says why."
        )


def _rollouts(report: SpikeReport) -> Iterator[str]:
    if report.grad_norm.value == 0:
        yield f"Its gradient is zero: none of {len(report.rollouts)} rollouts moves anything."
    if not report.removals:
        return
    number, last = len(report.rollouts), report.removals[-1]
    typical = next((metric.typical.value for metric in report.metrics if metric.name == "grad_norm"), None)
    is_above = typical is not None and report.grad_norm.value is not None and report.grad_norm.value > typical
    first = report.removals[0]
    yield (
        f"Without rollout {first.sample} of group {first.group_id} the norm would be {first.grad_norm:.3g} instead of "
        f"{report.grad_norm.value:.3g}, with the other {number - 1} weighted as before."
    )
    if typical is None or not is_above:
        return
    if last.grad_norm <= typical:
        yield f"Without {last.num_removed} of {number} rollouts it is at most that of the steps around it."
    else:
        yield (
            f"A few rollouts do not make it: without {last.num_removed} of {number} the norm is {last.grad_norm:.3g}, "
            f"the steps around have {typical:.3g}."
        )


def _repeats(report: SpikeReport) -> Iterator[str]:
    measured = [rollout for rollout in report.rollouts if rollout.repeated_ngrams.is_defined]
    named = [rollout for rollout in measured[:5] if (rollout.repeated_ngrams.value or 0.0) >= MUCH_REPEATED]
    if named:
        middle = statistics.median(rollout.repeated_ngrams.value or 0.0 for rollout in measured)
        parts = [f"{_name(rollout)} ({percent(rollout.repeated_ngrams.value or 0.0)})" for rollout in named]
        yield f"{_listed(parts)} mostly repeat runs of four tokens; the median of the step is {percent(middle)}."


def _tensors(report: SpikeReport) -> Iterator[str]:
    large = [
        parameter
        for parameter in report.tensors[:3]
        if parameter.tensor_share >= LARGE_PART * parameter.frac_parameters and parameter.tensor_share >= 0.1
    ]
    if large:
        shares = [
            (parameter.tensor, percent(parameter.tensor_share), percent(parameter.frac_parameters))
            for parameter in large
        ]
        parts = [f"{tensor} {share} (of the parameters {parameters})" for tensor, share, parameters in shares]
        yield f"Of the squared norm, {_listed(parts)}."


def _name(rollout: SpikeRollout) -> str:
    return f"rollout {rollout.sample} of group {rollout.group_id}"


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
