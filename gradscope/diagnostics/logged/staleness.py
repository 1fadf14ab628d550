"""How stale the weights were that sampled, where a log has their versions, and what that did to log-probabilities."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from gradscope.diagnostics.logged.gathered import gathered
from gradscope.diagnostics.logged.step_tokens import counts_in_loss, step_tokens
from gradscope.estimate import Estimate
from gradscope.metrics.sampler.lags import first_step, lag_estimates
from gradscope.metrics.sampler.token_means import token_mean
from gradscope.metrics.uncertainty.bootstrap import bootstrap_mean
from gradscope.metrics.uncertainty.resampling import Resampling
from gradscope.results.logged.course import LagShare, Staleness, StalenessNumbers
from gradscope.rollouts.run import Run
from gradscope.rollouts.types import RolloutGroup

_FROM_THE_FUTURE = "the log names weights that are newer than its steps, so versions and steps are counted differently"
_NO_GAP = "no rollout of this lag has log-probabilities of both sampler and trainer"

Row = tuple[int, str, tuple[int, int]]
"""Step, prompt, and the versions that sampled a rollout's first and last token."""
Gap = tuple[float, int, str]
"""Sum of |log ratio|, number of tokens and prompt of a sequence that has both log-probabilities."""


def staleness(run: Run, resampling: Resampling) -> Staleness:
    """The lags of all rollouts that count in the loss and whose weights are known."""
    return gathered(GatheredStaleness(), run, resampling)


class GatheredStaleness:
    """The versions that sampled the rollouts of each step."""

    def __init__(self) -> None:
        self._steps: dict[int, list[Row]] = {}
        self._gaps: dict[int, list[Gap]] = {}  # by the step minus the version that sampled the first token

    def add(self, step: int, groups: Sequence[RolloutGroup]) -> None:
        """Take in the rollouts of the next step."""
        rows = [
            (step, group.prompt_id, rollout.policy_versions)
            for group in groups
            for rollout in group.rollouts
            if rollout.policy_versions is not None and counts_in_loss(rollout)
        ]
        if not rows:
            return
        self._steps[step] = rows
        tokens = step_tokens(groups, Counter())
        distances = np.split(np.abs(tokens.log_ratios), np.cumsum(tokens.lengths)[:-1])
        for rollout, prompt, of_tokens in zip(tokens.rollouts, tokens.prompts, distances, strict=False):
            if rollout.policy_versions is not None:
                behind = step - rollout.policy_versions[0]
                self._gaps.setdefault(behind, []).append((float(of_tokens.sum()), len(of_tokens), prompt))

    def result(self, _: Run, resampling: Resampling) -> Staleness:
        """The lags of the whole log and of each step, and what lags did to log-probabilities."""
        rows = [row for of_step in self._steps.values() for row in of_step]
        if not rows:
            return Staleness()
        origin = first_step([step for step, *_ in rows], [versions[1] for *_, versions in rows])
        if origin is None:
            return Staleness(contradiction=_FROM_THE_FUTURE)
        return Staleness(
            overall=_numbers(None, rows, origin, resampling),
            by_step=tuple(_numbers(step, found, origin, resampling) for step, found in self._steps.items()),
            by_lag=self._by_lag(rows, origin, resampling),
        )

    def _by_lag(self, rows: Sequence[Row], origin: int, resampling: Resampling) -> tuple[LagShare, ...]:
        numbers = Counter(_lag(row, origin) for row in rows)
        return tuple(
            LagShare(
                lag=lag,
                num_rollouts=numbers[lag],
                share=numbers[lag] / len(rows),
                logprob_gap=_gap(self._gaps.get(lag + origin, []), resampling),
            )
            for lag in sorted(numbers)
        )


def _lag(row: Row, origin: int) -> int:
    return row[0] - origin - row[2][0]


def _numbers(step: int | None, rows: Sequence[Row], origin: int, resampling: Resampling) -> StalenessNumbers:
    prompts = [prompt for _, prompt, _ in rows]
    mixed = [float(first != last) for *_, (first, last) in rows]
    return StalenessNumbers(
        step=step,
        num_rollouts=len(rows),
        frac_mixed=bootstrap_mean(mixed, prompts, resampling=resampling),
        **lag_estimates([_lag(row, origin) for row in rows], prompts, resampling=resampling),
    )


def _gap(rows: Sequence[Gap], resampling: Resampling) -> Estimate:
    if not rows:
        return Estimate.undefined_because(_NO_GAP)
    sums, numbers, prompts = zip(*rows, strict=True)
    return token_mean(sums, numbers, prompts, resampling=resampling)
