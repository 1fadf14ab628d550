"""What `gradscope spike` asks of its step while the weights are loaded: layers, and the tokens that pull hardest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gradscope.metrics.gram.row_shares import projection_shares
from gradscope.progress import ProgressCallback, no_progress

if TYPE_CHECKING:
    from gradscope.gradients.plan.prepared_step import PreparedStep
    from gradscope.gradients.step.directions import TensorNorm
    from gradscope.gradients.step.step_gram import StepGram
    from gradscope.gradients.tokens.measure import RolloutTokens


@dataclass(frozen=True, slots=True, kw_only=True)
class SpikeAnswer:
    """What was found."""

    tensors: tuple[TensorNorm, ...]
    """One a parameter."""
    tokens: tuple[RolloutTokens, ...]
    """The rollouts with the largest part of the gradient."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpikeQuestion:
    """Layers and tokens."""

    most_tokens: int
    """Token rows; 0: none."""

    def measure(
        self, prepared: PreparedStep, gram: StepGram, progress: ProgressCallback = no_progress
    ) -> tuple[SpikeAnswer, ...]:
        """Both, where advantages were logged and the gradient is not zero; else nothing."""
        from gradscope.gradients.step.directions import measure_tensor_norms
        from gradscope.gradients.tokens.measure import measure_rollout_tokens

        whole = gram.logged_gram
        if whole is None or not whole.sum() > 0:
            return ()
        tensors = measure_tensor_norms(prepared)
        order = np.argsort(-np.abs(projection_shares(whole)), kind="stable").tolist()
        live = [index for index in order if whole[index].any()]
        tokens = measure_rollout_tokens(prepared, gram, live, most=self.most_tokens) if self.most_tokens else ()
        return (SpikeAnswer(tensors=tensors, tokens=tokens),)
