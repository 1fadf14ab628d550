"""What the ranks of a run say, in sentences for people."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gradscope.advantages.registry import LOGGED
from gradscope.estimate import Estimate
from gradscope.metrics.uncertainty.difference import difference_of
from gradscope.results.rank import GradientSpectrum, RankComparison, StepGeometry
from gradscope.results.ranks.curves import RankCurvePoint, SizeChange
from gradscope.say import interval, non_finite_word, percent, with_interval

_KINDS = {"rollout": "rollout rows", "token": "token rows", "all weights": "dL/dW, mean over weights,"}
"""Matrices whose change with the group size is said, as it is said."""


def rank_findings(
    curve: Sequence[RankCurvePoint],
    steps: Sequence[StepGeometry],
    spectra: Sequence[GradientSpectrum],
    comparisons: Sequence[RankComparison] = (),
) -> tuple[str, ...]:
    """Ranks by group size, over time and by formulation, dead groups, cancellation, and the trainer's own norm."""
    ranks = [*_by_size(curve), *time_findings(curve), *_compared(comparisons)]
    sentences = [*ranks, *dead_findings(curve), *_cancellation(steps), *norm_findings(steps)]
    if not curve and spectra:
        sentences.insert(0, _of_matrices(spectra))
    return tuple(sentences)


def _rank(estimate: Estimate) -> str:
    return with_interval(estimate, ".2f")


def preferred_points(curve: Sequence[RankCurvePoint]) -> list[RankCurvePoint]:
    """The logged advantage where there is one, else the first that was asked for."""
    names = [point.advantage for point in curve]
    name = LOGGED if LOGGED in names else (names[0] if names else None)
    return [point for point in curve if point.advantage == name]


def _by_size(curve: Sequence[RankCurvePoint]) -> list[str]:
    """Effective rank beside the number of rows: a low number that is just a small group is no finding."""
    points = [point for point in preferred_points(curve) if point.effective_rank.value is not None]
    if not points:
        return []
    last = max(points, key=lambda point: (point.step, point.group_size))
    return [
        f"At step {last.step} the gradient matrix of a live group has effective rank {_rank(last.effective_rank)} of "
        f"at most {last.group_size} rows (advantage {last.advantage}, mean over {last.num_groups - last.num_dead} live "
        "groups).",
        *_given_prompts(curve, last),
        *_against_nulls(last),
        *_energy(last),
        *sharing_findings(last),
    ]


def _given_prompts(curve: Sequence[RankCurvePoint], point: RankCurvePoint) -> list[str]:
    """How far other rollouts of these prompts would move it; a formulation stands in for logged advantages like its."""
    value = point.effective_rank.value or 0.0
    for other in curve:
        rank, same = other.given_prompts, (other.step, other.group_size) == (point.step, point.group_size)
        if same and rank.interval and math.isclose(rank.value or 0.0, value, rel_tol=1e-6):
            return [
                f"Other rollouts of these very prompts would leave it within{interval(rank, '.2f')}; "
                "the interval above is for other prompts."
            ]
    return []


def _against_nulls(point: RankCurvePoint) -> list[str]:
    """Whether the rank is the advantage's doing or the policy's."""
    scores, gaussian = point.nulls["unweighted"], point.nulls["gaussian"]
    start = (
        f"The score vectors of those groups alone, without advantages, have {_rank(scores.effective_rank)}, and "
        f"unrelated rows of the same norms {_rank(gaussian.effective_rank)}, of which the rank is "
        f"{_rank(gaussian.ratio)}"
    )
    difference = scores.difference
    if difference.interval is None:
        return [f"{start}; these groups are too few to say whether the advantages change the rank."]
    change = with_interval(difference, "+.2f")
    if difference.side_of_zero == 0:
        return [f"{start}. What the advantages change ({change}) cannot be told from nothing."]
    return [f"{start}. The advantages change the rank by {change}; the rest is the policy's own geometry."]


def _energy(point: RankCurvePoint) -> list[str]:
    """What two directions hold, which says little without what they hold of unrelated rows."""
    energy, null = point.two_direction_energy, point.nulls["gaussian"].two_direction_energy
    if point.group_size <= 2 or energy.value is None or null.value is None:
        return []
    return [
        f"Two directions hold {with_interval(energy, percent)} of a live group's energy; of unrelated rows of the same "
        f"norms they would hold {with_interval(null, percent)}."
    ]


def sharing_findings(point: RankCurvePoint) -> list[str]:
    """What adding up makes of what rollouts share, where that is told from chance."""
    shared, rest, fate = point.shared_kept, point.residual_kept, _side_of_chance(point.shared_kept)
    if not fate:
        return []
    beside = "" if rest.value is None else f", and {with_interval(rest, '.2f')} times on all others"
    return [
        f"What the rollouts of a live group share {'adds up' if fate > 0 else 'cancels'}: on directions of several of "
        f"them their sum has {with_interval(shared, '.2f')} times the energy of the rows{beside} (1 for random signs)."
    ]


def _side_of_chance(kept: Estimate) -> int:
    return kept.map(lambda value: value - 1.0).side_of_zero


def time_findings(curve: Sequence[RankCurvePoint]) -> list[str]:
    """First against last step at one group size, and whether the intervals keep them apart."""
    points = [point for point in preferred_points(curve) if point.effective_rank.interval is not None]
    size = max((point.group_size for point in points), default=0)
    points = sorted((point for point in points if point.group_size == size), key=lambda point: point.step)
    if len(points) < 2:
        return []
    first, last = points[0].effective_rank, points[-1].effective_rank
    return [
        f"Between steps {points[0].step} and {points[-1].step} the effective rank went from {_rank(first)} to "
        f"{_rank(last)}: {_change(difference_of(first, last))}."
    ]


def _change(difference: Estimate) -> str:
    """Which way a number went, if its interval says so."""
    text = _rank(difference)
    if difference.side_of_zero:
        return f"it rose by {text}" if difference.side_of_zero > 0 else f"it fell by {text}"
    return f"the difference {text} may be zero, so these steps cannot be told apart"


def size_findings(changes: Sequence[SizeChange]) -> tuple[str, ...]:
    """Whether the rank depends on the group size, on the same prompts, one sentence a kind of matrix.

    Of weights that is their mean: each has its own line in tables and files.

    Returns:
        The sentences; none where no group lives at both sizes.
    """
    named: dict[str, SizeChange] = {}
    for change in changes:
        known = named.setdefault(change.matrix, change)
        if (change.step, change.second) > (known.step, known.second) and change.advantage == known.advantage:
            named[change.matrix] = change
    return tuple(
        f"On the same {change.difference.num_units} prompts at step {change.step} the rank of {_KINDS[matrix]} at "
        f"R = {change.second} is {with_interval(change.difference, '+.2f')} above that at R = {change.first} "
        f"(advantage {change.advantage})."
        for matrix, change in named.items()
        if change.difference.is_defined and matrix in _KINDS
    )


def _compared(comparisons: Sequence[RankComparison]) -> list[str]:
    """Which formulations have ranks that can be told from the first one's."""
    apart = [c for c in comparisons if c.difference.side_of_zero != 0]
    alike = [c.second for c in comparisons if c.difference.value is not None and c not in apart]
    sentences = []
    if apart:
        named = ", ".join(f"{c.second} ({c.difference.value:+.2f})" for c in apart)
        sentences.append(
            f"Paired by group, the rank under {apart[0].first} differs from that under {named}, each at 95 %. A rank "
            "of rows sees how unequal the advantages are, never their signs."
        )
    if alike:
        sentences.append(
            f"The ranks under {comparisons[0].first} and under {', '.join(alike)} cannot be told apart at step "
            f"{comparisons[0].step}."
        )
    return sentences


def dead_findings(curve: Sequence[RankCurvePoint]) -> list[str]:
    """Groups that have no gradient at all, and hence no rank."""
    points = [point for point in preferred_points(curve) if point.advantage == LOGGED]
    dead, total = sum(point.num_dead for point in points), sum(point.num_groups for point in points)
    if not dead:
        return []
    return [f"{dead} of {total} groups have zero advantage throughout: their gradient is zero and has no rank."]


def _cancellation(steps: Sequence[StepGeometry]) -> list[str]:
    """How much of what the rollouts push survives their sum."""
    values = [step.cancellation.value for step in steps if step.cancellation.value is not None]
    if not values:
        return []
    mean = sum(values) / len(values)
    return [f"On average {mean:.0%} of the summed row norms survives in the step's gradient; the rest cancels."]


def norm_findings(steps: Sequence[StepGeometry]) -> list[str]:
    """The engine's total beside the trainer's own number: what the spectra rest on."""
    if not steps:
        return []
    broken = [step for step in steps if step.logged_grad_norm is not None and not math.isfinite(step.logged_grad_norm)]
    if broken:
        first = broken[0]
        return [
            f"At {len(broken)} of {len(steps)} steps the trainer logged no finite grad_norm, first at step "
            f"{first.step}: {non_finite_word(first.logged_grad_norm or 0.0)}."
        ]
    pairs = [(s.grad_norm.value, s.logged_grad_norm) for s in steps if s.grad_norm.value and s.logged_grad_norm]
    if not pairs:
        return ["The trainer logged no grad_norm at these steps, so the gradients are checked against nothing outside."]
    worst = max(abs(value - logged) / logged for value, logged in pairs)
    return [
        f"The recomputed gradient norm differs from the trainer's logged grad_norm by at most {worst:.1e} (relative) "
        f"at {'this step' if len(pairs) == 1 else f'these {len(pairs)} steps'}."
    ]


def _of_matrices(spectra: Sequence[GradientSpectrum]) -> str:
    """For rows = weight or group: the range of effective ranks."""
    ranked = [s for s in spectra if s.ranks.effective_rank.value is not None]
    if not ranked:
        return "Every gradient matrix is zero: no rank can be stated."
    low = min(ranked, key=lambda s: s.ranks.effective_rank.value or 0.0)
    high = max(ranked, key=lambda s: s.ranks.effective_rank.value or 0.0)
    first, last = (spectrum.label.tensor or f"step {spectrum.label.step}" for spectrum in (low, high))
    return (
        f"Effective ranks run from {low.ranks.effective_rank.value:.2f} ({first}) to "
        f"{high.ranks.effective_rank.value:.2f} ({last})."
    )
