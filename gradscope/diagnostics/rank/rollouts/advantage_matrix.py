"""The advantages of a group as a matrix, rollouts by tokens: what a token-level advantage can add, before any model.

Where a rollout has one advantage, its row is that number at each of its tokens: rows of equal length are multiples of
one another, and the rank is 1 by construction. Only rows of different length, or advantages token by token, raise it.
No weights are needed, so every step of a log can be asked.

Shapes: R rollouts of a step, T tokens of its longest completion.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gradscope.diagnostics.rank.rollouts.step_rows import StepRows
from gradscope.errors import InputError
from gradscope.metrics.gram.spectrum import Array
from gradscope.rollouts.types import Rollout, RolloutGroup


def advantage_rows(step: int, groups: Sequence[RolloutGroup]) -> StepRows:
    """The inner products of the rollouts' rows, without advantages and with the logged ones.

    Returns:
        The Gram matrices of a step whose columns are token positions.

    Raises:
        InputError: The log does not tell how many tokens a completion has, or a rollout is several sequences.
    """
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    several = next((rollout for rollout in rollouts if rollout.earlier), None)
    if several is not None:
        raise InputError(
            f"Rollout {several.sample} of group {several.group_id} is several sequences, and a row holds the tokens of "
            "one.",
            hint="Ask for a step whose rollouts are one sequence each.",
            cause="several_sequences",
        )
    counted = [_counted(rollout) for rollout in rollouts]
    width = max(len(one) for one in counted)
    scores = np.stack([np.pad(one, (0, width - len(one))) for one in counted])
    logged = [_logged(rollout, one) for rollout, one in zip(rollouts, counted, strict=True)]
    known = [one for one in logged if one is not None]
    gram = scores @ scores.T
    policy = None
    if len(known) == len(rollouts):
        rows = np.stack([np.pad(one, (0, width - len(one))) for one in known])
        policy = np.asarray(rows @ rows.T, dtype=np.float64)
    scalars = [rollout.advantage for rollout in rollouts if rollout.token_advantages is None]
    whole = [one for one in scalars if one is not None]
    return StepRows(
        step=step,
        gram=np.asarray(gram, dtype=np.float64),
        policy_gram=policy,
        full_gram=policy,
        rewards=np.array([math.nan if rollout.reward is None else rollout.reward for rollout in rollouts]),
        advantages=np.array(whole) if len(whole) == len(rollouts) else None,
        group_ids=tuple(rollout.group_id for rollout in rollouts),
        samples=tuple(rollout.sample for rollout in rollouts),
        num_parameters=width,
        relative_row_error=float(np.finfo(np.float64).eps),
        own_squared_norms=np.full(len(rollouts), np.nan),
    )


def _counted(rollout: Rollout) -> Array:
    """1 where a token counts in the loss, [T]."""
    values = (rollout.mask, rollout.token_advantages, rollout.completion_ids, rollout.logprobs)
    length = next((len(one) for one in values if one is not None), None)
    if not length:
        named = f" of group {rollout.group_id}" if rollout.group_id else ""
        raise InputError(
            f"Rollout {rollout.sample}{named} has no token ids, log-probabilities or advantages "
            "of tokens, so its number of tokens is not known.",
            hint="Look at a matrix that a tokenizer can make: --rows rollout.",
        )
    return np.ones(length) if rollout.mask is None else np.array(rollout.mask, dtype=np.float64)


def _logged(rollout: Rollout, counted: Array) -> Array | None:
    if rollout.token_advantages is not None:
        return np.array(rollout.token_advantages) * counted
    return None if rollout.advantage is None else rollout.advantage * counted
