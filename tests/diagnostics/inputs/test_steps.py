"""Steps are measured, kept and asked; what the disk cannot tell of the trainer's forward pass is said."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from gradscope.diagnostics.inputs import steps
from gradscope.diagnostics.inputs.recomputed import Recomputer
from gradscope.diagnostics.inputs.row_questions import TokenQuestion
from gradscope.diagnostics.inputs.steps import describe_engine
from gradscope.errors import InputError
from gradscope.gradients.engine_options import EngineOptions
from gradscope.gradients.plan.objective import Objective
from gradscope.progress import no_progress
from gradscope.reason import Reason
from gradscope.rollouts.run import TrainerSettings, WeightsRef

ADAPTER = WeightsRef(num_updates=3, path=Path("adapter"), kind="adapter", base="base")
REASON = Reason("batch_split", "why not")


def test_notes_of_all_steps_are_kept_once():
    described: dict[str, object] = {}
    for step, notes in enumerate((("a", "b"), (), ("b", "c"))):
        described = describe_engine({"engine": step, "notes": list(notes)}, described)
    assert described == {"engine": 2, "notes": ["a", "b", "c"]}


def run_of(**options):
    """Two steps with weights, or with a note against each."""
    return SimpleNamespace(
        settings=TrainerSettings(values={}),
        notes=options.get("notes", {}),
        groups_at=lambda step: (),
        weights_before=lambda step: ADAPTER,
    )


def test_the_objective_is_read_once_a_run(monkeypatch):
    asked, read = [], Objective.from_settings
    monkeypatch.setattr(Objective, "from_settings", lambda settings: asked.append(settings) or read(settings))
    measured = list(steps.measure_steps(run_of(notes={1: REASON, 2: REASON}), (1, 2), EngineOptions(), no_progress))
    assert [(step.step, step.reason, step.gram, step.answer) for step in measured] == [
        (1, REASON, None, ()),
        (2, REASON, None, ()),
    ]
    assert len(asked) == 1


def test_a_question_is_put_to_the_model_and_never_answered_from_what_was_kept(monkeypatch):
    question, put = TokenQuestion(most=None, num_buckets=64), []

    def measure(self, step, weights, loss, asked):
        put.append((step, asked))
        return "gram", ("answer",) if asked else ()

    def kept(*_):
        raise AssertionError("only the rollouts' own Gram matrix is kept")

    monkeypatch.setattr(Recomputer, "measure", measure)
    monkeypatch.setattr(steps, "_reason_against", lambda *_: None)
    monkeypatch.setattr(steps, "_kept", kept)
    (measured,) = steps.measure_steps(run_of(), (3,), EngineOptions(unfinished=Path("kept")), no_progress, question)
    assert (measured.gram, measured.answer) == ("gram", ("answer",))
    assert put == [(3, question)]


def test_a_kept_step_is_taken_as_it_is(monkeypatch):
    monkeypatch.setattr(steps, "_reason_against", lambda *_: None)
    monkeypatch.setattr(steps, "_kept", lambda *_: SimpleNamespace(read=lambda: "kept gram"))
    (measured,) = steps.measure_steps(run_of(), (3,), EngineOptions(), no_progress)
    assert (measured.gram, measured.answer, measured.weights) == ("kept gram", (), ADAPTER)


def test_a_step_that_cannot_be_measured_leaves_the_others_alone(monkeypatch):
    def measure(self, step, weights, loss, asked):
        if step == 1:
            raise InputError("It is cut off.", hint="Copy it again.", cause="weights_unreadable")
        if step == 2:
            raise InputError("Something else.")
        return "gram", ()

    monkeypatch.setattr(Recomputer, "measure", measure)
    monkeypatch.setattr(steps, "_reason_against", lambda *_: None)
    first, second, third = steps.measure_steps(run_of(), (1, 2, 3), EngineOptions(), no_progress)
    assert first.reason == Reason("weights_unreadable", "It is cut off", "Copy it again.")
    assert second.reason == Reason("unusable", "Something else")
    assert (third.gram, third.reason) == ("gram", None)


@pytest.mark.parametrize(
    ("step", "cause", "words"),
    [
        (0, "step_unknown", "counted from 1"),
        (1, "first_weights_missing", "pass them with --initial"),
        (2, "weights_unreadable", "is cut off"),
        (3, "weights_missing", "the weights after 2 updates, which made step 3, are not on disk"),
    ],
)
def test_weights_that_cannot_be_used_have_their_own_cause(step, cause, words):
    run = SimpleNamespace(weights=(), unmerged_weights={}, damaged_weights={1: "model.safetensors is cut off"})
    reason = steps.missing_weights(run, step)
    assert reason.cause == cause
    assert words in reason.text
