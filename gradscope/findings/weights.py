"""What changes of weights say, and gradients beside them, in sentences for people."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradscope.results.ranks.curves import WeightRankPoint
from gradscope.results.update import GradientAndUpdate, UpdateTrajectory, WeightUpdate
from gradscope.say import with_interval


def weight_update_findings(
    updates: Sequence[WeightUpdate], trajectories: Sequence[UpdateTrajectory]
) -> tuple[str, ...]:
    """What training did to the weights, each number beside its null, in at most three sentences."""
    whole, last = trajectories[0], max(update.last for update in updates)
    sentences = []
    if whole.top_energy.value is not None and whole.linear_growth.value is not None:
        sentences.append(
            f"Over {len(whole.num_updates)} checkpoints one direction holds {whole.top_energy.value:.0%} of the "
            f"updates' energy (a random walk: {whole.walk_top_energy.value:.0%}), and a straight line "
            f"{whole.linear_growth.value:.0%} (a random walk: {whole.walk_linear_growth.value:.0%})."
        )
    since = [update for update in updates if update.first == min(u.first for u in updates) and update.last == last]
    ranks = [(u.effective_rank.value, u.gaussian.value) for u in since if u.effective_rank.value and u.gaussian.value]
    if ranks:
        mean, null = (sum(column) / len(ranks) for column in zip(*ranks, strict=True))
        sentences.append(
            f"After {last} updates the change of a matrix has effective rank {mean:.1f} on average over {len(ranks)} "
            f"matrices; unrelated entries would give {null:.1f}."
        )
    overlaps = [
        (u.principal_overlap.value, u.principal_null.value) for u in since if u.principal_null.value is not None
    ]
    defined = [(share, null) for share, null in overlaps if share is not None and null is not None]
    if defined:
        share, null = (sum(column) / len(defined) for column in zip(*defined, strict=True))
        sentences.append(
            f"On average {share:.1%} of a change lies in the principal directions of the initial weights; a random "
            f"change would have {null:.1%} there."
        )
    return tuple(sentences)


def weight_rank_findings(points: Sequence[WeightRankPoint]) -> tuple[str, ...]:
    """Whether the rank of one group's dL/dW depends on the group size, at the last step, beside unrelated rows."""
    over_all = [point for point in points if point.tensor is None and point.effective_rank.is_defined]
    last = [point for point in over_all if point.step == over_all[-1].step]
    by_advantage = {name: [p for p in last if p.advantage == name] for name in dict.fromkeys(p.advantage for p in last)}
    courses = [course for course in by_advantage.values() if len(course) > 1]
    if not courses:
        return tuple(_of_one_size(points[0]) for points in list(by_advantage.values())[:1])
    course = sorted(courses[0], key=lambda point: point.group_size)
    ranks = ", ".join(f"{point.effective_rank.value:.2f} with {point.group_size} rollouts" for point in course)
    return (
        f"dL/dW of one group, mean over its weights, has effective rank {ranks} (advantage {course[0].advantage}, step "
        f"{course[0].step}); that is {_ratio(course[-1])} of unrelated rows of the same norms at the largest size.",
    )


def _of_one_size(point: WeightRankPoint) -> str:
    return (
        f"dL/dW of one group of {point.group_size} rollouts, mean over its weights, has effective rank "
        f"{with_interval(point.effective_rank, '.2f')} (advantage {point.advantage}, step {point.step}), "
        f"{_ratio(point)} of unrelated rows of the same norms."
    )


def _ratio(point: WeightRankPoint) -> str:
    return with_interval(point.nulls["gaussian"].ratio, ".2f")


def gradient_update_findings(pairs: Sequence[GradientAndUpdate]) -> tuple[str, ...]:
    """The means of the last step, in at most one sentence."""
    last = [one for one in pairs if one.step == pairs[-1].step]
    ranks = [(one.gradient_rank.value, one.update_rank.value, one.gaussian.value) for one in last]
    defined = [triple for triple in ranks if None not in triple]
    if not defined:
        return ()
    gradient, update, null = np.array(defined, dtype=np.float64).mean(axis=0)
    return (
        f"The gradient of step {last[0].step} has effective rank {gradient:.1f} on average over {len(defined)} "
        f"weights, their change from {last[0].first} to {last[0].last} updates {update:.1f}, and unrelated entries "
        f"{null:.1f}: a rank of one says nothing of the other.",
    )
