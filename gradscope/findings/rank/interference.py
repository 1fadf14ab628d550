"""Whether the prompts of a step work for or against each other, in a sentence for people."""

from __future__ import annotations

from collections.abc import Sequence

from gradscope.results.ranks.interference import Interference
from gradscope.say import percent, with_interval


def interference_findings(steps: Sequence[Interference]) -> tuple[str, ...]:
    """Of the last step under the first advantage, where its interval lies on one side of zero; else nothing."""
    if not steps:
        return ()
    last = max(row.step for row in steps)
    first = next(row for row in steps if row.step == last)
    low, high = first.transfer.interval or (-1.0, 1.0)
    if low <= 0 <= high or first.frac_hurt.value is None:
        return ()
    does = "undo a part of" if high < 0 else "add to"
    return (
        f"At step {last} the gradients of the other prompts {does} what a prompt's own does for its correct answers: "
        f"transfer {with_interval(first.transfer, '.2f')}, and {percent(first.frac_hurt.value)} of the pairs of "
        f"prompts hurt (advantage {first.advantage}, to first order).",
    )
