"""How stale the weights were that sampled, where a log has their versions, and what that did to log-probabilities."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from gradscope.diagnostics.logged.step_tokens import counts_in_loss, groups_by_step, step_tokens
from gradscope.estimate import Estimate
from gradscope.metrics.sampler.lags import first_step, lag_estimates
from gradscope.metrics.sampler.token_means import token_mean
from gradscope.metrics.uncertainty.bootstrap import bootstrap_mean
from gradscope.metrics.uncertainty.resampling import Resampling
from gradscope.results.logged.course import LagShare, Staleness, StalenessNumbers
from gradscope.rollouts.run import Run
from gradscope.rollouts.types import Rollout

_FROM_THE_FUTURE = "the log names weights that are newer than its steps, so versions and steps are counted differently"
_NO_GAP = "no rollout of this lag has log-probabilities of both sampler and trainer"

Row = tuple[int, Rollout, str, tuple[int, int]]
"""Step, rollout, prompt, and the versions that sampled its first and last token."""


def staleness(run: Run, resampling: Resampling) -> Staleness:
    """The lags of all rollouts that count in the loss and whose weights are known."""
    rows: list[Row] = [
        (group.step, rollout, group.prompt_id, rollout.policy_versions)
        for group in run.groups
        for rollout in group.rollouts
        if rollout.policy_versions is not None and counts_in_loss(rollout)
    ]
    if not rows:
        return Staleness()
    origin = first_step([step for step, *_ in rows], [versions[1] for *_, versions in rows])
    if origin is None:
        return Staleness(contradiction=_FROM_THE_FUTURE)
    steps: dict[int, list[Row]] = {}
    for row in rows:
        steps.setdefault(row[0], []).append(row)
    return Staleness(
        overall=_numbers(None, rows, origin, resampling),
        by_step=tuple(_numbers(step, steps[step], origin, resampling) for step in sorted(steps)),
        by_lag=_by_lag(run, rows, origin, resampling),
    )


def _lag(row: Row, origin: int) -> int:
    return row[0] - origin - row[3][0]


def _numbers(step: int | None, rows: Sequence[Row], origin: int, resampling: Resampling) -> StalenessNumbers:
    prompts = [prompt for _, _, prompt, _ in rows]
    mixed = [float(first != last) for *_, (first, last) in rows]
    return StalenessNumbers(
        step=step,
        num_rollouts=len(rows),
        frac_mixed=bootstrap_mean(mixed, prompts, resampling=resampling),
        **lag_estimates([_lag(row, origin) for row in rows], prompts, resampling=resampling),
    )


def _by_lag(run: Run, rows: Sequence[Row], origin: int, resampling: Resampling) -> tuple[LagShare, ...]:
    numbers = Counter(_lag(row, origin) for row in rows)
    gaps = _gaps(run, origin)
    return tuple(
        LagShare(
            lag=lag,
            num_rollouts=numbers[lag],
            share=numbers[lag] / len(rows),
            logprob_gap=_gap(gaps.get(lag, []), resampling),
        )
        for lag in sorted(numbers)
    )


def _gaps(run: Run, origin: int) -> dict[int, list[tuple[float, int, str]]]:
    """Lag -> sum of |log ratio|, number of tokens and prompt of each sequence that has both log-probabilities."""
    found: dict[int, list[tuple[float, int, str]]] = {}
    for step, groups in groups_by_step(run).items():
        tokens = step_tokens(groups, Counter())
        distances = np.split(np.abs(tokens.log_ratios), np.cumsum(tokens.lengths)[:-1])
        for rollout, prompt, of_tokens in zip(tokens.rollouts, tokens.prompts, distances, strict=False):
            if rollout.policy_versions is not None:
                lag = step - origin - rollout.policy_versions[0]
                found.setdefault(lag, []).append((float(of_tokens.sum()), len(of_tokens), prompt))
    return found


def _gap(rows: Sequence[tuple[float, int, str]], resampling: Resampling) -> Estimate:
    if not rows:
        return Estimate.undefined_because(_NO_GAP)
    sums, numbers, prompts = zip(*rows, strict=True)
    return token_mean(sums, numbers, prompts, resampling=resampling)
