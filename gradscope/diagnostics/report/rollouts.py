"""The rollouts that a page holds to be read: whole groups of a few steps, those that pull hardest first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from gradscope.diagnostics.report.sections.inputs import excerpt
from gradscope.metrics.gram.geometry import projection_shares
from gradscope.metrics.outcomes.groups import all_equal
from gradscope.results.report import ReadGroup, ReadRollout
from gradscope.rollouts.groups import RolloutGroup, holds_rewards_alone
from gradscope.rollouts.run import Run

if TYPE_CHECKING:
    from gradscope.gradients.step.step_gram import StepGram

MAX_ROLLOUTS = 96
"""Rollouts of a page, but for one group of each step, which is always whole: more are not read, and a page is small."""
MAX_CHARACTERS = 120_000  # of all their texts, so that a page of long completions stays as small as one of short ones
MIN_CHARACTERS = 400  # of one text, however many there are

_Shares = Mapping[tuple[str, int], float]


def read_groups(
    run: Run, grams: Sequence[StepGram], threshold: float | None, main: str | None = None
) -> tuple[ReadGroup, ...]:
    """Groups of the recomputed steps, or where there are none of the first, the middle and the last."""
    # Of each step one group of each kind, then those with the largest parts of its gradient (without gradients, the
    # first ones), by step as logged. None where the log holds no texts.
    if holds_rewards_alone(run.groups):
        return ()
    kind = partial(kind_of, threshold=threshold, main=main)
    parts = {gram.step: _shares(gram) for gram in grams} or {
        step: {} for step in sorted({run.steps[0], run.steps[len(run.steps) // 2], run.steps[-1]})
    }
    allowed = MAX_ROLLOUTS // max(len(parts), 1)
    chosen = [
        (group, shares)
        for step, shares in parts.items()
        for group in _chosen(run.groups_at(step), shares, kind, allowed)
        if any(rollout.prompt or rollout.completion for rollout in group.rollouts)
    ]
    texts = sum(1 + group.size for group, _ in chosen)
    limit = max(MIN_CHARACTERS, MAX_CHARACTERS // max(texts, 1))
    return tuple(
        ReadGroup(
            step=group.step,
            group_id=group.group_id,
            kind=kind(group),
            prompt=excerpt(group.rollouts[0].prompt, limit),
            rollouts=tuple(
                ReadRollout(
                    sample=rollout.sample,
                    reward=rollout.reward,
                    advantage=rollout.advantage,
                    share=shares.get((group.group_id, rollout.sample)),
                    completion=excerpt(rollout.completion, limit),
                )
                for rollout in group.rollouts
            ),
        )
        for group, shares in chosen
    )


def kind_of(group: RolloutGroup, threshold: float | None, main: str | None = None) -> str:
    """What the rewards of a group are alike in; ``side reward`` where those of ``main`` are alike and others differ."""
    rewards = [reward for reward in group.rewards if reward is not None]
    if len(rewards) < group.size:
        return "not known"
    if not all_equal(rewards):
        of_main = [reward for rollout in group.rollouts if (reward := rollout.rewards.get(main or "")) is not None]
        return "side reward" if len(of_main) == group.size and all_equal(of_main) else "mixed"
    if threshold is None or group.size < 2:
        return "tied"
    return "all pass" if rewards[0] >= threshold else "all fail"


def _shares(gram: StepGram) -> _Shares:
    matrix = gram.policy_gram
    if matrix is None or matrix.sum() <= 0:
        return {}
    shares = projection_shares(matrix).tolist()
    return dict(zip(zip(gram.group_ids, gram.samples, strict=True), shares, strict=True))


def _chosen(
    groups: Sequence[RolloutGroup], shares: _Shares, kind: Callable[[RolloutGroup], str], allowed: int
) -> list[RolloutGroup]:
    """At least one group, then as many as ``allowed`` rollouts leave room for; in the order of the log."""
    largest = [max(abs(shares.get((group.group_id, r.sample), 0.0)) for r in group.rollouts) for group in groups]
    order = sorted(range(len(groups)), key=lambda index: -largest[index])
    first_of_kind: dict[str, int] = {}
    for index in order:
        first_of_kind.setdefault(kind(groups[index]), index)
    chosen: list[int] = []
    for index in dict.fromkeys((*first_of_kind.values(), *order)):
        if not chosen or groups[index].size <= allowed:
            chosen.append(index)
            allowed -= groups[index].size
    return [groups[index] for index in sorted(chosen)]
