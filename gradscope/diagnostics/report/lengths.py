"""How long the rollouts of a run are, a step at a time: in tokens where all have their ids, else in characters.

Shapes: R rollouts.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradscope.diagnostics.logged.measure import ENDED
from gradscope.rollouts.groups import Rollout, RolloutGroup
from gradscope.rollouts.run import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLengths:
    """The rollouts of groups whose rewards are all known, [R] each."""

    unit: str  # tokens or characters
    values: NDArray[np.int64]
    rewards: NDArray[np.float64]
    steps: NDArray[np.int64]
    samples: NDArray[np.int64]
    groups: NDArray[np.int64]  # the places of their groups in ``names``
    prompts: NDArray[np.int64]  # what tells their prompts apart
    names: Sequence[str]


class Ends:
    """How many completions were cut off, and their part of the absolute advantages."""

    def __init__(self) -> None:
        self.num_judged = self.num_cut = 0
        self._sizes, self._of_cut = array("d"), array("d")

    def add(self, rollout: Rollout) -> None:
        """Take in the next rollout."""
        if rollout.status not in ENDED:
            return
        is_cut, known = rollout.status == "truncated", rollout.advantage is not None
        self.num_judged += 1
        self.num_cut += is_cut
        if known:
            self._sizes.append(abs(rollout.advantage or 0.0))
        if is_cut:
            self._of_cut.append(abs(rollout.advantage or 0.0))

    @property
    def frac_advantage(self) -> float | None:
        """Their share of the summed absolute advantages; None where it is not known, or is nothing of nothing."""
        total = sum(self._sizes)
        return sum(self._of_cut) / total if self.num_cut and len(self._sizes) == self.num_judged and total else None


class Lengths:
    """How long each rollout is and what it is worth, of the groups whose rewards are all known, a step at a time."""

    def __init__(self) -> None:
        self._letters, self._tokens, self._rewards = array("q"), array("q"), array("d")
        self._steps, self._samples = array("q"), array("q")
        self._groups, self._prompts = array("q"), array("q")
        self._names: list[str] = []
        self._numbers: dict[str, int] = {}
        self._exact = True
        self.ends = Ends()

    def add(self, step: int, groups: Sequence[RolloutGroup]) -> None:
        """Take in the rollouts of the next step."""
        for group in groups:
            for rollout in group.rollouts:
                self.ends.add(rollout)
            if None in group.rewards:
                continue
            self._letters.extend(len(rollout.completion) for rollout in group.rollouts)
            self._tokens.extend(rollout.num_tokens or 0 for rollout in group.rollouts)
            self._exact &= all(rollout.completion_ids is not None for rollout in group.rollouts)
            self._rewards.extend(reward for reward in group.rewards if reward is not None)
            self._samples.extend(rollout.sample for rollout in group.rollouts)
            self._steps.extend([step] * group.size)
            self._groups.extend([len(self._names)] * group.size)
            self._names.append(group.group_id)
            self._prompts.extend([self._numbers.setdefault(group.prompt_id, len(self._numbers))] * group.size)

    def whole(self) -> RunLengths:
        """Those of all steps."""
        exact = bool(self._names) and self._exact
        return RunLengths(
            unit="tokens" if exact else "characters",
            values=np.array(self._tokens if exact else self._letters, dtype=np.int64),
            rewards=np.array(self._rewards, dtype=np.float64),
            steps=np.array(self._steps, dtype=np.int64),
            samples=np.array(self._samples, dtype=np.int64),
            groups=np.array(self._groups, dtype=np.int64),
            prompts=np.array(self._prompts, dtype=np.int64),
            names=self._names,
        )


def lengths_of(run: Run) -> Lengths:
    """The lengths of a run, for which alone all its steps are read."""
    lengths = Lengths()
    for step, groups in run.by_step():
        lengths.add(step, groups)
    return lengths
