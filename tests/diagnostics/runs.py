"""Small runs made by hand, for tests of the diagnostics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from gradscope.results.source import Source
from gradscope.rollouts.run import Run, TrainerSettings
from gradscope.rollouts.types import Rollout, RolloutGroup


def make_group(
    step: int, name: str, rewards: Sequence[float | None], advantages: Sequence[float | None] | None = None
) -> RolloutGroup:
    """One group with given rewards and advantages."""
    logged = advantages or [None] * len(rewards)
    rollouts = tuple(
        Rollout(group_id=name, sample=i, row=i, prompt="p", completion="c", reward=reward, advantage=logged[i])
        for i, reward in enumerate(rewards)
    )
    return RolloutGroup(step=step, group_id=name, prompt_id=name, rollouts=rollouts)


def make_run(
    groups: Sequence[RolloutGroup],
    *,
    metrics: Mapping[int, Mapping[str, float]] | None = None,
    settings: Mapping[str, object] | None = None,
    notes: Mapping[int, str] | None = None,
) -> Run:
    """A run with given groups."""
    return Run(
        path=Path("run"),
        source=Source(path="run", format="test", recognized="a run made by hand"),
        groups=tuple(groups),
        metrics=metrics or {},
        settings=TrainerSettings(values=settings or {}, origin="a test" if settings is not None else None),
        notes=notes or {},
    )
