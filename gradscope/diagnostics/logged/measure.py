"""What a log alone says of its policy, all parts together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gradscope.diagnostics.logged.generation import GatheredGeneration, generation
from gradscope.diagnostics.logged.tokens import (
    Gathered,
    GatheredEntropy,
    GatheredMismatch,
    GatheredStaleness,
    gathered,
    policy_entropy,
    sampler_mismatch,
    staleness,
)
from gradscope.metrics.uncertainty.intervals import RESAMPLING, Resampling
from gradscope.results.logged import LoggedPolicy, SamplerMismatch, Staleness
from gradscope.rollouts.run import Run
from gradscope.rollouts.types import RolloutGroup

PARTS: Mapping[str, Callable[[Run, Resampling], Any]] = {
    "sampler": sampler_mismatch,
    "entropy": policy_entropy,
    "staleness": staleness,
    "generation": generation,
}
"""Part of :class:`LoggedPolicy` -> what makes it."""

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


def _logged_policy(run: Run, *, resampling: Resampling = RESAMPLING) -> LoggedPolicy:
    """Sampler against trainer, entropy, staleness, truncation and time, as far as the log has them."""
    return gathered(GatheredPolicy(), run, resampling)


class GatheredPolicy:
    """All parts, which look at a step together."""

    def __init__(self) -> None:
        self._parts: Mapping[str, Gathered[Any]] = {
            "sampler": GatheredMismatch(),
            "entropy": GatheredEntropy(),
            "staleness": GatheredStaleness(),
            "generation": GatheredGeneration(),
        }

    def add(self, step: int, groups: Sequence[RolloutGroup]) -> None:
        """Take in the rollouts of the next step."""
        for part in self._parts.values():
            part.add(step, groups)

    def result(self, run: Run, resampling: Resampling = RESAMPLING) -> LoggedPolicy:
        """All parts, and why some have no numbers."""
        parts = {name: part.result(run, resampling) for name, part in self._parts.items()}
        missing = {name: absence_of(name, part)[0] for name, part in parts.items() if part.overall is None}
        return LoggedPolicy(**parts, missing=missing)


def absence_of(name: str, part: Any) -> tuple[str, str]:
    """Why a part has no numbers.

    Args:
        name: One of :data:`PARTS`.
        part: It, without numbers.

    Returns:
        The reason, without its period, and where it is logged, a sentence.
    """
    if isinstance(part, Staleness) and part.contradiction:
        return part.contradiction, "Count steps from 1, and versions in updates."
    if isinstance(part, SamplerMismatch) and part.set_aside:
        reason, number = max(part.set_aside.items(), key=lambda pair: pair[1])
        return f"{_MISSING[name]} ({number:,} row{'s' * (number != 1)}: {reason})", _HINTS[name]
    return _MISSING[name], _HINTS[name]
