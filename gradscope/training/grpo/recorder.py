"""From a trainer's batch to rollouts on disk: one Parquet a step, written when the step is done.

A step is first staged, when its completions are sampled and scored, and kept aside while the update is made. It is
written together with the step's metrics once the trainer logs it, so a file on disk always stands for a finished step.

Shapes: R rollouts of a step, N groups of a step, T tokens of a completion.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gradscope.metrics.outcomes.groups import all_equal
from gradscope.rollouts.groups import Rollout, RolloutGroup
from gradscope.rollouts.run_folder import append_metrics
from gradscope.rollouts.store import write_step_rollouts
from gradscope.training.grpo.policy import TrainedPolicy
from gradscope.training.tasks.task import Problem, Task, incoherence_metrics


def _batch_numbers(groups: Sequence[RolloutGroup]) -> dict[str, float]:
    """What TRL logs of rewards and lengths, by its names."""
    # groups: The groups of the batch, whose rewards are all known, [N].
    # Returns name -> value. ``frac_reward_zero_std`` is the share of groups, whatever their size; standard deviations
    # are of
    # Returns the whole batch, with R - 1. Without a completion that ended, lengths of ended ones are 0, as TRL has
    # them.
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    by_name = {name: [rollout.rewards[name] or 0.0 for rollout in rollouts] for name in rollouts[0].rewards}
    ended = [rollout for rollout in rollouts if rollout.status == "completed"]
    total = [rollout.reward or 0.0 for rollout in rollouts]
    numbers = {"reward": float(np.mean(total)), "reward_std": float(np.std(total, ddof=1))}
    for name, values in by_name.items():
        numbers |= {
            f"rewards/{name}/mean": float(np.mean(values)),
            f"rewards/{name}/std": float(np.std(values, ddof=1)),
        }
    numbers["frac_reward_zero_std"] = float(np.mean([_is_degenerate(group) for group in groups]))
    numbers["completions/clipped_ratio"] = 1.0 - len(ended) / len(rollouts)
    return numbers | dict(_lengths("", rollouts)) | dict(_lengths("terminated_", ended))


def _is_degenerate(group: RolloutGroup) -> bool:
    """Whether the rewards of a group that was just scored are all equal: a group-mean baseline leaves it nothing."""
    return all_equal([reward for reward in group.rewards if reward is not None])


def _lengths(which: str, rollouts: Sequence[Rollout]) -> Iterator[tuple[str, float]]:
    lengths = [len(rollout.completion_ids or ()) for rollout in rollouts] or [0]
    for name, statistic in (("mean", np.mean), ("min", np.min), ("max", np.max)):
        yield f"completions/{name}_{which}length", float(statistic(lengths))


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledRow:
    """One completion as the trainer has it."""

    problem: Problem
    """What was asked."""
    prompt_ids: tuple[int, ...]
    """Exact ids of the prompt."""
    completion_ids: tuple[int, ...]
    """Exact ids of the completion, end of sequence included, [T]."""
    logprobs: tuple[float, ...]
    """Log-probability of each completion token by the trainer's model, [T]."""
    sampler_logprobs: tuple[float, ...] | None = None
    """Those of the engine that sampled, where it gives them, [T]."""
    rewards: Mapping[str, float]
    """Reward per reward function."""
    reward: float
    """What is trained on: their weighted sum."""
    token_rewards: tuple[float, ...] | None
    """Reward of each completion token, [T]; None where the task does not grade steps."""
    advantage: float | tuple[float, ...]
    """What the optimizer sees: one number, or one per token."""


class Recorder:
    """Writes a run's rollouts and metrics.

    Args:
        run: The run's folder.
        task: The task, whose steps are graded where it can.
        policy: The policy, for its tokenizer.
    """

    def __init__(self, run: Path, task: Task, policy: TrainedPolicy) -> None:
        self._run = run
        self._task = task
        self._policy = policy
        self._eos_ids = policy.eos_ids()
        self._pieces: dict[int, str] = {}
        self._staged: dict[int, tuple[tuple[RolloutGroup, ...], Mapping[str, int]]] = {}

    def grade_steps(
        self, problems: Sequence[Problem], completion_ids: Sequence[Sequence[int]]
    ) -> list[tuple[float, ...]] | None:
        """The reward of every token, [R][T], where the task grades the steps of a completion; None elsewhere."""
        if self._task.step_grader is None:
            return None
        grade = self._task.step_grader
        return [
            grade(problem.prompt, [self._piece(token) for token in ids])
            for problem, ids in zip(problems, completion_ids, strict=True)
        ]

    def stage(self, step: int, rows: Sequence[SampledRow], sizes: Sequence[int], cost: Mapping[str, int]) -> None:
        """Keep a step's rollouts, group by group, [R], until the step is done; steps count from 1.

        The cost is what was sampled for it, empty where the rows are all that was.
        """
        starts = [sum(sizes[:index]) for index in range(len(sizes))]
        groups = (
            self._group(f"{step:05d}-{index:03d}", step, start, rows[start : start + size])
            for index, (start, size) in enumerate(zip(starts, sizes, strict=True))
        )
        self._staged = {step: (tuple(groups), cost)}

    def write(self, step: int, logs: Mapping[str, Any]) -> None:
        """Write the step that is now done, with what the trainer logged for it."""
        groups, cost = self._staged.pop(step)
        write_step_rollouts(self._run, step, groups, force=True)
        numbers = {name: float(value) for name, value in logs.items() if isinstance(value, int | float)}
        if cost:
            numbers |= {**_batch_numbers(groups), **cost}
        append_metrics(
            self._run,
            step,
            numbers
            | {"num_groups": len(groups), "num_degenerate_groups": sum(map(_is_degenerate, groups))}
            | incoherence_metrics(groups, self._task.is_coherent),
        )

    def _group(self, group_id: str, step: int, start: int, rows: Sequence[SampledRow]) -> RolloutGroup:
        return RolloutGroup(
            step=step,
            group_id=group_id,
            prompt_id=rows[0].problem.prompt_id,
            rollouts=tuple(self._rollout(group_id, sample, start + sample, row) for sample, row in enumerate(rows)),
        )

    def _rollout(self, group_id: str, sample: int, row: int, sampled: SampledRow) -> Rollout:
        messages = self._policy.messages(sampled.problem)
        per_token = sampled.advantage if isinstance(sampled.advantage, tuple) else None
        return Rollout(
            group_id=group_id,
            sample=sample,
            row=row,
            prompt=sampled.problem.prompt,
            messages=None if messages is None else tuple(messages),
            completion=self._policy.tokenizer.decode(list(sampled.completion_ids), skip_special_tokens=True),
            prompt_ids=sampled.prompt_ids,
            completion_ids=sampled.completion_ids,
            reward=sampled.reward,
            rewards=dict(sampled.rewards),
            token_rewards=sampled.token_rewards,
            advantage=None if isinstance(sampled.advantage, tuple) else sampled.advantage,
            token_advantages=per_token,
            logprobs=sampled.logprobs if sampled.sampler_logprobs is None else sampled.sampler_logprobs,
            trainer_logprobs=None if sampled.sampler_logprobs is None else sampled.logprobs,
            status="completed" if sampled.completion_ids[-1] in self._eos_ids else "truncated",
        )

    def _piece(self, token: int) -> str:
        if token not in self._pieces:
            self._pieces[token] = self._policy.tokenizer.decode([token], skip_special_tokens=True)
        return self._pieces[token]
