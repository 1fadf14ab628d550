"""Whether a step carries over to held-out prompts, in a sentence for people."""

from __future__ import annotations

from collections.abc import Sequence

from gradscope.results.ranks.heldout import HeldoutTransfer
from gradscope.say import percent, with_interval


def heldout_findings(steps: Sequence[HeldoutTransfer]) -> tuple[str, ...]:
    """Of the last step under the first advantage, where an interval lies on one side of zero; else nothing."""
    if not steps:
        return ()
    last = max(row.step for row in steps)
    first = next(row for row in steps if row.step == last)
    hurt, cosine = first.frac_hurt, first.cosine
    if hurt.value is None:
        return ()
    of_prompts = f"correct answers of the {first.num_heldout} held-out prompts"
    if side := first.transfer.side_of_zero:
        carries = (
            f"Step {last} {'raises' if side > 0 else 'lowers'} the {of_prompts} by "
            f"{with_interval(first.transfer, '.2f')} of what it does to the answers that it was trained on"
        )
    elif side := cosine.side_of_zero:
        carries = (
            f"The prompts of step {last}, each counted alike, point {'towards' if side > 0 else 'away from'} the "
            f"{of_prompts}: mean cosine {with_interval(cosine, '.3f')}"
        )
    else:
        return ()
    return (
        f"{carries}; {percent(hurt.value)} of the pairs of a training and a held-out prompt hurt (advantage "
        f"{first.advantage}, to first order).",
    )
