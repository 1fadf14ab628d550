"""What a run's reward went to: right reasoning, or answers after a wrong step; counted step by step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gradscope.metrics.outcomes.incoherence import REWARDED, count_incoherent, frac_incoherent
from gradscope.rollouts.run_folder import read_metrics
from gradscope.rollouts.types import RolloutGroup
from gradscope.training.tasks.task import ReasoningChecker


def incoherence_metrics(groups: Sequence[RolloutGroup], is_coherent: ReasoningChecker | None) -> dict[str, float]:
    """The counts of one step for the run's metrics, and their ratio.

    Returns:
        Name -> value; nothing where reasoning cannot be checked, and no share where nothing was rewarded.
    """
    if is_coherent is None:
        return {}
    num_rewarded, num_incoherent = count_incoherent(
        (rollout.reward or 0.0, is_coherent(rollout.prompt, rollout.completion))
        for group in groups
        for rollout in group.rollouts
    )
    share = frac_incoherent(num_rewarded, num_incoherent).value
    counts = {"num_rewarded": float(num_rewarded), "num_incoherent": float(num_incoherent)}
    return counts if share is None else counts | {"frac_incoherent": share}


def incoherence_sentence(run: Path) -> str | None:
    """A sentence on what a run's reward went to; None where the task's reasoning cannot be checked."""
    steps = [values for values in read_metrics(run).values() if "num_rewarded" in values]
    if not steps:
        return None
    num_rewarded, num_incoherent = (
        int(sum(values[name] for values in steps)) for name in ("num_rewarded", "num_incoherent")
    )
    share = frac_incoherent(num_rewarded, num_incoherent).value
    if share is None:
        return f"no rollout had a reward of {REWARDED:g} or more"
    return (
        f"{num_incoherent:,} of {num_rewarded:,} rollouts with a reward of {REWARDED:g} or more ({share:.1%}) have a "
        "wrong or missing step before the answer"
    )
