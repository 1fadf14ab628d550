"""What else is measured at a step while its weights are loaded, and when a recomputed norm matches the logged one.

The Gram matrix of the rollouts is always measured. Everything that needs the model once more is a question that
``measure_steps`` puts to each prepared step; its answer travels in ``MeasuredStep.answer``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gradscope.progress import ProgressCallback, no_progress

if TYPE_CHECKING:
    from gradscope.gradients.plan.prepared_step import PreparedStep
    from gradscope.gradients.step.step_gram import StepGram


RowQuestion = Callable[..., Any]
"""A measurement in addition to the Gram matrix of the rollouts: from the prepared step, that matrix and a callback
``progress`` to the answer."""


def rows_and_more(
    prepared: PreparedStep,
    gram: StepGram,
    *,
    progress: ProgressCallback = no_progress,
    rows: RowQuestion,
    more: RowQuestion,
) -> tuple[Any, Any]:
    """Rows, and something else that is known of the step while its weights are in memory; None where it has none."""
    return rows(prepared, gram, progress=progress), more(prepared, gram, progress=progress)


GRAD_NORM_TOLERANCE = 1e-5
"""Float32 arithmetic in another order gives 1e-7; the smallest real discrepancy seen gives 1e-4."""
ROUNDING_FLOOR = 1e-6
"""Below this share of the score vectors' Frobenius norm a norm is rounding, of log-probabilities that float32 keeps to
2e-7: it matches zero."""

NEAR = 100.0  # so many tolerances off, a norm may still be the logged one in float32: the step's own rounding decides


def meets_logged(norm: float, logged: float, floor: float = 0.0) -> bool:
    """Whether two norms differ by no more than rounding in float32, or than what is rounding whatever they are.

    >>> meets_logged(2.00001, 2.0), meets_logged(2.0002, 2.0), meets_logged(3e-9, 0.0, floor=1e-8)
    (True, False, True)
    """
    return abs(norm - logged) <= max(GRAD_NORM_TOLERANCE * abs(logged), floor)
