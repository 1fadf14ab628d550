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
    if first.frac_hurt.value is None:
        return ()
    if side := first.transfer.side_of_zero:
        carries = f"by {with_interval(first.transfer, '.2f')} of what it does to the answers that it was trained on"
    elif side := first.cosine.side_of_zero:
        carries = f"with a mean cosine of {with_interval(first.cosine, '.3f')}"
    else:
        return ()
    does = "raises" if side > 0 else "lowers"
    return (
        f"Step {last} {does} the correct answers of the {first.num_heldout} held-out prompts {carries}; "
        f"{percent(first.frac_hurt.value)} of the pairs of a training and a held-out prompt hurt (advantage "
        f"{first.advantage}, to first order).",
    )
