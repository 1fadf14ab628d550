"""Sentences about a step: whether it stands out from those around it, and the parts of its gradient."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import TYPE_CHECKING

from msgspec.structs import replace

from gradscope.say import amount, listed, percent

if TYPE_CHECKING:  # what only names a type is not loaded with every log
    from gradscope.results.norms import SpikeMetric, SpikeReport

OTHER_GRADIENT = 1e-3
"""Relative difference from the logged norm from which on the recomputed gradient is another one than the trainer's."""
LARGE_PART = 5.0  # times the equal share from which on a rollout or a parameter is named
MUCH_REPEATED = 0.5  # share of repeated runs of tokens from which on a text is named


def spike_findings(report: SpikeReport, steps: Sequence[str] = ()) -> SpikeReport:
    """The report with its sentences: whether the step stands out, other ``steps``, and the parts of its gradient."""
    sentences = [spike_headline(report.step, report.metrics, was_named=report.was_named), *steps]
    logged = next((metric.value.value for metric in report.metrics if metric.name == "grad_norm"), None)
    norm = report.grad_norm.value
    if norm is None:
        sentences.append(f"Its gradient could not be recomputed: {report.grad_norm.undefined}.")
    elif logged is not None and abs(norm - logged) > OTHER_GRADIENT * abs(logged):
        sentences.append(
            f"The recomputed norm is {norm:.4g}, the logged one {logged:.4g}: what follows describes another gradient "
            "than the trainer's; `gradscope replay` says why."
        )
    sentences += _rollouts(report)
    measured = [rollout for rollout in report.rollouts if rollout.repeated_ngrams.is_defined]
    repeated = [
        f"rollout {rollout.sample} of group {rollout.group_id} ({percent(share)})"
        for rollout in measured[:5]
        if (share := rollout.repeated_ngrams.value or 0.0) >= MUCH_REPEATED
    ]
    if repeated:
        middle = percent(median(rollout.repeated_ngrams.value or 0.0 for rollout in measured))
        sentences.append(f"{listed(repeated)} mostly repeat runs of four tokens; the median of the step is {middle}.")
    large = [
        f"{tensor.tensor} {percent(tensor.tensor_share)} (of the parameters {percent(tensor.frac_parameters)})"
        for tensor in report.tensors[:3]
        if tensor.tensor_share >= max(LARGE_PART * tensor.frac_parameters, 0.1)
    ]
    if large:
        sentences.append(f"Of the squared norm, {listed(large)}.")
    return replace(report, findings=tuple(sentences))


def spike_headline(step: int, metrics: Sequence[SpikeMetric], *, was_named: bool) -> str:
    """Whether a step stands out, by its logged numbers against those of the steps around it."""
    broken = [metric.name for metric in metrics if not metric.value.is_defined]
    if broken:
        return f"Step {step} is broken: {listed(broken)} {'were' if broken[1:] else 'was'} logged as NaN or infinity."
    unusual = [metric for metric in metrics if metric.is_unusual]
    if unusual:
        rest = [f"{metric.name} ({amount(metric.value.value or 0.0)})" for metric in unusual[1:]]
        also = f"; also {listed(rest)}" if rest else ""
        return f"Step {step} stands out: {_described(unusual[0], was_named=was_named)}{also}."
    compared = [metric for metric in metrics if metric.deviation.is_defined]
    if not compared:
        reason = metrics[0].typical.undefined if metrics else "no gradient norm, KL or loss was logged at it"
        return f"It is unknown whether step {step} stands out: {reason}."
    text = _described(compared[0], was_named=was_named)
    if may_stand_out(compared[0]):
        return f"Step {step} may stand out: {text}, with a tail as heavy as that of the run's other steps."
    if was_named:
        return f"Step {step} does not stand out: {text}."
    return f"No step stands out. The furthest is step {step}: {text}."


def may_stand_out(metric: SpikeMetric) -> bool:
    """Whether a number is ten times its neighbors' or more, and further from them than normal steps ever are."""
    # Where such a step is no more than a heavy tail of the run's own might make, the run alone cannot tell.
    estimates = (metric.value, metric.typical, metric.deviation)
    value, typical, deviation = (estimate.value or 0.0 for estimate in estimates)
    return value >= _TEN_TIMES * typical > 0 and deviation >= _SIX_DEVIATIONS


_TEN_TIMES = 10.0
_SIX_DEVIATIONS = 6.0  # standard deviations: of 1,000 log-normal steps the furthest is 5 off in one run of twenty


def _described(metric: SpikeMetric, *, was_named: bool) -> str:
    values = (metric.value.value, metric.typical.value, metric.deviation.value, metric.by_chance.value)
    value, typical, deviation, by_chance = (0.0 if number is None else number for number in values)
    times = f", {value / typical:.3g} times" if value > 0 and typical > 0 else ", against"
    chance = f"chance reaches {by_chance:.1f} in one {'step' if was_named else 'run'} of twenty"
    return (
        f"{metric.name} {value:.3g}{times} the {typical:.3g} of the {metric.typical.num_units} steps around it, "
        f"{deviation:.1f} standard deviations, where {chance}"
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
