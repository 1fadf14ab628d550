"""Flat records of any log become groups: in the order of first appearance, whatever the order of the rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gradscope.rollouts.types import Rollout, RolloutGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One usable row of a foreign log."""

    step: int
    """The trainer's step; 0 where the log has none."""
    group: str
    """What the rows of a group share within a step."""
    prompt_id: str
    """What all groups of a prompt share."""
    prompt: str
    """The prompt's text."""
    completion: str
    """The completion's text."""
    reward: float | None
    """The scalar reward; None where the row has none that can be used, so that its group is known to be incomplete."""
    rewards: Mapping[str, float | None] = field(default_factory=dict)
    """Reward per reward function."""
    messages: tuple[Mapping[str, Any], ...] | None = None
    """The prompt as messages."""
    advantage: float | None = None
    """The advantage that the optimizer saw."""


def build_groups(records: Iterable[Record]) -> tuple[RolloutGroup, ...]:
    """Groups by step.

    Args:
        records: Usable rows in the order of the log.

    Returns:
        Groups by step, then by the first row of each.
    """
    members: dict[tuple[int, str], list[Rollout]] = {}
    prompts: dict[tuple[int, str], str] = {}
    rows: dict[int, int] = {}
    for record in records:
        key = (record.step, record.group)
        rollouts = members.setdefault(key, [])
        prompts.setdefault(key, record.prompt_id)
        row = rows.get(record.step, 0)
        rows[record.step] = row + 1
        rollouts.append(
            Rollout(
                group_id=_group_id(record),
                sample=len(rollouts),
                row=row,
                prompt=record.prompt,
                completion=record.completion,
                messages=record.messages,
                reward=record.reward,
                rewards=record.rewards,
                advantage=record.advantage,
            )
        )
    ordered = sorted(members, key=lambda key: key[0])
    return tuple(
        RolloutGroup(
            step=key[0], group_id=members[key][0].group_id, prompt_id=prompts[key], rollouts=tuple(members[key])
        )
        for key in ordered
    )


def describe_sizes(groups: Iterable[RolloutGroup]) -> tuple[str, ...]:
    """What to say about group sizes.

    Args:
        groups: All groups.

    Returns:
        A sentence where they differ, else nothing.
    """
    sizes = sorted({group.size for group in groups})
    return (f"Groups differ in size: {sizes[0]} to {sizes[-1]} rollouts.",) if len(sizes) > 1 else ()


def _group_id(record: Record) -> str:
    return f"{record.step}:{record.group}" if record.step else record.group
