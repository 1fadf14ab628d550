"""Several kinds of matrices of the same steps, with the weights of each step loaded once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gradscope.diagnostics.inputs.row_questions import RowQuestion, SignalQuestion, TokenQuestion
from gradscope.diagnostics.inputs.steps import MeasuredStep, measure_steps
from gradscope.diagnostics.rank.collected import Collected, examine_step
from gradscope.diagnostics.rank.request import RankRequest
from gradscope.diagnostics.rank.tokens.kind_energy import EnergyQuestion, kind_energies
from gradscope.diagnostics.rank.weights.optimizer_question import OptimizerQuestion, learning_rates
from gradscope.diagnostics.rank.weights.weight_question import WeightQuestion
from gradscope.errors import UsageError
from gradscope.gradients.engine_options import EngineOptions
from gradscope.progress import ProgressCallback, no_progress
from gradscope.reason import Reason
from gradscope.results.rank import RowKind
from gradscope.rollouts.run import Run

if TYPE_CHECKING:
    from gradscope.gradients.plan.prepared_step import PreparedStep
    from gradscope.gradients.step.step_gram import StepGram


@dataclass(frozen=True, slots=True, kw_only=True)
class SeveralQuestions:
    """What several kinds of rows need of a step, answered together."""

    questions: tuple[RowQuestion | None, ...]
    """One a kind; None for a kind that needs no more than the Gram matrix of the rollouts."""

    def measure(
        self, prepared: PreparedStep, gram: StepGram, progress: ProgressCallback = no_progress
    ) -> tuple[tuple[Any, ...] | UsageError, ...]:
        """The answers, in order; in place of one that this model does not give, why."""
        return tuple(self._answer(question, prepared, gram, progress) for question in self.questions)

    def _answer(
        self, question: RowQuestion | None, prepared: PreparedStep, gram: StepGram, progress: ProgressCallback
    ) -> tuple[Any, ...] | UsageError:
        try:
            return question.measure(prepared, gram, progress) if question else ()
        except UsageError as error:
            return error


def row_question(request: RankRequest, most: int, num_buckets: int | None = None) -> RowQuestion | None:
    """What a kind of rows needs of a step beside the Gram matrix of its rollouts.

    Args:
        most: Token rows of a group; of more tokens, as many are drawn.
        num_buckets: Numbers to sketch each token row in; None: exact rows.

    Returns:
        The question; None for rollouts and groups.
    """
    if request.rows == "weight":
        return WeightQuestion(request=request)
    if request.rows == "hidden" or request.rows == "logit":
        return SignalQuestion(signal=request.rows, most=most, seed=request.seed)
    if request.rows != "token":
        return None
    return TokenQuestion(most=most if num_buckets is None else None, num_buckets=num_buckets, seed=request.seed)


def _question(request: RankRequest, most: int, rates: Mapping[int, float]) -> RowQuestion | None:
    """The same, and what is asked beside rows that are tokens or of weights."""
    question = row_question(request, most)
    if question is None or request.rows not in ("token", "weight"):
        return question
    if request.rows == "token":
        return EnergyQuestion(rows=question)
    return OptimizerQuestion(rows=question, learning_rates=rates)


def _rows_alone(run: Run, measured: MeasuredStep, rows: RowKind, found: Collected) -> MeasuredStep:
    """Take in what was asked beside the rows; the step with the answer about its rows alone."""
    if rows != "token" or not measured.answer:
        return found.take_parts(run, measured, rows)
    answer, weighed = measured.answer
    if weighed is not None:
        found.energies.extend(kind_energies(measured.step, weighed.tokens, answer))
        found.weighed[measured.step] = weighed
    return replace(measured, answer=answer)


def collect_kinds(
    run: Run,
    steps: Sequence[int],
    requests: Sequence[RankRequest],
    engine: EngineOptions,
    progress: ProgressCallback,
    *,
    most: int,
) -> Mapping[RowKind, Collected]:
    """Every kind of matrix that is asked for, of each step.

    Args:
        requests: One a kind of rows.
        most: Token rows of a group; of more tokens, as many are drawn.

    Returns:
        What was found, by kind.
    """
    rates = learning_rates(run)
    question = SeveralQuestions(questions=tuple(_question(request, most, rates) for request in requests))
    found: dict[RowKind, Collected] = {request.rows: Collected() for request in requests}
    for measured in measure_steps(run, steps, engine, progress, question):
        for place, request in enumerate(requests):
            answer = measured.answer[place] if measured.answer else ()
            if isinstance(answer, UsageError):
                found[request.rows].skipped[measured.step] = Reason("unusable", answer.message.rstrip("."))
                continue
            alone = replace(measured, answer=answer)
            examine_step(run, _rows_alone(run, alone, request.rows, found[request.rows]), request, found[request.rows])
    return found
