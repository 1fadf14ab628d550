"""Several kinds of rows from one loading of the weights."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gradscope.diagnostics.inputs.row_questions import SignalQuestion, TokenQuestion
from gradscope.diagnostics.inputs.steps import MeasuredStep
from gradscope.diagnostics.rank import several
from gradscope.diagnostics.rank.several import SeveralQuestions, collect_kinds, row_question
from gradscope.diagnostics.rank.tokens.kind_energy import KINDS, EnergyQuestion
from gradscope.diagnostics.rank.weights.optimizer_question import OptimizerQuestion, learning_rates
from gradscope.diagnostics.rank.weights.weight_question import WeightQuestion
from gradscope.errors import UsageError
from gradscope.gradients.engine_options import EngineOptions
from gradscope.progress import no_progress
from gradscope.reason import Reason
from tests.diagnostics.made_up_runs import two_steps
from tests.diagnostics.rank.test_request import request
from tests.diagnostics.rank.tokens.made_up_parts import made_up


def test_answers_are_in_the_order_of_the_questions() -> None:
    echo = [
        SimpleNamespace(measure=lambda prepared, gram, progress, name=name: (name, prepared, gram)) for name in "ab"
    ]
    several_of = SeveralQuestions(questions=(echo[0], None, echo[1]))
    assert several_of.measure("step", "gram") == (("a", "step", "gram"), (), ("b", "step", "gram"))


def test_what_a_model_does_not_answer_leaves_the_other_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(prepared: object, gram: object, progress: object) -> tuple[object, ...]:
        raise UsageError("Rows of tokens are measured by one process.")

    questions = SeveralQuestions(questions=(SimpleNamespace(measure=refuse), None))
    answer = questions.measure("step", "gram")
    assert isinstance(answer[0], UsageError)
    assert answer[1] == ()
    examined = []
    step = MeasuredStep(step=1, groups=(), weights=None, gram=None, reason=None, answer=answer)
    monkeypatch.setattr(several, "measure_steps", lambda *_, **__: iter([step]))
    monkeypatch.setattr(several, "examine_step", lambda run, measured, asked, found: examined.append(asked.rows))
    requests = [request(rows="token"), request(rows="rollout")]
    found = collect_kinds(two_steps(), [1], requests, EngineOptions(), no_progress, most=8)
    assert found["token"].skipped == {1: Reason("unusable", "Rows of tokens are measured by one process")}
    assert examined == ["rollout"]


def test_each_kind_asks_for_what_it_needs() -> None:
    assert row_question(request(rows="rollout"), 64) is None
    assert row_question(request(rows="group"), 64) is None
    assert row_question(request(rows="weight"), 64) == WeightQuestion(request=request(rows="weight"))
    assert row_question(request(rows="hidden", seed=3), 64) == SignalQuestion(signal="hidden", most=64, seed=3)
    assert row_question(request(rows="logit"), 64) == SignalQuestion(signal="logit", most=64, seed=0)
    assert row_question(request(rows="token"), 64) == TokenQuestion(most=64, num_buckets=None, seed=0)
    assert row_question(request(rows="token"), 64, 256) == TokenQuestion(most=None, num_buckets=256, seed=0)


def test_a_step_that_cannot_be_recomputed_is_skipped_by_every_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(run, steps, engine, progress, question):
        assert [one is None for one in question.questions] == [True, False]
        for step in steps:
            yield MeasuredStep(step=step, groups=(), weights=None, gram=None, reason=f"no weights of {step}")

    monkeypatch.setattr(several, "measure_steps", measured)
    requests = [request(rows="rollout"), request(rows="token")]
    found = collect_kinds(two_steps(), (1, 2), requests, EngineOptions(), no_progress, most=64)
    assert list(found) == ["rollout", "token"]
    assert all(one.skipped == {1: "no weights of 1", 2: "no weights of 2"} for one in found.values())


def test_kinds_of_tokens_are_kept_and_rows_alone_are_examined(monkeypatch: pytest.MonkeyPatch) -> None:
    made, examined = made_up(), []
    answers = [(tuple(made.grams), made.found), (tuple(made.grams), None)]

    def measured(run, steps, engine, progress, question):
        (asked,) = question.questions
        assert asked == EnergyQuestion(rows=TokenQuestion(most=64, num_buckets=None, seed=0))
        for step, answer in zip(steps, answers, strict=True):
            yield MeasuredStep(step=step, groups=(), weights=None, gram=None, reason=None, answer=(answer,))

    monkeypatch.setattr(several, "measure_steps", measured)
    monkeypatch.setattr(several, "examine_step", lambda run, step, asked, found: examined.append(step.answer))
    found = collect_kinds(two_steps(), (1, 2), [request(rows="token")], EngineOptions(), no_progress, most=64)
    assert examined == [tuple(made.grams)] * 2
    assert [(one.step, one.kind) for one in found["token"].energies] == [(1, kind) for kind in KINDS]
    assert found["token"].weighed == {1: made.found}


def test_steps_of_optimizers_are_asked_beside_rows_of_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    examined = []

    def measured(run, steps, engine, progress, question):
        (asked,) = question.questions
        assert asked == OptimizerQuestion(
            rows=WeightQuestion(request=request(rows="weight")), learning_rates=learning_rates(run)
        )
        yield MeasuredStep(step=1, groups=(), weights=None, gram=None, reason=None, answer=(("ranks", None),))

    monkeypatch.setattr(several, "measure_steps", measured)
    monkeypatch.setattr(several, "examine_step", lambda run, step, asked, found: examined.append(step.answer))
    found = collect_kinds(two_steps(), (1,), [request(rows="weight")], EngineOptions(), no_progress, most=64)
    assert examined == ["ranks"]
    assert found["weight"].optimizers == []
