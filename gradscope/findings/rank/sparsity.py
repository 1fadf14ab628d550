"""What the sparsity of a gradient says, in a sentence for people."""

from __future__ import annotations

from collections.abc import Sequence

from gradscope.results.ranks.tokens import GradientSparsity


def sparsity_findings(by_step: Sequence[GradientSparsity]) -> tuple[str, ...]:
    """What the last step's numbers say, in at most one sentence."""
    last = [one for one in by_step if one.step == by_step[-1].step and one.small.value is not None]
    if not last:
        return ()
    if last[0].parts == "tokens":
        return (
            f"At step {last[0].step} {last[0].small.value:.0%} of the tokens have a row below 1 % of the largest, "
            f"{last[0].zero.value:.0%} exactly zero (Gini {last[0].gini.value:.2f}).",
        )
    even = min(last, key=lambda one: one.gini.value or 0.0)
    uneven = max(last, key=lambda one: one.gini.value or 0.0)
    return (
        f"At step {last[0].step} the entries of the weights' gradients are most even in {even.tensor} (Gini "
        f"{even.gini.value:.2f}, {even.small.value:.0%} below 1 % of the largest) and least in {uneven.tensor} "
        f"({uneven.gini.value:.2f}, {uneven.small.value:.0%}).",
    )
