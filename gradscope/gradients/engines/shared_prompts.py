"""Rows whose sequences begin with the same prompt, and what running it once for all of them saves.

Shapes: N rows of the step, R rows of a group.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from gradscope.gradients.plan.rows import RowPlan

MIN_SHARED = 0.1
"""Share of a plain pass that running each prompt once must save to be worth it: 0.04 was measured to save nothing."""
MIN_PREFIX = 128
"""Tokens that a prompt must have for it: a shorter one costs less than the bookkeeping."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptGroup:
    """Rows that share their prompt."""

    rows: tuple[int, ...]
    """Their indices among the step's rows, [R]."""
    prompt_ids: tuple[int, ...]
    """The prompt that they share."""

    @property
    def prefix_ids(self) -> tuple[int, ...]:
        """The part of the prompt that runs once: its last token predicts the completions' first and runs with them."""
        return self.prompt_ids[:-1]


def group_by_prompt(plan: RowPlan) -> tuple[PromptGroup, ...]:
    """The rows by the ids of their prompts, whatever groups the log put them in, in order of first rows."""
    rows: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for index, row in enumerate(plan.rows):
        rows[plan.sequences[row.sequence].prompt_ids].append(index)
    return tuple(PromptGroup(rows=tuple(indices), prompt_ids=prompt_ids) for prompt_ids, indices in rows.items())


def is_worth_sharing(plan: RowPlan, *, weight_gradients: bool) -> bool:
    """Whether running each prompt once saves enough of a plain pass, and prompts are long: picks ``prompt``."""
    if any(sequence.frame for sequence in plan.sequences):
        return False  # each prompt starts at a place of its own
    groups = group_by_prompt(plan)
    mean_prefix = sum(len(group.prefix_ids) for group in groups) / len(groups)
    return mean_prefix >= MIN_PREFIX and frac_shared(plan, weight_gradients=weight_gradients) >= MIN_SHARED


def frac_shared(plan: RowPlan, *, weight_gradients: bool) -> float:
    """The share of a plain forward and backward pass that running each prompt once saves.

    A token costs one unit forward, one backward, and one for the gradients of the weights where these are large; only
    the forward pass of prompts is shared, so the share is below 1/3 (1/2 for adapters).

    Args:
        weight_gradients: Whether forming weight gradients costs as much as a forward pass: full parameters, not
            adapters.

    Returns:
        A share in [0, 1/2).
    """
    tokens = sum(plan.sequences[row.sequence].length for row in plan.rows)
    saved = sum((len(group.rows) - 1) * len(group.prefix_ids) for group in group_by_prompt(plan))
    return saved / ((3 if weight_gradients else 2) * tokens) if tokens else 0.0
