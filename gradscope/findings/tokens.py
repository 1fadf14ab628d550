"""What the ranks of token rows say, in sentences for people."""

from __future__ import annotations

from collections.abc import Iterable

from gradscope.advantages.registry import LOGGED
from gradscope.results.rank_tokens import TokenRankPoint


def token_findings(points: Iterable[TokenRankPoint]) -> tuple[str, ...]:
    """The last step's ranks of token rows under the logged or the first advantage, in at most two sentences."""
    ranked = [point for point in points if point.effective_rank.value is not None and point.num_rows.value is not None]
    named = [point for point in ranked if point.advantage == LOGGED] or ranked
    if not named:
        return ("No token of these steps has a weight under these advantages: their matrices are zero.",)
    last = max(named, key=lambda point: (point.step, point.group_size))
    rank, rows = last.effective_rank.value or 0.0, last.num_rows.value or 1.0
    sentences = [
        f"At step {last.step} the {rows:.0f} tokens of a live group span {rank:.1f} directions by effective rank, "
        f"{rank / rows:.0%} of what they could (advantage {last.advantage}, mean over "
        f"{last.num_groups - last.num_dead} live groups)."
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
