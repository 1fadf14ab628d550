"""The parts of what a log alone says of its policy, among them how completions ended and how long they took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from gradscope.diagnostics.logged.metrics import first_logged, logged_estimate, mean_as_logged
from gradscope.diagnostics.logged.tokens import ENTROPY, MISMATCH, STALENESS, LoggedPart
from gradscope.estimate import Estimate
from gradscope.metrics.uncertainty.bootstrap import bootstrap_mean
from gradscope.metrics.uncertainty.intervals import Resampling
from gradscope.metrics.uncertainty.steps import mean_of_steps
from gradscope.results import logged as results
from gradscope.rollouts.groups import RolloutGroup, Status
from gradscope.rollouts.run import Run
from gradscope.say import counted

ENDED: tuple[Status, ...] = ("completed", "truncated")  # how a completion ends that did not fail
TRUNCATED = ("completions/clipped_ratio", "response_length/clip_ratio")
"""What trainers call the share of completions that were cut off."""
_LONGEST = 1e9  # thirty years in seconds: no time of a rollout
_NO_ENDS = "the log does not say which completions were cut off"
_NO_TIMES = "rollouts were not timed"
_ONE_TIMED = "no step has two timed rollouts"


def shares_cut_off(run: Run) -> Mapping[int, float]:
    """Step -> share of completions that were cut off, as the trainer logged it."""
    return (first_logged(run, TRUNCATED) or ("", {}))[1]


class _Rows(Struct, frozen=True, kw_only=True):
    """Rollouts whose end or time is known."""

    ends: list[tuple[str, float]]  # the prompt, and 1 where the completion was cut off
    times: list[tuple[int, str, float]]  # the step, the prompt, and the seconds


def _generation_of_step(step: int, groups: Sequence[RolloutGroup]) -> _Rows:
    return _Rows(
        ends=[
            (group.prompt_id, float(rollout.status == "truncated"))
            for group in groups
            for rollout in group.rollouts
            if rollout.status in ENDED
        ],
        times=[
            (group.step, group.prompt_id, rollout.seconds)
            for group in groups
            for rollout in group.rollouts
            if rollout.seconds is not None and rollout.seconds < _LONGEST
        ],
    )


def _generation(steps: Mapping[int, _Rows], run: Run, resampling: Resampling) -> results.Generation:
    """The log and its steps; where no rollout's end is known, the share that the trainer logged."""
    logged = {} if any(rows.ends for rows in steps.values()) else shares_cut_off(run)
    numbers = [_generation_numbers(step, rows, logged, resampling) for step, rows in steps.items()]
    by_step = tuple(row for row in numbers if row.frac_truncated.undefined != _NO_ENDS or row.seconds.is_defined)
    if not by_step:
        return results.Generation()
    all_rows = _Rows(
        ends=[end for rows in steps.values() for end in rows.ends],
        times=[time for rows in steps.values() for time in rows.times],
    )
    return results.Generation(overall=_generation_numbers(None, all_rows, logged, resampling), by_step=by_step)


GENERATION = LoggedPart(_generation_of_step, _generation)


def _generation_numbers(
    step: int | None, rows: _Rows, logged: Mapping[int, float], resampling: Resampling
) -> results.GenerationNumbers:
    seconds = Estimate.undefined_because(_NO_TIMES)
    if rows.times:
        _, prompts, times = zip(*rows.times, strict=True)
        seconds = bootstrap_mean(times, prompts, share=False, resampling=resampling).within(0.0, np.inf)
    return results.GenerationNumbers(
        step=step,
        frac_truncated=_truncated(step, rows.ends, logged, resampling),
        seconds=seconds,
        slowest_over_mean=_slowest(rows.times),
    )


def _truncated(
    step: int | None, ends: Sequence[tuple[str, float]], logged: Mapping[int, float], resampling: Resampling
) -> Estimate:
    if ends:
        return bootstrap_mean([cut for _, cut in ends], [prompt for prompt, _ in ends], resampling=resampling)
    if step is None and logged:
        return mean_as_logged(logged).within(0.0, 1.0)
    if step is not None and step in logged:
        return logged_estimate(logged[step]).within(0.0, 1.0)
    return Estimate.undefined_because(_NO_ENDS)


def _slowest(times: Sequence[tuple[int, str, float]]) -> Estimate:
    """The mean over steps of slowest over mean; steps with one timed rollout, or none that took time, have none."""
    if not times:
        return Estimate.undefined_because(_NO_TIMES)
    by_step: dict[int, list[float]] = {}
    for step, _, seconds in times:
        by_step.setdefault(step, []).append(seconds)
    ratios = [max(times) / np.mean(times) for times in by_step.values() if len(times) > 1 and max(times) > 0]
    if not ratios:
        return Estimate.undefined_because(_ONE_TIMED)
    return mean_of_steps(ratios).within(1.0, np.inf)


PARTS: Mapping[str, LoggedPart] = {
    "sampler": MISMATCH,
    "entropy": ENTROPY,
    "staleness": STALENESS,
    "generation": GENERATION,
}
"""Part of :class:`LoggedPolicy` -> how it is made."""

_MISSING = {
    "sampler": "the log does not have the log-probabilities of both sampler and trainer",
    "entropy": "the log has no entropy",
    "staleness": "the log does not say which weights sampled a rollout",
    "generation": "the log does not say how completions ended or how long they took",
}
_HINTS = {
    "sampler": "NeMo-RL's training data have them, prime-rl's annotations and export of tokens, and patched runs of "
    "verl and TRL.",
    "entropy": "TRL and verl log it as a metric; prime-rl's annotations and export of tokens have it for each token.",
    "staleness": "prime-rl's and AReaL's rollouts and the Tinker cookbook's summaries have the version of the weights.",
    "generation": "Log how each completion ended, or its share as completions/clipped_ratio, and generation_seconds.",
}


def _policy(steps: Mapping[int, dict[str, Any]], run: Run, resampling: Resampling) -> results.LoggedPolicy:
    rows_of = {name: {step: rows[name] for step, rows in steps.items() if rows[name] is not None} for name in PARTS}
    parts = {name: part.combine(rows_of[name], run, resampling) for name, part in PARTS.items()}
    missing = {name: absence_of(name, part)[0] for name, part in parts.items() if part.overall is None}
    return results.LoggedPolicy(**parts, missing=missing)


POLICY = LoggedPart(lambda step, groups: {key: part.reduce_step(step, groups) for key, part in PARTS.items()}, _policy)


def absence_of(name: str, part: Any) -> tuple[str, str]:
    """Why a part has no numbers, without the period, and where it is logged, a sentence."""
    if isinstance(part, results.Staleness) and part.contradiction:
        return part.contradiction, "Count steps from 1, and versions in updates."
    if isinstance(part, results.SamplerMismatch) and part.set_aside:
        reason, number = max(part.set_aside.items(), key=lambda pair: pair[1])
        return f"{_MISSING[name]} ({counted(number, 'row')}: {reason})", _HINTS[name]
    return _MISSING[name], _HINTS[name]
