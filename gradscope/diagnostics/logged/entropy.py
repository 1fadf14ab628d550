"""The entropy that a log has: of each token, else as the trainer's own metric."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from gradscope.diagnostics.logged.as_logged import first_logged, logged_estimate, mean_as_logged
from gradscope.diagnostics.logged.gathered import gathered
from gradscope.diagnostics.logged.step_tokens import counts_in_loss
from gradscope.estimate import Estimate
from gradscope.metrics.sampler.token_means import token_mean
from gradscope.metrics.uncertainty.resampling import Resampling
from gradscope.metrics.uncertainty.trend import trend
from gradscope.results.logged.course import EntropyNumbers, PolicyEntropy
from gradscope.rollouts.run import Run
from gradscope.rollouts.types import Rollout, RolloutGroup

METRICS = (
    *("entropy", "actor/entropy", "train/approx_entropy", "entropy/all/mean", "optim/entropy"),
    *("train/entropy", "policy/entropy", "actor/entropy/avg"),
)
"""What trainers call the mean entropy of a token, the first that is logged counts."""

_ROUNDING = 0.01
_GREATEST = 100.0
"""The logarithm of any vocabulary is below."""
Row = tuple[float, int, str]
"""Sum and number of the entropies of a sequence, and its prompt."""


def policy_entropy(run: Run, resampling: Resampling) -> PolicyEntropy:
    """The course of the entropy; without an interval at single steps where only the trainer's mean is known."""
    return gathered(GatheredEntropy(), run, resampling)


class GatheredEntropy:
    """The entropies of each step's sequences."""

    def __init__(self) -> None:
        self._steps: dict[int, list[Row]] = {}

    def add(self, step: int, groups: Sequence[RolloutGroup]) -> None:
        """Take in the rollouts of the next step."""
        rows = list(_rows(groups))
        if rows:
            self._steps[step] = rows

    def result(self, run: Run, resampling: Resampling) -> PolicyEntropy:
        """The entropy of the tokens, else as the trainer logged it, else nothing."""
        return self._of_tokens(resampling) or _as_logged(run) or PolicyEntropy()

    def _of_tokens(self, resampling: Resampling) -> PolicyEntropy | None:
        if not self._steps:
            return None
        by_step = [EntropyNumbers(step=step, mean=_mean(rows, resampling)) for step, rows in self._steps.items()]
        rows = [row for found in self._steps.values() for row in found]
        overall = EntropyNumbers(step=None, mean=_mean(rows, resampling))
        return PolicyEntropy(overall=overall, by_step=tuple(by_step), trend=_trend(by_step), origin="tokens")


def _rows(groups: Sequence[RolloutGroup]) -> Iterator[Row]:
    for group in groups:
        sequences = (one for rollout in group.rollouts for one in rollout.sequences)
        for one in filter(counts_in_loss, sequences):
            values = _entropies(one)
            if values is not None:
                yield float(values.sum()), len(values), group.prompt_id


def _entropies(rollout: Rollout) -> NDArray[np.float64] | None:
    """Those of the tokens that count in the loss; None where one is missing or below 0, as no entropy of tokens is."""
    if not rollout.entropies or (rollout.mask is not None and len(rollout.mask) != len(rollout.entropies)):
        return None
    values = np.array(rollout.entropies, dtype=np.float64)
    values = values if rollout.mask is None else values[np.array(rollout.mask, dtype=bool)]
    return values if np.all((values > -_ROUNDING) & (values < _GREATEST)) else None


def _mean(rows: Sequence[Row], resampling: Resampling) -> Estimate:
    totals, numbers, prompts = zip(*rows, strict=True)
    return token_mean(totals, numbers, prompts, resampling=resampling).within(0.0, _GREATEST)


def _as_logged(run: Run) -> PolicyEntropy | None:
    found = first_logged(run, METRICS)
    if found is None:
        return None
    name, logged = found
    by_step = [EntropyNumbers(step=step, mean=logged_estimate(value)) for step, value in logged.items()]
    overall = EntropyNumbers(step=None, mean=mean_as_logged(logged).within(min(0.0, *logged.values()), np.inf))
    return PolicyEntropy(overall=overall, by_step=tuple(by_step), trend=_trend(by_step), origin=name)


def _trend(by_step: Sequence[EntropyNumbers]) -> Estimate:
    pairs = [(row.step or 0, row.mean.value) for row in by_step if row.mean.value is not None]
    return trend([step for step, _ in pairs], [value for _, value in pairs])
