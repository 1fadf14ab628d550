"""Runs made by hand, and runs made from real files whose answers are known."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from gradscope.diagnostics.passk.comparison import Samples
from gradscope.diagnostics.passk.measure import samples_of_run
from gradscope.results.degeneracy import DegeneracyReport
from gradscope.results.source import Source
from gradscope.rollouts.groups import Rollout, RolloutGroup
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.run import Run, TrainerSettings

Rewards = Sequence[float | None]


def norms_with(*, at_seven: float = 9.0, **rest: float) -> dict[int, dict[str, float]]:
    """Metrics of 20 steps, of which the norm of the seventh stands out; the ninth has others too."""
    values = {step: {"grad_norm": 1.0 + 0.1 * (step % 4)} for step in range(1, 21)}
    values[7]["grad_norm"] = at_seven
    values[9].update(rest)
    return values


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
    return read_run(data / "humaneval_codegen16b" / "HumanEval_codegen16b_n100_execution_results.jsonl")


def tau_bench(data: Path) -> Run:
    return read_run(data / "taubench" / "gpt-4o-airline.json")


def with_tokens(run: Run) -> Run:
    """The same run; a passing rollout has 3 tokens, a failing one 1."""
    lengths = [[3 if reward else 1 for reward in group.rewards] for group in run.groups]
    ids = [[(7,) * length for length in group_lengths] for group_lengths in lengths]
    groups = (with_fields(group, completion_ids=row) for group, row in zip(run.groups, ids, strict=True))
    return replace(run, groups=tuple(groups))


def beta_run(num_prompts: int = 60, size: int = 8, seed: int = 0) -> Run:
    rng = np.random.default_rng(seed)
    rates = rng.beta(0.5, 0.8, num_prompts)
    return run_of(
        *(group_of((rng.random(size) < p).astype(float).tolist(), prompt=f"p{i}") for i, p in enumerate(rates))
    )


def findings_of(report: DegeneracyReport) -> str:
    return " ".join(report.findings)


def two_steps(**fields: object) -> Run:
    """Step 1: all pass, all fail. Step 2: mixed, all fail."""
    return run_of(
        group_of([1, 1, 1, 1], step=1, prompt="a"),
        group_of([0, 0, 0, 0], step=1, prompt="b"),
        group_of([1, 0, 0, 1], step=2, prompt="c"),
        group_of([0, 0, 0, 0], step=2, prompt="d"),
        **fields,
    )


def with_fields(group: RolloutGroup, **fields: Any) -> RolloutGroup:
    """The group with fields of all its rollouts: a list has an item for each, anything else is the same in all."""
    rollouts = [
        replace(rollout, **{name: value[row] if isinstance(value, list) else value for name, value in fields.items()})
        for row, rollout in enumerate(group.rollouts)
    ]
    return replace(group, rollouts=tuple(rollouts))


def with_rewards(run: Run, **functions: list[list[float | None]]) -> Run:
    groups = [
        with_fields(group, rewards=[dict(zip(functions, row, strict=True)) for row in zip(*columns, strict=True)])
        for group, *columns in zip(run.groups, *functions.values(), strict=True)
    ]
    return replace(run, groups=tuple(groups))


def samples(name: str, correct: dict[str, list[float]]) -> Samples:
    return samples_of_run(samples_run(correct, path=name), name=name)


FIRST = samples("first", {"a": [1, 1, 1, 1], "b": [1, 1, 0, 0], "c": [0, 0, 0, 0], "only": [1, 1, 1, 1]})


SECOND = samples("second", {"a": [1, 0, 0, 0], "b": [1, 0, 0, 0], "c": [1, 0, 0, 0]})
