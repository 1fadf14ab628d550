"""Runs whose rollouts have log-probabilities, made by hand."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from gradscope.rollouts.groups import RolloutGroup
from gradscope.rollouts.run import Run
from tests.diagnostics.made_up_runs import group_of, run_of


def tokens_of(*rollouts: Mapping[str, Any], step: int = 1, prompt: str = "p") -> RolloutGroup:
    """A group whose rollouts have these fields."""
    group = group_of([1.0] * len(rollouts), step=step, prompt=prompt)
    changed = tuple(replace(rollout, **fields) for rollout, fields in zip(group.rollouts, rollouts, strict=True))
    return replace(group, rollouts=changed)


def scored(sampler: Sequence[float], trainer: Sequence[float], **fields: Any) -> dict[str, Any]:
    """A rollout with both log-probabilities."""
    return {"logprobs": tuple(sampler), "trainer_logprobs": tuple(trainer), **fields}


def drifting_run(num_steps: int = 3, num_prompts: int = 6) -> Run:
    """Tokens whose trainer is ahead by a hundredth at step 1, two at step 2, ...; every rollout lags by its sample."""
    groups = [
        tokens_of(
            *(
                scored(
                    [-1.0, -0.5],
                    [-1.0 + step / 100, -0.5 - step / 100],
                    advantage=1.0,
                    entropies=(step / 10, step / 10),
                    policy_versions=(max(step - 1 - sample, 0), step - 1),
                    status="truncated" if sample else "completed",
                    seconds=1.0 + sample,
                )
                for sample in range(2)
            ),
            step=step,
            prompt=f"p{prompt}",
        )
        for step in range(1, num_steps + 1)
        for prompt in range(num_prompts)
    ]
    return run_of(*groups)
