"""One line of prime-rl's traces: an episode, in which one agent or several were trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradscope.rollouts.readers.parsing.grouping import Record
from gradscope.rollouts.readers.parsing.nested_cells import list_of, mapping_of, usable_reward, whole_number
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.parsing.scalars import ABSENT, digest, finite_or_none, text_of
from gradscope.rollouts.readers.prime_rl.trace import AgentTrace

AGENTS = "Episodes with several trained agents: the rollouts of one agent form a group."
"""For ``Source.inferred``."""


def is_standalone(episode: Mapping[str, Any]) -> bool:
    """Whether an episode is of an evaluation on its own, beside no training."""
    return isinstance(episode.get("traces"), list) and mapping_of(episode.get("run")).get("type") == "eval"


def trained_traces(episode: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The traces of an episode whose agents were trained."""
    return [trace for trace in map(mapping_of, list_of(episode.get("traces"))) if _is_trained(trace)]


def _is_trained(trace: Mapping[str, Any]) -> bool:
    return bool(trace) and mapping_of(trace.get("agent")).get("trainable") is not False


def group_names(group: str, traces: Sequence[Mapping[str, Any]]) -> list[str]:
    """A group for each agent of an episode, by its name where that tells it from the others, else by its place."""
    if len(traces) == 1:
        return [group]
    agents = [text_of(mapping_of(trace.get("agent")).get("name")) for trace in traces]
    return [f"{group}/{agent if len(set(agents)) == len(agents) else at}" for at, agent in enumerate(agents)]


def record_of(
    episode: Mapping[str, Any],
    trace: Mapping[str, Any],
    parsed: AgentTrace,
    step: int,
    group: str,
    location: str,
    quarantine: QuarantineLog,
) -> Record:
    """One agent's rollout of an episode; without a usable reward it is set aside, but stays in its group."""
    task = mapping_of(episode.get("task"))
    environment = text_of(mapping_of(episode.get("env")).get("id"))
    failed = episode.get("ok") is False
    scored = {name: mapping_of(cell) for name, cell in mapping_of(trace.get("rewards")).items()}
    return Record(
        step=step,
        group=group,
        prompt_id=f"{environment}/{text_of(task.get('hash')) or digest(task.get('data'))}",
        prompt=parsed.prompt,
        completion=parsed.completion,
        messages=parsed.messages,
        reward=usable_reward(_weighted_sum(scored), location, quarantine),
        rewards={name: finite_or_none(cell.get("score")) for name, cell in scored.items()},
        status="error" if failed else "unknown",
        tokens=parsed.tokens,
        earlier=parsed.earlier,
        policy_versions=_policy_versions(episode),
    )


def _policy_versions(episode: Mapping[str, Any]) -> tuple[int, int] | None:
    """The versions of the weights that an episode began and ended with, counted in updates; None of other cells."""
    policy = mapping_of(mapping_of(mapping_of(episode.get("run")).get("work")).get("policy"))
    start, end = whole_number(policy.get("start")), whole_number(policy.get("end"))
    return (start, end) if start is not None and end is not None and 0 <= start <= end else None


def _weighted_sum(scored: Mapping[str, Mapping[str, Any]]) -> Any:
    """The scalar reward, the sum of score times weight; where a score is none, what stands in its place."""
    if not scored:
        return ABSENT
    total = 0.0
    for cell in scored.values():
        score, weight = finite_or_none(cell.get("score")), finite_or_none(cell.get("weight", 1.0))
        if score is None or weight is None:
            return cell.get("score") if score is None else cell.get("weight")
        total += score * weight
    return total
