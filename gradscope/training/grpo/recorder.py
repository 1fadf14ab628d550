"""From a trainer's batch to rollouts on disk: one Parquet a step, written when the step is done.

A step is first staged, when its completions are sampled and scored, and kept aside while the update is made. It is
written together with the step's metrics once the trainer logs it, so a file on disk always stands for a finished step.

Shapes: R rollouts of a step, N groups of a step, T tokens of a completion.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
    # As TRL has them: the share of dead groups counts groups whatever their size, standard deviations are of the whole
    # batch, with R - 1, and without a completion that ended the lengths of ended ones are 0.
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


class Recorder:
    """Writes a run's rollouts and metrics."""

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

    def stage(
        self,
        step: int,
        problems: Sequence[Problem],
        rows: Sequence[Mapping[str, Any]],
        sizes: Sequence[int],
        cost: Mapping[str, int],
    ) -> None:
        """Keep a step's rollouts, group by group, [R], until the step is done; steps count from 1.

        A row has the fields of a :class:`Rollout` that the trainer knows. The cost is what was sampled for the step,
        empty where the rows are all that was.
        """
        groups, start = list[RolloutGroup](), 0
        for size in sizes:
            group_id, members = f"{step:05d}-{len(groups):03d}", range(start, start + size)
            rollouts = [self._rollout(problems[row], group_id, row - start, row, rows[row]) for row in members]
            prompt_id = problems[start].prompt_id
            groups.append(RolloutGroup(step=step, group_id=group_id, prompt_id=prompt_id, rollouts=tuple(rollouts)))
            start += size
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

    def _rollout(self, problem: Problem, group_id: str, sample: int, row: int, sampled: Mapping[str, Any]) -> Rollout:
        messages, ids = self._policy.messages(problem), sampled["completion_ids"]
        return Rollout(
            group_id=group_id,
            sample=sample,
            row=row,
            prompt=problem.prompt,
            messages=None if messages is None else tuple(messages),
            completion=self._policy.tokenizer.decode(list(ids), skip_special_tokens=True),
            status="completed" if ids[-1] in self._eos_ids else "truncated",
            **sampled,
        )

    def _piece(self, token: int) -> str:
        if token not in self._pieces:
            self._pieces[token] = self._policy.tokenizer.decode([token], skip_special_tokens=True)
        return self._pieces[token]
