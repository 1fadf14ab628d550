"""`gradscope spike`: the step that stands out, and the rollouts, tokens and parameters of its gradient.

Shapes: T tokens or words of a completion.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from gradscope.diagnostics.inputs import steps as inputs
from gradscope.diagnostics.logged.metrics import NO_ROLLOUTS, metric_series
from gradscope.errors import InputError
from gradscope.estimate import Estimate
from gradscope.findings.logged import (
    AFTER_CLIPPING,
    ALL_ZERO,
    NEVER_LEARNS,
    NO_CHANGE,
    clip_sentence,
    jump_sentence,
    late_sentence,
    level_sentences,
    reward_level_sentences,
)
from gradscope.findings.spike import may_stand_out, spike_findings, spike_headline
from gradscope.gradients.engine_options import EngineOptions
from gradscope.metrics.gram.geometry import batch_norm, norms_without, projection_shares, removal_order
from gradscope.metrics.gram.spectrum import Array
from gradscope.metrics.uncertainty.levels import MIN_STEPS_OF_LEVELS, jump, late_change
from gradscope.metrics.uncertainty.steps import MIN_NEIGHBORS, StepValues, deviation_of, most_deviating, steps_beyond
from gradscope.progress import Progress, ProgressCallback, no_progress, reporter
from gradscope.reason import Reason
from gradscope.results.norms import SpikeMetric, SpikeRemoval, SpikeReport, SpikeRollout, SpikeTensor, SpikeToken
from gradscope.rollouts.arrays import Counts
from gradscope.rollouts.groups import Rollout, RolloutGroup
from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.run import Run
from gradscope.say import as_ranges, counted, steps_beside

LOSSES = ("loss", "pg_loss", "policy_loss")
_NAMES: tuple[tuple[str, ...], ...] = (("grad_norm",), ("kl", "kl_loss", "ppo_kl", "kl_penalty", "mean_kl"), LOSSES)
"""Numbers that jump with an update that went wrong, each by its trainers' names without their prefix; the first that
is logged decides which step stands out, for a gradient is there before a KL moves."""

_RISES = ((_NAMES[0], 3.0), (_NAMES[1], 10.0), (LOSSES, 100.0))
"""Times its level before from which on a late norm, KL or size of a loss is named. A KL grows by the square where
weights drift evenly, and then has 7.3."""
_EXPLODED = 10.0  # a smaller loss may be advantages of order one, or a KL term that was nothing at first

_FALL = 10.0  # times below its level before from which on a late norm is named: next to nothing is learned any more

_DEAD = "frac_reward_zero_std"
_RATES = ("learning_rate", "lr")
_WARM_UP, _JUMP = 0.2, 5.0  # share of steps that may raise the rate, and times that no schedule raises it later
_START = 0.1  # share of steps within which a peak may be of the start
_MAX_SPANS = 20
_ROUNDING = 1e-3  # of the fifth digit after the point, which is what is left of a rounded number
_FEW_IDLE = 0.05  # share of steps of a warm-up and a decay that may have a learning rate of 0

LoggedSeries = Mapping[str, Mapping[int, float]]  # name -> step -> what was logged


def logged_series(run: Run, *, named: int | None = None) -> LoggedSeries:
    """The logged series of these numbers, each by one of its names; those that no step has are left out.

    So are norms of zero and those of dead steps, which had no gradient, but for that of a step that was ``named``.
    """
    logged: dict[str, StepValues] = {}
    for names in _NAMES:
        chosen = next((key for end in names for key in run.step_metrics.columns if key.rpartition("/")[2] == end), None)
        if chosen is not None:
            steps, values = run.step_metrics.series(chosen)
            if names == _NAMES[0]:
                counts = ((values != 0) & ~_are_dead(run, steps, values)) | (steps == named)
                steps, values = steps[counts], values[counts]
            logged[chosen] = StepValues(steps, values)
    return logged


def _are_dead(run: Run, steps: Counts, norms: Array) -> NDArray[np.bool_]:
    """Which steps have no live group, as logged, and a norm below the median of live steps, where these are enough."""
    # Such a norm is of the KL or of rounding: next to it that of any gradient stands out.
    with_share, shares = run.step_metrics.series(_DEAD)
    with_spread, spreads = run.step_metrics.series("reward_std")
    are_dead = np.isin(steps, np.concatenate([with_share[shares >= 1], with_spread[spreads == 0]]))
    live = norms[~are_dead & np.isfinite(norms)]
    usual = np.median(live) if len(live) > MIN_NEIGHBORS else -math.inf
    return np.asarray(are_dead & (norms < usual))


def outstanding_step(logged: LoggedSeries) -> tuple[int, int]:
    """The step that stands out, and the number of steps of all series among which it was searched for.

    The first step with a number that is not finite, else the furthest of the first series with one beyond chance;
    without any the furthest of the first series.

    Raises:
        InputError: No series has nine steps.
    """
    searched: LoggedSeries = {name: series for name, series in logged.items() if name.rpartition("/")[2] not in LOSSES}
    furthest = _furthest(searched)
    if not furthest:  # a loss jumps without an update that went wrong
        searched, furthest = logged, _furthest(logged)
    num_searched = sum(map(len, searched.values()))
    broken = [step for series in logged.values() for step in StepValues.from_mapping(series).not_finite()]
    if broken:
        return min(broken), num_searched
    for name, step in furthest.items():
        if metric_at(name, logged[name], step, num_chosen_from=num_searched).is_unusual:
            return step, num_searched
    for step in furthest.values():
        return step, num_searched
    raise InputError(
        "No step can be singled out: fewer than nine steps of the log have a gradient norm, a KL or a loss.",
        hint="Name the step with --step, or put the trainer's metrics beside its rollouts.",
    )


def _furthest(logged: LoggedSeries) -> dict[str, int]:
    steps = {name: most_deviating(series) for name, series in logged.items()}
    return {name: step for name, step in steps.items() if step is not None}


def metrics_at(logged: LoggedSeries, step: int, *, num_chosen_from: int) -> tuple[SpikeMetric, ...]:
    """The numbers of a step that was searched for among so many, or named beforehand."""
    return tuple(
        metric_at(name, series, step, num_chosen_from=num_chosen_from)
        for name, series in logged.items()
        if step in series
    )


def spike_sentences(run: Run) -> tuple[str, ...]:
    """What has risen for good, updates without a learning rate, and the step whose norm or KL stands out."""
    with_losses = logged_series(run)
    logged = {name: series for name, series in with_losses.items() if name.rpartition("/")[2] not in LOSSES}
    rises = (*level_changes(with_losses), *_flat_series(run, logged))
    try:
        step, num_searched = outstanding_step(logged)
    except InputError:
        return rises
    metrics = metrics_at(logged, step, num_chosen_from=num_searched)
    is_far = any(metric.is_unusual for metric in metrics) or any(map(may_stand_out, metrics[:1]))
    stands_out = is_far and all(metric.value.is_defined for metric in metrics)
    return (*rises, *([spike_headline(step, metrics, was_named=False)] * stands_out))


def _flat_series(run: Run, logged: LoggedSeries) -> Iterator[str]:
    """Updates without a learning rate beyond both ends of a schedule, and a norm that is its largest at most steps."""
    # Consoles round, verl's to three digits after the point: zeros alone are no proof.
    name = next((name for name in run.step_metrics.columns if name.rpartition("/")[2] in _RATES), "")
    steps, rates = run.step_metrics.series(name)
    idle = steps[rates == 0].tolist()
    if 2 < len(idle) == len(rates) and _has_digits(run):
        yield f"{NEVER_LEARNS} {len(rates):,} steps: {NO_CHANGE}."
    elif 2 < len(idle) == len(rates):
        yield f"The learning rate {ALL_ZERO} {len(rates):,} steps: it is rounded, or {NO_CHANGE}."
    elif len(idle) > max(2, _FEW_IDLE * len(rates)):
        yield f"The learning rate is 0 at {len(idle):,} of {len(rates):,} steps ({_spans(idle)}): {NO_CHANGE}."
    warm = math.ceil(_WARM_UP * len(rates))
    jumps = warm + 1 + np.flatnonzero((rates[warm + 1 :] > _JUMP * rates[warm:-1]) & (rates[warm:-1] > 0))
    fallen = np.where(_JUMP * rates < np.maximum.accumulate(rates), rates, math.inf)
    risen = warm + np.flatnonzero((rates > _JUMP * np.minimum.accumulate(fallen))[warm:])
    if len(risen) and not len(jumps):  # by a warm-up of its own
        top = risen[0] + int(np.argmax(rates[risen[0] :]))
        low = int(np.argmin(fallen[:top]))
        ends = f"{rates[low]:.3g} at step {steps[low]} to {rates[top]:.3g} at step {steps[top]}"
        yield f"The learning rate falls and rises again, from {ends}: a restart."
    for row in jumps[:1].tolist():
        later = _spans(steps[jumps[1:]].tolist())
        cycles = f", and again at {later}: cycles, or restarts" if later else ""
        yield f"The learning rate rises from {rates[row - 1]:.3g} to {rates[row]:.3g} at step {steps[row]}{cycles}."
    name = next((name for name in logged if name.endswith(_NAMES[0])), "")
    steps, norms = run.step_metrics.series(name)
    largest = norms.max(initial=0.0)
    number = np.count_nonzero(norms == largest)
    if len(norms) > 2 and not norms.any():
        yield f"The gradient norm {ALL_ZERO} {len(norms):,} steps: it is rounded, or nothing is learned."
    with_share, shares = run.step_metrics.series(_DEAD)
    are_single = np.diff(steps, prepend=0) <= 1  # of several steps TRL logs the last one's norm, and the mean of shares
    idle = [] if run.groups else np.intersect1d(steps[(norms == 0) & are_single], with_share[shares < 1]).tolist()
    if norms.any() and idle:
        live = f"at {len(idle):,} of {len(norms):,} steps with live groups ({_spans(idle)})"
        why = "it is rounded, or nothing was learned there (at the last step, where a row averages several)"
        yield f"The gradient norm is logged as 0 {live}: {why}."
    if len(norms) >= MIN_STEPS_OF_LEVELS and largest > 0 and number > len(norms) / 2:
        yield f"The gradient norm is {largest:.3g} at {number:,} of {len(norms):,} steps, {AFTER_CLIPPING}."


def _has_digits(run: Run) -> bool:
    """Whether the log has numbers that no console rounds so, with more than five digits after the point."""
    numbers = np.concatenate([run.step_metrics.series(name)[1] for name in run.step_metrics.columns])
    numbers = numbers[np.abs(numbers) < 1.0] * 1e5
    return bool(np.any(np.abs(numbers - np.round(numbers)) > _ROUNDING))


def _spans(steps: Sequence[int]) -> str:
    """Ascending steps in words; of many pieces the first."""
    spans = as_ranges(steps).replace(":", " to ").split(",")
    return ", ".join(spans[:_MAX_SPANS]) + " and others" * (len(spans) > _MAX_SPANS)


def level_changes(logged: LoggedSeries) -> Iterator[str]:
    """A sentence for each number that jumps or has risen for good, or norm that vanishes: no single step shows it."""
    for name, series in logged.items():
        names, factor = next(((names, rise) for names, rise in _RISES if name.rpartition("/")[2] in names), ((), 0.0))
        if names and names != LOSSES and (rise := jump(series, factor=factor)) is not None:
            yield jump_sentence(name, rise)
            continue
        change = late_change(series, factor=factor, by_size=names == LOSSES) if names else None
        if change is None or (names == LOSSES and change.late < _EXPLODED):
            continue
        if change.side > 0 or (names == _NAMES[0] and change.before >= _FALL * change.late):
            yield late_sentence(f"{name}, by its size," if names == LOSSES else name, change)


def levels_left(run: Run) -> tuple[str, ...]:
    """A sentence for each number of a run that has left its level for good: of that a mean over steps says little."""
    metrics = metric_series(run)
    sentences = (*level_changes(logged_series(run)), *reward_level_sentences(metrics), *level_sentences(metrics))
    return (*sentences, *filter(None, [clip_sentence(metrics)]))


def metric_at(name: str, series: Mapping[int, float], step: int, *, num_chosen_from: int) -> SpikeMetric:
    """One number of a step against those of the steps around it; ``num_chosen_from`` of them were searched."""
    is_finite = math.isfinite(series[step])
    no_number = "it was logged as no finite number"
    deviation = deviation_of(series, step, num_chosen_from=num_chosen_from) if is_finite else no_number
    if isinstance(deviation, str):
        unknown = Estimate.undefined_because(deviation)
        value = Estimate.exact(series[step]) if is_finite else unknown
        return SpikeMetric(
            name=name, value=value, typical=unknown, deviation=unknown, by_chance=unknown, is_unusual=not is_finite
        )
    exact = partial(Estimate.exact, num_units=deviation.num_neighbors)
    return SpikeMetric(
        name=name,
        value=Estimate.exact(series[step]),
        typical=exact(deviation.typical),
        deviation=exact(deviation.deviation),
        by_chance=exact(deviation.by_chance),
        is_unusual=deviation.is_unusual,
    )


if TYPE_CHECKING:
    from gradscope.gradients.plan.prepared_step import PreparedStep
    from gradscope.gradients.step.directions import TensorNorm
    from gradscope.gradients.step.step_gram import StepGram
    from gradscope.gradients.tokens.measure import RolloutTokens


def spike_parts(
    prepared: PreparedStep, gram: StepGram, *, progress: ProgressCallback = no_progress, most_tokens: int
) -> tuple[tuple[TensorNorm, ...], tuple[RolloutTokens, ...]]:
    """Each parameter, and so many tokens of the rollouts with the largest parts; none without a gradient."""
    from gradscope.gradients.step.directions import measure_tensor_norms
    from gradscope.gradients.tokens.measure import measure_rollout_tokens

    matrix = _live_gram(gram)
    if matrix is None:
        return (), ()
    tensors = measure_tensor_norms(prepared)
    order = np.argsort(-np.abs(projection_shares(matrix)), kind="stable").tolist()
    live = [index for index in order if matrix[index].any()]
    return tensors, measure_rollout_tokens(prepared, gram, live, max_tokens=most_tokens) if most_tokens else ()


MAX_SHARE_REMOVED = 0.25
"""Share of the rollouts that is left out at most: a step of which more has to go is not made by a few."""
MAX_TOKENS = 20  # tokens that are listed


def _live_gram(gram: StepGram | None) -> Array | None:
    """The inner products of a step's rows by the logged advantages; None without any, or of a gradient that is zero."""
    matrix = None if gram is None else gram.logged_gram
    return matrix if matrix is not None and matrix.sum() > 0 else None


def _rollouts_of(groups: Sequence[RolloutGroup], gram: StepGram | None, why_unknown: str) -> tuple[SpikeRollout, ...]:
    matrix = _live_gram(gram)
    is_known = gram is not None and gram.logged_gram is not None
    unknown = Estimate.undefined_because("the gradient is zero" if is_known else why_unknown)
    parts: dict[tuple[str, int], tuple[Estimate, Estimate]] = {}
    if gram is not None and matrix is not None:
        shares, norms = (map(Estimate.exact, by(matrix).tolist()) for by in (projection_shares, norms_without))
        parts = dict(zip(zip(gram.group_ids, gram.samples, strict=True), zip(shares, norms, strict=True), strict=True))
    rollouts = [
        SpikeRollout(
            group_id=rollout.group_id,
            sample=rollout.sample,
            reward=rollout.reward,
            advantage=rollout.advantage,
            num_tokens=rollout.num_tokens,
            repeated_ngrams=_repeats(rollout),
            projection_share=share,
            norm_without=norm,
        )
        for group in groups
        for rollout in group.rollouts
        for share, norm in [parts.get((rollout.group_id, rollout.sample), (unknown, unknown))]
    ]
    rollouts.sort(
        key=lambda rollout: (abs(rollout.projection_share.value or 0.0), rollout.repeated_ngrams.value or 0.0),
        reverse=True,
    )
    return tuple(rollouts)


def _repeats(rollout: Rollout) -> Estimate:
    items: Sequence[Hashable] = rollout.completion_ids or rollout.completion.split()
    share = repeated_ngrams(items)
    if share is None:
        return Estimate.undefined_because(f"the completion is shorter than {NGRAM}")
    return Estimate.exact(share, num_units=len(items) - NGRAM + 1)


def _removals_of(gram: StepGram | None, typical: float | None) -> tuple[SpikeRemoval, ...]:
    matrix = _live_gram(gram)
    if gram is None or matrix is None:
        return ()
    limit = math.ceil(MAX_SHARE_REMOVED * len(matrix))
    order, norms = removal_order(matrix, max_rows=limit)
    enough = next((num for num, norm in enumerate(norms, start=1) if typical is not None and norm <= typical), limit)
    return tuple(
        SpikeRemoval(num_removed=number, group_id=gram.group_ids[index], sample=gram.samples[index], grad_norm=norm)
        for number, (index, norm) in enumerate(zip(order[:enough], norms, strict=False), start=1)
    )


def _tokens_of(measured: Sequence[RolloutTokens]) -> tuple[SpikeToken, ...]:
    tokens = [
        SpikeToken(
            group_id=rollout.group_id,
            sample=rollout.sample,
            position=position,
            text=text,
            norm=float(rollout.norms[position]),
            weight=float(rollout.weights[position]),
            entropy=float(rollout.entropies[position]),
        )
        for rollout in measured
        for position, text in enumerate(rollout.texts)
        if rollout.is_seen[position]
    ]
    return tuple(sorted(tokens, key=lambda token: token.norm, reverse=True)[:MAX_TOKENS])


def _tensors_of(measured: Sequence[TensorNorm]) -> tuple[SpikeTensor, ...]:
    total = sum(tensor.norm**2 for tensor in measured)
    entries = sum(tensor.num_entries for tensor in measured)
    tensors = [
        SpikeTensor(
            tensor=tensor.tensor,
            norm=tensor.norm,
            tensor_share=tensor.norm**2 / total,
            frac_parameters=tensor.num_entries / entries,
        )
        for tensor in measured
        if total > 0
    ]
    return tuple(sorted(tensors, key=lambda tensor: tensor.tensor_share, reverse=True))


_MAX_LISTED_TOKENS = 512
"""Tokens whose gradients are computed: those of the rollouts with the largest parts, as many as there is room for."""


def measure_spike(
    path: str | Path,
    *,
    step: int | None = None,
    tokens: int = _MAX_LISTED_TOKENS,
    progress: Progress = False,
    read: ReadOptions | None = None,
    engine: EngineOptions | None = None,
) -> SpikeReport:
    """Analyze one step; None: the one whose gradient norm, KL or loss stands out most.

    What was logged at the step against the steps around it; its rollouts, at most ``tokens`` of its tokens and its
    parameters by their part of the gradient, and what the norm would have been without the worst of them. Where the
    gradient cannot be recomputed, what the log alone shows, and why.

    Raises:
        InputError: The log holds nothing of the step, or no step can stand out.
    """
    progress = reporter(progress)
    run = read_run(path, read, progress=progress, metrics_alone=True)
    logged = logged_series(run, named=step)
    chosen, num_searched = outstanding_step(logged) if step is None else (step, 1)
    if chosen not in run.updates and chosen not in run.metrics:
        raise InputError(f"{run.source.path} has nothing of step {chosen}.", hint=steps_beside(run.every_step, chosen))
    if chosen in run.updates:
        question = partial(spike_parts, most_tokens=tokens)
        (measured,) = inputs.measure_steps(run, [chosen], engine or EngineOptions(), progress, question)
    else:
        why = NO_ROLLOUTS if run.source.kind == "metrics" else f"the log has no rollouts of step {chosen}"
        reason = Reason("rollouts_missing", why)
        measured = inputs.MeasuredStep(step=chosen, groups=(), weights=None, gram=None, reason=reason)
    metrics = metrics_at(logged, chosen, num_chosen_from=num_searched)
    return _report(run, chosen, logged, metrics, measured, was_named=step is not None)


def _also_unusual(run: Run, step: int, logged: LoggedSeries, *, stands_out: bool) -> Iterator[SpikeMetric]:
    """Other numbers that are further off, up or down, than the furthest of as many is by chance."""
    # That is the chance of one step; a step that was searched for among all stands out by its series. A number that
    # rises or falls at every step is a clock, a counter or a schedule; copies under other names count once.
    names = (*logged, *(name for name in run.metrics.get(step, {}) if name.rpartition("/")[2] not in _RATES))
    first_names: dict[tuple[bytes, bytes], str] = {}
    for name in names:
        steps, values = run.step_metrics.series(name)
        first_names.setdefault((steps.tobytes(), values.tobytes()), name)
    compared = [name for name in first_names.values() if name not in logged and not _is_steady(run, name)]
    for name in compared:
        metric = metric_at(name, run.step_metrics.by_step(name), step, num_chosen_from=len(compared))
        if abs(metric.deviation.value or 0.0) > (metric.by_chance.value or math.inf):
            yield replace(metric, is_unusual=stands_out)


def _is_steady(run: Run, name: str) -> bool:
    signs = np.sign(np.diff(run.step_metrics.series(name)[1]))
    return len(signs) > 1 and signs[0] != 0 and bool(np.all(signs == signs[0]))


def _report(
    run: Run,
    step: int,
    logged: LoggedSeries,
    series_metrics: tuple[SpikeMetric, ...],
    measured: inputs.MeasuredStep,
    *,
    was_named: bool,
) -> SpikeReport:
    stands_out = was_named or any(metric.is_unusual for metric in series_metrics)
    metrics = (*series_metrics, *_also_unusual(run, step, logged, stands_out=stands_out))
    gram, reason = measured.gram, measured.reason
    matrix = None if gram is None else gram.logged_gram
    why = "advantages were not logged for every rollout" if reason is None else str(reason).rstrip(".")
    if reason is not None and reason.cause in ("weights_missing", "first_weights_missing"):
        computable = inputs.computable_steps(run)
        why += f"; steps that can be: --step {as_ranges(computable)}" if computable else ""
    typical = next((metric.typical.value for metric in metrics if metric.name == "grad_norm"), None)
    tensors, tokens = measured.answer or ((), ())
    steps, values = run.step_metrics.series(next(iter(logged), ""))
    is_finite = np.isfinite(values)
    report = SpikeReport(
        source=inputs.with_damage(run, {} if reason is None else {step: reason}, ()),
        step=step,
        was_named=was_named,
        metrics=metrics,
        course=dict(zip(steps[is_finite].tolist(), values[is_finite].tolist(), strict=True)),
        grad_norm=Estimate.undefined_because(why)
        if matrix is None
        else Estimate.exact(batch_norm(matrix), num_units=len(matrix)),
        rollouts=_rollouts_of(run.groups_at(step), gram, why),
        removals=_removals_of(gram, typical),
        tokens=_tokens_of(tokens),
        tensors=_tensors_of(tensors),
        engine=inputs.describe_engine(gram.describe(), {}) if gram is not None else {},
    )
    levels = [*level_changes(logged), *_flat_series(run, logged)]
    if stands_out:
        return spike_findings(report, [*_more_steps(logged, report), *levels])
    report = spike_findings(report)
    return replace(report, findings=(*levels, *report.findings))


def _more_steps(logged: LoggedSeries, report: SpikeReport) -> Iterator[str]:
    """The other steps that are broken, or beyond chance by a number by which this one stands out."""
    unusual = [metric for metric in report.metrics if metric.is_unusual and metric.name in logged]
    if report.was_named or not unusual:
        return
    broken = {step for series in logged.values() for step in StepValues.from_mapping(series).not_finite()}
    if broken:
        beyond = {"a number that is not finite": broken}
    else:
        limits = {metric.name: metric.by_chance.value or math.inf for metric in unusual}
        beyond = {f"{name} beyond chance": set(steps_beyond(logged[name], end)) for name, end in limits.items()}
    for number, steps in beyond.items():
        if rest := sorted(steps - {report.step}):
            yield f"{counted(len(rest), 'more step')} with {number}: {_spans(rest)}."
    all_steps, far = sorted(set().union(*logged.values())), set().union(*beyond.values())
    starts = all_steps[: math.ceil(_START * len(all_steps))]
    if not broken and starts[0] in far and far <= set(starts):
        yield f"No step after {max(far)} is beyond chance: norms are often high before the first updates have settled."


NGRAM = 4  # length of the runs that are counted, as in the source: shorter ones repeat in any text


def repeated_ngrams(items: Sequence[Hashable], *, length: int = NGRAM) -> float | None:
    """1 - distinct runs / runs of a few items, ids or words [T]: 0 if none is there twice (seq-rep-n, 1908.04319).

    >>> repeated_ngrams("a b c d a b c d".split()), repeated_ngrams("a b c d e f g h".split())
    (0.19999999999999996, 0.0)
    """
    runs = [tuple(items[start : start + length]) for start in range(len(items) - length + 1)]
    return 1 - len(set(runs)) / len(runs) if runs else None
