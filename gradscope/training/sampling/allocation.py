"""Which prompts a step samples, and how many rollouts of each, once it is known what the first ones earned.

``dynamic`` replaces dead groups by groups of other prompts (Yu et al. 2025, DAPO, arXiv 2503.14476). ``reallocated``
moves rollouts from prompts that a probe of half the budget solves to prompts that it does not.

Legend: N prompts of a step, G rollouts of a prompt.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from gradscope.metrics.outcomes.groups import all_equal

Array = NDArray[np.float64]


def live_groups(rewards: Iterable[Array]) -> list[bool]:
    """Which groups have rewards that differ.

    Returns:
        Flags, [N], of rewards by group, [N][G].

    Example:
        >>> live_groups([np.array([1.0, 1.0]), np.array([1.0, 0.0]), np.array([0.0, 0.0])])
        [False, True, False]
    """
    return [not all_equal(group.tolist()) for group in rewards]


def replacements(prompt_ids: Sequence[str], in_step: Collection[str], *, seed: int, step: int) -> list[str]:
    """The order in which other prompts of the run take the place of dead ones.

    Args:
        prompt_ids: All prompts of the run, each once.
        in_step: Those that the step has already.
        seed: The run's seed.
        step: The step; seed and step alone decide, so that a resumed run draws as it would have.

    Returns:
        The other prompts, each once.

    Example:
        >>> sorted(replacements(["a", "b", "c", "d"], {"b"}, seed=0, step=1))
        ['a', 'c', 'd']
    """
    others = [prompt_id for prompt_id in prompt_ids if prompt_id not in in_step]
    return [others[index] for index in np.random.default_rng([seed, step]).permutation(len(others))]


def remaining_budget(probe: Sequence[Array], *, size: int, highest: float) -> list[int]:
    """How many rollouts each prompt still gets after a probe.

    A prompt is solved where every rollout of its probe has the highest reward, and unsolved where none has any. Solved
    prompts give what they have left to the unsolved ones, which share it evenly; what does not divide goes, one each,
    to the first of them. All others keep their own, and so does everyone where nobody gives or nobody takes.

    Args:
        probe: Rewards of the probe by prompt, [N][half].
        size: Rollouts that each prompt has left, at least 0.
        highest: The most that a rollout can earn.

    Returns:
        Rollouts by prompt, [N], N x ``size`` in all.

    Example:
        >>> solved, unsolved, mixed = np.ones(2), np.zeros(2), np.array([1.0, 0.0])
        >>> remaining_budget([solved, unsolved, mixed, unsolved, solved, solved], size=3, highest=1.0)
        [0, 8, 3, 7, 0, 0]
    """
    solved = [index for index, rewards in enumerate(probe) if rewards.min() >= highest]
    unsolved = [index for index, rewards in enumerate(probe) if rewards.max() <= 0.0]
    budget = [size] * len(probe)
    if not unsolved:
        return budget
    each, left = divmod(size * len(solved), len(unsolved))
    for index in solved:
        budget[index] = 0
    for rank, index in enumerate(unsolved):
        budget[index] += each + (rank < left)
    return budget
