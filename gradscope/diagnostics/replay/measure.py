"""`gradscope replay`: does the log reproduce the trainer's numbers?

Reward, advantages and the share of degenerate groups are arithmetic on the log. The gradient norm is the hard one: it
comes out right only with the weights before the update, the exact token ids and the trainer's own loss, so a match to
1e-5 proves all three at once, and a mismatch is a finding.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from gradscope.advantages.registry import named_formulation
from gradscope.diagnostics.inputs.steps import (
    MeasuredStep,
    describe_engine,
    describe_weights,
    measure_steps,
    select_steps,
    with_damage,
)
from gradscope.diagnostics.inputs.tolerance import GRAD_NORM_TOLERANCE
from gradscope.diagnostics.replay.grad_norm import logprob_difference, replay_grad_norm, replay_texts
from gradscope.diagnostics.replay.log_arithmetic import (
    LOG_TOLERANCE,
    refused,
    replay_advantages,
    replay_rewards,
    replay_zero_std,
)
from gradscope.estimate import Estimate
from gradscope.findings.logged import logprob_findings
from gradscope.gradients.engine_options import EngineOptions
from gradscope.option import options_of
from gradscope.progress import Progress, reporter
from gradscope.reason import Reason
from gradscope.results.norms import ReplayReport, ReplayVerdict, StepReplay
from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.run import Run
from gradscope.say import as_ranges

_CARRIED = ("device", "dtype", "precision", "batch_tokens")
"""Engine options that ``gradscope check`` has too."""


def equivalent_check(path: str | Path, steps: Sequence[int] | None, read: ReadOptions, engine: EngineOptions) -> str:
    """The ``gradscope check`` command that asks what a replay asks.

    Args:
        path: The run.
        steps: Ascending steps that were asked for; None: all.
        read: How the run was read.
        engine: How gradients were computed.

    Returns:
        One line for a shell.

    Example:
        >>> equivalent_check("my-run", (1, 2, 3, 6), ReadOptions(), EngineOptions())
        "gradscope check my-run --require 'frac_replay_mismatch@1-3,6 == 0'"
    """
    selector = "" if steps is None else f"@{_ranges(steps)}"
    options = [word for flag, value in (*read.spelled(), *_spelled(engine)) for word in (flag, value)]
    return shlex.join(["gradscope", "check", str(path), *options, "--require", f"frac_replay_mismatch{selector} == 0"])


def _ranges(steps: Sequence[int]) -> str:
    """Steps as a selector writes them; one alone is a range too, because a bare number is a budget."""
    starts = [steps[0], *(after for before, after in pairwise(steps) if after != before + 1)]
    ends = [*(before for before, after in pairwise(steps) if after != before + 1), steps[-1]]
    parts = [f"{start}-{end}" if start != end else str(start) for start, end in zip(starts, ends, strict=True)]
    return f"{steps[0]}-{steps[0]}" if len(steps) == 1 else ",".join(parts)


def _spelled(engine: EngineOptions) -> Iterator[tuple[str, str]]:
    options, defaults = options_of(EngineOptions), EngineOptions()
    for name in _CARRIED:
        value = getattr(engine, name)
        if value != getattr(defaults, name):
            yield options[name].flags[0], str(value)


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

    Returns:
        A verdict per step and quantity.
    """
    progress = reporter(progress)
    run = _held_to(read_run(path, read, progress=progress), advantage)
    engine = engine or EngineOptions()
    chosen = run.updates if steps is None else select_steps(run, steps)
    report = _replay_measured(
        run, measure_steps(run, chosen, engine, progress, closely=True, norms_alone=True), tolerance=tolerance
    )
    if tolerance != GRAD_NORM_TOLERANCE:
        return report
    asked = None if steps is None else chosen
    return replace(report, equivalent_check=equivalent_check(path, asked, read or ReadOptions(), engine))


def _held_to(run: Run, advantage: str | None) -> Run:
    """The run with the formulation that was named in place of what its folder says."""
    if advantage is None:
        return run
    named = named_formulation(advantage)
    return replace(run, settings=replace(run.settings, values={**run.settings.values, "advantage": named.name}))


def _replay_measured(
    run: Run, steps: Iterable[MeasuredStep], *, tolerance: float = GRAD_NORM_TOLERANCE
) -> ReplayReport:
    """The replay of steps whose gradients were already recomputed, or have a reason why not."""
    replayed = ReplayedSteps(run, tolerance)
    for measured in steps:
        replayed.add(measured)
    return replayed.report()


class ReplayedSteps:
    """The replay of the steps so far."""

    def __init__(self, run: Run, tolerance: float = GRAD_NORM_TOLERANCE) -> None:
        self._run, self._tolerance = run, tolerance
        self._steps: list[StepReplay] = []
        self._engine: dict[str, object] = {}

    def add(self, measured: MeasuredStep) -> None:
        """Replay the next step."""
        self._steps.append(_replay_step(self._run, measured, self._tolerance))
        if (found := measured.recomputed) is not None:
            self._engine = describe_engine(found.described, self._engine)

    def report(self) -> ReplayReport:
        """A verdict per step and quantity."""
        has_kl_term = any(values.get("kl") for values in self._run.metrics.values())  # which no default has
        steps = self._steps if has_kl_term else [_settled(step, self._steps) for step in self._steps]
        verdicts = [step.verdict for step in steps]
        unreadable = {
            step.step: Reason("weights_unreadable", step.cause or "its weights cannot be read")
            for step in steps
            if any(quantity.reason == "weights_unreadable" for quantity in step.quantities)
        }
        return ReplayReport(
            source=with_damage(self._run, unreadable, ()),
            steps=tuple(steps),
            verdict=_overall(verdicts),
            headline=_headline(verdicts),
            frac_replay_mismatch=_frac_mismatch(verdicts),
            tolerance=self._tolerance,
            engine=self._engine,
            findings=_findings(steps),
        )


def _settled(step: StepReplay, steps: Sequence[StepReplay]) -> StepReplay:
    """A step whose norm is off with the trainer's defaults differs where the same defaults gave another step's norm."""
    norm, fits = step.quantities[-1], [other.step for other in steps if other.verdict == "match"]
    if norm.reason != "settings_unknown" or norm.name not in step.relative_error or not fits:
        return step
    differs = Reason("differs", f"{norm.cause}; but with the same defaults step {fits[0]} matches")
    quantity = refused(norm.name, differs)[0]
    quantities = (*step.quantities[:-1], quantity)
    return replace(step, verdict="mismatch", cause=quantity.cause, quantities=quantities)


def _overall(verdicts: Sequence[ReplayVerdict]) -> ReplayVerdict:
    """The verdict on a run: one mismatch decides; a match somewhere is worth more than a step that could not be."""
    if "mismatch" in verdicts:
        return "mismatch"
    return "match" if "match" in verdicts else "cannot"


def _headline(verdicts: Sequence[ReplayVerdict]) -> str:
    """The verdict on a run with the number of steps behind it, then the other steps."""
    first = _overall(verdicts)
    counts = {verdict: verdicts.count(verdict) for verdict in ("mismatch", "match", "cannot")}
    num_first = counts.pop(first)
    others = "".join(f"; {number} {verdict}" for verdict, number in counts.items() if number)
    num_dead = verdicts.count("no_gradient")
    if num_dead and not num_first:
        return f"{first}: {num_dead} of {len(verdicts)} step{'' if len(verdicts) == 1 else 's'} without a gradient"
    others += f"; {num_dead} without a gradient" if num_dead else ""
    return f"{first} at {num_first} of {len(verdicts)} step{'' if len(verdicts) == 1 else 's'}{others}"


def _frac_mismatch(verdicts: Sequence[ReplayVerdict]) -> Estimate:
    judged = [verdict for verdict in verdicts if verdict in ("match", "mismatch")]
    if not judged:
        return Estimate.undefined_because("no step could be recomputed and judged")
    return Estimate.exact(judged.count("mismatch") / len(judged), num_units=len(judged))


def _replay_step(run: Run, measured: MeasuredStep, tolerance: float) -> StepReplay:
    """All quantities of one step."""
    logged = dict(run.metrics.get(measured.step, {}))
    quantities, recomputed, errors = [], {}, {}
    of_sampling = [] if measured.step in run.repeats else [replay_rewards(run, measured)]
    if of_sampling and run.settings.get("trainer") is None:  # the others log no such share
        of_sampling.append(replay_zero_std(run, measured))
    texts = [replay_texts(found)] if (found := measured.recomputed) and found.other_texts else []
    parts = [*of_sampling, replay_advantages(run, measured), *texts, replay_grad_norm(run, measured, tolerance)]
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
        weights=describe_weights(measured.weights) if measured.weights else None,
        verdict=verdict,
        cause=cause,
        quantities=tuple(quantities),
        logged={name: logged[name] for name in ("reward", "frac_reward_zero_std", "grad_norm") if name in logged},
        recomputed=recomputed,
        relative_error=errors,
        num_inferred_ids=found.num_inferred_ids if found else 0,
        frac_kl=found.frac_kl if found else None,
        told_within=found.trained.told_within if found and found.trained else None,
        logprob_difference=logprob_difference(measured.groups, found.logprobs) if found else None,
    )


def _findings(steps: Sequence[StepReplay]) -> tuple[str, ...]:
    """What the verdicts say, in sentences."""
    if not steps:
        return ("The log holds no steps.",)
    sentences = []
    with_norm = [step for step in steps if "grad_norm" in step.relative_error]
    dead = [step.step for step in with_norm if _verdict_on(step, "grad_norm") == "no_gradient"]
    if dead:
        at = f"step{'s' * (len(dead) > 1)} {as_ranges(dead)}"
        sentences.append(f"grad_norm is zero in the log and here at {at}: any weights and ids would give that.")
        with_norm = [step for step in with_norm if step.step not in dead]
    matched = [step for step in with_norm if _verdict_on(step, "grad_norm") == "match"]
    if with_norm:
        worst = max(step.relative_error["grad_norm"] for step in with_norm)
        sentences.append(
            f"grad_norm was reproduced at {len(matched)} of the {len(with_norm)} steps that could be recomputed; "
            f"the largest relative error is {worst:.2g}."
        )
    impossible = len(steps) - len(with_norm) - len(dead)
    if impossible:
        where = f"{impossible} of {len(steps)} steps" if with_norm or dead else "any step"
        sentences.append(f"grad_norm could not be recomputed at {where}.")
    for name in ("reward", "advantage", "frac_reward_zero_std", "completion"):
        wrong = [step.step for step in steps if _verdict_on(step, name) == "mismatch"]
        if wrong:
            sentences.append(f"{name} differs from the log at step {', '.join(map(str, wrong))}.")
    same = all(
        _verdict_on(step, name) == "match" for step in steps for name in ("reward", "advantage", "frac_reward_zero_std")
    )
    if same:
        sentences.append(
            f"Rewards, advantages and the share of degenerate groups agree with the log at all {len(steps)} steps "
            f"(to {LOG_TOLERANCE:g})."
        )
    return (*sentences, *logprob_findings(steps))


def _verdict_on(step: StepReplay, name: str) -> ReplayVerdict | None:
    """The verdict on one quantity of a step."""
    return next((quantity.verdict for quantity in step.quantities if quantity.name == name), None)
