"""A step's gradient rows as plain numpy: what every question that costs no backward pass is asked of.

Shapes: R rollouts of a step, P parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gradscope.metrics.geometry import batch_norm, gradient_gram

if TYPE_CHECKING:
    from gradscope.gradients.step import StepGram

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRows:
    """The Gram matrices of one step and what belongs to each rollout."""

    step: int
    """The trainer's step."""
    gram: Array
    """Gram matrix K of score vectors, [R, R]."""
    policy_gram: Array | None
    """Gram matrix of the reward part of each rollout's gradient under the logged advantages, [R, R]; None where none
    were logged."""
    full_gram: Array | None
    """The same with the KL part added; equal to ``policy_gram`` without a KL term."""
    frac_kl: float | None
    """Norm of the step's KL gradient over the norm of the whole; None without a KL term."""
    rewards: Array
    """Scalar rewards, NaN where missing, [R]."""
    advantages: Array | None
    """Logged advantages, [R]; None where none were logged or each token has its own."""
    group_ids: tuple[str, ...]
    """The group of each rollout, [R]."""
    samples: tuple[int, ...]
    """The index of each rollout within its group, [R]."""
    num_parameters: int
    """P."""
    relative_row_error: float
    """Relative error of a row, which sets the noise floor."""

    @property
    def is_live(self) -> NDArray[np.bool_] | None:
        """Which rollouts have a reward gradient that is not zero, [R]; None where no advantage was logged."""
        if self.policy_gram is None:
            return None
        return np.asarray(np.diag(self.policy_gram) > 0)


def step_rows(gram: StepGram) -> StepRows:
    """The engine's answer in plain arrays.

    Args:
        gram: The Gram matrix of one step, all channels.

    Returns:
        Its blocks.
    """
    advantages = None
    if all(value is not None for value in gram.advantages):
        advantages = np.array(gram.advantages, dtype=np.float64)
    policy = _own_rows(gram)
    if policy is None and advantages is not None:
        policy = gradient_gram(gram.score_gram, advantages)
    full = None if policy is None else gram.gradient_gram("logged")
    kl = gram.kl_gram
    return StepRows(
        step=gram.step,
        gram=gram.score_gram,
        policy_gram=policy,
        full_gram=full,
        frac_kl=None if kl is None or full is None else _ratio(batch_norm(kl), batch_norm(full)),
        rewards=np.array([np.nan if reward is None else reward for reward in gram.rewards], dtype=np.float64),
        advantages=advantages,
        group_ids=gram.group_ids,
        samples=gram.samples,
        num_parameters=gram.num_parameters,
        relative_row_error=gram.relative_row_error,
    )


def _own_rows(gram: StepGram) -> Array | None:
    """The block of rows that carry the logged advantages themselves, one per token or clipped; None without them."""
    index = [number for number, row in enumerate(gram.rows) if row.channel == "logged"]
    return np.asarray(gram.gram[np.ix_(index, index)], dtype=np.float64) if index else None


def _ratio(part: float, whole: float) -> float | None:
    """None where the whole is zero."""
    return part / whole if whole else None
