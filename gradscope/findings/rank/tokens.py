"""What the ranks of token rows say, in sentences for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gradscope.advantages.registry import LOGGED
from gradscope.results.rank import RowKind
from gradscope.results.ranks.curves import RankCurvePoint, TokenRankPoint
from gradscope.say import with_interval

_SPACES: dict[RowKind, str] = {
    "hidden": "the gradient of a live group by the last hidden state",
    "logit": "the gradient of a live group by the logits",
    "advantage": "the advantage matrix of a live group, rollouts by tokens,",
}


def token_findings(points: Iterable[TokenRankPoint]) -> tuple[str, ...]:
    """The last step's ranks of token rows under the logged or the first advantage, in at most two sentences."""
    ranked = [point for point in points if point.effective_rank.value is not None and point.num_rows.value is not None]
    named = [point for point in ranked if point.advantage == LOGGED] or ranked
    if not named:
        return ("No token of these steps has a weight under these advantages: their matrices are zero.",)
    last = max(named, key=lambda point: (point.step, point.group_size))
    sentences = [
        f"At step {last.step} the {last.num_rows.value:.0f} tokens of a live group span "
        f"{with_interval(last.effective_rank, '.1f')} directions by effective rank (advantage {last.advantage}, mean "
        f"over {last.num_groups - last.num_dead} live groups){_against_unrelated(last)}."
    ]
    if last.method == "sampled":
        sentences.append(
            f"Only {last.frac_seen:.0%} of the tokens were measured, drawn at random; the effective rank of a sample "
            f"is at most its size, so the groups' own may be larger. --max-tokens N takes more, --sketch K all."
        )
    if last.method == "sketch" and last.energy_error is not None:
        sentences.append(
            f"Rows were sketched: each squared singular value is known to {last.energy_error:.1%} of their sum, and "
            f"the ranks count that error in. --sketch K with a K four times as large halves it."
        )
    return tuple(sentences)


def signal_findings(
    kind: RowKind, curve: Sequence[RankCurvePoint], tokens: Sequence[TokenRankPoint]
) -> tuple[str, ...]:
    """The last step's ranks of rollouts and of tokens in another space than that of the parameters.

    Args:
        kind: ``hidden``, ``logit`` or ``advantage``.
        curve: Rows that are rollouts.
        tokens: Rows that are tokens; empty for advantages.

    Returns:
        One sentence for each kind of rows that has a rank.
    """
    by_rollout = [point for point in curve if point.effective_rank.is_defined and point.advantage == curve[0].advantage]
    sentences = []
    if by_rollout:
        last = max(by_rollout, key=lambda point: (point.step, point.group_size))
        gaussian, scores = last.nulls["gaussian"], last.nulls["unweighted"]
        alone = "where every rollout has the advantage 1" if kind == "advantage" else "without advantages"
        sentences.append(
            f"At step {last.step} {_SPACES[kind]} has effective rank {with_interval(last.effective_rank, '.2f')} of at "
            f"most {last.group_size} rollouts (advantage {last.advantage}); {alone} it has "
            f"{with_interval(scores.effective_rank, '.2f')}, and unrelated rows of the same norms "
            f"{with_interval(gaussian.effective_rank, '.2f')}."
        )
    return (*sentences, *(token_findings(tokens) if tokens else ()))


def _against_unrelated(point: TokenRankPoint) -> str:
    ratio = point.nulls["gaussian"].ratio if "gaussian" in point.nulls else None
    return "" if ratio is None or not ratio.is_defined else f", {with_interval(ratio, '.2f')} of unrelated rows"
