"""Advantages while a run is trained, by name: a formulation's inputs of a step beyond its rewards.

Most are arithmetic on the step's rewards (:class:`~gradscope.advantages.online.OnlineAdvantage`). Here are
those that read tokens, lengths or single reward functions, and the choice among all that need no torch.

Shapes: N groups of a step, G rollouts of a group, R rollouts of a step, T tokens of a completion, F reward functions,
H width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from gradscope.advantages.group import (
    COMPENSATION_LIMIT,
    compensation,
    gdpo,
    optimal_advantages,
    own_rewards,
    return_to_go,
)
from gradscope.advantages.registry import compute_step_advantages, formulation
from gradscope.metrics.outcomes.groups import EQUAL_REWARDS

Array = NDArray[np.float64]
Ids = Sequence[int]


class Memory(Struct, frozen=True, kw_only=True):
    """The state from which a formulation resumes, plain enough for JSON and safetensors."""

    numbers: Mapping[str, float] = {}  # single numbers by name
    arrays: Mapping[str, NDArray[np.float32]] = {}  # arrays by name


class StepRollouts(Struct, frozen=True, kw_only=True):
    """The inputs of the advantages of a step."""

    rewards: Sequence[Array]  # scalar rewards by group, [N][G]
    prompt_ids: tuple[str, ...]  # the prompt of each group, [N]
    logprobs: Sequence[Sequence[float]]  # log-probability of each sampled token, [R][T]
    max_logprobs: Sequence[Sequence[float]]  # log-probability of the most likely token at each position, [R][T]
    token_rewards: Sequence[Sequence[float]] | None = None
    """Reward of each token, [R][T]; None where the task does not grade steps."""
    states: Sequence[NDArray[np.float32]] | None = None
    """The policy's last hidden states before the first token and at each, [R][1 + T, H]; None unless they are read."""

    function_rewards: Mapping[str, Sequence[float]] = {}
    """Reward function -> reward of each rollout, [R], of those whose sum is the scalar reward."""
    completion_ids: Sequence[Ids] = ()  # token ids of the completions, [R][T]; empty where no formulation asks
    rescore: Callable[[Sequence[int], Sequence[Ids]], Sequence[Sequence[float]]] | None = None
    """From groups of this step and a completion of each one's prompt to the log-probabilities of its tokens by the
    weights as they are; None where there is no policy."""

    def __post_init__(self) -> None:
        if any(np.ndim(group) != 1 or not np.all(np.isfinite(group)) for group in self.rewards):
            raise ValueError("the rewards of a step are finite and one row a group")


class OnlineAdvantage:
    """A formulation by name that remembers nothing; those that do override it."""

    def __init__(self, name: str) -> None:
        scope = formulation(name).scope
        self.name = name  # the formulation's name
        self.by_token = scope == "token"  # whether each token has an advantage of its own
        self.remembers = scope == "run"  # whether a run must keep its memory to go on as it was
        self.reads_states = False  # whether it reads the policy's hidden states
        self.metrics: dict[str, float] = {}  # its numbers of the last step, for the run's metrics

    def advantages(self, step: StepRollouts) -> tuple[Array, ...]:
        """The advantages of a step, in the order of its rollouts: a number each, [R][1], or one a token, [R][T]."""
        if self.name in _STEP_FORMULATIONS:
            return _STEP_FORMULATIONS[self.name](step)
        return _by_rollout(compute_step_advantages(self.name, step.rewards))

    @property
    def memory(self) -> Memory:
        """Its memory."""
        return Memory()

    def recall(self, memory: Memory) -> None:
        """Go on from an earlier :attr:`memory`; ``ValueError`` or ``KeyError`` where it is not of this formulation."""


def _by_rollout(advantages: Sequence[Array]) -> tuple[Array, ...]:
    """Advantages by group, [N][G], in the order of the rollouts, [R][1]."""
    return tuple(np.concatenate(advantages).reshape(-1, 1))


_MEMORY = 0.5  # how much of the running mean of ``running_mean`` stays when its prompt is seen again
HALF_LIFE, MIN_RETAINED, MAX_RETAINED = 0.06, 0.875, 0.96
"""Of ``spo``: the change D of the policy that halves the weight of old counts, and the bounds of that weight: the
constants of its authors' program and of its script. They amount to windows of 8 to 25 visits."""
PRIOR = 0.5
"""Passes and fails that ``spo`` counts before a prompt's first visit, as its program does without earlier samples."""
WHITENING_EPSILON = 1e-8  # added to the step's std by ``spo``
_KINDS, _ARRAYS = ("passes", "fails"), ("ids", "logprobs")


class _RunningMean(OnlineAdvantage):
    """``running_mean``: the reward minus its prompt's running mean, at first the mean of the prompt's first step."""

    def __init__(self) -> None:
        super().__init__("running_mean")
        self._means: dict[str, float] = {}

    def advantages(self, step: StepRollouts) -> tuple[Array, ...]:
        """The advantages of a step, [R][1]; remembers its rewards."""
        first = float(np.concatenate(step.rewards).mean())
        baseline = [self._means.get(prompt, first) for prompt in step.prompt_ids]
        for prompt, before, rewards in zip(step.prompt_ids, baseline, step.rewards, strict=True):
            self._means[prompt] = float(_MEMORY * before + (1 - _MEMORY) * rewards.mean())
        return _by_rollout([rewards - before for rewards, before in zip(step.rewards, baseline, strict=True)])

    @property
    def memory(self) -> Memory:
        """Prompt -> running mean of its rewards."""
        return Memory(numbers=dict(self._means))

    def recall(self, memory: Memory) -> None:
        """Go on from earlier running means by prompt."""
        self._means = dict(memory.numbers)


class _ValueTracker(OnlineAdvantage):
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
        """The advantages of a step, [R][1]; remembers its rewards and the first completion of each group."""
        counts = [self._counts.get(prompt, (PRIOR, PRIOR)) for prompt in step.prompt_ids]
        raw = [r - passes / (passes + fails) for r, (passes, fails) in zip(step.rewards, counts, strict=True)]
        retained = np.clip(2.0 ** (-self._policy_change(step) / HALF_LIFE), MIN_RETAINED, MAX_RETAINED)
        starts = np.cumsum([0, *(len(rewards) for rewards in step.rewards)])
        for index, (prompt, rewards) in enumerate(zip(step.prompt_ids, step.rewards, strict=True)):
            passes, fails = (float(retained[index] * count) for count in counts[index])
            self._counts[prompt] = (passes + float(rewards.sum()), fails + float((1 - rewards).sum()))
            first = starts[index]
            self._seen[prompt] = (tuple(step.completion_ids[first]), tuple(step.logprobs[first]))
        pooled = np.concatenate(raw)
        if np.ptp(pooled) <= EQUAL_REWARDS:
            return _by_rollout([np.zeros(len(values)) for values in raw])
        scale = pooled.std(ddof=1) + WHITENING_EPSILON
        return _by_rollout([(values - pooled.mean()) / scale for values in raw])

    def _policy_change(self, step: StepRollouts) -> Array:
        """How far the policy has moved on each prompt since its last visit, [N]."""
        revisited = [index for index, prompt in enumerate(step.prompt_ids) if prompt in self._seen]
        change = np.zeros(len(step.prompt_ids))
        if not revisited:
            return change
        if step.rescore is None:
            raise ValueError("spo needs the policy to score what it sampled before")
        previous = [self._seen[step.prompt_ids[index]] for index in revisited]
        current = step.rescore(revisited, [ids for ids, _ in previous])
        change[revisited] = [np.abs(np.subtract(b, a)).mean() for b, (_, a) in zip(current, previous, strict=True)]
        return change

    @property
    def memory(self) -> Memory:
        """Counts by prompt, and the ids and log-probabilities of the completion last seen."""
        counts = {
            f"{kind}:{prompt}": count
            for prompt, counts in self._counts.items()
            for kind, count in zip(_KINDS, counts, strict=True)
        }
        arrays = {
            f"{kind}:{prompt}": np.asarray(values, dtype=np.float32)
            for prompt, tokens in self._seen.items()
            for kind, values in zip(_ARRAYS, tokens, strict=True)
        }
        return Memory(numbers=counts, arrays=arrays)

    def recall(self, memory: Memory) -> None:
        """Go on from earlier counts."""
        prompts = [name.partition(":")[2] for name in memory.numbers if name.startswith(f"{_KINDS[0]}:")]
        if len(memory.numbers) != len(_KINDS) * len(prompts):
            raise ValueError("what was kept is no count of passes and fails by prompt")
        self._counts = {p: (memory.numbers[f"{_KINDS[0]}:{p}"], memory.numbers[f"{_KINDS[1]}:{p}"]) for p in prompts}
        self._seen = {
            prompt: (
                tuple(memory.arrays[f"{_ARRAYS[0]}:{prompt}"].astype(int).tolist()),
                tuple(memory.arrays[f"{_ARRAYS[1]}:{prompt}"].tolist()),
            )
            for prompt in prompts
        }


def _token_reward_advantages(
    name: str, function: Callable[[Sequence[Sequence[float]]], tuple[Array, ...]], step: StepRollouts
) -> tuple[Array, ...]:
    """A token's reward, alone or with those after it, against the group, [R][T]."""
    if step.token_rewards is None:
        raise ValueError(f"{name} needs a reward of every token")
    return tuple(advantage for group in _by_group(step.token_rewards, step) for advantage in function(group))


def _length_weighted(step: StepRollouts) -> tuple[Array, ...]:
    """The reward minus the group's mean, a rollout counting once a token, [R][1]."""
    lengths = _by_group([len(tokens) for tokens in step.logprobs], step)
    groups = zip(step.rewards, lengths, strict=True)
    return _by_rollout([optimal_advantages(rewards, np.asarray(length, dtype=float)) for rewards, length in groups])


def _decoupled(step: StepRollouts) -> tuple[Array, ...]:
    """Each reward function scaled by itself, [R][1]."""
    if not step.function_rewards:
        raise ValueError("gdpo needs the rewards of each function")
    table = np.column_stack([np.asarray(values, dtype=float) for values in step.function_rewards.values()])
    groups = [np.asarray(rows) for rows in _by_group(table, step)]
    return _by_rollout(gdpo(groups, np.ones(table.shape[1])))


def _compensated(limit: float, step: StepRollouts) -> tuple[Array, ...]:
    """The group's advantage, weighed up, ``limit`` times at most, where the policy was unsure, [R][T]."""
    advantages = np.concatenate(compute_step_advantages("grpo", step.rewards))
    return tuple(
        advantage * compensation(chosen, top, limit=limit)
        for advantage, chosen, top in zip(advantages, step.logprobs, step.max_logprobs, strict=True)
    )


_STEP_FORMULATIONS: dict[str, Callable[[StepRollouts], tuple[Array, ...]]] = {
    "per_step": partial(_token_reward_advantages, "per_step", return_to_go),
    "per_token": partial(_token_reward_advantages, "per_token", own_rewards),
    "compensation": partial(_compensated, 2.0),
    "compensation_clipped": partial(_compensated, COMPENSATION_LIMIT),
    "opo": _length_weighted,
    "gdpo": _decoupled,
}
"""Formulations of more than the rewards of a step."""


def online_advantage(name: str) -> OnlineAdvantage:
    """A formulation that needs no torch, with nothing remembered yet; ``UsageError`` where there is none of that name.

    >>> nothing = [[0.0], [0.0]]
    >>> step = StepRollouts(
    ...     rewards=[np.array([1.0, 0.0])], prompt_ids=("p",), logprobs=nothing, max_logprobs=nothing
    ... )
    >>> [advantage.tolist() for advantage in online_advantage("dr_grpo").advantages(step)]
    [[0.5], [-0.5]]
    """
    stateful = {"running_mean": _RunningMean, "spo": _ValueTracker}.get(name)
    return OnlineAdvantage(name) if stateful is None else stateful()


def _by_group(values: Sequence[Any] | NDArray[Any], step: StepRollouts) -> list[Any]:
    """Values of the rollouts of a step, [R], split into its groups, [N][G]."""
    ends = np.cumsum([len(group) for group in step.rewards])
    return [values[end - len(group) : end] for group, end in zip(step.rewards, ends, strict=True)]
