"""Several kinds of matrices of the same steps, with the weights of each step loaded once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gradscope.diagnostics.inputs.row_questions import RowQuestion, SignalQuestion, TokenQuestion
from gradscope.diagnostics.inputs.steps import measure_steps
from gradscope.diagnostics.rank.collected import Collected, examine_step
from gradscope.diagnostics.rank.request import RankRequest
from gradscope.diagnostics.rank.tokens.kind_energy import EnergyQuestion, kind_energies
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


def _question(request: RankRequest, most: int) -> RowQuestion | None:
    """The same, and of rows that are tokens what kinds of them there are."""
    question = row_question(request, most)
    return question if question is None or request.rows != "token" else EnergyQuestion(rows=question)


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
    question = SeveralQuestions(questions=tuple(_question(request, most) for request in requests))
    found: dict[RowKind, Collected] = {request.rows: Collected() for request in requests}
    for measured in measure_steps(run, steps, engine, progress, question):
        for place, request in enumerate(requests):
            answer = measured.answer[place] if measured.answer else ()
            if isinstance(answer, UsageError):
                found[request.rows].skipped[measured.step] = Reason("unusable", answer.message.rstrip("."))
                continue
            if answer and request.rows == "token":
                answer, tokens = answer
                found["token"].energies.extend(
                    kind_energies(measured.step, tokens, answer) if tokens is not None else ()
                )
            examine_step(run, replace(measured, answer=answer), request, found[request.rows])
    return found
