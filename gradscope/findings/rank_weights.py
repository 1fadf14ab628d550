"""What changes of weights say, and gradients beside them, in sentences for people."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradscope.results.rank import WeightRankPoint
from gradscope.results.update import (
    AdapterState,
    GradientAndUpdate,
    OptimizerStep,
    UpdateTrajectory,
    WeightUpdate,
)
from gradscope.say import percent, with_interval


def weight_update_findings(
    updates: Sequence[WeightUpdate], trajectories: Sequence[UpdateTrajectory], *, of_adapter: bool = False
) -> tuple[str, ...]:
    """What training did to the weights, each number beside its null, in at most five sentences."""
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
            f"matrices; unrelated {'factors' if of_adapter else 'entries'} would give {null:.1f}."
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
    return (*sentences, *_turned(since), *_in_bfloat16(since))


def _in_bfloat16(since: Sequence[WeightUpdate]) -> tuple[str, ...]:
    """How many parameters changed where weights are in bfloat16."""
    entries = [(u.shape[0] * u.shape[1], u.bfloat16_changed.value) for u in since]
    known = [(number, share) for number, share in entries if share is not None]
    if not known:
        return ()
    share = sum(number * share for number, share in known) / sum(number for number, _ in known)
    return (f"bfloat16 sees {percent(share)} of the {sum(n for n, _ in known):,} entries of these matrices change.",)


def _turned(since: Sequence[WeightUpdate]) -> tuple[str, ...]:
    """Whether singular values are inherited while their directions turn."""
    numbers = [
        (u.spectrum_drift.value, u.spectrum_drift_null.value, u.principal_angle.value, u.principal_angle_null.value)
        for u in since
    ]
    known = [four for four in numbers if None not in four]
    if not known:
        return ()
    drift, drift_null, angle, angle_null = np.array(known, dtype=np.float64).mean(axis=0)
    return (
        f"Of a change {drift:.1%} is in the singular values on average (an unrelated one of its size: "
        f"{drift_null:.1%}), and the principal directions turn by {angle:.1f} degrees ({angle_null:.1f}).",
    )


def idle_adapter_findings(states: Sequence[AdapterState]) -> tuple[str, ...]:
    """Where an adapter does nothing at its last checkpoint, in at most one sentence."""
    last = [state for state in states if state.num_updates == states[-1].num_updates]
    zero = [state for state in last if state.b_norm.value == 0.0]
    if not zero:
        return ()
    return (
        f"After {last[0].num_updates} updates B is still zero in {len(zero)} of {len(last)} matrices: there the "
        "adapter adds nothing.",
    )


def adapter_findings(states: Sequence[AdapterState]) -> tuple[str, ...]:
    """How far an adapter at its last checkpoint is from unrelated factors, in at most one sentence."""
    last = [state for state in states if state.num_updates == states[-1].num_updates]
    numbers = ((s.effective_rank, s.unrelated_rank, s.alignment, s.unrelated_alignment) for s in last)
    pairs = [tuple(number.value for number in four) for four in numbers]
    if not pairs or any(None in four for four in pairs):
        return ()
    rank, null, aligned, unrelated = np.array(pairs, dtype=np.float64).mean(axis=0)
    return (
        f"After {last[0].num_updates} updates B is zero nowhere; B A has effective rank {rank:.1f} of at most "
        f"{max(state.rank for state in last)} and {aligned:.2f} of the norm of its factors on average (unrelated "
        f"factors: {null:.1f} and {unrelated:.2f}).",
    )


def optimizer_findings(steps: Sequence[OptimizerStep]) -> tuple[str, ...]:
    """How far the optimizers' steps from the last step's gradient differ, in at most one sentence."""
    last = {one.optimizer: one for one in steps if one.tensor is None and one.step == steps[-1].step}
    if not last:
        return ()
    adam = last["adam"]
    text = (
        f"From the gradient of step {adam.step} a fresh Adam steps at cosine {adam.cosines['sgd'].value:.2f} with SGD, "
        f"Muon at {last['muon'].cosines['sgd'].value:.2f}"
    )
    moved = [last[name].bfloat16_moved.value for name in ("adam", "sgd")]
    if None in moved:
        return (f"{text}.",)
    return (
        f"{text}; at the logged learning rate bfloat16 sees {percent(moved[0] or 0.0)} of the entries move under Adam, "
        f"and {percent(moved[1] or 0.0)} under an SGD step of the same size.",
    )


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
