"""What else is measured at a step while its weights are loaded, and when a recomputed norm matches the logged one.

The Gram matrix of the rollouts is always measured. Everything that needs the model once more is a question that
``measure_steps`` puts to each prepared step; its answer travels in ``MeasuredStep.answer``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from gradscope.progress import ProgressCallback, no_progress

if TYPE_CHECKING:
    from gradscope.gradients.plan.prepared_step import PreparedStep
    from gradscope.gradients.step.step_gram import StepGram
    from gradscope.gradients.tokens.measure import Signal, StepSignals, TokenGram


class RowQuestion(Protocol):
    """A measurement at a step in addition to the Gram matrix of its rollouts."""

    def measure(
        self, prepared: PreparedStep, gram: StepGram, progress: ProgressCallback = no_progress
    ) -> tuple[Any, ...]:
        """The answer at one step, whose rollouts' Gram matrix is there already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenQuestion:
    """Rows are tokens, as their Gram matrix."""

    most: int | None  # tokens of a group; of more, as many are drawn. None: all.
    num_buckets: int | None = None  # numbers to sketch each row in; None: exact rows
    seed: int = 0  # decides which tokens are drawn, and the sketch

    def measure(
        self, prepared: PreparedStep, gram: StepGram, progress: ProgressCallback = no_progress
    ) -> tuple[TokenGram, ...]:
        """The Gram matrix of the token rows of each group."""
        from gradscope.gradients.tokens.measure import measure_tokens

        return measure_tokens(
            prepared, gram, most=self.most, num_buckets=self.num_buckets, seed=self.seed, progress=progress
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalQuestion:
    """Rows are the gradients by the last hidden state or by the logits, of tokens and of rollouts."""

    signal: Signal  # which of the two
    most: int  # token rows of a group; of more tokens, as many are drawn
    seed: int = 0  # decides which tokens are drawn

    def measure(
        self, prepared: PreparedStep, gram: StepGram, progress: ProgressCallback = no_progress
    ) -> tuple[StepSignals]:
        """The Gram matrices of both."""
        from gradscope.gradients.tokens.measure import measure_signals

        return (measure_signals(prepared, gram, self.signal, most=self.most, seed=self.seed, progress=progress),)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsAndMore:
    """Rows, and something else that is known of the step while its weights are in memory."""

    rows: RowQuestion  # what is asked of the rows
    more: Callable[[PreparedStep, StepGram, ProgressCallback], Any]  # the rest; None where the step has nothing of it

    def measure(
        self, prepared: PreparedStep, gram: StepGram, progress: ProgressCallback = no_progress
    ) -> tuple[tuple[Any, ...], Any]:
        """Both."""
        return self.rows.measure(prepared, gram, progress), self.more(prepared, gram, progress)


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
