"""A step's gradient rows as plain numpy: what every question that costs no backward pass is asked of.

Shapes: R rollouts of a step, P parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gradscope.metrics.gram.spectrum import Array
from gradscope.rollouts.function_rewards import FunctionRewards

if TYPE_CHECKING:
    from gradscope.gradients.step.step_gram import StepGram


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
    own_squared_norms: Array | None = None
    """|s|^2 of the score vectors by all parameters, [R], where ``gram`` is of something else: a formulation that needs
    them stays the same whatever the rows are. NaN where there is no gradient; None: the diagonal of ``gram``."""

    lengths: Array | None = None
    """Tokens of each completion, [R]; None where nobody counted them."""
    functions: FunctionRewards | None = None
    """The rewards of each function; None where they are not known."""

    @property
    def squared_norms(self) -> Array:
        """|s|^2 of each rollout's score vector by all parameters, [R]."""
        if self.own_squared_norms is not None:
            return self.own_squared_norms
        return np.asarray(np.clip(np.diag(self.gram), 0.0, None), dtype=np.float64)

    @property
    def is_live(self) -> NDArray[np.bool_] | None:
        """Which rollouts have a reward gradient that is not zero, [R]; None where no advantage was logged."""
        if self.policy_gram is None:
            return None
        return np.asarray(np.diag(self.policy_gram) > 0)


def step_rows(gram: StepGram, functions: FunctionRewards | None = None) -> StepRows:
    """The blocks of a step's Gram matrix in plain arrays, with the rewards of each function where they are at hand."""
    return StepRows(
        step=gram.step,
        gram=gram.score_gram,
        policy_gram=gram.policy_gram,
        full_gram=gram.logged_gram,
        rewards=gram.rewards,
        advantages=gram.advantages,
        group_ids=gram.group_ids,
        samples=gram.samples,
        num_parameters=gram.num_parameters,
        relative_row_error=gram.relative_row_error,
        lengths=np.array([len(logprobs) for logprobs in gram.logprobs], dtype=np.float64),
        functions=functions,
    )
