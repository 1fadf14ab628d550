"""`gradscope replay`: does the log reproduce the trainer's numbers?

Reward, advantages and the share of degenerate groups are arithmetic on the log. The gradient norm is the hard one: it
comes out right only with the weights before the update, the exact token ids and the trainer's own loss, so a match to
1e-5 proves all three at once, and a mismatch is a finding. A norm in float32 is reproduced to rounding or not at all;
one that was computed in bfloat16 or float16, or that includes a router's term over unlogged micro-batches, can be
reproduced only as precisely as its own arithmetic repeats: it matches within the spread of random orders, is a mismatch
well beyond it, and undecided in between.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from gradscope.advantages.registry import named_formulation
from gradscope.diagnostics.inputs import steps as inputs
from gradscope.diagnostics.replay.log_arithmetic import (
    COARSE,
    LOG_DIGITS,
    LOG_TOLERANCE,
    Outcome,
    batch_of_step,
    half_digit,
    not_logged,
    refused,
    replay_advantages,
    replay_rewards,
    replay_zero_std,
    without_advantages,
    without_rollouts,
)
from gradscope.diagnostics.replay.mismatch import (
    NORM,
    TRIED,
    Fit,
    common_cause,
    defaults,
    fit_choice,
    fit_of,
    fit_temperature,
    inferred,
    why_unmet,
    without_chance,
)
from gradscope.estimate import Estimate
from gradscope.findings.logged import LOGPROB_BOUND, logprob_findings
from gradscope.gradients.engine_options import EngineOptions
from gradscope.metrics.gram.geometry import EXACTLY, GRAD_NORM_TOLERANCE, NEAR, ROUNDING_FLOOR
from gradscope.option import options_of
from gradscope.progress import Progress, ProgressCallback, reporter
from gradscope.reason import Reason
from gradscope.results.norms import LogprobDifference, Quantity, ReplayReport, ReplayVerdict, StepReplay
from gradscope.rollouts.groups import RolloutGroup
from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.run import Run
from gradscope.say import as_ranges, in_two_digits, named_steps, non_finite_word

if TYPE_CHECKING:
    from gradscope.gradients.step.step_gram import StepNorm
    from gradscope.gradients.trained.norms import TrainedNorms


WELL_BEYOND = 3.0  # half widths of the spread beyond which a norm in reduced precision is another one
_HALF_ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
"""Relative rounding of one number: another device's kernels may shift a norm by as much, whatever the order."""


def replay_grad_norm(run: Run, measured: inputs.MeasuredStep, tolerance: float) -> Outcome:
    """The gradient norm: verdict, recomputed value, relative error."""
    logged, step_norm = run.metrics.get(measured.step, {}).get(NORM), measured.recomputed
    if step_norm is None:
        assert measured.reason is not None, "a step that was not recomputed has its reason"
        return refused(NORM, measured.reason)
    if step_norm.norm is None:
        return refused(NORM, without_advantages(measured.groups))
    value = step_norm.trained.mean if step_norm.trained else step_norm.norm
    if logged is None:
        return refused(NORM, not_logged(run, measured.step, NORM), value)
    if not math.isfinite(logged):
        cause = f"the trainer logged {non_finite_word(logged)}, and the recomputed norm is {value:.6g}"
        return refused(NORM, Reason("not_finite", cause), value)
    error = abs(value - logged) / abs(logged) if logged else abs(value)
    text = f"the log has 0, the recomputed norm is {value:.6g}"
    if logged:
        text = f"the recomputed norm is {in_two_digits(error)} off"
    if max(value, abs(logged)) <= step_norm.floor:
        return refused(NORM, Reason("no_gradient", _why_zero(measured)), value)  # an error of 0 would read as a match
    difference, allowed = abs(value - logged), max(tolerance * abs(logged), step_norm.floor)
    if difference <= allowed:
        return Quantity(name=NORM, verdict="match", cause=_caveats(run, measured, step_norm)), value, error
    half_unit = run.half_unit(measured.step, NORM)
    if difference <= allowed + half_unit:
        rounded = f"the log has the norm to {in_two_digits(half_unit / abs(logged))}, as it was rounded"
        if half_unit > COARSE * abs(logged):
            return refused(NORM, Reason("precision", rounded, hint=LOG_DIGITS), value, error)
        notes = [rounded, _caveats(run, measured, step_norm)]
        return Quantity(name=NORM, verdict="match", cause="; ".join(filter(None, notes))), value, error
    half = half_digit(rollout.advantage or 0.0 for group in measured.groups for rollout in group.rollouts)
    if half and difference <= half * step_norm.floor / ROUNDING_FLOOR:
        rounded = f"the logged advantages are rounded to {2 * half:g}, which may move the norm further than it is off"
        return refused(NORM, Reason("precision", rounded, hint=LOG_DIGITS), value, error)
    if step_norm.trained is not None:
        return _judge_reduced(run, measured, step_norm, step_norm.trained, logged, error)
    return refused(NORM, why_unmet(run, measured, step_norm, text), value, error)


def replay_texts(norm: StepNorm) -> Outcome:
    """Texts that are not of their ids: the norm is of the ids."""
    rows = ", ".join(map(str, norm.other_texts[:8]))
    number = f"{len(norm.other_texts)} of {norm.num_rollouts}"
    text = f"the texts of {number} completions are not those of their ids, row {rows}"
    return refused("completion", Reason("texts_differ", text))


def _judge_reduced(
    run: Run, measured: inputs.MeasuredStep, step_norm: StepNorm, trained: TrainedNorms, logged: float, error: float
) -> Outcome:
    tolerance, value = trained.told_within, trained.mean
    is_near = abs(value - logged) <= WELL_BEYOND * tolerance * value
    if trained.num_ties and is_near:
        ties = (
            f"the entropies of {trained.num_ties} tokens lie within rounding of top_entropy_quantile: as these are "
            f"masked, the norm moves by {in_two_digits(tolerance)}, and the logged one is {in_two_digits(error)} off"
        )
        return refused(NORM, Reason("entropy_ties", ties), value, error)
    spread = f"the spread of {trained.dtype} over orders of the rollouts, {in_two_digits(tolerance)}"
    unnamed = [name for name in ("bf16", "per_device_train_batch_size") if run.settings.get(name) is None]
    is_guess = trained.dtype != "float32" and "bf16" in unnamed and run.settings.origin is not None
    spread += " (whether it computed so is not in the arguments)" if is_guess else ""
    if trained.meets(logged):
        sampled = logprob_difference(measured.groups, step_norm.logprobs) if is_guess else None
        if sampled is not None and sampled.max <= LOG_TOLERANCE and measured.step not in run.repeats:
            text = f"within {spread}, and the logged log-probabilities are those of float32"
            return refused(NORM, Reason("precision", text, "Give bf16 with --run-config."), value, error)
        notes = [f"within {spread}", _caveats(run, measured, step_norm)]
        return Quantity(name=NORM, verdict="match", cause="; ".join(note for note in notes if note)), value, error
    difference = f"the recomputed norm is {in_two_digits(error)} off, beyond {spread}"
    if trained.is_vague and is_near:
        vague = f"{spread}, is so wide that other weights or ids may give the logged norm, too"
        return refused(NORM, Reason("precision", vague), value, error)
    is_close = is_near or error <= _HALF_ROUNDING.get(trained.dtype, 0.0)
    if is_close and run.settings.origin is not None and not step_norm.num_inferred_ids:
        hint = "Replay on the device that trained to settle it." if trained.dtype == "float32" else ""
        hint = f"Give {' and '.join(unnamed)} with --run-config." if unnamed and not hint else hint
        closer = Reason(
            "precision", f"{difference}, but not beyond what another device's arithmetic may shift it", hint
        )
        return refused(NORM, closer, value, error)
    return refused(NORM, why_unmet(run, measured, step_norm, difference), value, error)


def _without_guess(run: Run, measured: inputs.MeasuredStep) -> inputs.MeasuredStep:
    """A step in float32, where its arguments name no precision and its norm is off in the one that is guessed, too."""
    gram, logged = measured.gram, run.metrics.get(measured.step, {}).get(NORM)
    is_named = run.settings.name_precision or run.settings.get("trainer") is not None
    if gram is None or (trained := gram.trained) is None or logged is None or is_named:
        return measured
    shift = max(WELL_BEYOND * trained.told_within, _HALF_ROUNDING.get(trained.dtype, 0.0))
    is_off = abs(trained.mean - logged) > shift * trained.mean
    return replace(measured, gram=replace(gram, trained=None)) if is_off else measured


def _why_zero(measured: inputs.MeasuredStep) -> str:
    rollouts = [rollout for group in measured.groups for rollout in group.rollouts]
    if all(rollout.advantage == 0.0 for rollout in rollouts):
        return "every advantage is 0, so that the norm is zero in the log and here whatever weights and ids are"
    start = "the norm is zero in the log and here although advantages are not"
    by_group = ([rollout for rollout in group.rollouts if rollout.advantage != 0.0] for group in measured.groups)
    if all(len({(live.completion, *(live.completion_ids or ())) for live in group}) <= 1 for group in by_group):
        return f"{start}: the completions of a group are all the same, so that their gradients cancel"
    return (
        f"{start}: all tokens are clipped or left out of the loss, or no gradient reaches what was trained, as where "
        "the invocation tokens of an aLoRA adapter do not occur"
    )


def _caveats(run: Run, measured: inputs.MeasuredStep, step_norm: StepNorm) -> str | None:
    """Assumptions that a match rests on, because they were not logged."""
    notes = [inferred(step_norm)]
    if measured.loss is not None and measured.loss.resumed:
        notes.append("training was resumed before this step, as no file says and the norm shows")
    used = (measured.weights, *(measured.loss.weights if measured.loss else ()))
    if resumed := next((saved.path.name for saved in used if saved and saved.kept_from is not None), ""):
        notes.append(
            f"training was resumed from {resumed} without the tensors that it has under other names than the model, "
            "which Transformers skips: as the norm shows, they began again as before the first update"
        )
    if measured.loss is not None and measured.loss.by_logged:
        notes.append("the ratio is to the logged log-probabilities, as no argument says and the norm shows")
    if inputs.counts_from_0(run) and measured.weights != run.weights_before(measured.step):
        notes.append(
            "steps are counted from 0, and a checkpoint is that before the step of its number, as the norm shows"
        )
    if run.settings.origin is None:
        notes.append(f"the loss settings were not given and {defaults(run)} fit")
    return "; ".join(note for note in notes if note) or None


def logprob_difference(groups: Sequence[RolloutGroup], recomputed: Sequence[np.ndarray]) -> LogprobDifference | None:
    """|logged - recomputed| over a step's sampled tokens; None where no log-probabilities of exact ids were logged."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    differences = [
        np.abs(np.asarray(rollout.logprobs, dtype=np.float64) - ours)[rollout.counted(len(ours))]
        for rollout, ours in zip(rollouts, recomputed, strict=True)
        if rollout.logprobs is not None and len(rollout.logprobs) == len(ours)
    ]
    tokens = np.concatenate([np.zeros(0), *differences])
    if not tokens.size or not np.all(np.isfinite(tokens)):
        return None
    return LogprobDifference(
        num_tokens=int(tokens.size),
        mean=float(tokens.mean()),
        max=float(tokens.max()),
        frac_beyond=float(np.mean(tokens > LOGPROB_BOUND)),
        bound=LOGPROB_BOUND,
    )


_CARRIED = ("device", "dtype", "precision", "batch_tokens")  # engine options that ``gradscope check`` has too


def equivalent_check(path: str | Path, steps: Sequence[int] | None, read: ReadOptions, engine: EngineOptions) -> str:
    """The ``gradscope check`` command, a line for a shell, for a replay of these steps (None: of all).

    >>> equivalent_check("my-run", (1, 2, 3, 6), ReadOptions(), EngineOptions())
    "gradscope check my-run --require 'frac_replay_mismatch@1:3,6 == 0'"
    """
    ends = f":{steps[0]}" if steps is not None and len(steps) == 1 else ""  # a bare number is a budget
    selector = "" if steps is None else f"@{as_ranges(steps)}{ends}"
    flags, defaults = options_of(EngineOptions), EngineOptions()
    changed = [name for name in _CARRIED if getattr(engine, name) != getattr(defaults, name)]
    engine_options = [(flags[name].flags[0], str(getattr(engine, name))) for name in changed]
    options = [word for flag, value in (*read.spelled(), *engine_options) for word in (flag, value)]
    return shlex.join(["gradscope", "check", str(path), *options, "--require", f"frac_replay_mismatch{selector} == 0"])


def replay_run(
    path: str | Path,
    *,
    steps: Sequence[int] | None = None,
    tolerance: float = GRAD_NORM_TOLERANCE,
    advantage: str | None = None,
    progress: Progress = False,
    read: ReadOptions | None = None,
    engine: EngineOptions | None = None,
) -> ReplayReport:
    """Recompute what the trainer logged.

    Args:
        steps: Steps to replay; None: all that were logged.
        tolerance: Largest relative error of ``grad_norm`` that counts as a match.
        advantage: The formulation to hold the logged advantages to, ``my.py:name`` for one of your own; None: the one
            that the folder names.
    """
    progress = reporter(progress)
    run = read_run(path, read, progress=progress)
    if advantage is not None:
        run = replace(run, settings=run.settings.with_values({"advantage": named_formulation(advantage).name}))
    engine = engine or EngineOptions()
    chosen = tuple(sorted({*run.updates, *run.notes})) if steps is None else inputs.select_steps(run, steps)
    replayed: list[StepReplay] = []
    described: list[Mapping[str, object]] = []
    for measured in inputs.measure_steps(run, chosen, engine, progress, bound_rounding=True, norm_only=True):
        replayed.append(replay_step(run, measured, tolerance))
        described += [measured.recomputed.described] if measured.recomputed else []
    uncached = replace(engine, unfinished=None)  # other arguments are tried
    replayed = _in_one_precision(run, replayed, uncached, tolerance, progress)
    fit = _fit_with_kl(run, replayed, uncached, tolerance, progress) or fit_of(run, replayed)
    fit = fit or fit_temperature(run, replayed, uncached, progress) or fit_choice(run, replayed, uncached, progress)
    report = replay_report(run, replayed, described, tolerance, fit)
    if tolerance != GRAD_NORM_TOLERANCE:
        return report
    check = equivalent_check(path, None if steps is None else chosen, read or ReadOptions(), engine)
    return replace(report, equivalent_check=check)


def _in_one_precision(
    run: Run, steps: Sequence[StepReplay], engine: EngineOptions, tolerance: float, progress: ProgressCallback
) -> list[StepReplay]:
    """Steps in float32 where norms tell that it was that, and others were judged by a guess of the precision."""
    guessed = [step.step for step in steps if step.told_within is not None]
    met = [step for step in steps if step.verdict_on(NORM) == "match"]
    exact = [step for step in met if step.told_within is None and step.relative_error[NORM] <= EXACTLY]
    if run.settings.name_precision or not guessed or len(exact) <= len(met) / 2:
        return list(steps)
    run = replace(run, settings=run.settings.with_values({"bf16": False}))
    measured = inputs.measure_steps(run, guessed, engine, progress, bound_rounding=True, norm_only=True)
    replayed = {step.step: replay_step(run, step, tolerance) for step in measured}
    return [replayed.get(step.step, step) for step in steps]


def _fit_with_kl(
    run: Run, steps: Sequence[StepReplay], engine: EngineOptions, tolerance: float, progress: ProgressCallback
) -> Fit | None:
    """The ``beta`` that the logged norms fit, where TRL logged a ``kl`` and the arguments have no KL term."""
    unmet = [step.step for step in steps if step.verdict_on(NORM) == "mismatch" and run.metrics[step.step].get("kl")]
    if not unmet or not run.trained_by_trl or run.settings.get("beta") or run.settings.are_of_rloo:
        return None
    run = replace(run, settings=run.settings.with_values({"beta": 1.0}))
    measured = inputs.measure_steps(run, unmet[:TRIED], engine, progress, bound_rounding=True, norm_only=True)
    fit = fit_of(run, [replay_step(run, step, tolerance) for step in measured])
    return None if fit is None else replace(fit, stated=0.0)


def replay_report(
    run: Run,
    steps: Sequence[StepReplay],
    described: Iterable[Mapping[str, object]] = (),
    tolerance: float = GRAD_NORM_TOLERANCE,
    fit: Fit | None = None,
) -> ReplayReport:
    """A verdict per step and quantity; ``described`` are the engine's facts of the recomputed steps."""
    # a KL term is in no default, and does nothing before the first update; TRL logs it wherever it is
    no_kl = not run.step_metrics.series("kl")[1].any() and (run.trained_by_trl or run.settings.get("beta") == 0)
    for name, open_for in (("advantage", _DEFAULTS), (NORM, (*_DEFAULTS * no_kl, "batch_split"))):
        fits = [step.step for step in steps if step.verdict_on(name) == "match" and step.recomputed.get(name)]
        pairs = [(step, _open(step, name, open_for)) for step in steps]
        # another formula may agree with the default in one group; no norm does by chance
        if fits and (name == NORM or len(fits) > sum(unmet is not None for _, unmet in pairs)):
            steps = [step if unmet is None else _settled(run, step, unmet, fits) for step, unmet in pairs]
    steps = without_chance(steps)
    is_off = any(step.verdict_on(NORM) == "mismatch" for step in steps)
    if (fit := fit or (fit_of(run, steps) if is_off else None)) is not None:
        steps = list(map(fit.explain, steps))
    verdicts = [step.verdict for step in steps]
    unreadable = {
        step.step: Reason("weights_unreadable", step.cause or "its weights cannot be read")
        for step in steps
        if any(quantity.reason == "weights_unreadable" for quantity in step.quantities)
    }
    judged = [verdict for verdict in verdicts if verdict in ("match", "mismatch")]
    beyond = [step.step for step in steps if _is_beyond(step)]
    overall: ReplayVerdict = next((worst for worst in _WORST_FIRST if worst in verdicts), "cannot")
    tested = any(step.verdict_on("advantage") != "cannot" for step in steps if step.verdict_on(NORM) == "match")
    undefined = "" if judged else "no step could be recomputed and judged"
    if overall == "match" and len(beyond) >= max(2, verdicts.count("match")):
        overall, undefined = "cannot", "no fewer norms lie beyond their spread than match"
    return ReplayReport(
        source=inputs.with_damage(run, unreadable, ()),
        steps=tuple(steps),
        verdict=overall,
        headline=_headline(overall, verdicts) + "; advantages as logged" * (overall == "match" and not tested),
        frac_replay_mismatch=Estimate.undefined_because(undefined)
        if undefined
        else Estimate.exact(judged.count("mismatch") / len(judged), num_units=len(judged)),
        tolerance=tolerance,
        engine=reduce(lambda before, after: inputs.describe_engine(after, before), described, {}),
        findings=(
            *_findings(run, steps, beyond),
            *without_rollouts(run),
            *_untested(run, steps, fit.name if fit else ""),
        ),
    )


def _is_beyond(step: StepReplay) -> bool:
    """Whether a norm lies beyond its spread, and not because of how it was rounded for the log."""
    if step.told_within is None or step.relative_error.get(NORM, 0.0) <= step.told_within:
        return False
    return any(q.name == NORM and q.reason == "precision" and q.advice != LOG_DIGITS for q in step.quantities)


def _untested(run: Run, steps: Sequence[StepReplay], fitted: str) -> Iterator[str]:
    """Arguments that a match does not test: those without an effect at these steps, or behind logged advantages."""
    matched = [step for step in steps if step.verdict_on(NORM) == "match"]
    if not matched:
        return
    untested = set.intersection(*(set(step.untested) for step in matched))
    shows_updates = run.trained_by_trl and run.settings.updates_per_batch == 1
    if not shows_updates and not any(step.step in run.repeats for step in matched):
        untested |= {"num_iterations"} & run.settings.values.keys()
    untested -= {fitted}  # other steps decide it
    if untested:
        unmet = [step for step in steps if step.verdict_on(NORM) == "mismatch" and NORM in step.relative_error]
        # a bound that the ratios of a used batch do not reach may yet be too far off
        may_be = [
            untested if step.step in run.repeats else untested - set(step.untested) for step in unmet if not fitted
        ]
        causes = untested.intersection(*may_be) if may_be else set()
        names = "each" if causes == untested else ", ".join(sorted(causes))
        why = f" Of these, {names} may be why others are off." * bool(causes)
        effect = f"the norms{' that match' * bool(unmet)} would be the same with other values"
        yield f"Not tested, as {effect}: {', '.join(sorted(untested))}.{why}"
    if as_logged := [step.step for step in matched if step.verdict_on("advantage") == "cannot"]:
        formula = "their formula" + ", with beta" * run.settings.are_of_rloo
        yield f"Not tested, as advantages were taken from the log at {named_steps(as_logged)}: {formula}."


_DEFAULTS = ("settings_unknown",)
_WORST_FIRST: tuple[ReplayVerdict, ...] = ("mismatch", "match")


def _open(step: StepReplay, name: str, open_for: tuple[str, ...]) -> Quantity | None:
    """A quantity of a step that differs under default assumptions; None where it does not."""
    if step.relative_error.get(name, 0.0) <= (0.0 if name == NORM else NEAR * LOG_TOLERANCE):
        return None
    return next((row for row in step.quantities if row.name == name and row.reason in open_for), None)


def _moved_by(run: Run, step: int) -> set[str]:
    """Traits that give the step another norm under another loss than the default; without them a match proves none."""
    rollouts = [rollout for group in run.groups_at(step) for rollout in group.rollouts]
    lengths = {rollout.counted(rollout.num_tokens or 0).sum() for rollout in rollouts}
    return {rollout.status for rollout in rollouts} & {"truncated"} | ({"lengths"} if len(lengths) > 1 else set())


def _settled(run: Run, step: StepReplay, unmet: Quantity, fits: Sequence[int]) -> StepReplay:
    """A step whose quantity differs, as the same assumptions fit other steps."""
    if unmet.name == NORM and unmet.reason == "settings_unknown":
        moved_by = _moved_by(run, step.step)
        # of a reused batch nothing is proved: at other steps its ratios may be 1, or within any clip
        fits = [] if step.step in run.repeats else [fit for fit in fits if moved_by <= _moved_by(run, fit)]
    if not fits:
        return step
    text = f"{unmet.cause}; but computed in the same way step {fits[0]} matches"
    settled = refused(unmet.name, Reason("differs" if unmet.name == NORM else "log_differs", text))[0]
    quantities = tuple(settled if quantity is unmet else quantity for quantity in step.quantities)
    return replace(
        step, verdict="mismatch", cause=step.cause if step.verdict == "mismatch" else text, quantities=quantities
    )


def _headline(first: ReplayVerdict, verdicts: Sequence[ReplayVerdict]) -> str:
    counts = {verdict: verdicts.count(verdict) for verdict in ("mismatch", "match", "cannot")}
    num_first = counts.pop(first)
    rest = "".join(f"; {number} {verdict}" for verdict, number in counts.items() if number)
    num_dead = verdicts.count("no_gradient")
    if num_dead and not num_first:
        return f"{first}: {num_dead} of {len(verdicts)} step{'' if len(verdicts) == 1 else 's'} without a gradient"
    rest += f"; {num_dead} without a gradient" if num_dead else ""
    return f"{first} at {num_first} of {len(verdicts)} step{'' if len(verdicts) == 1 else 's'}{rest}"


def replay_step(run: Run, measured: inputs.MeasuredStep, tolerance: float) -> StepReplay:
    """A step's logged quantities against those recomputed from its rollouts and weights."""
    measured = _without_guess(run, measured)
    logged = dict(run.metrics.get(measured.step, {}))
    quantities, recomputed, errors = [], {}, {}
    batch = batch_of_step(run, measured)
    parts = [] if measured.step in run.repeats else [replay_rewards(run, measured, batch)]
    counts_kl = run.settings.are_of_rloo  # its share is of rewards less their KL
    logs_share = run.trained_by_trl or "frac_reward_zero_std" in run.step_metrics.columns
    if parts and logs_share and run.settings.get("trainer") is None and not counts_kl:
        parts.append(replay_zero_std(run, measured, batch))
    texts = [replay_texts(step_norm)] if (step_norm := measured.recomputed) and step_norm.other_texts else []
    parts += [replay_advantages(run, measured, batch), *texts, replay_grad_norm(run, measured, tolerance)]
    for quantity, value, error in parts:
        quantities.append(quantity)
        if value is not None:
            recomputed[quantity.name] = value
        if error is not None:
            errors[quantity.name] = error
    verdicts = [quantity.verdict for quantity in quantities]
    verdict: ReplayVerdict = "mismatch" if "mismatch" in verdicts else quantities[-1].verdict
    cause = next((q.cause for q in reversed(quantities) if q.verdict == verdict and q.cause), None)
    return StepReplay(
        step=measured.step,
        weights=measured.weights.path.name if measured.weights else None,
        verdict=verdict,
        cause=cause,
        quantities=tuple(quantities),
        logged={name: logged[name] for name in ("reward", "frac_reward_zero_std", "grad_norm") if name in logged},
        recomputed=recomputed,
        relative_error=errors,
        num_inferred_ids=step_norm.num_inferred_ids if step_norm else 0,
        frac_kl=step_norm.parts.get("kl", (None,))[0] if step_norm else None,
        told_within=step_norm.trained.told_within if step_norm and step_norm.trained else None,
        parts=step_norm.parts if step_norm else {},
        untested=step_norm.untested if step_norm else (),
        logprob_difference=logprob_difference(measured.groups, step_norm.logprobs)
        if step_norm and measured.step not in run.repeats  # which other weights sampled
        else None,
    )


def _findings(run: Run, steps: Sequence[StepReplay], beyond: Sequence[int]) -> Iterator[str]:
    if not steps:
        yield "The log holds no steps."
        return
    if len(beyond) > 1:  # each with one chance in a thousand
        yield (
            f"grad_norm lies beyond its own spread at {named_steps(beyond)}, which chance does not explain: another "
            "device or other micro-batches made it, or weights, ids or loss are not quite the trainer's."
        )
    with_norm = [(step, step.verdict_on(NORM)) for step in steps if NORM in step.relative_error]
    dead = [step.step for step in steps if step.verdict_on(NORM) == "no_gradient"]
    if dead:
        yield f"grad_norm is zero in the log and here at {named_steps(dead)}: other weights and ids may give that, too."
    if errors := [step.relative_error[NORM] for step, _ in with_norm]:
        num_matched = sum(verdict == "match" for _, verdict in with_norm)
        yield (
            f"grad_norm was reproduced at {num_matched} of the {len(errors)} steps that could be recomputed; "
            f"the largest relative error is {max(errors):.2g}."
        )
        yield from common_cause(run, [step for step, verdict in with_norm if verdict == "mismatch"])
    elif not dead:
        num_recomputed = sum(NORM in step.recomputed for step in steps)
        why = f"was recomputed at {num_recomputed} of them, none with a number in the log"
        yield f"grad_norm {why if num_recomputed else 'could not be recomputed at any step'}."
    compared = ("reward", "advantage", "frac_reward_zero_std")
    for name in (*compared, "completion"):
        wrong = [step.step for step in steps if step.verdict_on(name) == "mismatch"]
        if wrong:
            yield f"{name} differs from the log at step {', '.join(map(str, wrong))}."
    if all(step.verdict_on(name) == "match" for step in steps for name in compared):
        yield (
            f"Rewards, advantages and the share of degenerate groups agree with the log at all {len(steps)} steps "
            f"(to {LOG_TOLERANCE:g})."
        )
    yield from logprob_findings(steps)
