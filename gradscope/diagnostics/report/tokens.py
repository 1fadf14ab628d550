"""The tokens that a report shows: those of the rollouts with the largest part of the largest gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gradscope.diagnostics.inputs.step_loss import loss_at
from gradscope.diagnostics.inputs.steps import MeasuredStep
from gradscope.diagnostics.report.sections.inputs import Unavailable
from gradscope.gradients.engine_options import EngineOptions
from gradscope.metrics.gram.geometry import batch_norm
from gradscope.metrics.gram.row_shares import projection_shares
from gradscope.rollouts.run import Run

if TYPE_CHECKING:
    from gradscope.gradients.step.step_gram import StepGram
    from gradscope.gradients.tokens.rollout_tokens import RolloutTokens

_NOT_ASKED = Unavailable(
    reason="The gradients of single tokens were not computed, as asked (--max-tokens 0).",
    hint="Leave that option out to get them.",
)


def report_tokens(
    run: Run, measured: Sequence[MeasuredStep], absent: Unavailable, most: int, options: EngineOptions
) -> tuple[RolloutTokens, ...] | Unavailable:
    """The tokens of a few rollouts; the weights of their step are loaded once more.

    Args:
        measured: The steps whose gradients were recomputed.
        absent: Why there are none, where there are none.
        most: Most token rows; 0: none.
        options: Device and precision.

    Returns:
        The rollouts with the largest part of the largest gradient, as many as ``most`` tokens allow, or why none.
    """
    if not most:
        return _NOT_ASKED
    live = [step for step in measured if step.gram is not None and _squared_norm(step.gram) > 0]
    if not live:
        return absent
    largest = max(live, key=lambda step: 0.0 if step.gram is None else _squared_norm(step.gram))
    return _measure(run, largest, most, options)


def _squared_norm(gram: StepGram) -> float:
    matrix = gram.policy_gram
    return 0.0 if matrix is None else batch_norm(matrix) ** 2


def _measure(run: Run, measured: MeasuredStep, most: int, options: EngineOptions) -> tuple[RolloutTokens, ...]:
    from gradscope.diagnostics.inputs.recomputed import prepared_of, under
    from gradscope.gradients.plan.trainers.registry import objective_of
    from gradscope.gradients.tokens.rollout_tokens import measure_rollout_tokens

    assert measured.gram is not None, "the caller chooses a step that was recomputed"
    assert measured.gram.policy_gram is not None, "and one whose advantages were logged"
    assert measured.weights is not None, "whose weights are therefore on disk"
    shares = projection_shares(measured.gram.policy_gram)
    order = [index for index in np.argsort(-np.abs(shares), kind="stable").tolist() if shares[index] != 0]
    loss = loss_at(run, objective_of(run.settings), measured.step)
    prepared = prepared_of(run, measured.step, measured.weights, loss, options, measured.gram.batch_tokens)
    if measured.gram.assumption is not None:
        prepared = under(prepared, measured.gram.assumption)
    return measure_rollout_tokens(prepared, measured.gram, order, most=most)
