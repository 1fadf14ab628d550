"""Runs made by hand, and runs made from real files whose answers are known."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from gradscope.results.source import Source
from gradscope.rollouts.run import Run, TrainerSettings
from gradscope.rollouts.types import Rollout, RolloutGroup

Rewards = Sequence[float | None]


def group_of(
    rewards: Rewards,
    *,
    step: int = 0,
    prompt: str = "p",
    functions: Mapping[str, Rewards] | None = None,
    advantages: Rewards | None = None,
) -> RolloutGroup:
    group_id = f"{step}/{prompt}"
    logged = advantages or [None] * len(rewards)
    rollouts = tuple(
        Rollout(
            group_id=group_id,
            sample=sample,
            row=sample,
            prompt=prompt,
            completion="",
            reward=reward,
            rewards={name: values[sample] for name, values in (functions or {}).items()},
            advantage=logged[sample],
        )
        for sample, reward in enumerate(rewards)
    )
    return RolloutGroup(step=step, group_id=group_id, prompt_id=prompt, rollouts=rollouts)


def run_of(
    *groups: RolloutGroup,
    metrics: Mapping[int, Mapping[str, float]] | None = None,
    notes: Mapping[int, str] | None = None,
    settings: Mapping[str, object] | None = None,
    path: str = "made-up",
) -> Run:
    source = Source(path=path, format="made-up", recognized="made up for a test")
    return Run(
        path=Path(path),
        source=source,
        groups=groups,
        metrics=metrics or {},
        notes=notes or {},
        settings=TrainerSettings(values=settings or {}, origin=None if settings is None else "a test"),
    )


def samples_run(correct: Mapping[str, Sequence[float]], path: str = "made-up") -> Run:
    """One group a prompt at step 0, as sample files are read."""
    return run_of(*(group_of(rewards, prompt=prompt) for prompt, rewards in correct.items()), path=path)


def humaneval(data: Path) -> Run:
    file = data / "humaneval_codegen16b" / "HumanEval_codegen16b_n100_execution_results.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    return samples_run({row["task_id"]: [float(passed) for passed in row["passed"]] for row in rows}, str(file))


def tau_bench(data: Path) -> Run:
    file = data / "taubench" / "gpt-4o-airline.json"
    rewards: dict[str, list[float]] = {}
    for trial in json.loads(file.read_text()):
        rewards.setdefault(str(trial["task_id"]), []).append(float(trial["reward"]))
    return samples_run(rewards, str(file))
