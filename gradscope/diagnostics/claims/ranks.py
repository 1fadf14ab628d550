"""Claims about ranks: about 2 whatever the group size, by candidate matrix, and higher with credit for tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gradscope.advantages.registry import LOGGED
from gradscope.diagnostics.claims.claim import Judgement, cannot_tell, in_range, rises, together
from gradscope.diagnostics.claims.evidence import Evidence
from gradscope.diagnostics.rank.collected import Collected
from gradscope.diagnostics.rank.comparison import GroupRank, compare_sizes, ranks_of_groups
from gradscope.diagnostics.rank.request import RankRequest
from gradscope.diagnostics.rank.rollouts.advantage_matrix import advantage_rows
from gradscope.diagnostics.rank.rollouts.step_spectra import step_spectra
from gradscope.diagnostics.rank.weights.weight_curve import ALL_WEIGHTS
from gradscope.errors import InputError
from gradscope.estimate import Estimate
from gradscope.metrics.uncertainty.bootstrap import bootstrap_statistics
from gradscope.results.rank import RowKind
from gradscope.results.ranks.curves import NullRank, RankCurvePoint, TokenRankPoint, WeightRankPoint
from gradscope.say import number, percent, with_interval

ABOUT_TWO = (1.5, 2.5)
"""Ranks that are called "about 2"."""
SAME_RANK = 0.5
"""A change of the rank between the smallest and the largest group up to this is "whatever the group size"."""
HIGHER_RANK = 0.05
"""The least relative rise of a rank that is called higher."""
_Point = RankCurvePoint | TokenRankPoint | WeightRankPoint


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEvidence:
    """One matrix at one step, at every group size, on the same prompts."""

    points: Sequence[_Point]
    """By group size, ascending."""
    change: Estimate | None
    """Rank at the largest size minus at the smallest, paired by prompt; None where there is one size, or tokens were
    drawn: of fewer tokens, not only of fewer rollouts, is then the rank at a smaller size."""
    frac_seen: float = 1.0
    """Share of the tokens that are rows."""


def two_whatever_the_size(look: Callable[[Evidence], RankEvidence], evidence: Evidence) -> Judgement:
    """Whether the rank at the largest group is about 2 and the smallest group's is no other.

    Args:
        look: Where the ranks of the matrix are.

    Returns:
        The judgement, at the last step.
    """
    found = look(evidence)
    ranked = [point for point in found.points if point.effective_rank.is_defined]
    if not ranked:
        reason = found.points[0].effective_rank.undefined if found.points else None
        return cannot_tell(reason or "No group has such a matrix")
    last = ranked[-1]
    verdicts = [in_range(last.effective_rank, *ABOUT_TWO, num_tests=2)]
    changed = "there is one group size" if len(ranked) < 2 else "no change is stated"
    if found.change is not None and found.change.is_defined and len(ranked) > 1:
        verdicts.append(in_range(found.change, -SAME_RANK, SAME_RANK, num_tests=2))
        change = with_interval(found.change, "+.2f")
        changed = f"{change} from the smallest to the largest R on the same prompts ({found.change.num_units})"
    else:
        verdicts.append("cannot_tell")
    seen = "" if found.frac_seen == 1.0 else f" {percent(found.frac_seen)} of the tokens are rows."
    course = ", ".join(f"{number(p.effective_rank.value or 0.0, '.2f')} at R = {p.group_size}" for p in ranked)
    return Judgement(
        estimate=last.effective_rank,
        null=_unrelated(last).effective_rank,
        verdict=together(verdicts),
        why=f"Rank {course}; {changed}; {_ratio(last)} of unrelated rows.{seen}",
        steps=(last.step,),
    )


def of_rollouts(kind: RowKind) -> Callable[[Evidence], RankEvidence]:
    """Rows that are rollouts, in the space of one kind."""
    return lambda evidence: _evidence(evidence.gradients(kind).curve, evidence.gradients(kind).group_ranks, "rollout")


def of_tokens(kind: RowKind) -> Callable[[Evidence], RankEvidence]:
    """Rows that are tokens, in the space of one kind."""

    def look(evidence: Evidence) -> RankEvidence:
        collected = evidence.gradients(kind)
        found = _evidence(collected.token_curve, collected.group_ranks, "token")
        seen = min((point.frac_seen for point in found.points if isinstance(point, TokenRankPoint)), default=1.0)
        return found if seen == 1.0 else replace(found, change=None, frac_seen=seen)

    return look


def of_weights(evidence: Evidence) -> RankEvidence:
    """dL/dW of one group, mean over all weights."""
    return _of_weight(evidence.gradients("weight"), None)


def of_head(evidence: Evidence) -> RankEvidence:
    """dL/dW of one group, of the output head.

    Returns:
        Its ranks.

    Raises:
        InputError: No weight is the head alone.
    """
    collected = evidence.gradients("weight")
    names = [point.tensor for point in collected.weight_curve if point.tensor is not None]
    heads = [name for name in names if "lm_head" in name or "embed_out" in name]
    if not heads:
        raise InputError("No weight is the output head alone: it is tied to the embedding, or was not trained.")
    return _of_weight(collected, heads[-1])


def of_advantages(evidence: Evidence) -> RankEvidence:
    """The advantages themselves, rollouts by tokens; no gradient is needed."""
    step = max(evidence.run.steps)
    rows = advantage_rows(step, evidence.run.groups_at(step))
    sizes = tuple(size for size in (2**power for power in range(1, 12)) if size < evidence.largest_group)
    request = RankRequest(
        rows="advantage",
        advantages=(evidence.advantage,),
        group_sizes=sizes,
        paired=True,
        centered=False,
        seed=0,
        output=None,
    )
    only = request.groups(rows, evidence.advantage)
    points: list[RankCurvePoint] = []
    ranks: list[GroupRank] = []
    for size in request.sizes(rows, evidence.advantage):
        spectra, curve = step_spectra(rows, evidence.advantage, size, by_group=False, only=only)
        ranks.extend(ranks_of_groups(spectra))
        points.extend(curve)
    return _evidence(points, ranks, "rollout")


def higher_with_token_credit(evidence: Evidence) -> Judgement:
    """Whether dL/dW of a group has a higher rank where each token has an advantage of its own.

    Compared is the mean over weights of a group's dL/dW. A rank of rows would not do: it depends on how unequal the
    advantages' sizes are, and never on whom they reward.

    Returns:
        The judgement on the ratio, paired by group.
    """
    origin, found = evidence.credited()
    by_group: dict[str, dict[str, float]] = {}
    for one in found.group_ranks:
        if one.matrix == ALL_WEIGHTS:
            by_group.setdefault(one.group_id, {})[one.advantage] = one.rank
    both = [(ranks[LOGGED], ranks[evidence.advantage]) for ranks in by_group.values() if len(ranks) == 2]
    step = found.steps[-1].step
    if not both:
        return cannot_tell("No group has a gradient under both advantages", steps=(step,))
    (ratio,) = bootstrap_statistics(lambda sums: sums[..., :1] / sums[..., 1:], both, within=(0.0, np.inf))
    token, outcome = np.mean(both, axis=0).tolist()
    return Judgement(
        estimate=ratio,
        null=Estimate.exact(1.0),
        verdict=rises(ratio, 1.0, HIGHER_RANK),
        why=f"Rank {token:.2f} with {origin}, {outcome:.2f} with the outcome's, on {len(both)} groups.",
        steps=(step,),
    )


def _of_weight(collected: Collected, tensor: str | None) -> RankEvidence:
    points = [point for point in collected.weight_curve if point.tensor == tensor]
    return _evidence(points, collected.group_ranks, tensor or ALL_WEIGHTS)


def _evidence(points: Sequence[_Point], ranks: Iterable[GroupRank], matrix: str) -> RankEvidence:
    """What is known at the last step."""
    step = max((point.step for point in points), default=0)
    chosen = sorted((point for point in points if point.step == step), key=lambda point: point.group_size)
    changes = compare_sizes(one for one in ranks if (one.step, one.matrix) == (step, matrix))
    return RankEvidence(points=chosen, change=changes[-1].difference if changes else None)


def _unrelated(point: _Point) -> NullRank:
    return point.nulls["gaussian"]


def _ratio(point: _Point) -> str:
    return with_interval(_unrelated(point).ratio, ".2f")
