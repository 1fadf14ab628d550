"""How often a reward goes to reasoning that does not hold: an answer that is right, or likely, after a wrong step."""

from __future__ import annotations

from collections.abc import Iterable

from gradscope.estimate import Estimate
from gradscope.metrics.uncertainty.closed_form import wilson_interval

REWARDED = 0.5
"""A rollout with at least this reward is rewarded: it passes, or its true answer is the likelier thing to follow."""


def count_incoherent(rollouts: Iterable[tuple[float, bool]]) -> tuple[int, int]:
    """Rewarded rollouts, and those of them whose reasoning has a wrong or missing step.

    Args:
        rollouts: Reward of each, and whether its reasoning is right.

    Returns:
        Both counts.

    Example:
        >>> count_incoherent([(1.0, True), (0.5, False), (0.49, False)])
        (2, 1)
    """
    coherent = [is_coherent for reward, is_coherent in rollouts if reward >= REWARDED]
    return len(coherent), coherent.count(False)


def frac_incoherent(num_rewarded: int, num_incoherent: int) -> Estimate:
    """The share of rewarded rollouts whose reasoning has a wrong or missing step, with Wilson's interval.

    Args:
        num_rewarded: Rewarded rollouts.
        num_incoherent: Those of them with a wrong or missing step.

    Returns:
        The share; undefined where none was rewarded. The interval takes rollouts for independent.

    Example:
        >>> frac_incoherent(2, 1).value, frac_incoherent(0, 0).undefined
        (0.5, 'no rollout was rewarded')
    """
    if not num_rewarded:
        return Estimate.undefined_because("no rollout was rewarded")
    share = num_incoherent / num_rewarded
    low, high = wilson_interval(share, num_rewarded)
    return Estimate(value=share, low=low, high=high, num_units=num_rewarded)
