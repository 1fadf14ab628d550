"""Advantages that remember what a prompt earned at its earlier visits, and hand it to the checkpoint.

Legend: N groups of a step, G rollouts of a group, R rollouts of a step, T tokens of a completion.
"""

from __future__ import annotations

import numpy as np

from gradscope.advantages.online_advantage import Array, Memory, OnlineAdvantage, StepRollouts
from gradscope.metrics.outcomes.groups import EQUAL_REWARDS

_MEMORY = 0.5
"""How much of the running mean of ``running_mean`` stays when its prompt is seen again."""
HALF_LIFE, LEAST_KEPT, MOST_KEPT = 0.06, 0.875, 0.96
"""Of ``spo``: the change D of the policy that halves what is kept of the counts, and the bounds of that share: the
constants of its authors' program and of its script. They amount to windows of 8 to 25 visits."""
PRIOR = 0.5
"""Passes and fails that ``spo`` counts before a prompt's first visit, as its program does without earlier samples."""
WHITENING_EPSILON = 1e-8
"""Added to the step's std by ``spo``."""
_KINDS, _ARRAYS = ("passes", "fails"), ("ids", "logprobs")


class RunningMean(OnlineAdvantage):
    """``running_mean``: the reward minus what its prompt used to earn.

    A group of equal rewards pushes when that differs from the prompt's past. A prompt's first baseline is the mean of
    the step that it comes up in.
    """

    def __init__(self) -> None:
        super().__init__("running_mean")
        self._means: dict[str, float] = {}

    def advantages(self, step: StepRollouts) -> tuple[Array, ...]:
        """The advantages of a step, [R][1]; remembers its rewards."""
        first = float(np.concatenate(step.rewards).mean())
        baseline = [self._means.get(prompt, first) for prompt in step.prompt_ids]
        for prompt, before, rewards in zip(step.prompt_ids, baseline, step.rewards, strict=True):
            self._means[prompt] = float(_MEMORY * before + (1 - _MEMORY) * rewards.mean())
        return self.by_rollout([rewards - before for rewards, before in zip(step.rewards, baseline, strict=True)])

    @property
    def memory(self) -> Memory:
        """Prompt -> running mean of its rewards."""
        return Memory(numbers=dict(self._means))

    def recall(self, memory: Memory) -> None:
        """Go on from earlier running means by prompt."""
        self._means = dict(memory.numbers)


class ValueTracker(OnlineAdvantage):
    """``spo``: the reward minus a prompt's tracked pass rate a / (a + b), scaled over the step.

    At each visit the counts shrink by d = 2^(-D / 0.06), within [0.875, 0.96], and the visit's passes and fails are
    added. D is how far the policy has moved on the prompt since: the mean over tokens of |log pi_now - log pi_then| of
    the first completion of the visit before; 0 at the first visit. In the source a visit is one rollout.
    """

    def __init__(self) -> None:
        super().__init__("spo")
        self._counts: dict[str, tuple[float, float]] = {}
        self._seen: dict[str, tuple[tuple[int, ...], tuple[float, ...]]] = {}

    def advantages(self, step: StepRollouts) -> tuple[Array, ...]:
        """The advantages of a step, [R][1]; remembers its rewards and the first completion of each group.

        Returns:
            One number a rollout.

        Raises:
            ValueError: A prompt is seen again and there is no policy to ask how far it has moved.
        """
        counts = [self._counts.get(prompt, (PRIOR, PRIOR)) for prompt in step.prompt_ids]
        raw = [
            rewards - passes / (passes + fails) for rewards, (passes, fails) in zip(step.rewards, counts, strict=True)
        ]
        kept = np.clip(2.0 ** (-self._moved(step) / HALF_LIFE), LEAST_KEPT, MOST_KEPT)
        starts = np.cumsum([0, *(len(rewards) for rewards in step.rewards)])
        for index, (prompt, rewards) in enumerate(zip(step.prompt_ids, step.rewards, strict=True)):
            passes, fails = (float(kept[index] * count) for count in counts[index])
            self._counts[prompt] = (passes + float(rewards.sum()), fails + float((1 - rewards).sum()))
            first = starts[index]
            self._seen[prompt] = (tuple(step.completion_ids[first]), tuple(step.logprobs[first]))
        everything = np.concatenate(raw)
        if np.ptp(everything) <= EQUAL_REWARDS:
            return self.by_rollout([np.zeros(len(values)) for values in raw])
        scale = everything.std(ddof=1) + WHITENING_EPSILON
        return self.by_rollout([(values - everything.mean()) / scale for values in raw])

    def _moved(self, step: StepRollouts) -> Array:
        """How far the policy has moved on each prompt since its last visit, [N]."""
        again = [index for index, prompt in enumerate(step.prompt_ids) if prompt in self._seen]
        moved = np.zeros(len(step.prompt_ids))
        if not again:
            return moved
        if step.rescore is None:
            raise ValueError("spo needs the policy to score what it sampled before")
        seen = [self._seen[step.prompt_ids[index]] for index in again]
        now = step.rescore(again, [ids for ids, _ in seen])
        moved[again] = [np.abs(np.subtract(new, then)).mean() for new, (_, then) in zip(now, seen, strict=True)]
        return moved

    @property
    def memory(self) -> Memory:
        """Counts by prompt, and the ids and log-probabilities of the completion last seen."""
        counts = {
            f"{kind}:{prompt}": both[at] for prompt, both in self._counts.items() for at, kind in enumerate(_KINDS)
        }
        arrays = {
            f"{kind}:{prompt}": np.asarray(values, dtype=np.float32)
            for prompt, both in self._seen.items()
            for kind, values in zip(_ARRAYS, both, strict=True)
        }
        return Memory(numbers=counts, arrays=arrays)

    def recall(self, memory: Memory) -> None:
        """Go on from earlier counts.

        Raises:
            ValueError: They are of something else.
        """
        prompts = [name.partition(":")[2] for name in memory.numbers if name.startswith(f"{_KINDS[0]}:")]
        if len(memory.numbers) != len(_KINDS) * len(prompts):
            raise ValueError("what was kept is no count of passes and fails by prompt")
        self._counts = {
            prompt: (memory.numbers[f"{_KINDS[0]}:{prompt}"], memory.numbers[f"{_KINDS[1]}:{prompt}"])
            for prompt in prompts
        }
        self._seen = {
            prompt: (
                tuple(memory.arrays[f"{_ARRAYS[0]}:{prompt}"].astype(int).tolist()),
                tuple(memory.arrays[f"{_ARRAYS[1]}:{prompt}"].tolist()),
            )
            for prompt in prompts
        }
